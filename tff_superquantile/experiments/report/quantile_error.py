"""The figure of private quantiles: quantile error against epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker

from tff_superquantile.experiments.report import style

_CAPTION = (
  "Mean over data sets of |H(j) / n - (1 - θ)|, averaged over θ = 0.1 to 0.9; both axes are"
  " logarithmic. Each panel is one distribution and number of bins. Grey: the paper's recipe, one"
  " dash a number of bits on the wire; where its sums wrap, the error rises. Orange: the same"
  " release with the right sensitivity. Blue: least squares and isotonic regression on it, without"
  " knowing n; diamonds went through TFF's secure sum. Lower is better; few bins cannot go below"
  " their own width."
)


def draw(points: Sequence[Any], titles: Mapping[str, str], through_tff: str) -> style.Figure:
  """Draws quantile errors.

  Args:
    points: Points of `studies.quantile_error`.
    titles: The titles of the recipes "paper", "dyadic" and "least_squares".
    through_tff: The recipe of points that went through TFF's secure sum.

  Returns:
    The figure.
  """
  points = [point for point in points if not math.isnan(point.error)]
  distributions = list(dict.fromkeys(point.distribution for point in points))
  all_bins = sorted({point.num_bins for point in points})
  all_bits = sorted({p.bits for p in points if p.recipe == "paper"})
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
        here = [p for p in points if (p.distribution, p.num_bins) == (distribution, num_bins)]
        for recipe, color in colors.items():
          # Our error does not depend on the bits, as long as they are enough.
          for index, bits in enumerate(all_bits if recipe == "paper" else all_bits[-1:]):
            curve = sorted(
              (p.epsilon, p.error) for p in here if (p.recipe, p.bits) == (recipe, bits)
            )
            dash = style.DASHES[index % len(style.DASHES)]
            axes.plot(*zip(*curve), color=color, linestyle=dash, linewidth=1.5)
            title = titles[recipe]
            title += f", {bits} bits" if recipe == "paper" else ""
            lines[title] = mpl_lines.Line2D([], [], color=color, linestyle=dash, linewidth=2)
        in_tff = [(p.epsilon, p.error) for p in here if p.recipe == through_tff]
        if in_tff:
          color = colors["least_squares"]
          axes.plot(*zip(*in_tff), color=color, marker="D", markersize=4.5, linestyle="none")
        axes.set_title(f"{distribution}, {num_bins} bins")
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_locator(ticker.FixedLocator(sorted({p.epsilon for p in points})))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    for axes in panels[-1]:
      axes.set_xlabel("ε")
    for axes in panels[:, 0]:
      axes.set_ylabel("Quantile error")
    figure.legend(lines.values(), lines.keys(), loc="outside upper left", ncols=min(3, len(lines)))
    svg = style.to_svg(figure)
  return style.Figure("quantile_error", "Quantile error against epsilon", _CAPTION, svg)
