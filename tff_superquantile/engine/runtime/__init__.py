"""TFF's execution context with a service of this process in the place of TFF's worker.

Clients are computed one by one, as there, for every TFF program.
"""

import tensorflow_federated as tff

from tff_superquantile.engine.runtime import service

__all__ = ("create_sync_context",)


def _compile(comp: tff.framework.ConcreteComputation) -> tff.framework.ConcreteComputation:
  """Compiles as TFF's contexts do, but leaves graphs as they are: optimized, they hide loops."""
  comp = tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(comp.to_building_block())
  return tff.framework.ConcreteComputation.from_building_block(
    tff.framework.to_call_dominant(block)
  )


def create_sync_context(
  parallel: int, default_num_clients: int = 0
) -> tff.framework.SyncExecutionContext:
  """Creates TFF's context with simulated secure sums, without its worker.

  Arguments, results and errors of Python's side are TFF's own. `parallel` clients compute at once,
  and there are `default_num_clients` where no argument tells it.
  """
  own = service.Service(parallel)

  def executor(cardinalities: tff.framework.CardinalitiesType) -> tff.framework.RemoteExecutor:
    cardinalities.setdefault(tff.CLIENTS, default_num_clients)
    remote = tff.framework.RemoteExecutor(own)
    remote.set_cardinalities(cardinalities)
    return remote

  return tff.framework.SyncExecutionContext(
    tff.framework.ResourceManagingExecutorFactory(executor),
    _compile,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
