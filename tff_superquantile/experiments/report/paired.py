"""Paired differences between methods and their baselines, with bootstrap intervals.

A method and its baseline are compared over the seeds and the test clients that both have;
`clients.bootstrap` has the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math

import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.report.clients import bootstrap
from tff_superquantile.experiments.run import names
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
    """Says how much data would show the change, if it is real, in four cases of five.

    The width goes with one over the square root of the number of seeds, or for one seed of clients.
    So it is a number and "seed" or "client"; None where that does not help or is not known.
    """
    if not self.has_interval or self.is_detected or not self.value:
      return None
    ratio = (self.high - self.low) / 2 / abs(self.value)
    count, noun = (self.num_clients, "client") if self.num_seeds == 1 else (self.num_seeds, "seed")
    wanted = math.ceil(count * ratio**2 * _FOR_POWER)
    return (wanted, noun) if wanted > count else None


# The changes of a method by metric.
Changes = dict[str, Change]
# The baseline of a method, and its changes.
ByMethod = Mapping[names.Name, tuple[names.Name, Changes]]


def clients_of_both(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], column: str = "error"
) -> dict[int, pd.DataFrame]:
  """Pairs the test clients of a baseline and a method by seed, where both have results of each.

  A client that both have with a finite number is a row, indexed by its id, with the columns
  "before" and "after".
  """
  of_seeds = {run.seed: run for run in before}
  found = {}
  for run in after:
    both = [of_seeds[run.seed], run] if run.seed in of_seeds else []
    columns = [one.clients("test") for one in both]
    if columns and all(column in one for one in columns):
      series = (pd.Series(one[column], one["client_id"]) for one in columns)
      pair = pd.concat(dict(zip(("before", "after"), series)), axis=1, join="inner")
      pair = pair[np.isfinite(pair).all(axis=1)]
      if len(pair):
        found[run.seed] = pair
  return dict(sorted(found.items()))


def change(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], metric: str
) -> Change | None:
  """Measures the change of a metric "test.COLUMN.STATISTIC" from a baseline to a method.

  It is over the seeds that both have, of the clients that both have; where a run has no results of
  each client, of the runs' own numbers, and without an interval. It is None if there are no such
  numbers.
  """
  column = metric.split(".")[1]
  pairs = clients_of_both(before, after, column)
  own = {run.seed: run.numbers[metric] for run in before if metric in run.numbers}
  shared = [run for run in after if run.seed in own and metric in run.numbers]
  rows = [(own[run.seed], run.numbers[metric]) for run in shared]
  if len(rows) > len(pairs):
    first, second = np.mean(rows, axis=0)
    return Change(metric, float(first), float(second), math.nan, math.nan, len(rows), 0)
  return of_pairs(pairs, metric) if pairs else None


def of_pairs(pairs: Mapping[int, pd.DataFrame], metric: str) -> Change:
  """Measures the change of "test.COLUMN.STATISTIC" of `clients_of_both`, at least one seed."""
  levels, low, high = bootstrap.interval(metric.rpartition(".")[2], list(pairs.values()))
  num_clients = len(set().union(*(pair.index for pair in pairs.values())))
  before, after = levels.tolist()
  return Change(metric, before, after, low, high, len(pairs), num_clients)


def num_test_clients(groups: run_folder.Groups) -> int | None:
  """Returns the least number of test clients of a run; None if no run has their results."""
  found = [len(run.clients("test").get("error", ())) for runs in groups.values() for run in runs]
  return min((number for number in found if number), default=None)


def are_few(number: int) -> bool:
  """Returns whether percentiles of so many clients say nothing."""
  return number < FEW_CLIENTS


def has_few_clients(groups: run_folder.Groups) -> bool:
  """Returns whether a run has so few test clients that percentiles of them say nothing."""
  number = num_test_clients(groups)
  return number is not None and are_few(number)


def metrics(groups: run_folder.Groups, lead: str = tables.P90) -> dict[str, str]:
  """Returns headings by metric that tell of the tail, `lead` first, and of all, the mean last.

  Of few clients they have the worst one's error in place of a percentile.
  """
  column = lead.rpartition(".")[0]
  if has_few_clients(groups):
    return {f"{column}.max": "worst client", f"{column}.mean": "mean"}
  statistics = {"p90": "p90", "superquantile_90": "worst 10 %", "mean": "mean"}
  found = {f"{column}.{name}": heading for name, heading in statistics.items()}
  return {lead: found.get(lead, lead.rpartition(".")[2]), **found}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What methods change against their baselines, measured once for all parts of a page.

  `leading` is the measure that leads; `headings` are those of `metrics`. `changes` has, for each
  method whose baseline is there and shares a seed with it, the baseline and the changes by metric.
  """

  leading: units.Leading
  headings: Mapping[str, str]
  changes: ByMethod

  @property
  def first(self) -> str:
    """The metric that leads."""
    return next(iter(self.headings))

  def among(self, groups: run_folder.Groups) -> Comparison:
    """Returns the same for some of the methods, whose names may have lost their budgets."""
    whose = {runs[0].method: method for method, runs in groups.items()}
    its = {
      whose[method]: (whose[baseline], own)
      for method, (baseline, own) in self.changes.items()
      if method in whose and baseline in whose
    }
    return dataclasses.replace(self, changes=its)


def compare(groups: run_folder.Groups) -> Comparison:
  """Measures what each method changes against its baseline."""
  leading = units.leading(groups)
  headings = metrics(groups, leading.p90)
  found = {}
  baselines = names.baselines(groups)
  for method in (method for method in groups if method in baselines):
    baseline = baselines[method]
    measured = {metric: change(groups[baseline], groups[method], metric) for metric in headings}
    own = {metric: one for metric, one in measured.items() if one is not None}
    if own:
      found[method] = baseline, own
  return Comparison(leading, headings, found)


def lowest(compared: Comparison) -> set[tuple[names.Name, str]]:
  """Returns methods and metrics that are below FedAvg's, or FedAvg's below all, beyond chance.

  Their intervals exclude zero.
  """
  found = compared.changes
  of_all = [(method, metric, one) for method in found for metric, one in found[method][1].items()]
  lower = {(method, metric) for method, metric, one in of_all if one.is_detected and one.value < 0}
  for baseline in {baseline for baseline, _ in found.values()}:
    for metric in {metric for _, metric, _ in of_all}:
      others = [one for m, name, one in of_all if found[m][0] == baseline and name == metric]
      if others and all(one.is_detected and one.value > 0 for one in others):
        lower.add((baseline, metric))
  return lower


def worst_clients(groups: run_folder.Groups, measure: str = "error") -> pd.DataFrame:
  """Returns "test.MEASURE.max" of each run, its worst test client's, as `tables.of_values`."""
  errors = (
    (method, run.seed, run.clients("test").get(measure, np.array([])))
    for method, runs in groups.items()
    for run in runs
  )
  return tables.of_values(
    (method, seed, {f"test.{measure}.max": np.nanmax(of_run)})
    for method, seed, of_run in errors
    if np.isfinite(of_run).any()
  )


def cell(one: Change, unit: units.Unit, is_marked: bool) -> tables.Cell:
  """Lays out a change with its interval."""
  interval = one.interval(unit)
  spread = f"({interval})" if interval else ""
  return tables.Cell(unit.number(one.value, sign=True), spread, is_marked, is_close=True)


def table(groups: run_folder.Groups, compared: Comparison) -> tables.Table:
  """Lays out the changes of `compare` in a row a method, marked where an interval excludes zero."""
  wanted, unit, found = compared.headings, compared.leading.unit, compared.changes
  rows = []
  for method, (_, own) in found.items():
    one = next(iter(own.values()))
    cells = [
      cell(own[metric], unit, own[metric].is_detected) if metric in own else tables.Cell("–")
      for metric in wanted
    ]
    counts = [tables.Cell(str(one.num_seeds)), tables.Cell(str(one.num_clients or "–"))]
    rows.append(tables.Row(method.label, [*cells, *counts]))
  change_unit = f"percentage{unit.change}" if unit.change else unit.name
  note = (
    f"{unit.quantity} of a method less that of FedAvg with the same options, in {change_unit}, of"
    " the seeds and the test clients that both have; negative is better. In brackets is the 95 %"
    " interval of the bootstrap over clients and seeds; a change is bold only where zero is outside"
    " of it."
  )
  if any(one.num_seeds == 1 for _, own in found.values() for one in own.values()):
    note += " With one seed it is over clients alone, and holds for those trained models only."
  if has_few_clients(groups):
    note += " There are too few clients for percentiles; a single worst client has no interval."
  headings = ["method", *wanted.values(), "seeds", "clients"]
  return tables.Table("Change against FedAvg", headings, rows, note, focus=wanted[compared.first])
