"""Measures the error of private quantiles against epsilon: the paper's recipe beside ours.

    python -m paper.studies private_quantile [--quick]

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

import argparse
import dataclasses
import functools
import itertools
import pathlib
import sys
from typing import Any

import numpy as np
import pandas as pd
import tqdm

from paper.studies.private_quantile import figures
from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.pages import page

_CSV = "quantile_error.csv"
# Its columns, first those of what was measured.
_MEASURED = {
  "distribution": str,
  "num_bins": int,
  "bits": int,  # On the wire, for one node.
  "epsilon": float,
  "delta": float,
  "num_clients": int,
  "num_seeds": int,  # How many data sets.
  "recipe": str,
}
# z_q, c, the mean quantile error, which is NaN if the recipe needs more bits, and its standard
# deviation over data sets; and the mean of `quantile_error.error_bounds`.
_RESULTS = {"noise_multiplier": float, "scale": int, "error": float, "sd": float, "bound": float}
# What a terminal shows. The real secure sum takes a tenth of a second: this alone, fewer data sets.
_SHOWN = ("uniform", 64)
_TFF_MAX_SEEDS = 50
_SUMMARY = (
  "Each client adds noise to a binary tree of counts; the server sees the sum alone. The paper's"
  " recipe takes the tree's sensitivity for √(log₂ b) times what it is and reads counts off the"
  " fewest nodes. With the right sensitivity, least squares on the tree and isotonic regression,"
  " the same privacy costs a fraction of the error."
)
_QUICK_SEEDS, _QUICK_MAX_BINS = 20, 64


@dataclasses.dataclass(frozen=True)
class _Plan:
  """The points to measure, from checked flags."""

  num_seeds: int
  num_clients: int
  delta: float
  epsilons: list[float]
  num_bins: list[int]
  bits: list[int]


def _plan(args: argparse.Namespace) -> _Plan:
  from privacy.noise import tree_mechanism

  num_seeds, num_bins = args.num_seeds, list(map(tree_mechanism.check_num_bins, args.num_bins))
  if args.quick:
    num_seeds = min(num_seeds, _QUICK_SEEDS)
    num_bins = [b for b in num_bins if b <= _QUICK_MAX_BINS] or num_bins[:1]
  for name, most in (("epsilons", 100.0), ("bits", 40)):
    values = getattr(args, name)
    if not all(0 < value <= most for value in values):
      texts = ",".join(map(str, values))
      raise ValueError(f"Found --{name}={texts}; expected them in (0, {most:g}].")
  if not 0.0 < args.delta <= 0.5:
    raise ValueError(f"Found --delta={args.delta:g}; expected a number in (0, 0.5].")
  return _Plan(num_seeds, args.num_clients, args.delta, args.epsilons, num_bins, args.bits)


def _read_points(path: pathlib.Path) -> pd.DataFrame:
  """Returns the points of a CSV file, indexed by what was measured; none if there is no file."""
  types = {**_MEASURED, **_RESULTS}
  try:
    table = pd.read_csv(path, float_precision="round_trip")
    table = table[list(types)].astype(types)
  except FileNotFoundError:
    table = pd.DataFrame(columns=list(types)).astype(types)
  except (KeyError, ValueError, TypeError) as error:
    raise ValueError(f"Found {path}, which this experiment did not write; remove it.") from error
  return table.set_index(list(_MEASURED))


def _measure_block(plan: _Plan, distribution: str, num_bins: int, epsilon: float) -> pd.DataFrame:
  """Measures every recipe at every number of bits; returns points as `_read_points` does."""
  from paper.studies.private_quantile import quantile_error

  values = quantile_error.draw_values(distribution, plan.num_seeds, plan.num_clients)
  max_value, _ = quantile_error.DISTRIBUTIONS[distribution]
  points = []

  def add(bits: int, recipe: str, mechanism: Any, errors: np.ndarray, bound: float) -> None:
    measured = (distribution, num_bins, bits, epsilon, plan.delta, plan.num_clients, len(errors))
    stats = (mechanism.noise_multiplier, mechanism.scale, errors.mean(), errors.std(ddof=1), bound)
    points.append((*measured, recipe, *stats))

  for name, recipe in quantile_error.RECIPES.items():
    arguments = (recipe, epsilon, plan.delta, num_bins, plan.num_clients)
    mechanism = quantile_error.build_mechanism(*arguments)
    true_counts, sums = quantile_error.noised_sums(values, mechanism, max_value)
    for bits in plan.bits:
      of_bits, errors, bound = mechanism, np.full(plan.num_seeds, np.nan), np.nan
      if recipe.sensitivity != "l2" or bits >= mechanism.bits_per_entry:
        of_bits = quantile_error.build_mechanism(*arguments, bits=bits)
        errors = quantile_error.errors_of_sums(true_counts, sums, of_bits, recipe)
        bound = float(quantile_error.error_bounds(sums, of_bits, recipe).mean())
      add(bits, name, of_bits, errors, bound)
    if name == "least_squares" and (distribution, num_bins) == _SHOWN:
      errors = quantile_error.errors_in_tff(values[:_TFF_MAX_SEEDS], mechanism, max_value)
      add(mechanism.bits_per_entry, figures.THROUGH_TFF, mechanism, errors, np.nan)
  return pd.DataFrame(points, columns=[*_MEASURED, *_RESULTS]).set_index(list(_MEASURED))


def _measure(plan: _Plan, path: pathlib.Path) -> pd.DataFrame:
  """Measures the points that the CSV at `path` lacks, and writes them; returns all points."""
  from paper.studies.private_quantile import quantile_error

  points = _read_points(path)
  blocks = list(itertools.product(quantile_error.DISTRIBUTIONS, plan.num_bins, plan.epsilons))
  all_wanted = set()
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
      settings = (epsilon, plan.delta, plan.num_clients, plan.num_seeds)
      keys = {
        (distribution, num_bins, bits, *settings, recipe)
        for bits in plan.bits
        for recipe in quantile_error.RECIPES
      }
      all_wanted |= keys
      if not keys <= set(points.index):
        points = pd.concat([points, _measure_block(plan, distribution, num_bins, epsilon)])
        points = points[~points.index.duplicated()]
        atomic_files.write(path, points.reset_index().to_csv(index=False))
      bar.update(num_bins)
  is_wanted = points.index.isin(all_wanted)
  points = points.reset_index()
  in_tff = (points["recipe"] == figures.THROUGH_TFF) & (points["delta"] == plan.delta)
  return points[is_wanted | in_tff]


def report(plan: _Plan, folder: pathlib.Path) -> page.Page:
  """Measures the points of the plan that the folder's quantile_error.csv lacks, and reports all."""
  from paper.studies.private_quantile import quantile_error

  points = _measure(plan, folder / _CSV)
  titles = {name: recipe.title for name, recipe in quantile_error.RECIPES.items()}
  ours = quantile_error.RECIPES["least_squares"]
  blocks = list(itertools.product(quantile_error.DISTRIBUTIONS, plan.num_bins))
  laid_out = {}
  for name, num_bins in blocks:
    settings = (plan.delta, num_bins, plan.num_clients)
    needed = [
      quantile_error.build_mechanism(ours, epsilon, *settings).bits_per_entry
      for epsilon in plan.epsilons
    ]
    laid_out[name, num_bins] = figures.lay_out(
      points, titles, name, num_bins, needed, plan.epsilons, plan.bits
    )
  shown = _SHOWN if _SHOWN in blocks else blocks[0]
  settings_text = f"n = {plan.num_clients}, delta = {plan.delta:g}"
  lead = f"Mean quantile error, {laid_out[shown].title}, {settings_text}:"
  laid_out[shown] = dataclasses.replace(laid_out[shown], lead=lead)
  laid_out[blocks[-1]] = dataclasses.replace(laid_out[blocks[-1]], note=figures.NOTE)
  return page.Page(
    "report",
    "Private quantiles",
    "how far are they from the true ones?",
    f"{plan.num_clients} values, δ = {plan.delta:g}, {plan.num_seeds} data sets a point",
    _SUMMARY,
    [figures.draw(points, titles), *laid_out.values()],
  )


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("output_dir", str, "results", "Directory to write private_quantile/ to.")
  add("quick", bool, False, "Few seeds, at most 64 bins: to see that all works.")
  add("num_seeds", int, 200, "Data sets of each point.", least=2)
  add("num_clients", int, 256, "Values of each data set.", least=2)
  add("delta", float, 1e-5, "delta of the budgets.")
  budgets = [0.25, 0.5, 1.0, 2.0, 5.0, 10.0]
  add("epsilons", float, budgets, "Budgets of a release.", are_several=True)
  add("num_bins", int, [16, 64, 256, 1024], "Numbers of bins.", are_several=True)
  bits = "Numbers of bits on the wire for one node."
  add("bits", int, [10, 12, 16, 20], bits, are_several=True)


def main(args: argparse.Namespace) -> None:
  plan = _plan(args)
  folder = pathlib.Path(args.output_dir, "private_quantile")
  atomic_files.make_folder("output_dir", folder)
  with cli.starting_tensorflow():
    from tff_superquantile.engine import context

  context.set_simulation_context()
  content = report(plan, folder)
  page.write_figures(content, folder)
  paths = [*page.write(content, folder).values(), folder / _CSV]
  print(page.terminal_text(content, paths))
