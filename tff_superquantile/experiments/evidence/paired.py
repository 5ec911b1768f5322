"""Paired differences between methods and their baselines, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math

import numpy as np
import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.run import run_folder

# The square of the quantiles of level 97.5 % and power 80 % over that of the level alone.
_FOR_POWER = ((1.960 + 0.842) / 1.960) ** 2
# Below this number of test clients, a percentile of clients is one client or two.
FEW_CLIENTS = 20


@dataclasses.dataclass(frozen=True)
class Change:
  """The change of a metric, "test.error.p90", from a baseline to a method, a mean over seeds.

  `low` and `high` are the ends of the interval of `after - before`; NaN where there is none. Seeds,
  and different test clients in these, are those that both have; clients are 0 where the runs have
  no results of each.
  """

  metric: str
  before: float
  after: float
  low: float
  high: float
  num_seeds: int
  num_clients: int

  @property
  def value(self) -> float:
    """The change; negative where the method's is lower."""
    return self.after - self.before

  @property
  def has_interval(self) -> bool:
    """Whether there is an interval."""
    return math.isfinite(self.low) and math.isfinite(self.high)

  @property
  def is_detected(self) -> bool:
    """Whether there is an interval, and zero is outside of it."""
    return self.has_interval and (self.low > 0 or self.high < 0)

  def interval(self, unit: units.Unit) -> str:
    """Formats the interval, "−3.1 to 0.4"; empty where there is none."""
    if not self.has_interval:
      return ""
    return f"{unit.number(self.low, sign=True)} to {unit.number(self.high, sign=True)}"

  def enough(self) -> tuple[int, str] | None:
    """Returns how many seeds or clients detect a change as large as this, with 80 % power."""
    if not self.has_interval or self.is_detected or not self.value:
      return None
    ratio = (self.high - self.low) / 2 / abs(self.value)
    count, noun = (self.num_clients, "client") if self.num_seeds == 1 else (self.num_seeds, "seed")
    needed = math.ceil(count * ratio**2 * _FOR_POWER)
    return (needed, noun) if needed > count else None


# The changes of a method by metric.
Changes = dict[str, Change]
# The baseline of a method, and its changes.
ByMethod = Mapping[names.Name, tuple[names.Name, Changes]]


def of_clients(
  runs: Iterable[run_folder.Run], column: str, split: str = "test"
) -> dict[int, pd.Series]:
  """Returns a column of a split's clients by their ids, by the seeds whose runs have it."""
  columns = ((run.seed, run.clients(split)) for run in runs)
  return {seed: pd.Series(its[column], its["client_id"]) for seed, its in columns if column in its}


def pairs(
  before: Mapping[int, pd.Series], after: Mapping[int, pd.Series]
) -> dict[int, pd.DataFrame]:
  """Pairs test clients by seed: each that both have with a finite number is a row by its id."""
  by_seed = {}
  for seed in sorted(before.keys() & after.keys()):
    both = {"before": before[seed], "after": after[seed]}
    pair = pd.concat(both, axis=1, join="inner")
    pair = pair[np.isfinite(pair).all(axis=1)]
    if len(pair):
      by_seed[seed] = pair
  return by_seed


def change(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], metric: str
) -> Change | None:
  """Measures a metric's change, over the seeds and clients of a baseline and a method.

  It is named SPLIT.COLUMN.STATISTIC. Where a run has no results of each client, it is of the
  runs' own numbers, without an interval.
  """
  split, column, _ = metric.split(".")
  both = pairs(of_clients(before, column, split), of_clients(after, column, split))
  own = {run.seed: run.numbers[metric] for run in before if metric in run.numbers}
  shared = [run for run in after if run.seed in own and metric in run.numbers]
  rows = [(own[run.seed], run.numbers[metric]) for run in shared]
  if len(rows) > len(both):
    first, second = np.mean(rows, axis=0)
    return Change(metric, float(first), float(second), math.nan, math.nan, len(rows), 0)
  return of_pairs(both, metric) if both else None


def of_pairs(pairs: Mapping[int, pd.DataFrame], metric: str) -> Change:
  """Measures the change of "test.COLUMN.STATISTIC" of `pairs`, at least one seed."""
  levels, low, high = bootstrap.interval(metric.rpartition(".")[2], list(pairs.values()))
  num_clients = len(set().union(*(pair.index for pair in pairs.values())))
  before, after = levels.tolist()
  return Change(metric, before, after, low, high, len(pairs), num_clients)


def cell(change: Change, unit: units.Unit) -> tables.Cell:
  """Lays out a change with its interval, bold where zero is outside of it."""
  interval = change.interval(unit)
  spread = f"({interval})" if interval else ""
  return tables.Cell(unit.number(change.value, sign=True), spread, change.is_detected)
