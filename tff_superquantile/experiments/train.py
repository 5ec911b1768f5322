"""Trains one model: one task, one algorithm, one seed.

    python -m tff_superquantile.experiments.train --task=synthetic --theta=0.5

Leaves everything in OUTPUT_DIR/TASK/METHOD/seed_S/. Run it again to continue a run that was
interrupted; a finished one is not run again. `--flagfile=.../flags.txt` repeats a run.
"""

from absl import flags

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.run import run_config

flags.adopt_module_key_flags(train_flags)


def train(config: run_config.RunConfig) -> None:
  """Carries out a run, or the rest of it; ends with a sentence if it diverges."""
  with cli.starting_tensorflow():  # --help does not get here.
    from tff_superquantile.experiments import run
    from tff_superquantile.simulation import training_loop

  try:
    run.train(config)
  except training_loop.DivergedError as error:
    cli.fail(str(error), cli.FAILED)


def main() -> None:
  train(train_flags.config())


if __name__ == "__main__":
  cli.run(main)
