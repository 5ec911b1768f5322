"""Curves of finished runs: errors against one setting, all others at their most common values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import pandas as pd

from privacy import parts
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.run import run_folder

METRICS = {"mean": "test.error.mean", "p90": tables.P90}


class Setting(NamedTuple):
  """A setting of runs: its flag, its name to begin a heading, and the same in a sentence."""

  flag: str
  title: str
  noun: str


# Every method has them.
_SHARED = (
  Setting("local_epochs", "Local epochs", "local epochs"),
  Setting("clients_per_round", "Clients a round", "numbers of clients a round"),
)
_THETA = Setting("theta", "Tail fraction θ (1: FedAvg)", "tail fractions θ")


# The line of the curve against theta, which tells its methods apart.
OF_THETAS = names.Name("every_theta")
# What decides nothing, or is compared by itself.
_MAY_DIFFER = {
  *run_config.incidentals(),
  *("seed", "run_name", "algorithm", "theta", "threshold"),
  *("block_size", "num_blocks"),
  *(setting.flag for setting in _SHARED),
} - {"num_rounds"}


class Curve(NamedTuple):
  """Errors against the values of a setting, ascending, with the runs that have them.

  The lines of the figure are FedAvg, then a superquantile; or `OF_THETAS`. The results are as
  `tables.of_values` returns them, with `name(value)` in place of the method and the metrics
  LINE.mean and LINE.p90.
  """

  setting: Setting
  values: Sequence[float]
  lines: Sequence[names.Name]
  results: pd.DataFrame
  runs: Sequence[run_folder.Run]


def name(value: float) -> str:
  """Returns a setting's value as a text."""
  return f"{value:g}"


def _method(config: run_config.RunConfig) -> names.Name:
  """Returns the name that a run would have without --run_name."""
  config = dataclasses.replace(config, run_name="")
  return names.Name(names.folder(config), config)


def _points(runs: Iterable[run_folder.Run]) -> pd.DataFrame:
  """Returns a row for each run of FedAvg, or of a superquantile below theta = 1, exactly.

  Its columns are "run", "method", as `_method` names it, and the settings. Runs whose other flags
  are not the most common ones are left out.
  """
  rows = []
  for run in runs:
    if run.config is None:
      continue
    config = dataclasses.replace(run.config, run_name="")
    method = _method(config)
    is_tail = method.is_superquantile and isinstance(config.method.threshold, parts.Exact)
    if config.algorithm == names.FED_AVG or (is_tail and method.theta not in (None, 1.0)):
      shared = {setting.flag: config.values()[setting.flag] for setting in _SHARED}
      others = {k: v for k, v in config.values().items() if k not in _MAY_DIFFER}
      row = dict(run=run, method=method, theta=method.theta or 1.0, others=repr(others))
      rows.append({**row, **shared})
  points = pd.DataFrame(rows)
  return points[points["others"] == points["others"].mode()[0]] if rows else points


def _curve(setting: Setting, points: pd.DataFrame, lines: Mapping[Any, names.Name]) -> list[Curve]:
  """Returns the curve of a setting that has two values, with the line of each method."""
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
  """Finds a curve for each setting of which the runs have two values; there must be one.

  Settings that all methods share have a line for FedAvg, and one for the tail fraction with the
  most values; theta has a single line.
  """
  points = _points(runs)
  curves: list[Curve] = []
  if len(points):
    flags = [setting.flag for setting in _SHARED]
    methods = {method: method for method in (_method(run.config) for run in points["run"])}
    usual = points[flags].mode().iloc[0]
    for setting in _SHARED:
      others = [flag for flag in flags if flag != setting.flag]
      alike = points[(points[others] == usual[others]).all(axis=1)]
      is_tail = alike["theta"] < 1.0
      # The tail fraction with the most values of the setting; of several the one with most runs.
      tails = alike[is_tail].groupby("method")[setting.flag].agg(["nunique", "size"])
      tails = tails.sort_values(["nunique", "size"], ascending=False, kind="stable")
      chosen = [*alike.loc[~is_tail, "method"].unique(), *tails.index[:1]]
      curves += _curve(
        setting, alike[alike["method"].isin(chosen)], {method: methods[method] for method in chosen}
      )
    alike = points[(points[flags] == usual).all(axis=1)]
    curves += _curve(_THETA, alike, dict.fromkeys(alike["method"], OF_THETAS))
  if not curves:
    raise ValueError(
      f"Found no setting with two values among {tables.plural(len(points), 'run')} of FedAvg and"
      " superquantile aggregation; expected runs that differ in --local_epochs,"
      " --clients_per_round or --theta, such as those of ./run_experiments.sh sensitivity."
    )
  return curves
