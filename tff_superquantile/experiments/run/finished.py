"""A finished run: its folder, its model, its clients. Importing this starts no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
import hashlib
import pathlib
from typing import Any

import numpy as np

from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

WEIGHTS = "weights.npz"


def find(folder: pathlib.Path) -> run_folder.Run:
  """Returns the finished run of a folder OUTPUT_DIR/TASK/METHOD/seed_S; refuses other folders."""
  path = folder.resolve()
  seed = path.name.removeprefix("seed_")
  is_run = seed.isdecimal() and path.name != seed
  run = run_folder.Run(path, int(seed) if is_run else 0)
  if not is_run or not (run.finished or run.flags):
    raise ValueError(
      f"Found no finished run in {folder}; expected its folder, OUTPUT_DIR/TASK/METHOD/seed_S, with"
      " metrics.json."
    )
  if not run.finished:
    raise ValueError(
      f"Found that the run in {folder} is at round {run.last_round or 0} of"
      f" {run.flags.get('num_rounds', 'an unknown number')}; expected a finished run: it goes on by"
      f" python -m tff_superquantile.experiments.train --flagfile={folder / 'flags.txt'}."
    )
  return run


def check_table(run: run_folder.Run, task: Any) -> None:
  """Raises a `ValueError` for a run of an earlier version, without columns, on another table."""
  digest = run.manifest.get("data")
  if task.data_digest and not run.columns and digest not in (None, task.data_digest):
    raise ValueError(
      f"Found another table, or other columns of it, than those of {run.path}, which an earlier"
      f" version left without {run_folder.COLUMNS}; expected its own table: pass its --data_dir, or"
      " train again, so that the run keeps what its columns became."
    )


def fingerprint(run: run_folder.Run) -> str:
  """Identifies the run's model: results of another one are out of date."""
  return hashlib.sha256((run.path / WEIGHTS).read_bytes()).hexdigest()[:16]


def has_clients(run: run_folder.Run, split: str, ids: Sequence[str]) -> bool:
  """Returns whether these are the clients on which the run left results; also if it left none."""
  return list(run.clients(split).get("client_id", ids)) == list(ids)


def check_clients(run: run_folder.Run, split: str, ids: Sequence[str]) -> None:
  """Raises a `ValueError` unless these are the clients on which the run was evaluated."""
  if not has_clients(run, split, ids):
    raise ValueError(
      f"Found other {split} clients than those of {run.path / f'{split}_clients.csv'}; expected the"
      " data that the run had: pass its --data_dir."
    )


def read_weights(run: run_folder.Run, model: Any) -> run_files.Weights:
  """Reads the weights of a run's model; refuses a file that does not fit the task's model."""
  weights = run.weights
  if weights is None:
    raise ValueError(f"Found no {WEIGHTS} in {run.path}; expected the model of a finished run.")
  shapes = [[np.shape(w) for w in part] for part in (weights.trainable, weights.non_trainable)]
  expected = [[np.shape(w) for w in part] for part in model.initial_weights]
  if shapes != expected:
    raise ValueError(
      f"Found weights of shapes {shapes} in {run.path / WEIGHTS}; expected {expected}, as the"
      " task's model has them: take a run of this model, made by this version."
    )
  return weights
