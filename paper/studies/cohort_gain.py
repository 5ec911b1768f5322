"""Shows what superquantile aggregation gains over FedAvg, by the size of cohorts.

    python -m paper.studies cohort_gain --output_dir=DIR --task=TASK

Reads the finished runs of FedAvg and of superquantile aggregation with an exact threshold that
differ in --clients_per_round, --averaged_rounds and theta alone, and trains nothing; the runs of a
cross-validation count as one. The names of folders do not tell the size of cohorts, so such runs
have a --run_name. Intervals are of 95 %, over test clients. Writes

    DIR/TASK/cohort_gain.{html,md,csv}    a row each theta, size of cohorts and kind of model
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import os
from typing import NamedTuple

from matplotlib import figure as mpl_figure
import pandas as pd

from paper.studies import finished_models
from privacy import parts
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder

_NAME = "cohort_gain"
_METRICS = {
  "test.error.mean": "Mean",
  tables.P90: "90th percentile",
  "test.error.superquantile_90": "Worst tenth",
}
_MAY_DIFFER = {
  *run_config.incidentals(),
  *("seed", "run_name", "algorithm", "theta", "threshold", "block_size"),
  *("clients_per_round", "averaged_rounds"),
}
_CAPTION = (
  "Points of error that superquantile aggregation adds to FedAvg’s, below 0 where it is lower, with"
  " intervals of 95 % over test clients. Horizontal axes are logarithmic. Look whether the tail"
  " gains where cohorts are small, and whether a mean of the last rounds’ models does."
)


class Point(NamedTuple):
  """The change from FedAvg to a theta, with cohorts of a size and models averaged over rounds."""

  theta: float
  num_clients: int
  averaged: int
  changes: dict[str, paired.Change]

  @property
  def kind(self) -> str:
    """Which model is measured."""
    return "last round’s model" if self.averaged == 1 else f"mean of {self.averaged} rounds’ models"


def find(runs: Iterable[run_folder.Run]) -> list[Point]:
  """Pairs runs of FedAvg and of a theta, by theta, kind of model and size of cohorts, rising.

  Of other flags only runs with the most common ones count. Raises a `ValueError` without a pair.
  """
  rows = []
  for run in runs:
    if run.config is None:
      continue
    values, method = run.config.values(), names.Name(names.folder(run.config), run.config)
    is_exact = isinstance(run.config.method.threshold, parts.Exact)
    if run.config.algorithm != names.FED_AVG and not (method.is_superquantile and is_exact):
      continue
    theta = 1.0 if run.config.algorithm == names.FED_AVG else method.theta
    others = repr({name: of for name, of in values.items() if name not in _MAY_DIFFER})
    rows.append((theta, values["averaged_rounds"], values["clients_per_round"], others, run))
  table = pd.DataFrame(rows, columns=["theta", "averaged", "clients", "others", "run"])
  if len(table):
    table = table[table["others"] == table["others"].mode()[0]]
  groups = {key: list(its["run"]) for key, its in table.groupby(["theta", "averaged", "clients"])}
  points = []
  for (theta, averaged, clients), own in groups.items():
    baseline = groups.get((1.0, averaged, clients))
    if theta < 1.0 and baseline:
      changes = {metric: paired.change(baseline, own, metric) for metric in _METRICS}
      known = {metric: change for metric, change in changes.items() if change is not None}
      points.append(Point(theta, int(clients), int(averaged), known))
  if not points:
    raise ValueError(
      "Found no size of cohorts with both FedAvg and a theta in"
      f" {tables.plural(len(table), 'run')}; expected such runs, whose other flags are the same."
    )
  return points


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Shows the gain of a task's finished runs by theta, kind of model and size of cohorts."""
  found = cross_validation.pool(finished_models.find(output_dir, task))
  points = find(run for run in found if not cross_validation.gaps([run]))
  unit = units.of_run(found[0]).error
  headings = ["θ, model, clients a round", *(f"{name.lower()}" for name in _METRICS.values())]
  laid_out = [
    tables.Row(
      f"θ = {point.theta:g}, {point.kind}, {point.num_clients}",
      [paired.cell(point.changes[metric], unit) for metric in _METRICS],
    )
    for point in points
  ]
  lowest = min(points, key=lambda point: point.changes[tables.P90].value)
  of_lowest = unit.number(lowest.changes[tables.P90].value, sign=True)
  note = "Points of error against FedAvg with as many clients and rounds; bold without zero inside."
  return page.Page(
    _NAME,
    f"{found[0].task_title}, gain by cohorts",
    "how many clients a round does θ need?",
    f"{tables.plural(len(points), 'pair')} of methods",
    f"p90 changes most, by {of_lowest}{unit.change}, with θ = {lowest.theta:g},"
    f" {lowest.num_clients} clients a round and the {lowest.kind}.",
    [tables.Table("Change against FedAvg", headings, laid_out, note), _draw(points, unit)],
    _csv(task, points),
  )


def _csv(task: str, points: Sequence[Point]) -> str:
  rows = [
    (task, p.theta, p.num_clients, p.averaged, metric, c.before, c.after, c.low, c.high)
    for p in points
    for metric, c in p.changes.items()
  ]
  columns = ["task", "theta", "clients_per_round", "averaged_rounds", "metric"]
  columns += ["before", "after", "low", "high"]
  return pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n")


def _draw(points: Sequence[Point], unit: units.Unit) -> style.Figure:
  """Draws the changes with their intervals, a panel a measure, by the size of cohorts."""
  several = [theta for theta in dict.fromkeys(p.theta for p in points)]
  theta = max(several, key=lambda theta: sum(point.theta == theta for point in points))
  lines: dict[str, list[Point]] = {}
  for point in points:
    if point.theta == theta:
      lines.setdefault(point.kind, []).append(point)
  colors, shown = dict(zip(lines, style.COLORS)), []
  sizes = sorted({point.num_clients for line in lines.values() for point in line})
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.0))
    panels = figure.subplots(1, len(_METRICS), sharey=True)
    for axes, (metric, title) in zip(panels, _METRICS.items()):
      axes.axhline(0.0, color=style.INK, linewidth=0.8)
      for index, (kind, line) in enumerate(lines.items()):
        changes = [point.changes[metric] for point in line]
        at = [point.num_clients * 1.04 ** (2 * index - 1) for point in line]
        values = [unit.factor * change.value for change in changes]
        below = [unit.factor * (change.value - change.low) for change in changes]
        above = [unit.factor * (change.high - change.value) for change in changes]
        axes.errorbar(
          at, values, [below, above], color=colors[kind], marker="o", markersize=4, linewidth=1.7
        )
        told = (f"{unit.number(c.value, sign=True)} with {p.num_clients}"
                for p, c in zip(line, changes))  # fmt: skip
        shown.append(f"{title}, {kind}: {', '.join(told)}")
      axes.set_title(title)
      axes.set_xscale("log")
      style.mark(axes.xaxis, sizes)
      axes.set_xlabel("Clients a round")
    panels[0].set_ylabel(unit.axis(f"θ = {theta:g} minus FedAvg"))
    style.add_line_legend(figure, {kind: dict(color=color) for kind, color in colors.items()})
    svg = style.to_svg(figure)
  shows = f"θ = {theta:g} minus FedAvg in points. {'. '.join(shown)}."
  return style.Figure("cohort-gain", "Gain over FedAvg by clients a round", _CAPTION, svg, shows)
