"""The figures of a comparison: which there are, for which methods, and method beside method."""

from __future__ import annotations

import dataclasses

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments.report import budgets
from tff_superquantile.experiments.report import clients
from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

# More curves than these cannot be told apart.
_MAX_CURVES = 6
_BASELINES_SHOWN = 2
# Figures that have no room for any number of methods.
_FIGURES = (
  clients.error_histogram,
  clients.loss_histogram,
  clients.error_against_size,
  clients.loss_against_size,
  rounds.error_by_round,
  rounds.selection_by_round,
  rounds.loss_by_round,
)
_CONTENDERS_NOTE = (
  " Of many methods, FedAvg, two baselines and the superquantile methods with the lowest 90th"
  " percentiles are drawn."
)


def at_one_epsilon(groups: run_folder.Groups) -> tuple[run_folder.Groups, float | None]:
  """Chooses private methods of one budget, so that they can be compared with each other.

  Args:
    groups: Runs by method.

  Returns:
    The methods of the middle budget, by their names without it, and that budget. Where there is
    nothing to compare at it but there is without privacy, the methods without privacy and None.
  """
  epsilons = sorted({method.epsilon for method in groups if method.epsilon is not None})
  if not epsilons:
    return groups, None
  epsilon = epsilons[len(epsilons) // 2]
  chosen = {
    method.without_epsilon: runs for method, runs in groups.items() if method.epsilon == epsilon
  }
  public = {method: runs for method, runs in groups.items() if not method.epsilon}
  if len(chosen) < 2 <= len(public):
    return public, None
  return chosen, epsilon


def contenders(groups: run_folder.Groups) -> run_folder.Groups:
  """Chooses FedAvg and the methods of the lowest tails, where there are too many to tell apart.

  Args:
    groups: Finished runs by method.

  Returns:
    All of up to six methods. Of more, FedAvg, the two other baselines with the lowest 90th
    percentiles of the test error, and the superquantile methods with the lowest.
  """
  if len(groups) <= _MAX_CURVES:
    return groups
  tails = tables.lowest_means(tables.of_groups(groups), tables.P90, groups)
  by_tail = [*tails, *(method for method in groups if method not in tails)]
  tail_methods = [method for method in by_tail if method.is_superquantile]
  others = [m for m in by_tail if m not in tail_methods and not m.is_fed_avg]
  chosen = [
    *others[:_BASELINES_SHOWN],
    *tail_methods[: _MAX_CURVES - 1 - _BASELINES_SHOWN],
  ]
  shown = {names.FED_AVG, *chosen, *(method.fed_avg for method in chosen)}
  return {method: runs for method, runs in groups.items() if method in shown}


def draw(groups: run_folder.Groups) -> tuple[list[style.Figure], list[str]]:
  """Draws every figure that the runs have the data for.

  Args:
    groups: Finished runs by method.

  Returns:
    The figures, and for each that is left out a sentence that says why.
  """
  figures, omitted = [], []
  at_one_budget, epsilon = at_one_epsilon(groups)
  shown = contenders(at_one_budget)
  if len({method.epsilon for method in groups} - {None}) > 1:
    figures += [budgets.error_by_epsilon(groups), budgets.tail_against_mean(groups)]
  note = _CONTENDERS_NOTE if len(shown) < len(at_one_budget) else ""
  drawn = [(error_by_method, at_one_budget, ""), *((one, shown, note) for one in _FIGURES)]
  for draw_one, methods, remark in drawn:
    try:
      figure = draw_one(methods)
      figure = dataclasses.replace(figure, caption=figure.caption + remark)
      figures.append(style.at_epsilon(figure, epsilon))
    except style.NothingToDraw as reason:
      omitted.append(str(reason))
  return figures, omitted


def error_by_method(groups: run_folder.Groups) -> style.Figure:
  """Draws mean and tail of the test error of every method, a row for each as in the table."""
  results = tables.over_seeds(tables.of_groups(groups))
  metrics = {
    "test.error.mean": "Mean error (%)",
    tables.P90: "90th percentile (%)",
    "test.error.superquantile_90": "Worst 10 % (%)",
  }
  panels = [metric for metric in metrics if metric in results.index.get_level_values("metric")]
  if len(groups) < 2 or not panels:
    raise style.NothingToDraw("No figure of all methods: there are not two to compare.")
  methods = list(groups)
  looks = style.palette(methods, list(contenders(groups)))
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 0.7 + 0.27 * len(methods)))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, metric in zip(grid, panels):
      entries = 100 * results.xs(metric, level="metric")
      for method, entry in entries[np.isfinite(entries["mean"])].iterrows():
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
      axes.set_title(metrics[metric])
      axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    grid[0].set_yticks(range(len(methods)), [style.label(method.label, 48) for method in methods])
    grid[0].set_ylim(len(methods) - 0.4, -0.6)
    svg = style.to_svg(figure)
  return style.Figure(
    "error-by-method",
    "Mean and tail of every method",
    "Mean over seeds of three numbers of each table row; bars are standard deviations over seeds,"
    " the dotted line is FedAvg. Look for methods that are left of the line in the tail (middle and"
    " right) and not far right of it in the mean.",
    svg,
  )
