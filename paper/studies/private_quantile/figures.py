"""The figure and the tables of private quantiles: quantile error against epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any

from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import pandas as pd

from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

# The recipe of points that went through TFF's secure sum.
THROUGH_TFF = "least_squares_in_tff"

_CAPTION = (
  "Mean over data sets of |H(j) / n - (1 - θ)|, averaged over θ = 0.1 to 0.9; both axes are"
  " logarithmic. Each panel is one distribution and number of bins. Grey: the paper's recipe, one"
  " dash a number of bits on the wire; where its sums wrap, the error rises. Orange: the same"
  " release with the right sensitivity. Blue: least squares and isotonic regression on it, without"
  " knowing n; diamonds went through TFF's secure sum. Lower is better; few bins cannot go below"
  " their own width. Triangles: the theorem’s bound on the paper’s recipe (grey) and that of its"
  " proof for the right sensitivity (orange), which say nothing where they leave the panel."
)
NOTE = (
  "Quantile error: the mean of |H(j) / n − (1 − θ)| over θ = 0.1 to 0.9 and over data sets. The"
  " paper's rows take its conversion from concentrated differential privacy, ours dp-accounting's"
  " Rényi accountant; in both, ε is that of one release without subsampling. Bounds: the theorem’s,"
  " which fails with probability 0.05, and that of its proof; one above 0.72, the mean of"
  " max(θ, 1 − θ), says nothing."
)
_BOUNDS = {
  "paper": "the theorem’s bound for the paper’s recipe",
  "dyadic": "the proof’s bound for the right sensitivity",
}


def draw(points: pd.DataFrame, titles: Mapping[str, str]) -> style.Figure:
  """Draws the points of quantile_error.csv, with the recipes' titles."""
  points = points.dropna(subset="error")
  distributions = list(points["distribution"].unique())
  all_bins = sorted(points["num_bins"].unique())
  all_bits = sorted(points.loc[points["recipe"] == "paper", "bits"].unique())
  colors = {
    "paper": style.GREY,
    "dyadic": style.COLORS[1],
    "least_squares": style.COLORS[0],
  }
  with style.theme():
    size = (style.WIDTH, 0.7 + 2.5 * len(distributions))
    figure = mpl_figure.Figure(size)
    panels = figure.subplots(
      len(distributions), len(all_bins), sharex=True, sharey=True, squeeze=False
    )
    lines = {}
    for row, distribution in zip(panels, distributions):
      for axes, num_bins in zip(row, all_bins):
        here = points[(points["distribution"] == distribution) & (points["num_bins"] == num_bins)]
        for recipe, index, title, curve in _curves(here, titles, all_bits):
          curve = curve.sort_values(["epsilon", "error"])
          color, dash = colors[recipe], style.DASHES[index % len(style.DASHES)]
          axes.plot("epsilon", "error", data=curve, color=color, linestyle=dash, linewidth=1.5)
          lines[title] = mpl_lines.Line2D([], [], color=color, linestyle=dash, linewidth=2)
        for recipe, bounds in _bounds(here):
          look: dict[str, Any] = dict(color=colors[recipe], linewidth=0.8, marker="v", markersize=4)
          axes.plot("epsilon", "bound", data=bounds, **look)
          lines[_BOUNDS[recipe]] = mpl_lines.Line2D([], [], **look)
        in_tff = here[here["recipe"] == THROUGH_TFF]
        if not in_tff.empty:
          color = colors["least_squares"]
          axes.plot("epsilon", "error", "D", data=in_tff, color=color, markersize=4.5)
        axes.set_title(f"{distribution}, {num_bins} bins")
        axes.set(xscale="log", yscale="log")
        axes.set_ylim(0.8 * points["error"].min(), 1.0)
        style.mark(axes.xaxis, sorted(points["epsilon"].unique()))
        style.mark(axes.yaxis, ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    for axes in panels[-1]:
      axes.set_xlabel("ε")
    for axes in panels[:, 0]:
      axes.set_ylabel("Quantile error")
    figure.legend(lines.values(), lines.keys(), loc="outside upper left", ncols=min(3, len(lines)))
    svg = style.to_svg(figure)
  return style.Figure("quantile_error", "Quantile error against epsilon", _CAPTION, svg)


def lay_out(
  points: pd.DataFrame,
  titles: Mapping[str, str],
  distribution: str,
  num_bins: int,
  needed_bits: Sequence[int],
  epsilons: Sequence[float],
  all_bits: Sequence[int],
) -> tables.Table:
  """Lays out the errors of the recipes against epsilon, a column each, for one distribution.

  The least squares need `needed_bits`, one number for each epsilon; `all_bits` are those of the
  paper's rows.
  """
  points = points[(points["distribution"] == distribution) & (points["num_bins"] == num_bins)]
  curves = {title: of_curve for _, _, title, of_curve in _curves(points, titles, all_bits)}
  in_tff = points[points["recipe"] == THROUGH_TFF].drop_duplicates("epsilon", keep="last")
  for num_seeds in in_tff["num_seeds"][:1]:
    curves[f"the same through TFF's secure sum, {num_seeds} seeds"] = in_tff
  rows = []
  for title, of_row in curves.items():
    errors = of_row.drop_duplicates("epsilon", keep="last").set_index("epsilon")["error"]
    texts = ("-" if math.isnan(error) else f"{error:.3f}" for error in errors.reindex(epsilons))
    rows.append(tables.Row(title, [*map(tables.Cell, texts)]))
  for recipe, bounds in _bounds(points):
    texts = (f"{bound:.2f}" for bound in bounds.set_index("epsilon")["bound"].reindex(epsilons))
    rows.append(tables.Row(_BOUNDS[recipe], [*map(tables.Cell, texts)]))
  rows.append(tables.Row("bits that ours needs", [tables.Cell(str(bits)) for bits in needed_bits]))
  headings = ["epsilon", *(f"{epsilon:g}" for epsilon in epsilons)]
  return tables.Table(f"{distribution}, {num_bins} bins", headings, rows)


def _bounds(points: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
  """Yields recipe and points of each bound of a panel, for the most bits."""
  points = points.dropna(subset="bound").sort_values(["epsilon", "bits"])
  for recipe in _BOUNDS:
    of_recipe = points[points["recipe"] == recipe].drop_duplicates("epsilon", keep="last")
    if not of_recipe.empty:
      yield recipe, of_recipe


def _curves(
  points: pd.DataFrame, titles: Mapping[str, str], all_bits: Sequence[int]
) -> Iterator[tuple[str, int, str, pd.DataFrame]]:
  """Yields recipe, index among its curves, title and points of each curve of a panel."""
  for recipe, title in titles.items():
    of_recipe = points[points["recipe"] == recipe]
    # Ours does not depend on the bits as long as they are enough.
    for index, bits in enumerate(all_bits if recipe == "paper" else [max(all_bits)]):
      suffix = f", {bits} bits" if recipe == "paper" else ""
      yield recipe, index, title + suffix, of_recipe[of_recipe["bits"] == bits]
