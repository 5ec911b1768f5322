"""The finished run that a command is given: its folder, its model, its clients."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder


def add_arguments(parser: command_line.Parser) -> None:
  """Adds a run's folder to the arguments of a command, and where its data is now."""
  parser.add_argument("folder", metavar="RUN_DIR", type=pathlib.Path, help="of a finished run")
  where = parser.add_argument_group("where data is now, if it has moved since the run")
  for name in train_flags.WHERE_DATA_IS:
    command_line.add_flag(where, name, str, None, "as for train", metavar="PATH")


def passed_flags(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
  """Returns the arguments of a run's flags that were passed, by name."""
  values = {name: getattr(args, name, None) for name in names}
  return {name: value for name, value in values.items() if value is not None}


def check_new(out: pathlib.Path) -> None:
  """Makes the folder of a command's results; refuses results that are there."""
  if out.exists():
    raise ValueError(f"Found {out} already there; expected another --out.")
  atomic_files.make_folder("out", out.absolute().parent)


def config(run: run_folder.Run, overrides: Mapping[str, Any]) -> run_config.RunConfig:
  """Returns a run's config, with checked values of some flags in place of the run's own."""
  own, flags = run_config.from_flags(run.flags), run_config.flags()
  values = {name: flags[name].parse(text) for name, text in overrides.items()}
  return run_config.with_values(own, **values) if values else own


def get_task(run: run_folder.Run, config: run_config.RunConfig, is_own: bool = True) -> Any:
  """Returns the `tasks.task.Task` of a finished run, with the columns of a table that it kept.

  Its data are those that the run had, as its manifest says, unless they are not to be its own.
  """
  with cli.starting_tensorflow():
    from tasks.own import encoding
    from tff_superquantile.experiments.run import build
    from tff_superquantile.experiments.run import manifest

  columns, label = run.columns, getattr(config.task.own, "label_column", None)
  if columns and label is not None:
    columns = encoding.with_label(columns, label.strip())
  task = build.get_task(config, columns)
  run.check_columns(task)
  if is_own:
    of_run, name = task, "min_examples_per_client"  # The digest follows from that, too.
    least = run_config.from_flags(run.flags).values()[name]
    if config.values()[name] != least:
      of_run = build.get_task(run_config.with_values(config, **{name: least}), run.columns)
    manifest.check_same_data(run.path, of_run.data_digest)
  return task


def load_task(
  task: Any, config: run_config.RunConfig, everybody: bool = False
) -> tuple[Any, Mapping[str, Any]]:
  """Returns a task's (model, `client_files.ClientFiles` by split, or of `everybody`)."""
  from tff_superquantile.experiments.run import build

  model, splits = build.load_task(task, config, everybody)
  return model, splits


def check_classes(run: run_folder.Run) -> None:
  """Raises a `ValueError` unless the labels of the run's task are classes."""
  if run.error_kind != "misclassification":
    raise ValueError(
      f"Found labels that are numbers in the task of {run.path}; expected classes, as this command"
      " measures misclassified examples: compare the runs by their report."
    )


def of_split(splits: Mapping[str, Any], split: str) -> Any:
  """Returns the clients of a split; a `ValueError` if there is no such split."""
  if split not in splits:
    raise ValueError(f"Found --split={split}; expected one of {', '.join(sorted(splits))}.")
  return splits[split]
