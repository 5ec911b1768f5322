"""Trains one model: one task, one algorithm, one seed.

    superquantile train --task=synthetic --theta=0.5

Leaves everything in OUTPUT_DIR/TASK/METHOD/seed_S/. Run it again to continue a run that was
interrupted; a finished one is not run again. `--flagfile=.../flags.txt` repeats a run.
`--num_blocks=8 --scheduler=FILE` has workers on many machines compute each round's cohort, which
pays from a thousand clients and rounds of five seconds on (docs/how_to/cluster.md).
"""

import argparse
import sys

from privacy.settings import command_line
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import training
from tff_superquantile.experiments.cluster import cohorts
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config


def define(parser: command_line.Parser) -> None:
  train_flags.define(parser)
  scheduler = (
    "File of a scheduler (superquantile scheduler) whose workers compute the blocks of each cohort,"
    " --num_blocks of them; None for this machine. The results are the same, to the bit."
  )
  command_line.add_flag(parser, "scheduler", str, None, scheduler)


def train(config: run_config.RunConfig, scheduler: str | None = None) -> None:
  """Carries out a run, or the rest of it; the workers of a scheduler's file compute its cohorts."""
  if scheduler is None:
    training.train(config)
    return
  try:
    with cohorts.machines(config, scheduler) as machines:
      training.train(config, machines)
  except cohorts.BlockError as error:
    cli.fail(str(error), cli.FAILED)


def main(args: argparse.Namespace) -> None:
  train(train_flags.config(args), args.scheduler)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
