"""Runs of several seeds or folds in one unit: each standardizes labels by its training clients'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from tff_superquantile.experiments.run import run_folder

# By the words in names of measures and of columns: the power of the labels' unit that they have.
_POWERS = {"error": 1, "mae": 1, "loss": 2, "threshold": 2, "num": 0}


def restated(values: Mapping[str, Any], factor: float, power: int = 0) -> dict[str, Any]:
  """Returns a run's metrics, rounds or clients, by measure or column, in another unit of labels.

  Args:
    values: Numbers, arrays or further such dicts by name.
    factor: The old unit in the new one.
    power: That of the unit in numbers whose names do not say it.
  """
  new: dict[str, Any] = {}
  for name, its in values.items():
    of_its = next((_POWERS[word] for word in name.split("_") if word in _POWERS), power)
    is_number = isinstance(its, (int, float, np.ndarray))  # Others are as they are.
    if isinstance(its, Mapping):
      new[name] = restated(its, factor, of_its)
    else:
      new[name] = its * factor**of_its if of_its and is_number else its
  return new


@dataclasses.dataclass(frozen=True)
class InOneUnit(run_folder.Run):
  """A finished run (`inner`) whose numbers are in standard deviations `sd` of another's labels."""

  inner: run_folder.Run
  sd: float

  @property
  def label_sd(self) -> float:
    return self.sd

  @functools.cached_property
  def metrics(self) -> dict[str, Any]:
    return restated(self.inner.metrics, factor(self))

  @functools.cached_property
  def rounds(self) -> dict[str, np.ndarray]:
    return restated(self.inner.rounds, factor(self))

  def clients(self, split: str) -> dict[str, np.ndarray]:
    return restated(self.inner.clients(split), factor(self))

  def evaluations(self, split: str) -> dict[str, np.ndarray]:
    return restated(self.inner.evaluations(split), factor(self))


def factor(run: run_folder.Run) -> float:
  """Returns the standard deviation of a run's own labels in the unit in which it is shown."""
  if not isinstance(run, InOneUnit) or run.inner.label_sd is None:
    return 1.0
  return run.inner.label_sd / run.sd


def of_task(runs: Iterable[run_folder.Run]) -> list[run_folder.Run]:
  """Brings finished runs to the unit of the lowest seed of their task."""
  runs, sds = list(runs), dict[pathlib.Path, float]()
  for run in sorted(runs, key=lambda run: run.seed):
    if run.label_sd:
      sds.setdefault(run.path.parent.parent, run.label_sd)
  shown = [(run, sds.get(run.path.parent.parent)) for run in runs]
  return [
    InOneUnit(run.path, run.seed, run, sd) if sd and run.label_sd not in (None, 0.0, sd) else run
    for run, sd in shown
  ]
