"""Where the rounds of a run are computed: in this process, or on a cluster."""

from __future__ import annotations

import dataclasses

import tensorflow_federated as tff

import tasks
from tff_superquantile.engine import context
from tff_superquantile.experiments.run import hook
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.parts import engines


class Computing(hook.Hook):
  """Sets the context of the rounds; on a cluster, the run gets its number of blocks."""

  @staticmethod
  def defaults(config: run_config.RunConfig, task: tasks.task.Task) -> hook.Values:
    size = float(config.cohort.size or task.defaults["clients_per_round"])
    return {"block_size": engines.BLOCK_SIZE} if size > engines.BLOCK_SIZE else {}

  def before(self) -> None:
    engine = self.job.config.engine
    if not isinstance(engine, engines.Ray):
      block_size = engine.block_size if isinstance(engine, engines.InProcess) else None
      context.set_simulation_context(engine="in_process", block_size=block_size or None)
      return
    cluster = context.Cluster(
      engine.ray_address, engine.num_blocks, engine.threads_per_worker, engine.worker_timeout
    )
    context.set_simulation_context(engine="ray", cluster=cluster)
    on_cluster = tff.framework.get_context_stack().current
    on_cluster.check_files(sorted({files.index_path for files in self.job.splits.values()}))
    engine = dataclasses.replace(engine, num_blocks=on_cluster.num_blocks)
    self.job.config = dataclasses.replace(self.job.config, engine=engine)
