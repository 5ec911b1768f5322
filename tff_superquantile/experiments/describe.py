r"""Describes the clients of a task: their number, their examples, and what was found in a table.

    superquantile describe --task=emnist_linear --data_dir=DIR
    superquantile describe --task=own --data_dir=FILE \
        --client_column=site --label_column=outcome

The flags are those of `train`. The numbers are those of the paper's table of data sets: clients,
classes, and the examples of a client, for each split. With the flags of a private run, what is
told of training clients is their number alone. Nothing is trained; the converted clients are kept
for the runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np

from privacy.settings import command_line
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config

define = train_flags.define
_ORDER = ("train", "validation", "test")
_HEADINGS = ("split", "clients", "examples", "min", "median", "max", "classes", "largest class")


def _row(split: str, files: Any, is_hidden: bool) -> tuple[str, ...]:
  """Returns a row of the table; of training clients in a private run nothing but their number."""
  clients = str(len(files.client_ids))
  if is_hidden:
    return (split, clients, *["-"] * (len(_HEADINGS) - 2))
  counts = files.num_examples
  sizes = (counts.sum(), counts.min(), np.median(counts), counts.max())
  _, labels, _ = files.load()
  of_labels = ("-", "-")
  if files.num_classes:
    of_classes = np.bincount(labels)
    of_labels = (
      str(np.count_nonzero(of_classes)),
      f"{100 * np.max(of_classes) / len(labels):.1f} %",
    )
  return (split, clients, *(f"{size:g}" for size in sizes), *of_labels)


def _task(config: run_config.RunConfig) -> tuple[Any, Any]:
  """Returns the task of a run, and what it asks of it."""
  with cli.starting_tensorflow():
    from tff_superquantile.experiments.run import build
    from tff_superquantile.experiments.run.hooks import client_split

  config, _ = client_split.fill_in(config)
  return build.get_task(config), config.request()


def clients_and_inputs(config: run_config.RunConfig) -> tuple[int, int]:
  """Returns the number of all clients of a run's files, and of all inputs of their examples."""
  task, request = _task(config)
  # No model is made: TensorFlow must not be at work in a process that is to be forked.
  pools = task.all_clients(request)
  inputs = (int(files.num_examples.sum()) * math.prod(files.x_shape) for files in pools)
  return sum(len(files.client_ids) for files in pools), sum(inputs)


def print_description(config: run_config.RunConfig) -> None:
  """Prints what was found in the user's files, and the table of the clients."""
  task, request = _task(config)
  splits = task.load_clients(request)
  rows = [
    _row(split, splits[split], config.is_private and split == "train")
    for split in _ORDER
    if split in splits
  ]
  table = command_line.table([_HEADINGS, *rows], indent="")
  print("\n".join(filter(None, [names.task_title(config), task.description, table])), flush=True)


def main(args: argparse.Namespace) -> None:
  print_description(run_config.from_values(**train_flags.values(args)))


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
