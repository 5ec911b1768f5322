"""What a report shows of reference models: rows of its table, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import one_unit
from tff_superquantile.experiments.run import run_folder


class ReferencesBySeed(NamedTuple):
  """The reference models of a report, by seed."""

  of_seed: Mapping[int, kept.References]

  @property
  def labels(self) -> dict[str, str]:
    """The names of the rows that there are, by their keys."""
    there = {name for references in self.of_seed.values() for name in references.models}
    return {name: label for name, label in kept.LABELS.items() if name in there}

  def results(self) -> pd.DataFrame:
    """Returns their numbers, as `tables.of_values` does."""
    return tables.of_values(
      (name, seed, references.models[name].numbers)
      for name in self.labels
      for seed, references in self.of_seed.items()
      if name in references.models
    )

  def left_out(self, name: str) -> str:
    """Returns why a seed has no reference of a key; "" if each has one."""
    reasons = [its.left_out[name] for its in self.of_seed.values() if name in its.left_out]
    return kept.of_all(reasons) if reasons else ""

  def description(self, name: str) -> str:
    """Returns what the models of a key are, at least one seed's."""
    models = (its.models.get(name) for its in self.of_seed.values())
    return kept.of_all([model.description for model in models if model is not None])

  @property
  def profiles(self) -> pd.DataFrame:
    """The profiles of test clients by their ids, means over seeds; empty where there are none."""
    of_seeds = [
      pd.DataFrame(its.profiles, its.models[kept.CONSTANT].clients["client_id"])
      for its in self.of_seed.values()
      if its.profiles
    ]
    return pd.concat(of_seeds).groupby(level=0).mean() if of_seeds else pd.DataFrame()

  def notes(self) -> list[str]:
    """Says what each of the models is, or why a seed has none."""
    if not self.of_seed:
      return []
    reasons = {name: self.left_out(name) for name in kept.LABELS}
    sentences = [
      "Rows that are not federated say what there is to gain.",
      *(f"{label}: {self.description(name)}." for name, label in self.labels.items()),
      *(f"{kept.LABELS[name]}: left out, as {why}." for name, why in reasons.items() if why),
    ]
    return [" ".join(sentences)]


def find(runs: Iterable[run_folder.Run]) -> ReferencesBySeed:
  """Finds the reference models of finished runs, where they are of the same test clients."""
  of_seed: dict[int, list[run_folder.Run]] = {}
  for run in runs:
    of_seed.setdefault(run.seed, []).append(run)
  by_seed = {}
  for seed, its in sorted(of_seed.items()):
    references = read(its[0])
    if references is None or not any(_has_clients(run, references) for run in its):
      continue
    if references.is_private or not any(run.config is None or run.config.is_private for run in its):
      by_seed[seed] = references
  return ReferencesBySeed(by_seed)


def read(run: run_folder.Run) -> kept.References | None:
  """Reads the reference models of a run's seed, or of all folds of a cross-validation."""
  folds = cross_validation.single([run])  # Each has references in the unit of its own labels.
  parts = [(kept.read(fold.path.parent.parent, fold.seed), fold) for fold in folds]
  known = [part.restated(one_unit.factor(fold)) for part, fold in parts if part is not None]
  if len(known) < len(parts):
    return None
  return kept.joined(known) if len(known) > 1 else known[0]


def _has_clients(run: run_folder.Run, references: kept.References) -> bool:
  """Returns whether the constant answer was measured on the test clients of a run."""
  constant = references.models.get(kept.CONSTANT)
  ids = run.clients("test").get("client_id", np.array([])).tolist()
  return constant is not None and bool(ids) and constant.clients["client_id"].tolist() == ids
