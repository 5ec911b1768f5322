"""Trains one model as a job of many: the command that `sweep --print_commands` prints.

    python -m tff_superquantile.experiments.plan.job [flags of train]

Does what `train` does, and leaves the reason where a run fails, as it would again. Who prints the
runs that are left then leaves it out, so that a loop over job arrays ends. What a signal ends, such
as that of a time limit, has not failed: it goes on.
"""

import argparse
import sys

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import failures
from tff_superquantile.experiments import training
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder

define = training.define


def main(args: argparse.Namespace) -> None:
  config = run_config.from_values(**train_flags.values(args))
  try:
    training.train(config)
  except run_folder.OccupiedError:  # The other process is the run.
    raise
  except Exception as error:
    run_folder.leave_failure(config, failures.describe(error).sentence)
    raise


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
