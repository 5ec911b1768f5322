"""Measures the error of private quantiles against epsilon: the paper's recipe beside ours.

    python -m tff_superquantile.experiments.study private_quantile [--quick]

Reproduces the paper's figure "Differentially Private Quantile Estimation": n values from a uniform
or a chi-squared distribution, b bins, a given number of bits on the wire. Every point is the mean
over seeds. Writes

    DIR/private_quantile/report.html           figure, tables and how to read them
    DIR/private_quantile/report.md             the tables
    DIR/private_quantile/quantile_error.csv    every point
    DIR/private_quantile/quantile_error-*.svg  the figure, for a light and for a dark background

Points that are in the CSV already, with the same settings, are not measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import itertools
import math
import pathlib
import sys

from absl import flags
import tqdm

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import tables

_CSV = "quantile_error.csv"
_SHOWN = ("uniform", 64)
_SUMMARY = (
  "Each client adds noise to a binary tree of counts; the server sees the sum alone. The paper's"
  " recipe takes the tree's sensitivity for √(log₂ b) times what it is and reads counts off the"
  " fewest nodes. With the right sensitivity, least squares on the tree and isotonic regression,"
  " the same privacy costs a fraction of the error."
)
_NOTE = (
  "Quantile error: the mean of |H(j) / n − (1 − θ)| over θ = 0.1 to 0.9 and over data sets. The"
  " paper's rows take its conversion from concentrated differential privacy, ours dp-accounting's"
  " Rényi accountant; in both, ε is that of one release without subsampling."
)
_QUICK_SEEDS = 20
_QUICK_MAX_BINS = 64


@dataclasses.dataclass(frozen=True)
class _Plan:
  """The points to measure, from checked flags."""

  num_seeds: int
  num_clients: int
  delta: float
  epsilons: list[float]
  num_bins: list[int]
  bits: list[int]


def _plan() -> _Plan:
  from privacy.noise import tree_mechanism

  num_seeds = flags.FLAGS.num_seeds
  num_bins = [
    tree_mechanism.check_num_bins(b) for b in cli.parse_list("num_bins", flags.FLAGS.num_bins, int)
  ]
  if flags.FLAGS.quick:
    num_seeds = min(num_seeds, _QUICK_SEEDS)
    num_bins = [b for b in num_bins if b <= _QUICK_MAX_BINS] or num_bins[:1]
  epsilons = cli.parse_list("epsilons", flags.FLAGS.epsilons, float)
  if not all(0.0 < epsilon <= 100.0 for epsilon in epsilons):
    raise ValueError(
      f"Found --epsilons={','.join(flags.FLAGS.epsilons)}; expected them in (0, 100]."
    )
  bits = cli.parse_list("bits", flags.FLAGS.bits, int)
  if not all(1 <= b <= 40 for b in bits):
    raise ValueError(f"Found --bits={','.join(flags.FLAGS.bits)}; expected them in 1..40.")
  return _Plan(num_seeds, flags.FLAGS.num_clients, flags.FLAGS.delta, epsilons, num_bins, bits)


def _measure(plan: _Plan, path: pathlib.Path) -> list:
  """Measures the points that the CSV at `path` lacks, and writes them; returns all points."""
  from tff_superquantile.experiments.studies import quantile_error

  points = {point.key: point for point in quantile_error.read_points(path)}
  blocks = list(itertools.product(quantile_error.DISTRIBUTIONS, plan.num_bins, plan.epsilons))
  wanted = set()

  def is_done(distribution: str, num_bins: int, epsilon: float) -> bool:
    settings = (epsilon, plan.delta, plan.num_clients, plan.num_seeds)
    keys = [
      (distribution, num_bins, bits, *settings, recipe)
      for bits in plan.bits
      for recipe in quantile_error.RECIPES
    ]
    wanted.update(keys)
    return all(key in points for key in keys)

  # Progress counts the bins of each block, as time grows with them.
  terminal = sys.stderr.isatty()
  with tqdm.tqdm(
    total=sum(num_bins for _, num_bins, _ in blocks),
    unit="bin",
    desc="quantile error",
    mininterval=0.2 if terminal else 20,
    dynamic_ncols=terminal,
  ) as bar:
    for distribution, num_bins, epsilon in blocks:
      bar.set_postfix_str(
        f"{distribution}, b = {num_bins}, epsilon = {epsilon:g}", refresh=terminal
      )
      if not is_done(distribution, num_bins, epsilon):
        measured = quantile_error.measure(
          distribution,
          num_bins,
          epsilon,
          delta=plan.delta,
          num_clients=plan.num_clients,
          num_seeds=plan.num_seeds,
          all_bits=plan.bits,
        )
        points.update((point.key, point) for point in measured)
        quantile_error.write_points(path, points.values())
      bar.update(num_bins)

  return [
    point
    for key, point in points.items()
    if key in wanted or (point.recipe == quantile_error.THROUGH_TFF and point.delta == plan.delta)
  ]


def _tables(plan: _Plan, points: list) -> list[tables.Table]:
  """Returns a table of recipes against epsilon for each distribution and number of bins."""
  from tff_superquantile.experiments.studies import quantile_error

  blocks = list(itertools.product(quantile_error.DISTRIBUTIONS, plan.num_bins))
  # A terminal shows one table.
  shown = _SHOWN if _SHOWN in blocks else blocks[0]
  laid_out = []
  for distribution, num_bins in blocks:
    here = {
      (p.recipe, p.bits, p.epsilon): p.error
      for p in points
      if p.distribution == distribution and p.num_bins == num_bins
    }

    def errors(title: str, recipe: str, bits: int, here: Mapping = here) -> tables.Row:
      found = [here.get((recipe, bits, epsilon), math.nan) for epsilon in plan.epsilons]
      return tables.Row(title, [tables.Cell("-" if math.isnan(e) else f"{e:.3f}") for e in found])

    rows = []
    for name, recipe in quantile_error.RECIPES.items():
      for bits in plan.bits if name == "paper" else [max(plan.bits)]:
        suffix = f", {bits} bits" if name == "paper" else ""
        rows.append(errors(recipe.title + suffix, name, bits))
    in_tff = {
      p.epsilon: p
      for p in points
      if (p.recipe, p.distribution, p.num_bins)
      == (quantile_error.THROUGH_TFF, distribution, num_bins)
    }
    if in_tff:
      num_seeds = next(iter(in_tff.values())).num_seeds
      found = [f"{in_tff[e].error:.3f}" if e in in_tff else "-" for e in plan.epsilons]
      title = f"the same through TFF's secure sum, {num_seeds} seeds"
      rows.append(tables.Row(title, [*map(tables.Cell, found)]))
    needed = [
      quantile_error.build_mechanism(
        quantile_error.RECIPES["least_squares"], epsilon, plan.delta, num_bins, plan.num_clients
      ).bits_per_entry
      for epsilon in plan.epsilons
    ]
    rows.append(tables.Row("bits that ours needs", [tables.Cell(str(bits)) for bits in needed]))
    title = f"{distribution}, {num_bins} bins"
    lead = f"Mean quantile error, {title}, n = {plan.num_clients}, delta = {plan.delta:g}:"
    laid_out.append(
      tables.Table(
        title,
        ["epsilon", *(f"{epsilon:g}" for epsilon in plan.epsilons)],
        rows,
        lead=lead if (distribution, num_bins) == shown else "",
      )
    )
  last = dataclasses.replace(laid_out[-1], note=_NOTE)
  return [*laid_out[:-1], last]


def report(plan: _Plan, folder: pathlib.Path) -> page.Page:
  """Measures the points that the folder lacks, and reports.

  Args:
    plan: The points.
    folder: The folder of quantile_error.csv.

  Returns:
    The page.

  Raises:
    ValueError: If the folder has a quantile_error.csv of something else.
  """
  from tff_superquantile.experiments.report import quantile_error as figures
  from tff_superquantile.experiments.studies import quantile_error

  points = _measure(plan, folder / _CSV)
  titles = {name: recipe.title for name, recipe in quantile_error.RECIPES.items()}
  return page.Page(
    "report",
    "Private quantiles",
    "how far are they from the true ones?",
    f"{plan.num_clients} values, δ = {plan.delta:g}, {plan.num_seeds} data sets a point",
    _SUMMARY,
    [figures.draw(points, titles, quantile_error.THROUGH_TFF), *_tables(plan, points)],
  )


def define_flags() -> None:
  flags.DEFINE_string("output_dir", "results", "Directory to write private_quantile/ to.")
  flags.DEFINE_bool("quick", False, "Few seeds, at most 64 bins: to see that all works.")
  flags.DEFINE_integer("num_seeds", 200, "Data sets of each point.", lower_bound=2)
  flags.DEFINE_integer("num_clients", 256, "Values of each data set.", lower_bound=2)
  flags.DEFINE_float("delta", 1e-5, "delta of the budgets.", lower_bound=1e-300, upper_bound=0.5)
  flags.DEFINE_list("epsilons", ["0.25", "0.5", "1", "2", "5", "10"], "Budgets of a release.")
  flags.DEFINE_list("num_bins", ["16", "64", "256", "1024"], "Numbers of bins.")
  flags.DEFINE_list("bits", ["10", "12", "16", "20"], "Numbers of bits on the wire for one node.")


def main() -> None:
  plan = _plan()
  folder = pathlib.Path(flags.FLAGS.output_dir, "private_quantile")
  atomic_files.make_folder("output_dir", folder)
  with cli.starting_tensorflow():
    from tff_superquantile.simulation import context

  context.set_simulation_context()
  content = report(plan, folder)
  page.write_figures(content, folder)
  paths = [*page.write(content, folder).values(), folder / _CSV]
  print(page.terminal_text(content, paths))
