"""What a report says of reference models: rows of its table, notes, and who does not beat them."""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

# Two standard errors over clients: a smaller lead may be chance.
_STANDARD_ERRORS = 2.0
_NAMED = 3  # More methods are counted, not named.


class References(NamedTuple):
  """The reference models of a report, by seed."""

  of_seed: Mapping[int, kept.References]

  @property
  def labels(self) -> dict[str, str]:
    """The names of the rows that there are, by their keys."""
    there = {name for one in self.of_seed.values() for name in one.found}
    return {name: label for name, label in kept.LABELS.items() if name in there}

  def results(self) -> pd.DataFrame:
    """Returns their numbers, as `tables.of_values` does."""
    return tables.of_values(
      (name, seed, one.found[name].numbers)
      for name in self.labels
      for seed, one in self.of_seed.items()
      if name in one.found
    )

  def notes(self) -> list[str]:
    """Says what each of the models is, or why it is not there, as the first seed has it."""
    if not self.of_seed:
      return []
    first = next(iter(self.of_seed.values()))
    said = [
      *(f"{kept.LABELS[name]}: {one.said}." for name, one in first.found.items()),
      *(f"{kept.LABELS[name]}: left out, as {why}." for name, why in first.left_out.items()),
    ]
    return [" ".join(["Rows that are not federated say what there is to gain.", *said])]


def find(groups: run_folder.Groups) -> References:
  """Finds the reference models of finished runs, where they are of the same test clients.

  Beside private runs it finds only those that do not follow from training clients.
  """
  of_seed: dict[int, list[run_folder.Run]] = {}
  for run in (run for runs in groups.values() for run in runs):
    of_seed.setdefault(run.seed, []).append(run)
  found = {}
  for seed, runs in sorted(of_seed.items()):
    references = _read(runs[0])
    if references is None or not any(_has_clients(run, references) for run in runs):
      continue
    if references.is_private or not any(
      run.config is None or run.config.is_private for run in runs
    ):
      found[seed] = references
  return References(found)


def _read(run: run_folder.Run) -> kept.References | None:
  """Reads the reference models of a run's seed, or of all folds of a cross-validation."""
  of_runs = run.folds if isinstance(run, cross_validation.CrossValidation) else (run,)
  parts = [kept.read(one.path.parent.parent, one.seed) for one in of_runs]
  known = [part for part in parts if part is not None]
  if len(known) < len(parts):
    return None
  return kept.joined(known) if len(known) > 1 else known[0]


def _has_clients(run: run_folder.Run, references: kept.References) -> bool:
  """Returns whether the constant answer was measured on the test clients of a run."""
  constant = references.found.get(kept.CONSTANT)
  ids = run.clients("test").get("client_id", np.array([])).tolist()
  return constant is not None and bool(ids) and constant.clients["client_id"].tolist() == ids


class _Compared(NamedTuple):
  """A method's mean error and p90, and those of the constant answer over the same seeds."""

  mean: float
  p90: float
  constant_mean: float
  constant_p90: float
  lead: float  # Of the method, in mean error.
  standard_error: float

  @property
  def is_better(self) -> bool:
    is_beyond_chance = self.lead > _STANDARD_ERRORS * self.standard_error
    return is_beyond_chance and self.p90 < self.constant_p90


def _compare(runs: list[run_folder.Run], references: References) -> _Compared | None:
  """Compares the runs of a method with the constant answer, client by client."""
  leads, levels = [], []
  for run in runs:
    of_seed = references.of_seed.get(run.seed)
    if of_seed is None or not _has_clients(run, of_seed):
      continue
    constant = of_seed.found[kept.CONSTANT]
    levels.append(
      [
        source.get(name, math.nan)
        for source in (run.numbers, constant.numbers)
        for name in ("test.error.mean", tables.P90)
      ]
    )
    lead = constant.clients["error"] - run.clients("test")["error"]
    leads.append(lead[np.isfinite(lead)])
  found = np.concatenate(leads) if leads else np.array([])
  if not found.size:
    return None
  mean, p90, constant_mean, constant_p90 = np.mean(levels, axis=0).tolist()
  if not math.isfinite(mean + p90 + constant_mean + constant_p90):
    return None
  spread = np.std(found, ddof=1) / math.sqrt(found.size) if found.size > 1 else 0.0
  return _Compared(mean, p90, constant_mean, constant_p90, float(found.mean()), float(spread))


def verdict(groups: run_folder.Groups, references: References) -> str:
  """Says which methods are no better than the constant answer, in a sentence and a space.

  A method is better if the mean of its test clients' errors is lower by more than two standard
  errors of the differences over clients and seeds, and the 90th percentile is lower, too.

  Args:
    groups: Finished runs by method.
    references: From `find`.

  Returns:
    The sentence; "" if all methods are better, or nothing is known.
  """
  compared = {method: _compare(list(runs), references) for method, runs in groups.items()}
  known = {method: one for method, one in compared.items() if one is not None}
  failed = {method: one for method, one in known.items() if not one.is_better}
  if not failed:
    return ""
  unit = units.of(groups).error
  method = min(failed, key=lambda method: (failed[method].mean, failed[method].p90))
  one = failed[method]
  constant = next(iter(references.of_seed.values())).found[kept.CONSTANT]
  return (
    f"{_subject(failed, known)} no better than the constant answer ({constant.said}):"
    f" {'' if len(failed) == 1 else f'{method.label} has '}"
    f"mean error {unit.text(one.mean)} against {unit.text(one.constant_mean)},"
    f" 90th percentile {unit.text(one.p90)} against {unit.text(one.constant_p90)}. "
  )


def _subject(failed: Mapping[names.Name, _Compared], known: Mapping[names.Name, _Compared]) -> str:
  """Returns the methods that are no better, with their verb."""
  labels = [method.label for method in failed]
  if len(labels) == 1:
    return f"{labels[0]} is"
  if len(failed) == len(known):
    return f"All {len(known)} methods are"
  named = f" ({'; '.join(labels)})" if len(labels) <= _NAMED else ""
  return f"{len(labels)} of {len(known)} methods{named} are"
