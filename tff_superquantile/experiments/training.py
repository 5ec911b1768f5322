"""Carries out one run, for the commands that do so: alone, in a pool, and on other machines."""

from __future__ import annotations

import typing

from tff_superquantile.experiments import cli
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config

if typing.TYPE_CHECKING:  # It imports TensorFlow.
  from tff_superquantile.experiments.run import runner

define = train_flags.define


def train(config: run_config.RunConfig, machines: runner.Machines | None = None) -> None:
  """Carries out a run, or the rest of it; ends with a sentence if it diverges.

  `machines` compute its cohorts; None for this process.
  """
  with cli.starting_tensorflow():  # --help does not get here.
    from tff_superquantile.experiments import run
    from tff_superquantile.simulation import training_loop

  try:
    run.train(config, machines)
  except training_loop.DivergedError as error:
    cli.fail(str(error), cli.FAILED)
