"""Tables of changes against FedAvg, and figures of private methods at several budgets."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib import figure as mpl_figure
import pandas as pd

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run.parts import methods

_CHANGES_NOTE = (
  "{} of a method less that of FedAvg with the same options, in {}, of the seeds and the test"
  " clients that both have; negative is better. In brackets is the 95 % interval of the bootstrap"
  " over clients and seeds; a change is bold only where zero is outside of it."
)
_BUDGETS_NOTE = (
  "The 90th percentile of the test clients’ {} of a method less that of FedAvg with the same budget"
  " and seed, in {}, mean over seeds, with the 95 % interval of the bootstrap over clients and"
  " seeds; the lowest of a budget is bold if zero is outside of its interval. Parameters that are"
  " tuned on validation clients spend a budget of their own, which these do not include."
)


def _families(groups: Iterable[names.Name]) -> dict[names.Name, names.Name]:
  """Returns the family of each method: itself whatever its budget, and its tuned parameter."""
  families = names.without_epsilons(groups)
  by_algorithm: dict[str, list[names.Name]] = {}
  for method in families:
    if method.config is not None and not method.config.run_name and not method.is_superquantile:
      by_algorithm.setdefault(method.config.algorithm, []).append(method)
  for algorithm, of_it in by_algorithm.items():
    budgets = [method.epsilon for method in of_it]
    if len({families[method] for method in of_it}) > 1 and len(set(budgets)) == len(budgets):
      tuned = names.Name(f"{algorithm}_tuned")
      tuned.label = f"{methods.METHODS[algorithm].title}, tuned"
      families.update(dict.fromkeys(of_it, tuned))
  return families


def _of_budgets(groups: grouped.Grouped) -> tuple[pd.DataFrame, list[names.Name]]:
  """Returns means over seeds, with the columns "epsilon" (or NaN) and "family"; the families."""
  results = groups.aggregates.reset_index()
  families = _families(groups)
  results["epsilon"] = pd.to_numeric(results["method"].map({m: m.epsilon for m in groups}))
  results["family"] = results["method"].map(families)
  in_order = sorted(groups, key=lambda method: method.without_epsilon.order)
  private = [families[method] for method in in_order if method.epsilon is not None]
  return results, list(dict.fromkeys(private))


def changes(groups: grouped.Grouped) -> tables.Table:
  """Lays out the changes of runs in a row a method, marked where an interval excludes zero."""
  headings, unit, changes = groups.headings, groups.leading.unit, groups.changes
  rows = []
  for method, (_, own) in changes.items():
    first = next(iter(own.values()))
    cells = [
      paired.cell(own[metric], unit, own[metric].is_detected) if metric in own else tables.Cell("–")
      for metric in headings
    ]
    counts = [tables.Cell(str(first.num_seeds)), tables.Cell(str(first.num_clients or "–"))]
    rows.append(tables.Row(method.label, [*cells, *counts]))
  note = _CHANGES_NOTE.format(unit.quantity, unit.of_changes)
  if any(change.num_seeds == 1 for _, own in changes.values() for change in own.values()):
    note += " With one seed it is over clients alone, and holds for those trained models only."
  if groups.are_few():
    note += " There are too few clients for percentiles; a single worst client has no interval."
  titles = ["method", *headings.values(), "seeds", "clients"]
  return tables.Table("Change against FedAvg", titles, rows, note, focus=headings[groups.first])


def changes_by_epsilon(groups: grouped.Grouped) -> tables.Table:
  """Lays out how the tail differs from that of FedAvg of the same budget, seed by seed."""
  unit, epsilons = groups.leading.unit, groups.epsilons
  family_of = _families(groups)
  families = [family for family in _of_budgets(groups)[1] if not family.is_fed_avg]
  changes = {
    (family_of[method], method.epsilon): own[groups.first]
    for method, (_, own) in groups.changes.items()
    if groups.first in own and method.epsilon is not None and family_of[method] in families
  }
  lowest = {
    epsilon: min((changes[key].value for key in changes if key[1] == epsilon), default=None)
    for epsilon in epsilons
  }

  def cell(family: names.Name, epsilon: float) -> tables.Cell:
    change = changes.get((family, epsilon))
    if change is None:
      return tables.Cell("–")
    return paired.cell(change, unit, change.is_detected and change.value == lowest[epsilon])

  rows = [tables.Row(one.label, [cell(one, epsilon) for epsilon in epsilons]) for one in families]
  headings = ["method", *(f"ε = {epsilon:g}" for epsilon in epsilons)]
  return tables.Table(
    "The tail against FedAvg of the same budget",
    headings,
    rows if changes else [],
    _BUDGETS_NOTE.format(groups.leading.words, unit.of_changes),
  )


def error_by_epsilon(groups: grouped.Grouped) -> style.Figure:
  """Draws mean and 90th percentile of the test error against the privacy budget."""
  results, families = _of_budgets(groups)
  leading, unit = groups.leading, groups.leading.unit
  results = results.dropna(subset="epsilon").sort_values("epsilon")
  looks = style.palette(families)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.4 + 0.1 * len(families)))
    panels = figure.subplots(1, 2, squeeze=False)[0]
    for axes, metric, title in zip(
      panels,
      (leading.metric("mean"), leading.p90),
      (f"Mean {leading.words}", f"90th percentile of the {leading.words}"),
    ):
      for index, method in enumerate(families):
        curve = results[(results["family"] == method) & (results["metric"] == metric)]
        axes.errorbar(
          # Points lie side by side, so that the bars of methods do not hide each other.
          curve["epsilon"] * (1.0 + 0.012 * index),
          unit.factor * curve["mean"],
          yerr=unit.factor * curve["sd"].fillna(0.0),
          color=looks[method].color,
          linestyle=looks[method].dash,
          marker="o",
          markersize=4,
          linewidth=1.6,
          elinewidth=1.0,
          capsize=2.5,
        )
      axes.set(title=title, xlabel="ε", xscale="log")
      style.mark(axes.xaxis, sorted(results["epsilon"].unique()))
      style.widen(axes, unit.least_span, "y")
    panels[0].set_ylabel(unit.axis(f"{leading.title} of the test clients"))
    style.add_legend(figure, looks, families)
    svg = style.to_svg(figure)
  return style.Figure(
    "error-by-epsilon",
    f"{leading.title} against the privacy budget",
    f"Mean over seeds of the mean and of the 90th percentile of the test clients’ {leading.words};"
    " bars are standard deviations over seeds. Each curve is a method, each point a budget for all"
    " that its server releases. Look at how fast a method loses to the left, where there is more"
    " noise.",
    svg,
  )


def tail_against_mean(groups: grouped.Grouped) -> style.Figure:
  """Draws the 90th percentile of the test error against its mean, a curve over budgets a method."""
  results, families = _of_budgets(groups)
  leading, unit = groups.leading, groups.leading.unit
  metrics = [leading.metric("mean"), leading.p90]
  wide = results[results["metric"].isin(metrics)].pivot(
    index=["family", "epsilon"], columns="metric", values="mean"
  )
  wide = (unit.factor * wide).reset_index()
  looks = style.palette(families)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 4.2 + 0.1 * len(families)))
    axes = figure.add_subplot()
    for method in families:
      look = looks[method]
      own = wide[wide["family"] == method]
      curve = own.dropna(subset="epsilon").sort_values("epsilon")
      axes.plot(*curve[metrics].to_numpy().T, color=look.color, linestyle=look.dash, linewidth=1.6)
      for epsilon, x, y in curve[["epsilon", *metrics]].itertuples(index=False):
        axes.plot(x, y, "o", color=look.color, markersize=4)
        axes.annotate(
          f"{epsilon:g}", (x, y), (3, 3), textcoords="offset points", fontsize=7, color=look.color
        )
      public = own[own["epsilon"].isna()]
      axes.plot(*public[metrics].to_numpy().T, "*", color=look.color, markersize=9)
    axes.set(
      xlabel=unit.axis(f"Mean {leading.words}"),
      ylabel=unit.axis(f"90th percentile of the {leading.words}"),
    )
    style.widen(axes, unit.least_span, "x")
    style.widen(axes, unit.least_span, "y")
    style.add_legend(figure, looks, families)
    svg = style.to_svg(figure)
  return style.Figure(
    "tail-against-mean",
    "Tail against mean, by privacy budget",
    f"Means over seeds, of the test clients’ {leading.words}. Each curve is a method, each point a"
    " budget ε, written beside it; a star is the method without privacy. Lower left is better for"
    " all. Of two methods at one budget, neither is better where one has the lower tail and the"
    " other the lower mean.",
    svg,
  )
