"""The figures of the bench: ranks, what theta 0.5 changes where, and what predicts that."""

from __future__ import annotations

from collections.abc import Mapping
import math

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from benchmarks.tailbench import significance
from tff_superquantile.experiments.pages import style

_GAIN, _LOSS = style.COLORS[2], style.COLORS[1]
# What a data set may be told by, before or after a run of FedAvg, and its axis.
PREDICTORS = {
  "loss_spread": "Spread of FedAvg’s client losses (sd / mean)",
  "label_shift": "Labels’ variance between clients (share)",
  "rows_a_client": "Rows a client",
}
_NUM_NAMED = 3  # Of the best and of the worst.


def _colors(changes: pd.DataFrame) -> list[str]:
  """Returns the colour of each change: grey within chance."""
  sides = np.where(changes["change"] < 0, _GAIN, _LOSS)
  return list(np.where(changes["is_sure"], sides, style.PALE))


def draw_changes(changes: pd.DataFrame, method: str) -> style.Figure:
  """Draws what a method changes on each data set, with intervals.

  The changes are rows by data set, the best first: "change", "low" and "high" of p90,
  "mean_change", all in % of FedAvg's number, and "is_sure", whether it remains after the
  correction.
  """
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 1.2 + 0.27 * len(changes)))
    axes = figure.subplots()
    axes.axvline(0.0, color=style.INK, linewidth=1)
    for place, ((_, row), color) in enumerate(zip(changes.iterrows(), _colors(changes))):
      axes.plot([row["low"], row["high"]], [place, place], color=color, linewidth=3)
      axes.plot(row["change"], place, "o", color=color, markersize=6)
      axes.plot(row["mean_change"], place, "|", color=style.INK, markersize=11)
    style.name_rows(axes, [name.replace("_", " ") for name in changes.index])
    axes.set_xlabel(f"Change from FedAvg to {method}, % of FedAvg’s number (left is better)")
    style.add_line_legend(
      figure,
      {
        "p90 with its 95 % interval, within chance": dict(
          color=style.PALE, linewidth=3, marker="o"
        ),
        "lower beyond chance": dict(color=_GAIN, linewidth=3, marker="o"),
        "mean": dict(color=style.INK, linestyle="", marker="|", markersize=11),
        "higher beyond chance": dict(color=_LOSS, linewidth=3, marker="o"),
      },
    )
    svg = style.to_svg(figure)
  return style.Figure(
    "changes",
    f"What {method} changes",
    "Green and orange changes of p90 are beyond chance after Holm’s correction, grey ones are not."
    " Where a stroke is to the right of its dot, the mean pays for the tail.",
    svg,
  )


def draw_ranks(ranks: significance.Ranks) -> style.Figure:
  """Draws the mean rank of each method, with half the critical distance on either side."""
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 1.0 + 0.27 * len(ranks.means)))
    axes = figure.subplots()
    for place, rank in enumerate(ranks.means):
      ends = [rank - ranks.distance / 2, rank + ranks.distance / 2]
      axes.plot(ends, [place, place], color=style.PALE, linewidth=3)
      axes.plot(rank, place, "o", color=style.COLORS[0], markersize=6)
    style.name_rows(axes, list(ranks.means.index))
    axes.set_xlabel("Mean rank over data sets by p90 (left is better)")
    svg = style.to_svg(figure)
  return style.Figure(
    "ranks",
    "Ranks over data sets",
    f"Methods whose bars overlap cannot be told apart by their ranks over {ranks.num_data_sets}"
    f" data sets: a bar is as long as the critical distance, {ranks.distance:.2f} (Nemenyi, 0.05).",
    svg,
  )


def draw_predictors(
  changes: pd.DataFrame, correlations: Mapping[str, float], method: str
) -> style.Figure:
  """Draws a method's change of p90 against what a data set is like.

  The changes are as in `draw_changes`, with the columns of `PREDICTORS`; the correlations of these
  with the change are Spearman's.
  """
  # Those in between lie too close to one another. A name is on the side of the farther neighbour.
  named = [*changes.index[:_NUM_NAMED], *changes.index[-_NUM_NAMED:]]
  gaps = np.diff(changes.loc[named, "change"], prepend=-math.inf, append=math.inf)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.4))
    panels = figure.subplots(1, len(PREDICTORS), sharey=True)
    for axes, (predictor, title) in zip(panels, PREDICTORS.items()):
      axes.axhline(0.0, color=style.INK, linewidth=1)
      axes.scatter(changes[predictor], changes["change"], c=_colors(changes), s=34, zorder=3)
      for name, below, above in zip(named, gaps, gaps[1:]):
        axes.annotate(
          str(name).replace("_", " "),
          (changes.loc[name, predictor], changes.loc[name, "change"]),
          xytext=(4, -8 if above < below else 3),
          textcoords="offset points",
          fontsize=7,
          color=style.INK,
        )
      if predictor == "rows_a_client":
        axes.set_xscale("log")
        style.mark(axes.xaxis, (10, 20, 50, 100))
      axes.set_xlabel(title, fontsize=8)
      axes.set_title(f"rank correlation {correlations[predictor]:+.2f}".replace("-", "−"))
    panels[0].set_ylabel("Change of p90, % of FedAvg’s")
    svg = style.to_svg(figure)
  return style.Figure(
    "predictors",
    f"What tells where {method} helps",
    "Each point is a data set; lower is better. If a quantity told where the method helps, points"
    " would fall or rise from left to right.",
    svg,
  )
