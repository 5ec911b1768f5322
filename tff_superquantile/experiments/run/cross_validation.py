"""A cross-validation over clients (--folds): its runs, read as one that tested on everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from tff_superquantile import distribution
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.run import one_unit
from tff_superquantile.experiments.run import run_folder

_TEST = "test"
_IDENTITY = ("client_id", "num_examples", "round")


@dataclasses.dataclass(frozen=True)
class CrossValidation(run_folder.Run):
  """The finished runs (`folds`) of one method whose folds make up one division of the clients.

  Its test clients are those of all runs, each with the result of the model that has not seen it,
  and statistics of them are computed over all. Everything else is a mean over the runs.
  """

  folds: tuple[run_folder.Run, ...] = ()

  @functools.cached_property
  def metrics(self) -> dict[str, Any]:
    """As of a run: test clients are pooled, other numbers are means over the runs."""
    means: dict[str, Any] = mean_of([fold.metrics for fold in self.folds])
    for split in (split for split in (_TEST, *personal.ALL_PARTS) if split in means):
      of_split = means[split] = dict(means[split])
      for name, values in self.clients(split).items():
        if name not in _IDENTITY and name in of_split:
          count = {"num_clients": int(np.isfinite(values).sum())}
          has_count = "num_clients" in of_split[name]
          of_split[name] = {**distribution.describe(values), **(count if has_count else {})}
    return means

  @functools.cached_property
  def manifest(self) -> dict[str, Any]:
    """That of the first run, with the mean of the seconds a round."""
    seconds = [fold.manifest.get("seconds_per_round") for fold in self.folds]
    known = [value for value in seconds if value is not None]
    mean = {"seconds_per_round": float(np.mean(known))} if known else {}
    return {**self.folds[0].manifest, **mean}

  @functools.cached_property
  def rounds(self) -> dict[str, np.ndarray]:
    """The columns of `rounds.csv`, for the rounds that all runs have, means over the runs."""
    tables = [fold.rounds for fold in self.folds]
    if not all(tables):
      return {}
    shared = functools.reduce(np.intersect1d, [table["round"] for table in tables])
    rows = [np.isin(table["round"], shared) for table in tables]
    columns = set.intersection(*(set(table) for table in tables))
    means = {
      name: np.mean([table[name][kept] for table, kept in zip(tables, rows)], axis=0)
      for name in tables[0]
      if name in columns
    }
    return {**means, **self._of_all_clients(shared, means)}

  def _of_all_clients(
    self, rounds: np.ndarray, columns: Mapping[str, np.ndarray]
  ) -> dict[str, np.ndarray]:
    """Returns those of some columns that are statistics of test clients, of all of them."""
    clients = self.evaluations(_TEST)
    statistics = {}
    for name, means in columns.items():
      measure = next((m for m in clients if name.startswith(f"{_TEST}_{m}_")), None)
      if measure is not None:
        statistic = name.removeprefix(f"{_TEST}_{measure}_")
        statistics[name] = np.full_like(means, np.nan)
        for row in np.flatnonzero(np.isfinite(means)):
          values = clients[measure][clients["round"] == rounds[row]]
          statistics[name][row] = distribution.describe(values)[statistic]
    return statistics

  @property
  def label_sd(self) -> float | None:
    """That of all folds, which `pool` brings to one unit."""
    return self.folds[0].label_sd

  def clients(self, split: str) -> dict[str, np.ndarray]:
    """The clients of all runs; only those of "test" are different ones."""
    return _joined(self.folds, lambda fold: fold.clients(split))

  def evaluations(self, split: str) -> dict[str, np.ndarray]:
    """The results of the clients of all runs at each evaluation."""
    return _joined(self.folds, lambda fold: fold.evaluations(split))

  @property
  def weights(self) -> None:
    """None: there is a model for each fold."""
    return None


def _joined(
  folds: Sequence[run_folder.Run], read: Callable[[run_folder.Run], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  tables = [table for table in map(read, folds) if table]
  if not tables:
    return {}
  return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def mean_of(values: Sequence[Any]) -> Any:
  """Returns nested dicts of numbers, at least one, as one of means over those with the number."""
  if isinstance(values[0], dict):
    names = dict.fromkeys(name for value in values for name in value)
    return {name: mean_of([value[name] for value in values if name in value]) for name in names}
  is_number = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
  return float(np.mean(values)) if is_number else values[0]


def pool(runs: Iterable[run_folder.Run]) -> list[run_folder.Run]:
  """Puts a `CrossValidation` in the place of the finished runs that make it up, all in one unit."""
  together: dict[Any, list[run_folder.Run]] = {}
  for run in one_unit.of_task(runs):
    number = num_folds(run)
    key = (run.path.parent, run.seed // number) if number else run.path
    together.setdefault(key, []).append(run)
  pooled: list[run_folder.Run] = []
  for members in together.values():
    first = members[0]
    if number := num_folds(first):
      by_fold = tuple(sorted(members, key=lambda run: run.seed))
      first = CrossValidation(by_fold[0].path, first.seed // number, by_fold)
    pooled.append(first)
  return pooled


def single(runs: Iterable[run_folder.Run]) -> Iterator[run_folder.Run]:
  """Yields runs, and in the place of a cross-validation its own."""
  for run in runs:
    yield from run.folds if isinstance(run, CrossValidation) else (run,)


def num_folds(run: run_folder.Run) -> int:
  """Returns the number of folds of a run's cross-validation; 0 for none."""
  return 0 if run.config is None else run.config.task.folds


def offer(run: run_folder.Run) -> str:
  """Returns the flag that tests on more clients; "" where that is no cross-validation."""
  config = run.config
  if config is None or config.is_private or config.task.name != "own":
    return ""
  tests_on_few = not (config.task.folds or config.task.held_out_examples)
  return "--folds=5 tests each client of the table once" if tests_on_few else ""


def gaps(runs: Iterable[run_folder.Run]) -> list[str]:
  """Returns a sentence for each cross-validation of `pool` that lacks the runs of some folds."""
  sentences = []
  for run in runs:
    if isinstance(run, CrossValidation):
      number = num_folds(run.folds[0])
      there = {fold.seed % number for fold in run.folds}
      missing = [str(fold) for fold in range(number) if fold not in there]
      if missing:
        clients = len(run.clients(_TEST).get("client_id", ()))
        sentences.append(
          f"{run.method.label} has no finished run of fold {', '.join(missing)} of {number}; its"
          f" numbers are of the {clients} clients of the other folds."
        )
  return sentences
