"""What a report says of reference models: rows of its table, notes, and who does not beat them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

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
  """The changes from the constant answer to a method.

  Attributes:
    mean: In the mean, over seeds.
    tail: In the tail, over seeds.
    of_clients: In the mean, of every client's values over the seeds: chance is that of clients, for
      the models that were trained.
  """

  mean: paired.Change
  tail: paired.Change
  of_clients: paired.Change

  @property
  def is_better_on_average(self) -> bool:
    """Whether the mean is lower, and by more than chance where that is known."""
    is_chance = self.of_clients.has_interval and not self.of_clients.is_detected
    return self.of_clients.value < 0 and not is_chance

  @property
  def is_better_for_the_tail(self) -> bool:
    return self.tail.value < 0


def _compare(
  runs: list[run_folder.Run], references: References, tail: str, mean: str
) -> _Compared | None:
  """Compares the runs of a method with the constant answer, client by client."""
  pairs = {}
  for run in runs:
    of_seed = references.of_seed.get(run.seed)
    if of_seed is None or not _has_clients(run, of_seed):
      continue
    constant, column = of_seed.found[kept.CONSTANT].clients, mean.split(".")[1]
    if column in constant and column in run.clients("test"):
      values = {"before": constant[column], "after": run.clients("test")[column]}
      pair = pd.DataFrame(values, index=constant["client_id"])
      pair = pair[np.isfinite(pair).all(axis=1)]
      if len(pair):
        pairs[run.seed] = pair
  if not pairs:
    return None
  # Two or three seeds, of other clients each, say little of chance, but all their clients do.
  together = {0: pd.concat(pairs.values()).groupby(level=0).mean()}
  of_what = ((pairs, mean), (pairs, tail), (together, mean))
  return _Compared(*(paired.of_pairs(*arguments) for arguments in of_what))


def verdict(groups: run_folder.Groups, references: References) -> str:
  """Says which methods are no better than the constant answer, in sentences and a space.

  A method is better if the mean of the leading measure over its test clients is lower by more than
  chance, as the bootstrap over clients tells it, and the tail is lower, too.

  Args:
    groups: Finished runs by method.
    references: From `find`.

  Returns:
    The sentences; "" if all methods are better, or nothing is known.
  """
  leading = units.leading(groups)
  tail, *_, mean = paired.metrics(groups, leading.p90)
  compared = {m: _compare(list(runs), references, tail, mean) for m, runs in groups.items()}
  known = {method: one for method, one in compared.items() if one is not None}
  nowhere = {method: one for method, one in known.items() if not one.is_better_on_average}
  on_average = {
    method: one
    for method, one in known.items()
    if method not in nowhere and not one.is_better_for_the_tail
  }
  text = ""
  for failed, said in (
    (nowhere, "no better than the constant answer ({})"),
    (on_average, "better than the constant answer on average alone, not for the worst-off ({})"),
  ):
    if failed:
      constant = next(iter(references.of_seed.values())).found[kept.CONSTANT]
      subject = f"{_subject(failed, known)} {said.format(constant.said)}"
      text += f"{subject}: {_levels(failed, leading, tail)}. "
  weights = {run.flags.get("class_weights", "none") for runs in groups.values() for run in runs}
  if nowhere and leading.name == "balanced_error" and weights == {"none"}:
    text += "Training with --class_weights=balanced looks for the rare classes, too. "
  return text


def _levels(failed: Mapping[names.Name, _Compared], leading: units.Leading, tail: str) -> str:
  """Returns the levels of the best of the methods that fail, and of the constant answer."""
  method = min(failed, key=lambda method: (failed[method].mean.after, failed[method].tail.after))
  one, unit = failed[method], leading.unit
  of_tail = "worst client" if tail.endswith(".max") else "90th percentile"
  return (
    f"{'' if len(failed) == 1 else f'{method.label} has '}"
    f"mean {leading.words} {unit.text(one.mean.after)} against {unit.text(one.mean.before)},"
    f" {of_tail} {unit.text(one.tail.after)} against {unit.text(one.tail.before)}"
  )


def _subject(failed: Mapping[names.Name, _Compared], known: Mapping[names.Name, _Compared]) -> str:
  """Returns the methods that are no better, with their verb."""
  labels = [method.label for method in failed]
  if len(labels) == 1:
    return f"{labels[0]} is"
  if len(failed) == len(known) == 2:
    return "Both methods are"
  if len(failed) == len(known):
    return f"All {len(known)} methods are"
  named = f" ({'; '.join(labels)})" if len(labels) <= _NAMED else ""
  return f"{len(labels)} of {len(known)} methods{named} are"
