"""Figures of a model family: the models that clients pick, and the gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from paper.studies import by_seed
from tff_superquantile.experiments.config.names import Name
from tff_superquantile.experiments.pages import style


def shares(
  results: pd.DataFrame, methods: Sequence[Name], names: Mapping[str, str]
) -> style.Figure:
  """Draws the share of clients that pick each model, the metric "share" of `tables.of_values`."""
  looks = style.palette(methods)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 0.9 + 0.34 * len(methods)))
    axes = figure.add_subplot()
    for row, method in enumerate(methods):
      values = 100 * by_seed.of_seed(results, method, "share").to_numpy()
      axes.barh(row, values.mean(), 0.62, color=looks[method].color, alpha=0.35)
      _draw_seeds(axes, row, values, looks[method].color)
    axes.set_xlim(left=0)
    axes.set_xlabel("Test clients (%)")
    _name_rows(axes, [names[method] for method in methods])
    svg = style.to_svg(figure)
  return style.Figure(
    "choice-shares",
    "Share of each model",
    "Share of the test clients that pick each model by its error on their held-in examples; mean"
    " over seeds, the bar is a standard deviation over seeds, dots are seeds. Equal shares say that"
    " no model suits all, or that clients cannot tell the models apart: the next figure shows"
    " which.",
    svg,
  )


def gains(results: pd.DataFrame, methods: Sequence[Name], names: Mapping[str, str]) -> style.Figure:
  """Draws the gain of the family over every other way to give clients a model.

  `results` are those of `tables.of_values`, metrics "gain.mean" and "gain.p90". The models have
  colours; `names` are of the ways.
  """
  looks = style.palette(methods)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 0.9 + 0.34 * len(names)))
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for axes, statistic, title in zip(
      panels, ("mean", "p90"), ("Mean error (points lower)", "90th percentile (points lower)")
    ):
      axes.axvline(0, color=style.INK, linewidth=0.9)
      for row, way in enumerate(names):
        values = 100 * by_seed.of_seed(results, way, f"gain.{statistic}").to_numpy()
        _draw_seeds(axes, row, values, looks[way].color if way in looks else style.INK)
      axes.set_title(title)
      _name_rows(axes, list(names.values()))
    svg = style.to_svg(figure)
  return style.Figure(
    "choice-gains",
    "Gain of the choice",
    "Decrease of the error if each client picks its own model instead of getting one as named on"
    " the left, in percentage points, seed by seed (dots), with mean and standard deviation. To the"
    " right of the line, choice gains. “Choices dealt at random” keeps the shares of the models but"
    " deals them to other clients: a gain on it shows how well clients know themselves. The rows"
    " “in hindsight” look at the examples that measure, which flatters them.",
    svg,
  )


def _name_rows(axes: mpl_axes.Axes, names: Sequence[str]) -> None:
  axes.grid(axis="y", visible=False)
  style.name_rows(axes, [style.plain(name) for name in names])


def _draw_seeds(axes: mpl_axes.Axes, row: int, values: np.ndarray, color: str) -> None:
  """Draws one row: a dot a seed, the mean and the standard deviation."""
  if values.size > 1:
    offsets = np.linspace(-0.18, 0.18, values.size)
    axes.plot(values, row + offsets, ".", color=color, markersize=4, alpha=0.75)
    sd = values.std(ddof=1)
    axes.errorbar(values.mean(), row, xerr=sd, color=style.INK, elinewidth=1.1, capsize=3)
  axes.plot(values.mean(), row, "D", color=color, markersize=5.5, markeredgecolor=style.INK)
