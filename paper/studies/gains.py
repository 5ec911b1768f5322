"""Gains over FedAvg along one axis: what studies of cohorts and of noise have in common.

A study pairs finished runs of FedAvg and of superquantile aggregation that lie at the same place of
its axis and differ in nothing else. The runs of a cross-validation count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import os
from typing import NamedTuple

from matplotlib import figure as mpl_figure
import pandas as pd

from paper.studies import finished_models
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder

_METRICS = {
  "test.error.mean": "Mean",
  tables.P90: "90th percentile",
  "test.error.superquantile_90": "Worst tenth",
}
# What methods differ in, and what a study tells apart.
_MAY_DIFFER = frozenset(
  (*run_config.incidentals(), "seed", "run_name", "algorithm", "theta", "threshold", "block_size")
  + ("averaged_rounds", "num_blocks")
)


@dataclasses.dataclass(frozen=True)
class Axis:
  """The axis along which a study compares.

  Attributes:
    name: The study's, and that of its files.
    column: The column of its .csv with the place on the axis.
    unit: Words for a place, after the number.
    label: The axis's label in the figure.
    title: The title of the page, after the task's.
    question: What the page answers.
    caption: What to look for in the figure.
    place: Returns where a run lies; None for a run that has no place.
    flags: The flags in which runs of different places differ.
  """

  name: str
  column: str
  unit: str
  label: str
  title: str
  question: str
  caption: str
  place: Callable[[run_folder.Run], float | None]
  flags: frozenset[str]


class Point(NamedTuple):
  """The change from FedAvg to a theta, at a place, with models averaged over rounds."""

  theta: float
  place: float
  averaged: int
  changes: Mapping[str, paired.Change]

  @property
  def kind(self) -> str:
    """Which model is measured."""
    return "last round’s model" if self.averaged == 1 else f"averaged model, K = {self.averaged}"


def find(runs: Iterable[run_folder.Run], axis: Axis) -> list[Point]:
  """Pairs runs of FedAvg and of a theta, by theta, kind of model and place, rising.

  Of other flags only runs with the most common ones count. Raises a `ValueError` without a pair.
  """
  rows = []
  for run in runs:
    if run.config is None:
      continue
    values, method = run.config.values(), names.Name(names.folder(run.config), run.config)
    is_fed_avg = run.config.algorithm == names.FED_AVG
    place = axis.place(run) if is_fed_avg or method.is_superquantile else None
    if place is None:
      continue
    others = {n: of for n, of in values.items() if n not in _MAY_DIFFER | axis.flags}
    theta = 1.0 if is_fed_avg else method.theta
    rows.append((theta, values["averaged_rounds"], place, repr(others), run))
  table = pd.DataFrame(rows, columns=["theta", "averaged", "place", "others", "run"])
  if len(table):
    table = table[table["others"] == table["others"].mode()[0]]
  groups = {key: list(its["run"]) for key, its in table.groupby(["theta", "averaged", "place"])}
  points = []
  for (theta, averaged, place), own in groups.items():
    baseline = groups.get((1.0, averaged, place))
    if theta < 1.0 and baseline:
      changes = {metric: paired.change(baseline, own, metric) for metric in _METRICS}
      known = {metric: change for metric, change in changes.items() if change is not None}
      points.append(Point(theta, place, int(averaged), known))
  if not points:
    raise ValueError(
      f"Found no place with both FedAvg and a theta in {tables.plural(len(table), 'run')};"
      f" expected such runs with as many {axis.unit}, whose other flags are the same."
    )
  return points


def report(output_dir: str | os.PathLike, task: str, axis: Axis) -> page.Page:
  """Shows the gain of a task's finished runs by theta, kind of model and place."""
  found = cross_validation.pool(finished_models.find(output_dir, task))
  points = find((run for run in found if not cross_validation.gaps([run])), axis)
  unit = units.of_run(found[0]).error
  headings = [f"θ, model, {axis.unit}", *(f"{name.lower()}" for name in _METRICS.values())]
  laid_out = [
    tables.Row(
      f"θ = {point.theta:g}, {point.kind}, {point.place:g}",
      [paired.cell(point.changes[metric], unit) for metric in _METRICS],
    )
    for point in points
  ]
  lowest = min(points, key=lambda point: point.changes[tables.P90].value)
  of_lowest = unit.number(lowest.changes[tables.P90].value, sign=True)
  note = "Points of error against FedAvg at the same place; bold without zero inside."
  return page.Page(
    axis.name,
    f"{found[0].task_title}, {axis.title}",
    axis.question,
    f"{tables.plural(len(points), 'pair')} of methods",
    f"p90 changes most, by {of_lowest}{unit.change}, with θ = {lowest.theta:g},"
    f" {lowest.place:g} {axis.unit} and the {lowest.kind}.",
    [tables.Table("Change against FedAvg", headings, laid_out, note), _draw(points, unit, axis)],
    _csv(task, points, axis),
  )


def _csv(task: str, points: Sequence[Point], axis: Axis) -> str:
  rows = [
    (task, p.theta, p.place, p.averaged, metric, c.before, c.after, c.low, c.high)
    for p in points
    for metric, c in p.changes.items()
  ]
  columns = ["task", "theta", axis.column, "averaged_rounds", "metric"]
  columns += ["before", "after", "low", "high"]
  return pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n")


def _draw(points: Sequence[Point], unit: units.Unit, axis: Axis) -> style.Figure:
  """Draws the changes with their intervals, a panel a measure, along the axis."""
  several = [theta for theta in dict.fromkeys(p.theta for p in points)]
  theta = max(several, key=lambda theta: sum(point.theta == theta for point in points))
  lines: dict[str, list[Point]] = {}
  for point in points:
    if point.theta == theta:
      lines.setdefault(point.kind, []).append(point)
  colors, shown = dict(zip(lines, style.COLORS)), []
  marked: list[float] = []  # Further apart than their labels are wide.
  for place in sorted({point.place for line in lines.values() for point in line}):
    if not marked or place >= 1.4 * marked[-1]:
      marked.append(place)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.0))
    panels = figure.subplots(1, len(_METRICS), sharey=True)
    for axes, (metric, title) in zip(panels, _METRICS.items()):
      axes.axhline(0.0, color=style.INK, linewidth=0.8)
      for index, (kind, line) in enumerate(lines.items()):
        changes = [point.changes[metric] for point in line]
        at = [point.place * 1.04 ** (2 * index - len(lines) + 1) for point in line]
        values = [unit.factor * change.value for change in changes]
        below = [unit.factor * (change.value - change.low) for change in changes]
        above = [unit.factor * (change.high - change.value) for change in changes]
        axes.errorbar(
          at, values, [below, above], color=colors[kind], marker="o", markersize=4, linewidth=1.7
        )
        told = (f"{unit.number(c.value, sign=True)} at {p.place:g}"
                for p, c in zip(line, changes))  # fmt: skip
        shown.append(f"{title}, {kind}: {', '.join(told)}")
      axes.set_title(title)
      axes.set_xscale("log")
      style.mark(axes.xaxis, marked)
      axes.set_xlabel(axis.label)
    panels[0].set_ylabel(unit.axis(f"θ = {theta:g} minus FedAvg"))
    style.add_line_legend(figure, {kind: dict(color=color) for kind, color in colors.items()})
    svg = style.to_svg(figure)
  shows = f"θ = {theta:g} minus FedAvg in points. {'. '.join(shown)}."
  caption = (
    "Points of error that superquantile aggregation adds to FedAvg’s, below 0 where it is lower,"
    f" with intervals of 95 % over test clients. Horizontal axes are logarithmic. {axis.caption}"
  )
  name = axis.name.replace("_", "-")
  title = f"Gain over FedAvg by {axis.label[0].lower()}{axis.label[1:]}"
  return style.Figure(name, title, caption, svg, shows)
