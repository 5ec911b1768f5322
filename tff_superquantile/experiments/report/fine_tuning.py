"""Figures of personalized models: error before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report.clients import distributions
from tff_superquantile.experiments.run.names import Name

WHEN = ("before", "after")


def arrows(results: pd.DataFrame, methods: Sequence[Name]) -> style.Figure:
  """Draws for each method, a row each, an arrow from the error before fine-tuning to that after it.

  The metrics of `tables.of_values` are such as "before.error.p90".
  """
  looks = style.palette(methods)
  aggregates = tables.over_seeds(results)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 1.2 + 0.36 * len(methods)))
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for axes, statistic, title in zip(
      panels, ("mean", "p90"), ("Mean error (%)", "90th percentile of the error (%)")
    ):
      for row, method in enumerate(methods):
        color = looks[method].color
        before, after = (
          100 * aggregates.loc[(method, f"{when}.error.{statistic}")] for when in WHEN
        )
        # Bars and arrow lie apart, so that they do not hide each other.
        ends = ((after["mean"], row + 0.16), (before["mean"], row - 0.16))
        arrow = dict(arrowstyle="-|>", color=color, lw=1.2, shrinkA=5, shrinkB=5, alpha=0.7)
        axes.annotate("", *ends, arrowprops=arrow)
        for (mean, height), entry, fill in zip(ends, (after, before), ("full", "none")):
          axes.errorbar(
            mean,
            height,
            xerr=np.nan_to_num(entry["sd"]) or None,
            color=color,
            marker="o",
            markersize=6,
            fillstyle=fill,
            elinewidth=1.2,
            capsize=3,
          )
      axes.set_title(title)
      axes.set_xlim(left=0)
      axes.grid(axis="y", visible=False)
    style.name_rows(panels[0], [style.label(method.label, 34) for method in methods])
    faces = {"before": "none", "after fine-tuning": style.INK}
    dot = dict(color=style.INK, marker="o", linestyle="none")
    style.add_line_legend(figure, {title: dict(dot, mfc=face) for title, face in faces.items()})
    svg = style.to_svg(figure)
  return style.Figure(
    "before-after",
    "What fine-tuning changes",
    "Mean over seeds of the mean and of the 90th percentile of the test clients’ errors: hollow"
    " before, filled after fine-tuning; bars are standard deviations over seeds. Look whether the"
    " methods still differ at the filled dots, by more than their bars.",
    svg,
  )


def histograms(pooled: Mapping[Name, pd.DataFrame]) -> style.Figure:
  """Draws the distribution of clients' "error_before" and "error_after", fractions, by method."""
  looks = style.palette(list(pooled))
  columns = [f"error_{when}" for when in WHEN]
  edges = distributions.bin_edges(100 * max(np.nanmax(found[columns]) for found in pooled.values()))
  with style.theme():
    figure, panels = style.grid(len(pooled), 2.1)
    for axes, (method, found) in zip(panels, pooled.items()):
      color = looks[method].color
      for when, opacity, vertical in (("before", 0.0, (0, (1.5, 1.5))), ("after", 0.35, "-")):
        known = 100 * found[f"error_{when}"].dropna()
        width = 0.0 if opacity else 1.6
        style.add_steps(axes, known.round(6), edges, opacity, color=color, linewidth=width)
        axes.axvline(np.percentile(known, 90), color=color, linestyle=vertical, linewidth=1.2)
      axes.set_title(style.label(method.label, 28), color=color)
      axes.set(xlim=(0, edges[-1]), xlabel="", ylabel="")
    figure.supxlabel("Error of a test client (%)", fontsize="medium")
    figure.supylabel("Test clients (%)", fontsize="medium")
    svg = style.to_svg(figure)
  return style.Figure(
    "distribution",
    "Clients that gain",
    "Share of the test clients at each error, the clients of all seeds together: the line before,"
    " the area after fine-tuning; dotted and solid verticals are the 90th percentiles of the two."
    " Look at the right end: even a model of their own serves the clients there badly.",
    svg,
  )
