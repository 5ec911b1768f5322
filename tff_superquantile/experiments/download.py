"""Downloads public data sets to the cache, once: for the runs here, or for another machine.

    superquantile download all [--cache_dir=DIR]

Each file is checked, and one that is there stays. Exit status: 0 all are there, 2 one can't be had,
130 interrupted: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys

from privacy.settings import command_line
from tff_superquantile import user_cache
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.config import run_config


def for_run(config: run_config.RunConfig) -> None:
  """Downloads the files of a run that names none, if they are public and not there yet."""
  with cli.starting_tensorflow():
    import tasks

  task, request = tasks.get_task(config.task.name), config.request()
  task.opener(request)  # It refuses what the task has no use for.
  if task.data_set is not None and not request.is_standin:
    task.data_set.complete(request)


def define(parser: command_line.Parser) -> None:
  choices = ("emnist", "sent140", "shakespeare", "all")
  parser.add_argument("data_set", metavar="DATA_SET", choices=choices, help=", ".join(choices))
  command_line.add_flag(parser, "cache_dir", str, user_cache.default_dir(), "where to")


def main(args: argparse.Namespace) -> None:
  with cli.starting_tensorflow():
    import tasks

  known = [tasks.get_task(name).data_set for name in tasks.task_names()]
  for data_set in dict.fromkeys(filter(None, known)):
    if args.data_set in (data_set.name.lower(), "all"):
      paths = [file.fetch(args.cache_dir) for file in data_set.downloads]
      print(f"{data_set.name}: {', '.join(paths)}", flush=True)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
