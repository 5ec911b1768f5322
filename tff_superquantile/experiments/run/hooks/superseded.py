"""Ends a run that another attempt at it supersedes, before it writes anything else."""

from __future__ import annotations

import pathlib
from typing import Any

import tensorflow_federated as tff

from tff_superquantile.experiments.run import attempts
from tff_superquantile.experiments.run.hooks import hook


class Superseded(hook.Hook):
  """Looks at the folder before each round is written, and before the results are."""

  def on_round(self, round_num: int, values: hook.Values) -> None:
    attempts.check(self.job.folder)

  def complete(self) -> None:
    attempts.check(self.job.folder)


class StateManager(tff.program.FileProgramStateManager):
  """Keeps checkpoints in a folder of a run's, as long as no other attempt at it has begun."""

  def __init__(self, root_dir: str, **kwargs: Any):
    super().__init__(root_dir, **kwargs)
    self._folder = pathlib.Path(root_dir)

  async def save(self, program_state: Any, version: int) -> None:
    attempts.check(self._folder.parent)
    await super().save(program_state, version)
