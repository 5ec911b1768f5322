"""Curves of finished runs: errors against one setting, all others at their most common values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import pandas as pd

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import name_parts
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

METRICS = {"mean": "test.error.mean", "p90": tables.P90}


class Setting(NamedTuple):
  """A setting of runs.

  Attributes:
    flag: Its flag.
    title: Its name, to begin a heading.
    noun: The same in a sentence.
  """

  flag: str
  title: str
  noun: str


# Every method has them.
_SHARED = (
  Setting("local_epochs", "Local epochs", "local epochs"),
  Setting("clients_per_round", "Clients a round", "numbers of clients a round"),
)
_THETA = Setting("theta", "Tail fraction θ (1: FedAvg)", "tail fractions θ")


class Curve(NamedTuple):
  """Errors against a setting.

  Attributes:
    setting: The setting.
    values: Its values, ascending.
    lines: The method of each line of the figure: FedAvg, then a superquantile; against theta, which
      tells the methods of a line apart, FedAvg alone.
    results: As `tables.of_values` returns them, with `name(value)` in place of the method and the
      metrics LINE.mean and LINE.p90.
    runs: The runs.
  """

  setting: Setting
  values: Sequence[float]
  lines: Sequence[names.Name]
  results: pd.DataFrame
  runs: Sequence[run_folder.Run]


def name(value: float) -> str:
  """Returns a setting's value as a text."""
  return f"{value:g}"


def _points(runs: Iterable[run_folder.Run]) -> pd.DataFrame:
  """Returns a row for each run of FedAvg, or of a superquantile with nothing besides.

  Its columns are "run", "method", which is the name that the run would have without --run_name, and
  the settings.
  """
  rows = []
  for run in runs:
    if run.config is None:
      continue
    config = dataclasses.replace(run.config, run_name="")
    method = names.Name(names.folder(config), config)
    is_plain = name_parts.of_run(config) == name_parts.of_method(config)
    if is_plain and (method == names.FED_AVG or (method.is_superquantile and method.theta)):
      shared = {setting.flag: getattr(config, setting.flag) for setting in _SHARED}
      rows.append(dict(run=run, method=method, theta=method.theta or 1.0, **shared))
  return pd.DataFrame(rows)


def _curve(setting: Setting, points: pd.DataFrame, lines: Mapping[Any, names.Name]) -> list[Curve]:
  """Returns the curve, if the setting has two values.

  Args:
    setting: The setting.
    points: Its runs, as `_points` returns them.
    lines: The line of each method.
  """
  values = sorted(points[setting.flag].unique())
  if len(values) < 2:
    return []
  results = tables.of_values(
    (
      name(point[setting.flag]),
      point["run"].seed,
      {f"{lines[point['method']]}.{m}": point["run"].numbers[of] for m, of in METRICS.items()},
    )
    for _, point in points.sort_values(setting.flag, kind="stable").iterrows()
  )
  return [Curve(setting, values, list(dict.fromkeys(lines.values())), results, list(points["run"]))]


def find(runs: Iterable[run_folder.Run]) -> list[Curve]:
  """Finds the curves of a task's finished runs.

  Args:
    runs: The runs.

  Returns:
    A curve for each setting that has two values or more. Those that all methods share have a line
    for FedAvg, and one for the tail fraction with the most runs; theta has a single line.

  Raises:
    ValueError: If no setting has two values.
  """
  points = _points(runs)
  curves: list[Curve] = []
  if len(points):
    flags = [setting.flag for setting in _SHARED]
    usual = points[flags].mode().iloc[0]
    for setting in _SHARED:
      others = [flag for flag in flags if flag != setting.flag]
      alike = points[(points[others] == usual[others]).all(axis=1)]
      tails = alike.loc[alike["method"] != names.FED_AVG, "method"]
      chosen = [method for method in alike["method"].unique() if method == names.FED_AVG]
      chosen += tails.value_counts().index[:1].tolist()
      curves += _curve(
        setting, alike[alike["method"].isin(chosen)], {method: method for method in chosen}
      )
    alike = points[(points[flags] == usual).all(axis=1)]
    curves += _curve(_THETA, alike, dict.fromkeys(alike["method"], names.Name(names.FED_AVG)))
  if not curves:
    raise ValueError(
      f"Found no setting with two values among {tables.plural(len(points), 'run')} of FedAvg and"
      " superquantile aggregation; expected runs that differ in --local_epochs,"
      " --clients_per_round or --theta, such as those of ./run_experiments.sh sensitivity."
    )
  return curves
