"""The runtime of a run's rounds."""

from collections.abc import Mapping
import dataclasses

import tensorflow_federated as tff

from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.parts import engines
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import context


def set_context(
  config: run_config.ResolvedRun, splits: Mapping[str, client_files.ClientFiles]
) -> run_config.ResolvedRun:
  """Sets the context of a run; its config then has the number of blocks, if on a cluster."""
  engine = config.engine
  if isinstance(engine, engines.InProcess):
    context.set_simulation_context(engine="in_process", block_size=engine.block_size or None)
    return config
  assert isinstance(engine, engines.Ray)
  cluster = context.Cluster(
    engine.ray_address, engine.num_blocks, engine.threads_per_worker, engine.worker_timeout
  )
  context.set_simulation_context(engine="ray", cluster=cluster)
  on_cluster = tff.framework.get_context_stack().current
  on_cluster.check_files(sorted({files.index_path for files in splits.values()}))
  engine = dataclasses.replace(engine, num_blocks=on_cluster.num_blocks)
  return dataclasses.replace(config, engine=engine)
