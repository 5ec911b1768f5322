"""The error of private quantiles against epsilon: the paper's recipe beside ours.

    python -m tff_superquantile.experiments.private_quantile [--quick]

Reproduces the paper's figure "Differentially Private Quantile Estimation": n values from a uniform
or a chi-squared distribution, b bins, a given number of bits on the wire. Every point is the mean
over seeds. Writes

    DIR/private_quantile/report.html           figure, tables and how to read them
    DIR/private_quantile/report.md             the tables
    DIR/private_quantile/quantile_error.csv    every point
    DIR/private_quantile/quantile_error-*.svg  the figure, for a light and for a dark background

Points that are in the CSV already, with the same settings, are not measured again.
"""

import dataclasses
import itertools
import pathlib
import sys

from absl import flags
import markupsafe
import tqdm

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "results", "Where OUTPUT_DIR/private_quantile/ is written."
)
_QUICK = flags.DEFINE_bool("quick", False, "Few seeds, at most 64 bins: to see that all works.")
_NUM_SEEDS = flags.DEFINE_integer("num_seeds", 200, "Data sets a point.", lower_bound=2)
_NUM_CLIENTS = flags.DEFINE_integer("num_clients", 256, "Values a data set.", lower_bound=2)
_DELTA = flags.DEFINE_float(
  "delta", 1e-5, "Of (epsilon, delta)-differential privacy.", lower_bound=1e-300, upper_bound=0.5
)
_EPSILONS = flags.DEFINE_list("epsilons", ["0.25", "0.5", "1", "2", "5", "10"], "Of each release.")
_NUM_BINS = flags.DEFINE_list("num_bins", ["16", "64", "256", "1024"], "Powers of two.")
_BITS = flags.DEFINE_list("bits", ["10", "12", "16", "20"], "On the wire, for one node.")

_QUICK_SEEDS = 20
_QUICK_MAX_BINS = 64


@dataclasses.dataclass(frozen=True)
class _Plan:
  """What to measure: the flags, checked."""

  num_seeds: int
  num_clients: int
  delta: float
  epsilons: list[float]
  num_bins: list[int]
  bits: list[int]


def _plan() -> _Plan:
  from privacy import tree_mechanism

  num_seeds = _NUM_SEEDS.value
  num_bins = [
    tree_mechanism.check_num_bins(b) for b in cli.parse_list("num_bins", _NUM_BINS.value, int)
  ]
  if _QUICK.value:
    num_seeds = min(num_seeds, _QUICK_SEEDS)
    num_bins = [b for b in num_bins if b <= _QUICK_MAX_BINS] or num_bins[:1]
  epsilons = cli.parse_list("epsilons", _EPSILONS.value, float)
  if not all(0.0 < epsilon <= 100.0 for epsilon in epsilons):
    raise ValueError(f"Found --epsilons={','.join(_EPSILONS.value)}; expected them in (0, 100].")
  bits = cli.parse_list("bits", _BITS.value, int)
  if not all(1 <= b <= 40 for b in bits):
    raise ValueError(f"Found --bits={','.join(_BITS.value)}; expected them in 1..40.")
  return _Plan(num_seeds, _NUM_CLIENTS.value, _DELTA.value, epsilons, num_bins, bits)


def run(plan: _Plan, path: pathlib.Path) -> list:
  """Measures what the CSV at `path` lacks, and keeps it up to date; returns all points."""
  from tff_superquantile.experiments import quantile_error

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

  # By how many numbers of noise each takes.
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


def _tables(plan: _Plan, points: list) -> list[tuple[str, list[list[str]]]]:
  """For each distribution and number of bins a table of recipes against epsilon."""
  from tff_superquantile.experiments import quantile_error

  tables = []
  for distribution, num_bins in itertools.product(quantile_error.DISTRIBUTIONS, plan.num_bins):
    here = {
      (p.recipe, p.bits, p.epsilon): p
      for p in points
      if p.distribution == distribution and p.num_bins == num_bins
    }
    lines = [["epsilon", *[f"{epsilon:g}" for epsilon in plan.epsilons]]]
    for name, recipe in quantile_error.RECIPES.items():
      for bits in plan.bits if name == "paper" else [max(plan.bits)]:
        found = [here.get((name, bits, epsilon)) for epsilon in plan.epsilons]
        title = f"{recipe.title}, {bits} bits" if name == "paper" else recipe.title
        lines.append(
          [title, *["-" if p is None or p.error is None else f"{p.error:.3f}" for p in found]]
        )
    through_tff = {e: p for (name, _, e), p in here.items() if name == quantile_error.THROUGH_TFF}
    if through_tff:
      found = [through_tff.get(epsilon) for epsilon in plan.epsilons]
      title = (
        f"the same through TFF's secure sum, {next(iter(through_tff.values())).num_seeds} seeds"
      )
      lines.append([title, *["-" if p is None else f"{p.error:.3f}" for p in found]])
    needed = []
    for epsilon in plan.epsilons:
      mechanism = quantile_error.build_mechanism(
        quantile_error.RECIPES["least_squares"], epsilon, plan.delta, num_bins, plan.num_clients
      )
      needed.append(str(mechanism.bits_per_entry))
    lines.append(["bits that ours needs", *needed])
    tables.append((f"{distribution}, {num_bins} bins", lines))
  return tables


def main() -> None:
  plan = _plan()
  folder = pathlib.Path(_OUTPUT_DIR.value, "private_quantile")
  cli.make_folder("output_dir", folder)
  with cli.starting_tensorflow():
    from tff_superquantile.experiments import pages
    from tff_superquantile.experiments import quantile_error_plot
    from tff_superquantile.simulation import context

  context.set_simulation_context()
  csv_path = folder / "quantile_error.csv"
  points = run(plan, csv_path)
  tables = _tables(plan, points)
  figure = quantile_error_plot.draw(points)
  for theme, svg in (("light", figure.light), ("dark", figure.dark)):
    atomic_files.write(folder / f"quantile_error-{theme}.svg", svg.decode())
  content = dict(
    num_clients=plan.num_clients, num_seeds=plan.num_seeds, delta=plan.delta, tables=tables
  )
  atomic_files.write(
    folder / "report.html",
    pages.render("private_quantile.html.j2", **content, figure=figure),
  )
  laid_out = [(title, markupsafe.Markup(pages.markdown_table(lines))) for title, lines in tables]
  atomic_files.write(
    folder / "report.md",
    pages.render("private_quantile.md.j2", **dict(content, tables=laid_out)),
  )
  shown = next((t for t in laid_out if t[0] == "uniform, 64 bins"), laid_out[0])
  print(f"\nMean quantile error, {shown[0]}, n = {plan.num_clients}, delta = {plan.delta:g}:\n")
  print(shown[1])
  print("\nReport:", *(f"  {folder / n}" for n in ("report.html", "report.md")), sep="\n")
  print(f"  {csv_path}")


if __name__ == "__main__":
  cli.run(main)
