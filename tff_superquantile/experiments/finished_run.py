"""The finished run that a command is given: its folder, its model, its clients.

Importing this module starts no TensorFlow.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import hashlib
import pathlib
from typing import Any

import numpy as np

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

WEIGHTS = "weights.npz"
_CLASSES = "misclassification"  # The error of labels that are classes.


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds a run's folder to the arguments of a command, and where its data is now."""
  parser.add_argument("folder", metavar="RUN_DIR", type=pathlib.Path, help="of a finished run")
  where = parser.add_argument_group("where data is now, if it has moved since the run")
  for name in train_flags.WHERE_DATA_IS:
    where.add_argument(f"--{name}", metavar="PATH", help="as for train")


def given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
  """Returns the arguments of a run's flags that were given, by name."""
  return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def check_new(out: pathlib.Path, overwrite: bool) -> None:
  """Prepares the place of a command's results before the work begins.

  Args:
    out: The file or folder to write; its folder is made if it is not there.
    overwrite: Whether it may be there already.

  Raises:
    ValueError: If it is there and may not be, or its folder cannot be written.
  """
  if out.exists() and not overwrite:
    raise ValueError(f"Found {out} already there; expected another --out, or --overwrite.")
  atomic_files.make_folder("out", out.absolute().parent)


def find(folder: pathlib.Path) -> run_folder.Run:
  """Finds a finished run.

  Args:
    folder: Its folder, OUTPUT_DIR/TASK/METHOD/seed_S.

  Returns:
    The run.

  Raises:
    ValueError: If there is none, or it has not finished.
  """
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


def config(run: run_folder.Run, overrides: Mapping[str, Any]) -> run_config.RunConfig:
  """Returns a run's config, with other values in place of the run's own."""
  return run_config.from_flags({**run.flags, **overrides})


def get_task(run: run_folder.Run, config: run_config.RunConfig) -> Any:
  """Returns the task of a finished run, with the columns that it kept if it is of a table.

  Args:
    run: The run.
    config: Its config, with the data where it is now.

  Returns:
    The task, a `tasks.task.Task`.

  Raises:
    ValueError: If the data cannot be used, or the run kept no columns and had another table.
  """
  with cli.starting_tensorflow():
    from tff_superquantile.experiments.run import build

  task = build.get_task(config, run.columns)
  check_table(run, task)
  return task


def check_table(run: run_folder.Run, task: Any) -> None:
  """Raises a `ValueError` for a run of an earlier version, without columns, on another table."""
  digest = run.manifest.get("data")
  if task.data_digest and not run.columns and digest not in (None, task.data_digest):
    raise ValueError(
      f"Found another table, or other columns of it, than those of {run.path}, which an earlier"
      f" version left without {run_folder.COLUMNS}; expected its own table: pass its --data_dir, or"
      " train again, so that the run keeps what its columns became."
    )


def load_task(
  run: run_folder.Run, config: run_config.RunConfig, everybody: bool = False
) -> tuple[Any, Mapping[str, Any]]:
  """Rebuilds a finished run's (model, clients as `client_files.ClientFiles` by split).

  Args:
    run: The run.
    config: Its config, with the data where it is now.
    everybody: Whether to take all clients of the data, unsplit.

  Returns:
    (The model, the clients of the data.)

  Raises:
    ValueError: As `get_task`, or if the data has labels that the model does not know.
  """
  task = get_task(run, config)
  from tff_superquantile.experiments.run import build

  model, splits = build.load_task(task, config, everybody)
  if task.data_digest and not run.columns and run.manifest.get("data") is None:
    # A private run has kept no digest of its table either.
    chosen = build.load_task(task, config)[1] if everybody else splits
    check_clients(run, "test", chosen["test"].client_ids)
  return model, splits


def check_classes(run: run_folder.Run) -> None:
  """Raises a `ValueError` unless the labels of the run's task are classes."""
  if run.error_kind != _CLASSES:
    raise ValueError(
      f"Found labels that are numbers in the task of {run.path}; expected classes, as this command"
      " measures misclassified examples: compare the runs by their report."
    )


def of_split(splits: Mapping[str, Any], split: str) -> Any:
  """Returns the clients of a split; a `ValueError` if there is no such split."""
  if split not in splits:
    raise ValueError(f"Found --split={split}; expected one of {', '.join(sorted(splits))}.")
  return splits[split]


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
  """Reads the weights of a run's model.

  Args:
    run: The run.
    model: Its task's model, a `tff.learning.models.FunctionalModel`.

  Returns:
    The weights.

  Raises:
    ValueError: If there are none, they cannot be read, or they do not fit the model.
  """
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
