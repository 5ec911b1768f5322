"""The parts that the studies of the theory share: command, checks, tables, rates and axes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
import sys
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import numpy as np
import pandas as pd
import tqdm

from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

# Rates are fitted to this many of the largest numbers of rounds.
NUM_FITTED = 5
DASHED, DASH_DOTTED = (0, (5, 2)), (0, (6, 2, 1.5, 2))
_QUICK_SEEDS = 2


def define(parser: command_line.Parser, name: str, num_seeds: int) -> None:
  """Adds the flags of a study, by its folder's name."""
  add = functools.partial(command_line.add_flag, parser)
  add("output_dir", str, "results", f"Directory to write {name}/ to.")
  add("figures_dir", str, "", "Directory for the figures as SVG files; empty for none.")
  add("quick", bool, False, "Few rounds and seeds: to see that all works.")
  add("num_seeds", int, num_seeds, "Runs of each setting with cohorts.", least=2)


def main(
  args: argparse.Namespace,
  name: str,
  report: Callable[[int, bool], tuple[page.Page, dict[str, str], dict[str, bool]]],
) -> None:
  """Carries out the command of a study, by its folder's name.

  `report` takes the number of seeds and whether to be quick; it returns the page, the contents of
  further files by their names, and the checks with their results.
  """
  folder = pathlib.Path(args.output_dir, name)
  atomic_files.make_folder("output_dir", folder)
  figures_dir = args.figures_dir
  if figures_dir:
    atomic_files.make_folder("figures_dir", pathlib.Path(figures_dir))
  quick, num_seeds = args.quick, args.num_seeds
  content, files, checks = report(min(num_seeds, _QUICK_SEEDS) if quick else num_seeds, quick)
  for file, text in files.items():
    atomic_files.write(folder / file, text)
  paths = [*page.write(content, folder).values(), *(folder / file for file in files)]
  print(page.terminal_text(content, paths))
  if figures_dir:
    paths = page.write_figures(content, pathlib.Path(figures_dir), f"{name}-")
    print("Figures:", *paths, sep="\n  ")
  failed = [text for text, holds in checks.items() if not holds]
  if failed:
    cli.fail(f"Found that not all that must hold does: {'; '.join(failed)}.", cli.FAILED)


def progress(values: Sequence[Any], name: str) -> tqdm.tqdm:
  """Returns the values with a bar of progress in a terminal, and few lines elsewhere."""
  terminal = sys.stderr.isatty()
  return tqdm.tqdm(values, desc=name, dynamic_ncols=terminal, mininterval=0.2 if terminal else 20)


def describe_checks(checks: Mapping[str, bool]) -> page.Text:
  """Describes checks and their results in a sentence."""
  results = (f"{'passed' if holds else 'FAILED'}, {text}" for text, holds in checks.items())
  return page.Text("Checks: " + "; ".join(results) + ".")


def rate(points: pd.DataFrame, column: str) -> float:
  """Returns the slope of a column's log against log T of one setting: -1 is 1 / T.

  It is over the largest T, "num_rounds".
  """
  largest = points.sort_values("num_rounds").tail(NUM_FITTED)
  return float(np.polyfit(np.log(largest["num_rounds"]), np.log(largest[column]), 1)[0])


def table(
  title: str,
  first: str,
  frame: pd.DataFrame,
  formats: Sequence[Callable[[Any], str]],
  note: str,
  lead: str = "",
) -> tables.Table:
  """Lays out a frame with a format for each column; the index has the names of the rows.

  `first` is the heading of the index; note and lead are those of `tables.Table`.
  """
  rows = [
    tables.Row(name, [tables.Cell(form(value)) for form, value in zip(formats, values)])
    for name, *values in frame.itertuples(name=None)
  ]
  return tables.Table(title, [first, *frame.columns], rows, note, lead=lead)


def scale_logarithmically(axes: mpl_axes.Axes) -> None:
  """Makes both axes logarithmic, without minor ticks, and writes numbers below in full."""
  axes.set(xscale="log", yscale="log")
  axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
  axes.yaxis.set_major_locator(ticker.LogLocator(10, numticks=20))
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_minor_locator(ticker.NullLocator())


def mark_rounds(axes: mpl_axes.Axes, all_rounds: Sequence[int]) -> None:
  """Marks numbers of rounds, powers of two, and writes every third."""
  axes.xaxis.set_major_locator(ticker.FixedLocator(all_rounds))
  labels = [f"{x:g}" if np.log2(x) % 3 == 1 else "" for x in all_rounds]
  axes.xaxis.set_major_formatter(ticker.FixedFormatter(labels))


def add_legend(figure: mpl_figure.Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
  """Adds a legend of lines above a figure; each look has the properties that make it differ."""
  lines = [mpl_lines.Line2D([], [], **{"color": style.GREY, **look}) for look in looks.values()]
  figure.legend(lines, list(looks), loc="outside upper left", ncols=len(lines), columnspacing=1.2)


def descending(column: pd.Series) -> list[float]:
  """Returns the different values of a column, the largest first."""
  return sorted(column.unique(), reverse=True)
