"""The summary of a comparison and its figures: which there are, and for which methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
  of_budget = {method: runs for method, runs in groups.items() if method.epsilon == epsilon}
  shorter = names.without_epsilons(of_budget)
  chosen = {shorter[method]: runs for method, runs in of_budget.items()}
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


def draw(
  groups: run_folder.Groups, histories: worst_tenth.Histories | None = None
) -> tuple[list[style.Figure], list[str]]:
  """Draws every figure that the runs have the data for.

  Args:
    groups: Finished runs by method.
    histories: Those of the worst-off tenth; None to measure them.

  Returns:
    The figures, and for each that is left out a sentence that says why.
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
  for draw_one, methods, remark in drawn:
    try:
      figure = draw_one(methods)
      figure = dataclasses.replace(figure, caption=figure.caption + remark + of_seeds)
      figures.append(style.at_epsilon(figure, epsilon))
    except style.NothingToDraw as reason:
      omitted.append(str(reason))
  return figures, omitted


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


def summarize(groups: run_folder.Groups, compared: paired.Comparison | None = None) -> str:
  """Summarizes the runs in a few sentences: of one budget, and also without privacy.

  Of the methods whose baseline is there, FedAvg with the same options, the one whose leading metric
  is lowest against it is compared with it, over the seeds and test clients that both have. That is
  the tail of the runs' --metric.

  Args:
    groups: Finished runs by method.
    compared: Their changes; None to measure them.

  Returns:
    Plain text, errors and their differences in the unit of the task.
  """
  compared = compared or paired.compare(groups)
  chosen, epsilon = at_one_epsilon(groups)
  text = _of_one_budget(chosen, compared.among(chosen))
  if epsilon is None:
    return text
  public = without_privacy(groups)
  if len(public) > 1:
    text += f" Without privacy: {_of_one_budget(public, compared.among(public))}"
  return f"At ε = {epsilon:g}: {text}"


def without_privacy(groups: run_folder.Groups) -> run_folder.Groups:
  """Returns the methods without a privacy budget."""
  return {method: runs for method, runs in groups.items() if method.epsilon is None}


def rank(groups: run_folder.Groups, compared: paired.Comparison) -> list[names.Name]:
  """Orders methods by what they change against their baselines.

  Args:
    groups: Finished runs by method, of one budget.
    compared: Their changes, from `paired.Comparison.among`.

  Returns:
    The methods that share most seeds with their baselines, the lowest change first.
  """
  first, found = compared.first, _of_finite(groups, compared)
  most = max((own[first].num_seeds for _, own in found.values()), default=0)
  rivals = [method for method, (_, own) in found.items() if own[first].num_seeds == most]
  return sorted(rivals, key=lambda method: found[method][1][first].value)


def _of_finite(groups: run_folder.Groups, compared: paired.Comparison) -> paired.ByMethod:
  """Leaves out the changes from and to runs that diverged, which have no finite numbers."""
  finite = tables.lowest_means(tables.of_groups(groups), compared.leading.p90, groups)
  return {
    method: (baseline, own)
    for method, (baseline, own) in compared.changes.items()
    if method in finite and baseline in finite and compared.first in own
  }


def _of_one_budget(groups: run_folder.Groups, compared: paired.Comparison) -> str:
  """Summarizes runs that can be compared with each other."""
  unit, lead, first = compared.leading.unit, compared.leading.p90, compared.first
  # Of few clients the runs have no number of their worst.
  tails = tables.lowest_means(tables.of_groups(groups), lead, groups)
  if not tails:
    return f"No method reports {_said(lead)}."
  found, rivals = _of_finite(groups, compared), rank(groups, compared)
  if not rivals:
    return _without_comparison(tails, compared.leading)
  best = rivals[0]
  baseline, own = found[best]
  text = f"{_headline(best, baseline, own, len(rivals))}{_effects(own, unit)}"
  text += f", {_extent(own[first], groups)}."
  if len(rivals) < len(found):
    left_out = ", ".join(method.label for method in found if method not in rivals)
    text += f" Fewer seeds are shared with FedAvg by {left_out}, which this leaves out."
  elif len(rivals) > 1 and any(one.is_detected for one in own.values()):
    text += f" The intervals do not count that the best of {len(rivals)} was chosen."
  return f"{text}{_caution(own[first], _said(first))}"


def _without_comparison(tails: Mapping[names.Name, float], leading: units.Leading) -> str:
  """Says the tail of the best method, and what is missing for a comparison."""
  unit, lead = leading.unit, leading.p90
  baselines = names.baselines(tails)
  rivals = [method for method in tails if method in baselines]
  others = (method for method in tails if not method.is_fed_avg)
  best = rivals[0] if rivals else next(others, next(iter(tails)))
  level = f"With {best.label}, {_said(lead)} is {unit.text(tails[best])}"
  if rivals:
    fed_avg = names.said_of(baselines[best])
    before = unit.text(tails[baselines[best]])
    return (
      f"{level}, and with {fed_avg} {before}; the two share no seed, so there is no comparison that"
      " the seeds do not spoil."
    )
  missing = "another method" if best.is_fed_avg else names.said_of(best.fed_avg)
  return f"{level}; there is no result of {missing} to compare with."


def _said(metric: str) -> str:
  """Returns how sentences name a metric of the test clients."""
  _, column, statistic = metric.split(".")
  quantity = units.words(column)
  kinds = {
    "p90": f"the 90th percentile of the test clients’ {quantity}",
    "superquantile_90": f"the mean {quantity} of the worst tenth",
    "max": f"the {quantity} of the worst test client",
    "mean": f"the mean {quantity}",
  }
  return kinds.get(statistic, f"{statistic} of the test clients’ {quantity}")


def _headline(best: names.Name, baseline: names.Name, own: paired.Changes, num_rivals: int) -> str:
  """Begins the summary: what the intervals say of the best method, up to the verb."""
  fed_avg = names.said_of(baseline)
  *tail, mean = own.values()
  detected = {one.value > 0 for one in tail if one.is_detected}
  against = f"against {fed_avg}, {best.label}"
  if num_rivals > 1:
    place = "comes closest" if tail[0].value > 0 else "comes first"
    against = f"of {num_rivals} methods compared with {fed_avg}, {best.label} {place}: it"
  if not any(one.has_interval for one in own.values()):
    return f"{against[:1].upper()}{against[1:]} "
  if not any(one.is_detected for one in own.values()):
    return f"No detectable difference: {against} "
  if not any(one.has_interval for one in tail):
    return f"{against[:1].upper()}{against[1:]} "
  if not detected:
    return f"No detectable difference for the worst-off clients: {against} "
  if len(detected) == 2:
    return f"The measures of the tail disagree: {against} "
  if detected == {True}:
    return f"No method serves the worst-off clients better than {fed_avg}: {best.label} "
  if num_rivals > 1:
    return (
      f"Of {num_rivals} methods compared with {fed_avg}, {best.label} does best by the worst-off"
      " clients: it "
    )
  return f"{against[:1].upper()}{against[1:]} "


def _effects(own: paired.Changes, unit: units.Unit) -> str:
  """Says what happens to each metric, with intervals and, of the leading one, both levels."""
  clauses: list[str] = []
  for metric, one in own.items():
    notes = [f"95 % interval {one.interval(unit)}"] if one.has_interval else []
    if not clauses:
      before, after = unit.text(one.before), unit.text(one.after)
      # Levels that read the same would belie the change.
      notes += [f"{before} → {after}"] if before != after else [f"from {before}"]
    effect = unit.effect(pd.Series([one.value]), _said(metric))
    if one.has_interval and not one.is_detected and not effect.startswith("leaves"):
      effect = f"changes {_said(metric)} by {unit.number(one.value, sign=True)}{unit.change}"
    clauses.append(effect + (f" ({'; '.join(notes)})" if notes else ""))
  return " and ".join([", ".join(clauses[:-1]), clauses[-1]] if len(clauses) > 1 else clauses)


def _extent(one: paired.Change, groups: run_folder.Groups) -> str:
  """Says of how many clients and seeds a change is."""
  seeds = tables.plural(one.num_seeds, "seed")
  if not one.num_clients:
    return f"over {seeds}, whose runs have no results of each client and so no interval"
  few = ", too few for percentiles" if paired.has_few_clients(groups) else ""
  return f"of {tables.plural(one.num_clients, 'test client')}{few}, over {seeds}"


def _caution(one: paired.Change, said: str) -> str:
  """Says what one seed cannot tell, and what more data would."""
  text = ""
  if one.num_seeds == 1:
    text = f" {tables.ONE_SEED}"
    if one.num_clients > 1:
      text = (
        " This is one seed: intervals hold for these trained models only, and other seeds may turn"
        " the result."
      )
  if enough := one.enough():
    number, noun = enough
    count = "more than a thousand" if number > 1000 else f"about {number}"
    text += (
      f" If the change of {said} is real, {count} {noun}s would make its interval (half of it) as"
      " narrow as the change."
    )
  return text
