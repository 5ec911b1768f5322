"""The table of changes against FedAvg, and the figure of private methods at several budgets."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib import figure as mpl_figure
import pandas as pd

from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

_CHANGES_NOTE = (
  "{} of a method minus that of FedAvg with the same options, in {}, of the seeds and the test"
  " clients that both have; negative is better. In brackets is the 95 % interval of the bootstrap"
  " over clients and seeds; a change is bold only where zero is outside of it."
)


def families_of(groups: Iterable[names.Name]) -> dict[names.Name, names.Name]:
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


def changes(groups: grouped.Grouped) -> tables.Table:
  """Lays out the changes of runs in a row a method, marked where an interval excludes zero."""
  headings, unit, changes = groups.headings, groups.leading.unit, groups.changes
  rows = []
  for method, (_, own) in changes.items():
    first = next(iter(own.values()))
    cells = [
      paired.cell(own[metric], unit) if metric in own else tables.Cell("–") for metric in headings
    ]
    counts = [tables.Cell(str(first.num_seeds)), tables.Cell(str(first.num_clients or "–"))]
    rows.append(tables.Row(method.label, [*cells, *counts]))
  note = _CHANGES_NOTE.format(unit.quantity, unit.of_changes)
  if any(change.num_seeds == 1 for _, own in changes.values() for change in own.values()):
    note += " With one seed it is over clients alone, and holds for those trained models only."
  if groups.are_few():
    note += (
      " There are too few clients for percentiles; a single worst client has no interval, nor have"
      f" fewer than {bootstrap.FEWEST} clients."
    )
  titles = ["method", *headings.values(), "seeds", "clients"]
  return tables.Table("Change against FedAvg", titles, rows, note, focus=headings[groups.first])


def error_by_epsilon(groups: grouped.Grouped) -> style.Figure:
  """Draws mean and 90th percentile of the test error against the privacy budget."""
  leading, unit = groups.leading, groups.leading.unit
  results, family_of = groups.aggregates.reset_index(), families_of(groups)
  results["epsilon"] = pd.to_numeric(results["method"].map({m: m.epsilon for m in groups}))
  results["family"] = results["method"].map(family_of)
  results = results.dropna(subset="epsilon").sort_values("epsilon")
  in_order = sorted(groups, key=lambda method: method.without_epsilon.order)
  families = list(dict.fromkeys(family_of[m] for m in in_order if m.epsilon is not None))
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
