"""TFF's own execution contexts, with a service of this process in the place of its worker."""

from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tff_superquantile.simulation.runtime import service


def _compile(comp: tff.framework.ConcreteComputation) -> tff.framework.ConcreteComputation:
  """Compiles as TFF's contexts do, but leaves graphs as they are: optimized, they hide loops."""
  comp = tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(comp.to_building_block())
  return tff.framework.ConcreteComputation.from_building_block(
    tff.framework.to_call_dominant(block)
  )


def _create(context: Callable[..., Any], parallel: int, default_num_clients: int) -> Any:
  own = service.Service(parallel)

  def executor(cardinalities: tff.framework.CardinalitiesType) -> tff.framework.RemoteExecutor:
    cardinalities.setdefault(tff.CLIENTS, default_num_clients)
    found = tff.framework.RemoteExecutor(own)
    found.set_cardinalities(cardinalities)
    return found

  return context(
    tff.framework.ResourceManagingExecutorFactory(executor),
    _compile,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )


def create_sync_context(
  parallel: int, default_num_clients: int = 0
) -> tff.framework.SyncExecutionContext:
  """Creates TFF's context with simulated secure sums, without its worker.

  Arguments, results and errors of Python's side are TFF's own.

  Args:
    parallel: How many clients compute at once.
    default_num_clients: The number of clients where no argument tells it.

  Returns:
    The context.
  """
  return _create(tff.framework.SyncExecutionContext, parallel, default_num_clients)


def create_async_context(
  parallel: int, default_num_clients: int = 0
) -> tff.framework.AsyncExecutionContext:
  """Creates the same, whose computations return coroutines; see `create_sync_context`."""
  return _create(tff.framework.AsyncExecutionContext, parallel, default_num_clients)
