"""Shows how errors depend on local epochs, on the size of cohorts, and on the tail fraction.

    python -m paper.studies sensitivity --output_dir=DIR --task=TASK

Reads the finished runs of FedAvg and of superquantile aggregation with an exact threshold, and
trains nothing. Of runs that differ in one setting from the most common one, it makes a curve; runs
that differ in two, or in another flag, are left out. The names of folders do not tell these
settings, so such runs have a --run_name. Writes

    DIR/TASK/sensitivity.{html,md,csv}    a row each value of a setting, over seeds

Errors are fractions in files and percent in tables.
"""

from __future__ import annotations

from collections.abc import Sequence
import os

from matplotlib import figure as mpl_figure
import pandas as pd

from paper.studies import by_seed
from paper.studies import finished_models
from paper.studies.sensitivity import curves as curves_lib
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.report import rounds

_NAME = "sensitivity"
_NOTE = (
  "Error of the test clients in {}: its mean and its 90th percentile (p90) over clients. Entries"
  " are means, and ± the standard deviation, over seeds; the lowest of a column is bold. All other"
  " settings are the same."
)
_TITLES = {"p90": "90th percentile", "mean": "Mean"}
_CAPTION = (
  "Above the 90th percentile of the test clients’ errors, below their mean; means over seeds, the"
  " band is one standard deviation over seeds on either side. Horizontal axes are logarithmic, and"
  " all settings but that of the axis are the same. Look whether the gap to FedAvg stays where"
  " local epochs or cohorts change, and where θ is so small that the mean rises without the tail"
  " falling."
)


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Shows how the errors of a task's finished runs depend on one setting at a time."""
  runs = finished_models.find(output_dir, task)
  curves = curves_lib.find(runs)
  groups = grouped.by_method(run for curve in curves for run in curve.runs)
  unit = groups.task_units.error
  used = {run.path for run in groups.runs}
  return page.Page(
    _NAME,
    f"{runs[0].task_title}, sensitivity",
    "what do local epochs, cohorts and θ change?",
    f"{tables.plural(len(groups), 'method')}, {tables.plural(len(used), 'run')}, one setting at a"
    " time",
    " ".join(_summarize(curve, unit) for curve in curves),
    [
      *(_table(curve, unit) for curve in curves),
      *map(page.Text, provenance.different_seeds(groups)),
      _draw(curves, unit),
    ],
    tables.to_csv(task, pd.concat([_named(curve) for curve in curves]), "setting"),
  )


def _named(curve: curves_lib.Curve) -> pd.DataFrame:
  """Returns a curve's results with names of values that tell the setting, too."""
  return curve.results.assign(method=f"{curve.setting.flag}=" + curve.results["method"])


def _table(curve: curves_lib.Curve, unit: units.Unit) -> tables.Table:
  """Lays out a curve: a row a value, columns for each line."""
  several = len(curve.lines) > 1
  columns = [
    unit.column(f"{line}.{metric}", f"{line.label}, {metric}" if several else metric)
    for line in curve.lines
    for metric in curves_lib.METRICS
  ]
  return tables.of_seeds(
    curve.results,
    columns,
    {curves_lib.name(value): curves_lib.name(value) for value in curve.values},
    first=curve.setting.noun,
    title=curve.setting.title,
    note=_NOTE.format(unit.name),
    lead=f"Error of the test clients in {unit.name}, against {curve.setting.noun}:",
  )


def _summarize(curve: curves_lib.Curve, unit: units.Unit) -> str:
  """Says where the tail is lowest, or between what bounds its distance to FedAvg's lies."""
  values = [curves_lib.name(value) for value in curve.values]
  over = f"Over {curve.setting.noun} from {values[0]} to {values[-1]}"
  metrics = [f"{line}.p90" for line in curve.lines]
  if len(metrics) == 1:
    means = tables.over_seeds(curve.results)["mean"].xs(metrics[0], level="metric").dropna()
    if means.empty:
      return f"{over} no run has a finite error."
    return f"{over} the lowest p90 is {unit.text(means.min())}, at {means.idxmin()}."
  changes = {}
  for value in values:
    theirs, ours = (by_seed.of_seed(curve.results, value, metric) for metric in metrics)
    if len(change := (ours - theirs).dropna()):
      changes[value] = change.mean()
  if not changes:
    return f"{over} the methods share no seed."
  ends = dict.fromkeys(choose(changes, key=changes.__getitem__) for choose in (min, max))
  bounds = (f"{unit.number(changes[value], sign=True)} (at {value})" for value in ends)
  label = curve.lines[1].label
  return f"{over} {label} changes the p90 of FedAvg by {' to '.join(bounds)}{unit.change}."


def _draw(curves: Sequence[curves_lib.Curve], unit: units.Unit) -> style.Figure:
  """Draws the curves of errors, a column for each setting."""
  lines = dict.fromkeys(line for curve in curves for line in curve.lines)
  methods = [line for line in lines if line != curves_lib.OF_THETAS]
  looks = style.palette(methods)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 4.8))
    panels = figure.subplots(2, len(curves), sharex="col", sharey="row", squeeze=False)
    for column, curve in zip(panels.T, curves):
      entries = tables.over_seeds(curve.results)
      for axes, metric in zip(column, _TITLES):
        for line in curve.lines:
          points = entries.xs(f"{line}.{metric}", level="metric")[["mean", "sd"]] * unit.factor
          points.index = points.index.astype(float)
          points = points.rename(columns={"sd": "std"}).sort_index()
          look = looks.get(line, style.Look(style.INK, "-"))
          rounds.add_curve(axes, points, look, 0.12, "o" if len(points) < 12 else "")
        axes.set_xscale("log")
        style.mark(axes.xaxis, curve.values)
      column[-1].set_xlabel(curve.setting.title)
    for axes, title in zip(panels[:, 0], _TITLES.values()):
      axes.set_ylabel(unit.axis(title))
    if methods:
      style.add_legend(figure, looks, methods)
    svg = style.to_svg(figure)
  return style.Figure("sensitivity", "Error against local epochs, cohorts and θ", _CAPTION, svg)
