"""Figures of personalized models: error before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import math

from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
import numpy as np

from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import plots
from tff_superquantile.experiments import run_folder
from tff_superquantile.experiments import seed_tables

WHEN = ("before", "after")
_ARROWS_CAPTION = (
  "Mean over seeds of the mean and of the 90th percentile of the test clients’ errors: hollow "
  "before, filled after fine-tuning; bars are standard deviations over seeds. Look whether the "
  "methods still differ at the filled dots, by more than their bars."
)
_HISTOGRAM_CAPTION = (
  "Share of the test clients at each error, the clients of all seeds together: the line before, "
  "the area after fine-tuning; dotted and solid verticals are the 90th percentiles of each. Look "
  "at the right end: clients there are served badly even by a model of their own."
)


def draw_all(all_groups: run_folder.Groups, all_values: seed_tables.Results) -> list[plots.Figure]:
  """Draws the figures; of private methods, those of the middle budget.

  Args:
    all_groups: Runs by method, whose clients' results are on disk.
    all_values: {method: {metric: {seed: value}}}, metrics such as "before.error.p90".

  Returns:
    The figures.
  """
  groups, epsilon = run_folder.at_one_epsilon(all_groups)
  title = "" if epsilon is None else f", ε = {epsilon:g}"
  shown = comparison.contenders(groups)
  pooled = {method: _pooled(runs) for method, runs in shown.items()}
  values = {method: all_values[runs[0].method] for method, runs in groups.items()}
  return [
    plots.Figure(
      name,
      heading + title,
      caption,
      *(draw(dark) for dark in (False, True)),
    )
    for name, heading, caption, draw in (
      (
        "before-after",
        "What fine-tuning changes",
        _ARROWS_CAPTION,
        functools.partial(_draw_arrows, values),
      ),
      (
        "distribution",
        "Who gains by it",
        _HISTOGRAM_CAPTION,
        functools.partial(_draw_histograms, pooled),
      ),
    )
  ]


def _pooled(runs: Sequence[run_folder.Run]) -> dict[str, np.ndarray]:
  """Errors of the clients of all seeds, in %, by "before" and "after"."""
  reader = finished_models.Results("personalization", {})
  clients = [reader.read_clients(one) for one in runs]
  return {
    when: 100 * np.concatenate([columns[f"error_{when}"] for columns in clients]) for when in WHEN
  }


def _draw_arrows(values: seed_tables.Results, dark: bool) -> bytes:
  """Draws for each method an arrow from the error before to the error after."""
  looks = plot_style.palette(list(values))
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((plot_style.WIDTH, 1.2 + 0.36 * len(values)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for axes, statistic, title in zip(
      panels, ("mean", "p90"), ("Mean error (%)", "90th percentile of the error (%)")
    ):
      for row, (method, metrics) in enumerate(values.items()):
        color = looks[method].colors[dark]
        before, after = (
          run_folder.Aggregate.of(list(metrics[f"{when}.error.{statistic}"].values()))
          for when in WHEN
        )
        # Not on one line, so that bars and arrow do not hide each other.
        heights = (row - 0.16, row + 0.16)
        axes.annotate(
          "",
          (100 * after.mean, heights[1]),
          (100 * before.mean, heights[0]),
          arrowprops=dict(
            arrowstyle="-|>", color=color, linewidth=1.2, shrinkA=5, shrinkB=5, alpha=0.7
          ),
        )
        for entry, face, height in zip((before, after), ("none", color), heights):
          axes.errorbar(
            100 * entry.mean,
            height,
            xerr=None if math.isnan(entry.sd) else 100 * entry.sd,
            color=color,
            marker="o",
            markersize=6,
            markerfacecolor=face,
            elinewidth=1.2,
            capsize=3,
          )
      axes.set_title(title, color=ink)
      axes.set_xlim(left=0)
      axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(values)), [plot_style.label(method, 34) for method in values])
    panels[0].set_ylim(len(values) - 0.4, -0.6)
    figure.legend(
      [
        mpl_lines.Line2D([], [], color=ink, marker="o", markerfacecolor=face, linestyle="none")
        for face in ("none", ink)
      ],
      ["before", "after fine-tuning"],
      loc="outside upper left",
      ncols=2,
    )
    return plot_style.to_svg(figure)


def _draw_histograms(pooled: Mapping[str, Mapping[str, np.ndarray]], dark: bool) -> bytes:
  """Draws the distribution of the clients' errors before and after, a panel for each method."""
  looks = plot_style.palette(list(pooled))
  largest = max(np.nanmax(errors) for parts in pooled.values() for errors in parts.values())
  width = next(step for step in (0.5, 1, 2, 4, 5) if largest <= 25 * step or step == 5)
  edges = np.arange(0, largest + 1.5 * width, width)
  num_columns = 2 if len(pooled) in (2, 4) else min(3, len(pooled))
  num_rows = math.ceil(len(pooled) / num_columns)
  with plot_style.theme(dark):
    figure = mpl_figure.Figure((plot_style.WIDTH, 0.5 + 2.1 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for axes, (method, parts) in zip(grid.flat, pooled.items()):
      color = looks[method].colors[dark]
      for when, look, vertical in (
        ("before", dict(histtype="step", linewidth=1.6), (0, (1.5, 1.5))),
        ("after", dict(alpha=0.35), "-"),
      ):
        errors = parts[when][np.isfinite(parts[when])]
        axes.hist(
          np.round(errors, 6),
          bins=edges,
          color=color,
          weights=np.full(errors.shape, 100 / max(errors.size, 1)),
          **look,
        )
        axes.axvline(np.percentile(errors, 90), color=color, linestyle=vertical, linewidth=1.2)
      axes.set_title(plot_style.label(method, 28), color=color)
      axes.set_xlim(0, edges[-1])
    for axes in grid.flat[len(pooled) :]:
      axes.remove()
    figure.supxlabel("Error of a test client (%)", fontsize="medium")
    figure.supylabel("Test clients (%)", fontsize="medium")
    return plot_style.to_svg(figure)
