"""Paired differences between methods and their baselines, with bootstrap intervals.

A method and its baseline are compared over the seeds and the test clients that both have. The
interval is that of the percentiles of a bootstrap of two factors. Clients are drawn with
replacement; a client counts as often in every seed and for both methods. One client fewer is drawn
than there are, so that the variance of a mean is s^2 / n (Rao and Wu, 1988), and the interval is
widened as Student's is wider than a normal one, which counts for few clients. Seeds are clusters of
clients. There are too few to draw them: of two or three with equal signs, resamples would never
reach zero. So their mean is drawn from Student's distribution, s t_{S - 1} / sqrt(S) around that
of the clients that were drawn, with the standard deviation s of S seeds. That counts the clients'
part of s twice: intervals are rather too wide than too narrow. With one seed, only clients are
drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import stats

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

LEVEL = 0.95
# Below this number of test clients, a percentile of clients is one client or two.
FEW_CLIENTS = 20
_NUM_DRAWS = 1000
_SEED = 20  # Any constant: the same runs give the same report.


@dataclasses.dataclass(frozen=True)
class Change:
  """The change of a metric from a baseline to a method, a mean over seeds.

  Attributes:
    metric: The metric, "test.error.p90".
    before: The baseline's.
    after: The method's.
    low: The lower end of the interval of `after - before`; NaN where there is none.
    high: The upper end.
    num_seeds: The number of seeds that both have.
    num_clients: The number of different test clients that both have in these seeds; 0 where the
      runs have no results of each client.
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
    """Says how much data would make the half of the interval as narrow as the change.

    The width goes with one over the square root of the number of seeds, or for one seed of clients.

    Returns:
      The number, and "seed" or "client"; None where that does not help or is not known.
    """
    if not self.has_interval or self.is_detected or not self.value:
      return None
    ratio = (self.high - self.low) / 2 / abs(self.value)
    count, noun = (self.num_clients, "client") if self.num_seeds == 1 else (self.num_seeds, "seed")
    wanted = math.ceil(count * ratio**2)
    return (wanted, noun) if wanted > count else None


# The changes of a method by metric.
Changes = dict[str, Change]


def statistic(name: str, ordered: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Computes a statistic of resamples, each as `metrics.json` has it of a sample.

  Args:
    name: "mean", "max", "pPERCENT" (linear interpolation) or "superquantile_PERCENT" (the mean of
      the largest 100 - PERCENT of a hundred).
    ordered: [n] finite values, the least first.
    counts: [draws, n] how often each value is in each resample, integers.

  Returns:
    float64 [draws]; NaN for a resample of nothing.

  Raises:
    ValueError: If there is no such statistic.
  """
  totals = counts.sum(axis=1)
  kind, _, percent = name.partition("_") if "_" in name else (name[:1], "", name[1:])
  with np.errstate(invalid="ignore", divide="ignore"):
    if name == "mean":
      return counts @ ordered / totals
    if name == "max":
      last = counts.shape[1] - 1 - np.argmax(counts[:, ::-1] > 0, axis=1)
      return np.where(totals > 0, ordered[last], np.nan)
    if kind not in ("p", "superquantile") or not percent.isdecimal():
      raise ValueError(
        f"Found the statistic {name!r}; expected mean, max, p90 or superquantile_90, or another"
        " percentage of these."
      )
    up_to = np.cumsum(counts, axis=1)
    if kind == "p":
      position = int(percent) / 100 * (totals - 1)
      below = np.floor(position)
      # The k-th of a resample, from zero, is the first value with more than k at or below it.
      at, after = (
        np.minimum((up_to <= k[:, None]).sum(axis=1), len(ordered) - 1)
        for k in (below, np.minimum(below + 1, totals - 1))
      )
      values = ordered[at] + (position - below) * (ordered[after] - ordered[at])
      return np.where(totals > 0, values, np.nan)
    tail = totals * (1 - int(percent) / 100)
    above = totals[:, None] - up_to
    taken = np.clip(tail[:, None] - above, 0, counts)
    return taken @ ordered / tail


def differences(
  name: str, pairs: Sequence[pd.DataFrame], num_draws: int = _NUM_DRAWS
) -> tuple[np.ndarray, np.ndarray]:
  """Resamples the difference of a statistic between two methods.

  Args:
    name: As in `statistic`.
    pairs: For each seed the clients that both have: columns "before" and "after", finite, indexed
      by the clients' ids.
    num_draws: The number of resamples.

  Returns:
    [seeds, 2] the statistics before and after, and float64 [num_draws] the resampled mean over
    seeds of their differences.
  """
  generator = np.random.default_rng(_SEED)
  ids = pd.Index(np.unique(np.concatenate([pair.index.to_numpy() for pair in pairs])))
  counts = _resampled(generator, len(ids), num_draws)
  of_pairs, found = [], []
  for pair in pairs:
    places = ids.get_indexer(pair.index)
    for column in ("before", "after"):
      order = np.argsort(pair[column].to_numpy(), kind="stable")
      ordered = pair[column].to_numpy()[order]
      of_pairs.append(statistic(name, ordered, np.ones((1, len(order)), int))[0])
      found.append(statistic(name, ordered, counts[:, places[order]]))
  levels = np.reshape(of_pairs, (len(pairs), 2))
  of_seeds = np.reshape(found, (len(pairs), 2, num_draws))
  changes = of_seeds[:, 1] - of_seeds[:, 0]
  # A seed without any client that was drawn counts by its own value.
  own = levels[:, 1] - levels[:, 0]
  drawn = np.where(np.isfinite(changes), changes, own[:, None]).mean(axis=0)
  if len(pairs) > 1:
    # Equal steps of probability in random order: no chance in the far tails of few seeds.
    steps = (generator.permutation(num_draws) + 0.5) / num_draws
    spread = np.std(own, ddof=1) / math.sqrt(len(pairs))
    drawn = drawn + spread * stats.t.ppf(steps, len(pairs) - 1)
  return levels, drawn


def _resampled(generator: np.random.Generator, number: int, num_draws: int) -> np.ndarray:
  """Returns int64 [num_draws, number]: how often each is among number - 1 draws, at least one."""
  return generator.multinomial(max(1, number - 1), np.full(number, 1 / number), num_draws)


def clients_of_both(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], column: str = "error"
) -> dict[int, pd.DataFrame]:
  """Pairs the test clients of two methods.

  Args:
    before: Finished runs of the baseline.
    after: Those of the method.
    column: The column of the clients' results.

  Returns:
    By seed that both have, and where both have results of each client: a row for each client that
    both have with a finite number, indexed by its id, with the columns "before" and "after".
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
  """Measures the change of a metric of test clients from a baseline to a method.

  Args:
    before: Finished runs of the baseline.
    after: Those of the method.
    metric: "test.COLUMN.STATISTIC".

  Returns:
    The change over the seeds that both have, of the clients that both have; where a run has no
    results of each client, of the runs' own numbers, and without an interval. None if there are
    no such numbers.
  """
  _, column, name = metric.split(".")
  pairs = clients_of_both(before, after, column)
  own = {run.seed: run.numbers[metric] for run in before if metric in run.numbers}
  shared = [run for run in after if run.seed in own and metric in run.numbers]
  rows = [(own[run.seed], run.numbers[metric]) for run in shared]
  if len(rows) > len(pairs):
    first, second = np.mean(rows, axis=0)
    return Change(metric, float(first), float(second), math.nan, math.nan, len(rows), 0)
  if not pairs:
    return None
  levels, drawn = differences(name, list(pairs.values()))
  num_clients = len(set().union(*(pair.index for pair in pairs.values())))
  low = high = math.nan
  # One client has no spread, and of a maximum the bootstrap knows nothing.
  first, second = levels.mean(axis=0)
  if num_clients > 1 and name != "max":
    ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = second - first + _widening(num_clients) * (ends - (second - first))
  return Change(
    metric, float(first), float(second), float(low), float(high), len(pairs), num_clients
  )


def _widening(num_clients: int) -> float:
  """Returns how much wider Student's interval is than a normal one: 1.31 times for 6 clients."""
  up_to = (1 + LEVEL) / 2
  return float(stats.t.ppf(up_to, num_clients - 1) / stats.norm.ppf(up_to))


def num_test_clients(groups: run_folder.Groups) -> int | None:
  """Returns the least number of test clients of a run; None if no run has their results."""
  found = [len(run.clients("test").get("error", ())) for runs in groups.values() for run in runs]
  return min((number for number in found if number), default=None)


def has_few_clients(groups: run_folder.Groups) -> bool:
  """Returns whether a run has so few test clients that percentiles of them say nothing."""
  number = num_test_clients(groups)
  return number is not None and number < FEW_CLIENTS


def metrics(groups: run_folder.Groups, lead: str = tables.P90) -> dict[str, str]:
  """Says which numbers of the test clients tell of the tail and of all.

  Args:
    groups: Finished runs by method.
    lead: The metric that leads.

  Returns:
    Headings by metric, the leading one first and the mean last: of few clients the worst one's
    error in place of a percentile.
  """
  column = lead.rpartition(".")[0]
  if has_few_clients(groups):
    return {f"{column}.max": "worst client", f"{column}.mean": "mean"}
  statistics = {"p90": "p90", "superquantile_90": "worst 10 %", "mean": "mean"}
  found = {f"{column}.{name}": heading for name, heading in statistics.items()}
  return {lead: found.get(lead, lead.rpartition(".")[2]), **found}


def changes(
  groups: run_folder.Groups, wanted: Iterable[str]
) -> dict[names.Name, tuple[names.Name, Changes]]:
  """Measures what each method changes against its baseline.

  Args:
    groups: Finished runs by method.
    wanted: The metrics.

  Returns:
    For each method whose baseline is among them and that shares a seed with it: the baseline, and
    the changes by metric.
  """
  wanted = list(wanted)
  found = {}
  baselines = names.baselines(groups)
  for method in groups:
    if method in baselines:
      baseline = baselines[method]
      measured = {metric: change(groups[baseline], groups[method], metric) for metric in wanted}
      own = {metric: one for metric, one in measured.items() if one is not None}
      if own:
        found[method] = baseline, own
  return found


def lowest(groups: run_folder.Groups, wanted: Iterable[str]) -> set[tuple[names.Name, str]]:
  """Says whose numbers are below those of FedAvg, or for FedAvg below all others, beyond chance.

  Args:
    groups: Finished runs by method.
    wanted: The metrics.

  Returns:
    Methods and metrics whose intervals exclude zero.
  """
  found = changes(groups, wanted)
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


def table(groups: run_folder.Groups, lead: str = tables.P90) -> tables.Table:
  """Lays out what each method changes against its baseline, with intervals.

  Args:
    groups: Finished runs by method.
    lead: The metric that leads.

  Returns:
    A row for each method of `changes`; changes whose interval excludes zero are marked.
  """
  wanted, unit = metrics(groups, lead), units.of_metric(lead, groups)
  rows = []
  found = changes(groups, wanted)
  for method, (_, own) in found.items():
    one = next(iter(own.values()))
    cells = [tables.Cell(str(one.num_seeds)), tables.Cell(str(one.num_clients or "–"))]
    for metric in wanted:
      if metric not in own:
        cells.append(tables.Cell("–"))
        continue
      cells.append(cell(own[metric], unit, own[metric].is_detected))
    rows.append(tables.Row(method.label, cells))
  change_unit = f"percentage{unit.change}" if unit.change else unit.name
  note = (
    f"{unit.quantity} of a method less that of FedAvg with the same options, in {change_unit}, of"
    " the seeds and the test clients that both have; negative is better. In brackets is the 95 %"
    " interval of"
    " the bootstrap over clients and seeds; a change is bold only where zero is outside of it."
  )
  if any(one.num_seeds == 1 for _, own in found.values() for one in own.values()):
    note += " With one seed it is over clients alone, and holds for those trained models only."
  if has_few_clients(groups):
    note += " There are too few clients for percentiles; a single worst client has no interval."
  headings = ["method", "seeds", "clients", *wanted.values()]
  return tables.Table(
    "Change against FedAvg", headings, rows, note, focus=wanted.get(lead, "worst client")
  )
