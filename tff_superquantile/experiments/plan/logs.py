"""Where what the jobs of many runs print is kept: of a private run among its secrets."""

from __future__ import annotations

import pathlib

from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder


def path(config: run_config.RunConfig) -> pathlib.Path:
  """Returns the file of what a run's job prints, which of a private run may tell of its clients."""
  folder = run_folder.of_config(config).path
  return (folder / run_folder.CHECKPOINTS if config.is_private else folder) / run_folder.LOG


def begin(config: run_config.RunConfig) -> pathlib.Path:
  """Empties the file, or makes it, where the caller has the lock of the run; returns it."""
  log = path(config)
  if config.is_private:
    run_files.make_secret(log.parent)
    log.touch(mode=0o600)
  open(log, "w").close()
  return log
