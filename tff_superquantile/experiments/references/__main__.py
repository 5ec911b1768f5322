"""Makes the reference models of finished runs, such as single ones that no sweep has started.

    superquantile references OUTPUT_DIR/TASK

computes what the finished runs of a task must beat: the constant answer, and without privacy a fit
of all training clients' examples in one place; for linear models also the test clients' own. It
writes references/seed_S.json beside the runs, which the report shows. A sweep does so by itself.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from privacy.settings import command_line
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.references import making
from tff_superquantile.experiments.run import run_folder


def define(parser: command_line.Parser) -> None:
  parser.add_argument("folder", metavar="TASK_DIR", type=pathlib.Path, help="OUTPUT_DIR/TASK")


def main(args: argparse.Namespace) -> None:
  folder = args.folder.resolve()
  runs = [run for run in run_folder.find_runs(folder.parent) if run.task == folder.name]
  if not any(run.finished for run in runs):
    raise ValueError(
      f"Found no finished run in {args.folder}; expected OUTPUT_DIR/TASK, with METHOD/seed_S/."
    )
  written = making.make(runs, is_strict=True)
  print(*(f"Written: {path}" for path in written), sep="\n") if written else print("Up to date.")


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
