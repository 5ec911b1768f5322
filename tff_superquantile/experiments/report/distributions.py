"""The figures of the distribution of the leading measure over clients."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np
import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import style

_SMALL = (4.6, 2.9)  # Inches, half a page or a phone.
_MOST_BINS = {style.WIDTH: 25, _SMALL[0]: 14}


def error_histogram(groups: grouped.Grouped) -> style.Figure:
  """Draws the share of the test clients at each level of the leading measure."""
  values_of = _values(groups)
  if groups.are_few():  # Few are each in the figure of clients' changes.
    raise style.NothingToDraw
  svg = _drawn(groups, values_of, style.palette(list(groups)), (style.WIDTH, 3.7))
  return style.Figure(
    "error-histogram",
    "Badly served clients",
    f"Share of the test clients at each {groups.leading.words}, the clients of all seeds together;"
    " of up to four methods, a dotted line is their 90th percentile. A method that serves the"
    " worst-off clients has less at the right end, and pays for it, if at all, by less at the left"
    " end.",
    svg,
    _in_words(groups, values_of),
  )


def picture(groups: grouped.Grouped, looks: Mapping[str, style.Look]) -> style.Figure:
  """Draws two or three methods for a report's first screen; of few clients, each as a point."""
  values_of = _values(groups)
  what = f"Test clients by their {groups.leading.words}"
  caption = "Further right is worse; a dotted line is the 90th percentile."
  if groups.are_few():
    caption = "Each point is a test client; further right is worse."
  svg = _drawn(groups, values_of, looks, _SMALL)
  return style.Figure("clients", what, caption, svg, _in_words(groups, values_of))


def _values(groups: grouped.Grouped) -> dict[names.Name, pd.Series]:
  values_of = {method: clients["value"] for method, clients in groups.clients.items()}
  if not values_of:
    raise style.NothingToDraw
  return values_of


def _in_words(groups: grouped.Grouped, values_of: Mapping[names.Name, pd.Series]) -> str:
  """Says the percentiles of the clients of each method, of few clients all of them."""
  unit = groups.leading.unit
  quantiles = {"median": 50, "90th percentile": 90, "largest": 100}
  told = (
    f"{method.label}: "
    + ", ".join(
      f"{name} {unit.text(np.percentile(values, level) / unit.factor)}"
      for name, level in quantiles.items()
    )
    for method, values in values_of.items()
  )
  return "; ".join(told) + "."


def _drawn(
  groups: grouped.Grouped,
  values_of: Mapping[names.Name, pd.Series],
  looks: Mapping[str, style.Look],
  size: tuple[float, float],
) -> bytes:
  """Draws a figure of `size` in inches: a histogram, or the points of few clients."""
  leading, unit = groups.leading, groups.leading.unit
  with style.theme():
    figure = mpl_figure.Figure(size)
    axes = figure.add_subplot()
    if groups.are_few():
      _points(axes, values_of, looks)
    else:
      largest = _histogram(axes, groups, values_of, looks, _MOST_BINS[size[0]])
      axes.set_xlim(0, largest)
      axes.set_ylabel("Test clients (%)")
    axes.set_xlabel(unit.axis(f"{leading.title} of a test client"))
    style.add_legend(figure, looks, list(values_of))
    return style.to_svg(figure)


def _points(
  axes: mpl_axes.Axes, values_of: Mapping[names.Name, pd.Series], looks: Mapping[str, style.Look]
) -> None:
  """Draws a row of points for each method."""
  for place, (method, values) in enumerate(values_of.items()):
    axes.plot(values, np.full(len(values), -place), "o", color=looks[method].color, alpha=0.7)
  axes.set(ylim=(0.5 - len(values_of), 0.5), yticks=[])


def _histogram(
  axes: mpl_axes.Axes,
  groups: grouped.Grouped,
  values_of: Mapping[names.Name, pd.Series],
  looks: Mapping[str, style.Look],
  most_bins: int,
) -> float:
  """Draws the share of the clients in bins of equal width from zero; returns their end."""
  largest = max(values.max() for values in values_of.values())
  if groups.leading.name == "loss":
    # A few clients with enormous losses would leave the others no room.
    largest = min(largest, 1.5 * max(np.percentile(values, 99) for values in values_of.values()))
  edges = ticker.MaxNLocator(most_bins, steps=(1, 2, 4, 5, 10)).tick_values(0.0, largest)
  is_wide = len(values_of) <= 4
  for method, values in values_of.items():
    look = looks[method]
    # Rounding keeps 28.999999 out of the bin below 29.
    counts, _ = np.histogram(np.round(np.minimum(values, largest), 6), edges)
    axes.stairs(
      100 * counts / len(values),
      edges,
      color=look.color,
      linestyle=look.dash,
      linewidth=1.8 if is_wide else 1.2,
    )
    if is_wide:
      axes.axvline(
        np.percentile(values, 90), color=look.color, linestyle=(0, (2, 2)), linewidth=1.2
      )
  return float(edges[-1])
