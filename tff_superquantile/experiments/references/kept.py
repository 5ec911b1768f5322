"""The files of reference models, `OUTPUT_DIR/TASK/references/seed_S.json`, one a seed.

A file has the results of each test client, so that methods can be compared with them client by
client. Importing this module starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
import re
from typing import Any

import numpy as np

from tff_superquantile import atomic_files
from tff_superquantile import distribution
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import one_unit
from tff_superquantile.experiments.run import run_files

CONSTANT, POOLED, LOCAL, OWN_CONSTANT = "constant", "pooled", "local", "local_constant"
_OF_CLIENTS = ("client_id", "num_examples")  # Columns that measure nothing.
# Names for people, in the order of tables.
LABELS = {
  CONSTANT: "constant answer (not federated)",
  POOLED: "pooled examples (not federated)",
  LOCAL: "own model of each client (not federated)",
  OWN_CONSTANT: "own constant answer of each client (not federated)",
}


@dataclasses.dataclass(frozen=True)
class Reference:
  """The results of a reference model.

  Attributes:
    description: What it is, a sentence.
    clients: Columns as those of a run's test_clients.csv, arrays of shape [clients].
    pooled: The measures of all examples together, as "pooled" in metrics.json; empty if unknown.
  """

  description: str
  clients: Mapping[str, np.ndarray]
  pooled: Mapping[str, Any]

  @functools.cached_property
  def numbers(self) -> dict[str, float]:
    """The numbers by the dotted names that a run's have, and `test.MEASURE.max`."""
    described = {
      name: {**distribution.describe(values), "max": _largest(values)}
      for name, values in self.clients.items()
      if name not in _OF_CLIENTS
    }
    return run_files.flatten({"test": {**described, "pooled": self.pooled}})


def _largest(values: np.ndarray) -> float:
  finite = np.asarray(values)[np.isfinite(values)]
  return float(finite.max()) if finite.size else float("nan")


@dataclasses.dataclass(frozen=True)
class References:
  """The reference models of a seed.

  Attributes:
    fingerprint: Of all that they follow from; another one means that they are out of date.
    models: By their keys in `LABELS`.
    left_out: A sentence for each that there is none of, by its key.
    is_private: Whether nothing of them follows from training clients.
    profiles: Entries of the profiles of the constant answer's test clients, arrays of shape
      [clients] by name; empty where there are none.
    facts: What the rows say without models, `without_models.facts`; empty where nobody asked.
  """

  fingerprint: str
  models: Mapping[str, Reference]
  left_out: Mapping[str, str]
  is_private: bool = False
  profiles: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def restated(self, factor: float) -> References:
    """Returns the same in another unit of the labels, see `one_unit.restated`."""
    models = {
      name: dataclasses.replace(
        model,
        clients=one_unit.restated(model.clients, factor),
        pooled=one_unit.restated(model.pooled, factor),
      )
      for name, model in self.models.items()
    }
    return dataclasses.replace(self, models=models)


def of_all(texts: Sequence[str]) -> str:
  """Returns one text of several, at least one: "'0' or '1', the ..." where a part of them differs.

  What is in common, at the beginning and the end, is said once.
  """
  texts = list(dict.fromkeys(texts))
  words = [re.split(r"(,?\s+)", text) for text in texts]
  first = len(os.path.commonprefix(words))
  last = len(os.path.commonprefix([its[first:][::-1] for its in words]))
  if len(texts) == 1 or any(len(its) == first + last for its in words):
    return ", or ".join(texts)
  *others, end = ("".join(its[first : len(its) - last]) for its in words)
  before, after = ("".join(its) for its in (words[0][:first], words[0][len(words[0]) - last :]))
  return f"{before}{', '.join(others)} or {end}{after}"


def joined(parts: Sequence[References]) -> References:
  """Joins the reference models of the folds of a cross-validation, those that every fold has."""
  first, models = parts[0], {}
  for name in LABELS:
    of_folds = [part.models[name] for part in parts if name in part.models]
    if len(of_folds) == len(parts):
      clients = {
        column: np.concatenate([model.clients[column] for model in of_folds])
        for column in of_folds[0].clients
        if all(column in model.clients for model in of_folds)
      }
      pooled = cross_validation.mean_of([model.pooled for model in of_folds])
      description = f"{of_all([model.description for model in of_folds])}, in each fold anew"
      models[name] = Reference(description, clients, pooled)
  reasons = {name: [p.left_out[name] for p in parts if name in p.left_out] for name in LABELS}
  left_out = {name: of_all(why) for name, why in reasons.items() if why}
  is_private = all(part.is_private for part in parts)
  profiles = {
    name: np.concatenate([part.profiles[name] for part in parts])
    for name in first.profiles
    if all(name in part.profiles for part in parts)
  }
  return References(first.fingerprint, models, left_out, is_private, profiles, first.facts)


def _path(task_folder: pathlib.Path, seed: int) -> pathlib.Path:
  return task_folder / "references" / f"seed_{seed}.json"


def write(task_folder: pathlib.Path, seed: int, references: References) -> pathlib.Path:
  """Writes the file of a seed, whole or not at all; returns it."""
  path = _path(task_folder, seed)
  path.parent.mkdir(exist_ok=True)
  models = {
    name: {
      "said": model.description,
      "clients": {column: np.asarray(values).tolist() for column, values in model.clients.items()},
      "pooled": model.pooled,
    }
    for name, model in references.models.items()
  }
  content = {
    "fingerprint": references.fingerprint,
    "found": models,
    "left_out": dict(references.left_out),
    "is_private": references.is_private,
    "profiles": {name: np.asarray(entry).tolist() for name, entry in references.profiles.items()},
    "facts": dict(references.facts),
  }
  atomic_files.write_json(path, content)
  return path


def read(task_folder: pathlib.Path, seed: int) -> References | None:
  """Reads the file of a seed; None if there is none, or what it has cannot be used."""
  content = run_files.read_json(_path(task_folder, seed))
  try:
    models = {name: _model(its) for name, its in content["found"].items() if name in LABELS}
    left_out, is_private = (content[name] for name in ("left_out", "is_private"))
    profiles = {name: np.array(entry) for name, entry in content.get("profiles", {}).items()}
    facts = dict(content.get("facts", {}))
    return References(content["fingerprint"], models, left_out, is_private, profiles, facts)
  except (AttributeError, KeyError, TypeError, ValueError):  # It is made anew.
    return None


def _model(content: Mapping[str, Any]) -> Reference:
  columns = {
    name: np.array(values, dtype=str if name == "client_id" else np.float64)
    for name, values in content["clients"].items()
  }
  for name in {*_OF_CLIENTS, "loss", "error", *columns}:
    if len(columns[name]) != len(columns["client_id"]):
      raise ValueError(f"Found a column {name} of another length than the others.")
  return Reference(content["said"], columns, content["pooled"])
