"""The figures of a comparison: which there are, and for which methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import budgets
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.report.clients import distributions
from tff_superquantile.experiments.report.clients import sizes
from tff_superquantile.experiments.report.clients import worst_tenth
from tff_superquantile.experiments.report.clients import worst_tenth_figures
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

# More curves than these cannot be told apart.
_MAX_CURVES = 6
_BASELINES_SHOWN = 2
# Figures that have no room for any number of methods.
_FIGURES = (
  distributions.error_histogram,
  distributions.loss_histogram,
  sizes.error_against_size,
  sizes.loss_against_size,
  rounds.error_by_round,
  rounds.selection_by_round,
  rounds.loss_by_round,
)
_HISTORIES = (worst_tenth_figures.error_by_round, worst_tenth_figures.overlap_by_round)
_CONTENDERS_NOTE = (
  " Of many methods, FedAvg, two baselines and the superquantile methods with the lowest 90th"
  " percentiles are drawn."
)
_ONE_SEED_NOTE = " It is one seed: a mean over seeds is its number, and bands or bars are missing."


def at_one_epsilon(groups: run_folder.Groups) -> tuple[run_folder.Groups, float | None]:
  """Chooses private methods of one budget, so that they can be compared with each other.

  They are the methods of the middle budget, by their names without it, with that budget. Where
  there is nothing to compare at it but there is without privacy, they are the methods without
  privacy, with None.
  """
  epsilons = sorted({method.epsilon for method in groups if method.epsilon is not None})
  if not epsilons:
    return groups, None
  epsilon = epsilons[len(epsilons) // 2]
  of_budget = {method: runs for method, runs in groups.items() if method.epsilon == epsilon}
  shorter = names.without_epsilons(of_budget)
  chosen = {shorter[method]: runs for method, runs in of_budget.items()}
  public = {method: runs for method, runs in groups.items() if not method.epsilon}
  if len(chosen) < 2 <= len(public):
    return public, None
  return chosen, epsilon


def contenders(groups: run_folder.Groups) -> run_folder.Groups:
  """Chooses FedAvg and the methods of the lowest tails, where there are too many to tell apart.

  All of up to six methods are left. Of more, it is FedAvg, the two other baselines with the lowest
  90th percentiles of the test error, and the superquantile methods with the lowest.
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


def draw(
  groups: run_folder.Groups,
  histories: worst_tenth.Histories | None = None,
  further: Sequence[Callable[[], style.Figure]] = (),
) -> tuple[list[style.Figure], list[str]]:
  """Draws all figures that runs have the data for, and says in a sentence why one is left out.

  `histories` are of the worst-off tenth; None to measure them. `further` draw further figures.
  """
  figures, omitted = [], []
  at_one_budget, epsilon = at_one_epsilon(groups)
  shown = contenders(at_one_budget)
  if len({method.epsilon for method in groups} - {None}) > 1:
    figures += [budgets.error_by_epsilon(groups), budgets.tail_against_mean(groups)]
  note = _CONTENDERS_NOTE if len(shown) < len(at_one_budget) else ""
  of_seeds = _ONE_SEED_NOTE if tables.has_one_seed(groups) else ""
  if histories is None:
    histories = worst_tenth.measure(shown)
  of_rounds = (functools.partial(one, histories=histories) for one in _HISTORIES)
  of_methods: tuple[Callable[..., style.Figure], ...] = (*_FIGURES, *of_rounds)
  drawn: list[tuple[Callable[..., style.Figure], run_folder.Groups, str]]
  drawn = [(error_by_method, at_one_budget, ""), *((one, shown, note) for one in of_methods)]
  parts: list[Callable[[], style.Figure]] = [
    functools.partial(_drawn, *one, of_seeds) for one in drawn
  ]
  for part in (*parts, *further):
    try:
      figures.append(style.at_epsilon(part(), epsilon))
    except style.NothingToDraw as reason:
      omitted.append(str(reason))
  return figures, omitted


def _drawn(
  draw_one: Callable[..., style.Figure], methods: run_folder.Groups, *remarks: str
) -> style.Figure:
  figure = draw_one(methods)
  return dataclasses.replace(figure, caption="".join([figure.caption, *remarks]))


def error_by_method(groups: run_folder.Groups) -> style.Figure:
  """Draws mean and tail of the leading measure of every method, a row each as in the table."""
  leading = units.leading(groups)
  unit, metrics = leading.unit, {leading.metric("mean"): f"Mean {leading.words}"}
  if paired.has_few_clients(groups):
    results = pd.concat([tables.of_groups(groups), paired.worst_clients(groups, leading.name)])
    metrics[leading.metric("max")] = "Worst client"
  else:
    results = tables.of_groups(groups)
    metrics |= {leading.p90: "90th percentile", leading.metric("superquantile_90"): "Worst 10 %"}
  results = tables.over_seeds(results)
  panels = [metric for metric in metrics if metric in results.index.get_level_values("metric")]
  if len(groups) < 2 or not panels:
    raise style.NothingToDraw("No figure of all methods: there are not two to compare.")
  methods = list(groups)
  looks = style.palette(methods, list(contenders(groups)))
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


def without_privacy(groups: run_folder.Groups) -> run_folder.Groups:
  """Returns the methods without a privacy budget."""
  return {method: runs for method, runs in groups.items() if method.epsilon is None}
