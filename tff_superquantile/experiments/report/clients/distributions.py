"""Figures of the distributions of loss and error over clients."""

from __future__ import annotations

from collections.abc import Mapping
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.run import names

_DOTS = (
  "Each dot is a test client, the clients of all seeds together, a row a method. Look at the right"
  " end: a method that serves the worst-off clients has no dots there."
)


def error_histogram(groups: grouped.Grouped) -> style.Figure:
  """Draws the distribution of the leading measure over the test clients."""
  caption = (
    f"Share of the test clients at each {groups.leading.words}, the clients of all seeds together."
    " Above, a dot marks each method’s mean and a diamond its 90th percentile (mean over seeds)."
    " Look at the right end: a method that serves the worst-off clients has less there, and pays"
    " for it, if at all, by having less at the left end."
  )
  caption = _DOTS if groups.are_few() else caption
  return style.Figure("error-histogram", "Badly served clients", caption, _histogram(groups))


def bin_edges(largest: float) -> np.ndarray:
  """Returns the edges of at most 25 bins of a round width, from zero to beyond `largest`."""
  power = 10.0 ** math.floor(math.log10(max(largest / 25, 1e-4)))
  width = next(step * power for step in (1, 2, 4, 5, 10) if largest <= 25 * step * power)
  return np.arange(0, largest + 1.5 * width, width)


def _histogram(groups: grouped.Grouped) -> bytes:
  """Draws the distribution of the leading measure over clients, below each method's mean, p90."""
  leading, unit = groups.leading, groups.leading.unit
  values_of = {method: clients["value"] for method, clients in groups.clients.items()}
  if not values_of:
    raise style.NothingToDraw(
      f"No histogram of the {leading.name}: the runs have none of test clients."
    )
  title = unit.axis(f"{leading.title} of a test client")
  if groups.are_few():
    return _dots(values_of, title)
  largest = max(values.max() for values in values_of.values())
  if leading.name == "loss":
    # A few clients with enormous losses would leave the others no room.
    largest = min(largest, 1.5 * max(np.percentile(values, 99) for values in values_of.values()))
  if not math.isfinite(largest):
    raise style.NothingToDraw(f"No histogram of the {leading.name}: it is infinite.")
  edges = bin_edges(largest)
  reported = groups.aggregates["mean"]
  looks = style.palette(list(groups))
  few = len(values_of) <= 4
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.7 + 0.22 * len(values_of)))
    heights = [0.22 * len(values_of) + 0.1, 3.1]
    panels = figure.subplots(2, 1, sharex=True, squeeze=False, height_ratios=heights)
    strip, axes = panels[:, 0]
    for row, (method, values) in enumerate(values_of.items()):
      color = looks[method].color
      # Rounding keeps 28.999999 out of the bin below 29.
      style.add_steps(
        axes,
        np.round(np.minimum(values, largest), 6),
        edges,
        0.18 if row == 0 else 0.0,
        color=color,
        linestyle=looks[method].dash,
        linewidth=1.8 if few else 1.2,
      )
      mean, p90 = (
        reported.get((method, leading.metric(statistic)), default / unit.factor) * unit.factor
        for statistic, default in (("mean", values.mean()), ("p90", np.percentile(values, 90)))
      )
      strip.plot([mean, p90], [row, row], color=color, linestyle=looks[method].dash, linewidth=1.6)
      for value, marker, name, side in ((mean, "o", "mean", -1), (p90, "D", "p90", 1)):
        strip.plot(value, row, marker=marker, color=color, markersize=5)
        _annotate(strip, f"{name} {unit.text(value / unit.factor)}", (value, row), side, color)
      if few:
        axes.axvline(p90, color=color, linestyle=(0, (2, 2)), linewidth=1.2)
    strip.set_ylim(len(values_of) - 0.4, -0.6)
    strip.axis("off")
    axes.set(xlim=(0, edges[-1]), xlabel=title)
    axes.set_ylabel("Test clients (%)")
    style.add_legend(figure, looks, list(values_of))
    return style.to_svg(figure)


def _dots(values_of: Mapping[names.Name, pd.Series], title: str) -> bytes:
  """Draws few clients: a dot each, a row a method."""
  looks = style.palette(list(values_of))
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 0.9 + 0.35 * len(values_of)))
    axes = figure.add_subplot()
    for row, (method, values) in enumerate(values_of.items()):
      rows = np.full(len(values), row)
      axes.plot(values, rows, "o", color=looks[method].color, markersize=6, alpha=0.6)
    axes.set(xlim=(0, 1.06 * axes.get_xlim()[1]), xlabel=title)
    style.name_rows(axes, [style.label(method.label, 48) for method in values_of])
    return style.to_svg(figure)


def _annotate(
  axes: mpl_axes.Axes, text: str, place: tuple[float, float], side: int, color: str
) -> None:
  """Writes a text to the left (-1) or to the right (1) of a mark."""
  axes.annotate(
    text,
    place,
    (side * 8, 0),
    va="center",
    ha="left" if side > 0 else "right",
    color=color,
    fontsize=9,
    textcoords="offset points",
    annotation_clip=False,
  )
