"""What a report needs of its runs, each number measured once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import functools
import math

import numpy as np
import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.run import run_folder

_MAX_CURVES = 6  # More cannot be told apart.
_BASELINES_SHOWN = 2


class Grouped(dict[names.Name, Sequence[run_folder.Run]]):
  """Finished runs of one task by method, at least one run; nobody changes them.

  Some of the runs of `whole`, whose names may have lost their budgets, have its units and measure,
  and share what is slow to measure.
  """

  def __init__(self, groups: run_folder.Groups, whole: Grouped | None = None):
    super().__init__(groups)
    self.whole = self if whole is None else whole

  @functools.cached_property
  def runs(self) -> list[run_folder.Run]:
    return [run for runs in self.values() for run in runs]

  @functools.cached_property
  def results(self) -> pd.DataFrame:
    """The numbers of the runs, as `tables.of_values` returns them."""
    return tables.of_values((m, run.seed, run.numbers) for m, runs in self.items() for run in runs)

  @functools.cached_property
  def aggregates(self) -> pd.DataFrame:
    """The results, averaged by `tables.over_seeds`."""
    return tables.over_seeds(self.results)

  @functools.cached_property
  def worst_clients(self) -> pd.DataFrame:
    """As `results`, the leading measure of each run's worst test client: "test.MEASURE.max"."""
    name, metric = self.leading.name, self.leading.metric("max")
    return tables.of_values(
      (method, run.seed, {metric: np.nanmax(values)})
      for method, runs in self.items()
      for run in runs
      if np.isfinite(values := run.clients("test").get(name, np.array([]))).any()
    )

  def lowest_means(self, metric: str) -> dict[names.Name, float]:
    """Returns the means over seeds of a metric, where they are finite, the lowest first."""
    means = {method: self.aggregates["mean"].get((method, metric), math.nan) for method in self}
    finite = (entry for entry in means.items() if math.isfinite(entry[1]))
    return dict(sorted(finite, key=lambda entry: entry[1]))

  @property
  def has_one_seed(self) -> bool:
    """Whether runs are of a single seed, so that nothing is a mean over seeds."""
    return len({run.seed for run in self.runs}) == 1

  @functools.cached_property
  def num_clients(self) -> int:
    """The least number of test clients of a run, of runs that have their results; or 0."""
    numbers = (len(run.clients("test").get("loss", ())) for run in self.whole.runs)
    return min(filter(None, numbers), default=0)

  def are_few(self) -> bool:
    """Returns whether a run has so few test clients that percentiles of them say nothing."""
    return 0 < self.num_clients < paired.FEW_CLIENTS

  @functools.cached_property
  def clients(self) -> dict[names.Name, pd.DataFrame]:
    """The test clients of all seeds at the end of training, by method that has any."""
    frames, column = {}, self.leading.name
    for method, runs in self.items():
      own = [pd.DataFrame(run.clients("test")).assign(seed=run.seed) for run in runs]
      clients = pd.concat([frame for frame in own if column in frame] or [pd.DataFrame()])
      if column in clients:
        clients = clients.assign(value=clients[column] * self.leading.unit.factor)
        clients = clients[np.isfinite(clients["value"])]
      if not clients.empty:
        frames[method] = clients
    return frames

  @property
  def task_units(self) -> units.Units:
    return units.of_run(self.whole.runs[0])

  @property
  def _asked(self) -> str:
    """The measure that runs ask for, where all have it, or the error."""
    runs = self.whole.runs
    asked = {run.config.metric or "error" for run in runs if run.config is not None}
    name = next(iter(asked)) if len(asked) == 1 else "error"
    return name if all(f"test.{name}.p90" in run.numbers for run in runs) else "error"

  @functools.cached_property
  def measure_of_nobody(self) -> str:
    """The measure that runs ask for, where no test client of any has a number of it, or ""."""
    numbers = [run.numbers.get(f"test.{self._asked}.mean", math.nan) for run in self.whole.runs]
    return "" if any(map(math.isfinite, numbers)) else self._asked

  @functools.cached_property
  def leading(self) -> units.Leading:
    """The measure that a report leads with: one that somebody has, if any."""
    name = "error" if self.measure_of_nobody else self._asked
    return units.Leading(name, units.of_measure(name, self.task_units))

  @functools.cached_property
  def leading_by_round(self) -> units.Leading:
    """The measure that leads, if all runs have it at each evaluation; else the error."""
    column = f"test_{self.leading.name}_mean"
    is_there = all(column in run.rounds for run in self.whole.runs if run.rounds)
    return self.leading if is_there else units.Leading("error", self.task_units.error)

  @functools.cached_property
  def headings(self) -> dict[str, str]:
    """Headings by metric that tell of the tail, the leading one first, and the mean last."""
    few = {"max": "worst client"}
    tail = few if self.are_few() else {"p90": "p90", "superquantile_90": "worst 10 %"}
    return {self.leading.metric(name): of for name, of in {**tail, "mean": "mean"}.items()}

  @property
  def first(self) -> str:
    """The metric of the tail that leads."""
    return next(iter(self.headings))

  @functools.cached_property
  def changes(self) -> paired.ByMethod:
    """The baseline of each method that shares a seed with it, and the changes by metric."""
    if self.whole is not self:
      whose = {runs[0].method: method for method, runs in self.items()}
      return {
        whose[method]: (whose[baseline], own)
        for method, (baseline, own) in self.whole.changes.items()
        if method in whose and baseline in whose
      }
    by_method, baselines = {}, names.baselines(self)
    for method in (method for method in self if method in baselines):
      before, after = self[baselines[method]], self[method]
      measured = {metric: paired.change(before, after, metric) for metric in self.headings}
      own = {metric: change for metric, change in measured.items() if change is not None}
      if own:
        by_method[method] = baselines[method], own
    return by_method

  @functools.cached_property
  def lowest(self) -> set[tuple[names.Name, str]]:
    """Methods and metrics that are below FedAvg's, or FedAvg's below all, beyond chance."""
    changes = self.changes
    of_all = [(m, metric, c) for m in changes for metric, c in changes[m][1].items()]
    lower = {(m, metric) for m, metric, c in of_all if c.is_detected and c.value < 0}
    for baseline in {baseline for baseline, _ in changes.values()}:
      for metric in {metric for _, metric, _ in of_all}:
        others = [c for m, name, c in of_all if changes[m][0] == baseline and name == metric]
        if others and all(c.is_detected and c.value > 0 for c in others):
          lower.add((baseline, metric))
    return lower

  @functools.cached_property
  def epsilons(self) -> list[float]:
    """The privacy budgets, the smallest first."""
    return sorted({method.epsilon for method in self if method.epsilon is not None})

  @functools.cached_property
  def without_privacy(self) -> Grouped:
    """The methods without a privacy budget."""
    public = {method: runs for method, runs in self.items() if method.epsilon is None}
    return Grouped(public, self.whole)

  @functools.cached_property
  def at_one_budget(self) -> tuple[Grouped, float | None]:
    """Methods of one budget, the middle one, so that they can be compared, and the budget."""
    if not self.epsilons:
      return self, None
    epsilon = self.epsilons[len(self.epsilons) // 2]
    of_budget = {method: runs for method, runs in self.items() if method.epsilon == epsilon}
    if len(of_budget) < 2 <= len(self.without_privacy):
      return self.without_privacy, None
    shorter = names.without_epsilons(of_budget)
    chosen = {shorter[method]: runs for method, runs in of_budget.items()}
    return Grouped(chosen, self.whole), epsilon

  @functools.cached_property
  def contenders(self) -> Grouped:
    """FedAvg and the methods of the lowest tails, where there are too many to tell apart."""
    if len(self) <= _MAX_CURVES:
      return self
    tails = self.lowest_means(tables.P90)
    by_tail = [*tails, *(method for method in self if method not in tails)]
    tail_methods = [method for method in by_tail if method.is_superquantile]
    others = [m for m in by_tail if m not in tail_methods and not m.is_fed_avg]
    chosen = [
      *others[:_BASELINES_SHOWN],
      *tail_methods[: _MAX_CURVES - 1 - _BASELINES_SHOWN],
    ]
    shown = {names.FED_AVG, *chosen, *(method.fed_avg for method in chosen)}
    return Grouped({m: runs for m, runs in self.items() if m in shown}, self.whole)


def by_method(runs: Iterable[run_folder.Run]) -> Grouped:
  """Groups finished runs of one task by method.

  Args:
    runs: At least one run.

  Returns:
    The runs by method, FedAvg first.
  """
  return Grouped(run_folder.group_by_method(runs))
