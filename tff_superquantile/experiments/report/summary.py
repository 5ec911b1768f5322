"""The figures of a comparison: which there are, and for which methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments.report import budgets
from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report.clients import distributions
from tff_superquantile.experiments.report.clients import sizes

# Figures that have no room for any number of methods.
_FIGURES = (
  distributions.error_histogram,
  sizes.error_against_size,
  rounds.error_by_round,
  rounds.selection_by_round,
  rounds.loss_by_round,
)
_CONTENDERS_NOTE = (
  " Of many methods, FedAvg, two baselines and the superquantile methods with the lowest 90th"
  " percentiles are drawn."
)
_ONE_SEED_NOTE = " It is one seed: a mean over seeds is its number, and bands or bars are missing."


def draw(
  groups: grouped.Grouped, further: Sequence[Callable[[], style.Figure]] = ()
) -> tuple[list[style.Figure], list[str]]:
  """Draws all figures that runs have data for, and further ones; says why one is left out."""
  figures, omitted = [], []
  at_one_budget, epsilon = groups.at_one_budget
  shown = at_one_budget.contenders
  if len(groups.epsilons) > 1:
    figures += [budgets.error_by_epsilon(groups), budgets.tail_against_mean(groups)]
  note = _CONTENDERS_NOTE if len(shown) < len(at_one_budget) else ""
  of_seeds = _ONE_SEED_NOTE if groups.has_one_seed else ""
  parts: list[tuple[Callable[[], style.Figure], str]] = [
    (functools.partial(error_by_method, at_one_budget), of_seeds),
    *((functools.partial(one, shown), note + of_seeds) for one in _FIGURES),
    *((one, "") for one in further),
  ]
  for part, remarks in parts:
    try:
      figure = part()
      figure = dataclasses.replace(figure, caption=figure.caption + remarks)
      figures.append(style.at_epsilon(figure, epsilon))
    except style.NothingToDraw as reason:
      omitted.append(str(reason))
  return figures, omitted


def error_by_method(groups: grouped.Grouped) -> style.Figure:
  """Draws mean and tail of the leading measure of every method, a row each as in the table."""
  leading, results = groups.leading, tables.over_seeds(groups.results_of_tail)
  unit, metrics = leading.unit, {leading.metric("mean"): f"Mean {leading.words}"}
  if groups.are_few():
    metrics[leading.metric("max")] = "Worst client"
  else:
    metrics |= {leading.p90: "90th percentile", leading.metric("superquantile_90"): "Worst 10 %"}
  panels = [metric for metric in metrics if metric in results.index.get_level_values("metric")]
  if len(groups) < 2 or not panels:
    raise style.NothingToDraw("No figure of all methods: there are not two to compare.")
  methods = list(groups)
  looks = style.palette(methods, list(groups.contenders))
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 0.7 + 0.27 * len(methods)))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, metric in zip(grid, panels):
      entries = unit.factor * results.xs(metric, level="metric")
      finite = entries.index[np.isfinite(entries["mean"])]
      for method in (method for method in methods if method in finite):
        entry = entries.loc[method]
        if method.is_fed_avg:
          axes.axvline(entry["mean"], color=style.INK, linestyle=(0, (1, 2)), linewidth=1)
        axes.errorbar(
          entry["mean"],
          methods.index(method),
          xerr=np.nan_to_num(entry["sd"]),
          color=looks[method].color,
          marker="o",
          markersize=5,
          elinewidth=1.4,
        )
      axes.set_title(unit.axis(metrics[metric]))
      axes.margins(x=0.15)
      axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
      style.widen(axes, unit.least_span)
    style.share(grid, "x")
    style.name_rows(grid[0], [style.label(method.label, 48) for method in methods])
    svg = style.to_svg(figure)
  return style.Figure(
    "error-by-method",
    "Mean and tail of every method",
    "Means over seeds of numbers of each table row; bars are standard deviations over seeds, the"
    " dotted line is FedAvg. Look for methods that are left of the line in the tail (right of the"
    " first panel) and not far right of it in the mean.",
    svg,
  )
