"""Where the rounds of a run are computed: in this process."""

from __future__ import annotations

import tasks
from tff_superquantile.engine import context
from tff_superquantile.experiments.run import hook
from tff_superquantile.experiments.run import run_config


class Computing(hook.Hook):
  """Sets the context of the rounds."""

  @staticmethod
  def defaults(config: run_config.RunConfig, task: tasks.task.Task) -> hook.Values:
    size = float(config.cohort.size or task.defaults["clients_per_round"])
    return {"block_size": run_config.BLOCK_SIZE} if size > run_config.BLOCK_SIZE else {}

  def before(self) -> None:
    context.set_simulation_context(block_size=self.job.config.block_size or None)
