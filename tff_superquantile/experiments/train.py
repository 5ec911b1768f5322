"""Trains one model: one task, one algorithm, one seed.

    superquantile train --task=synthetic --theta=0.5

Leaves everything in OUTPUT_DIR/TASK/METHOD/seed_S/. Run it again to continue a run that was
interrupted; a finished one is not run again. `--flagfile=.../flags.txt` repeats a run.
"""

import argparse
import sys

from tff_superquantile.experiments import cli
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config

define = train_flags.define


def train(config: run_config.RunConfig) -> None:
  """Carries out a run, or the rest of it; ends with a sentence if it diverges."""
  with cli.starting_tensorflow():  # --help does not get here.
    from tff_superquantile.experiments import run
    from tff_superquantile.simulation import training_loop

  try:
    run.train(config)
  except training_loop.DivergedError as error:
    cli.fail(str(error), cli.FAILED)


def main(args: argparse.Namespace) -> None:
  train(train_flags.config(args))


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
