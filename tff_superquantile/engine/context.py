"""Sets up where TFF's computations are executed, with simulated secure sums.

Secure intrinsics are simulated by plain sums, as in TFF's test contexts.
"""

import contextlib
import dataclasses
import functools

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import runtime
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.processes import limits

ENGINES = ("in_process", "ray")


def num_cores() -> int:
  """Returns the number of processor cores that this process may use, by a container's quota too."""
  return limits.num_cores()


def limit_threads() -> None:
  """Has TensorFlow take no more threads than a quota allows cores, unless it has begun to compute.

  Left alone, it takes one a core of the machine. Nothing changes where no quota is lower than that,
  since results of convolutions depend on the number of threads.
  """
  if limits.num_cores() < len(limits.cores()):
    with contextlib.suppress(RuntimeError):  # It has begun.
      tf.config.threading.set_intra_op_parallelism_threads(limits.num_cores())
      tf.config.threading.set_inter_op_parallelism_threads(limits.num_cores())


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Where and how `engine="ray"` computes.

  Attributes:
    address: "local" for workers on this machine, "auto" for the cluster that this machine belongs
      to, or "HOST:PORT" of a cluster's head.
    num_blocks: The number of blocks of a cohort; None for the number of workers. Results depend on
      it, and on the threads, and not on the workers.
    threads_per_worker: The cores that a worker takes.
    worker_timeout: Seconds; a block that is not done by then goes to another worker.
  """

  address: str = "local"
  num_blocks: int | None = None
  threads_per_worker: int = 1
  worker_timeout: float = 600.0


def _ray_context(cluster: Cluster, concurrency: int) -> tff.framework.SyncContext:
  try:
    from tff_superquantile.engine.cluster import ray_context  # Ray is an extra.
  except ModuleNotFoundError as error:
    raise ValueError(
      f"Found no package {error.name}, which engine = ray needs; install it by pip install"
      " 'tff-superquantile[cluster]'."
    ) from None
  return ray_context.RayContext(
    cluster.address,
    cluster.num_blocks,
    cluster.threads_per_worker,
    cluster.worker_timeout,
    parallel=concurrency,
  )


def _in_process(
  concurrency: int, block_size: int | None, default_num_clients: int
) -> cohort_context.CohortContext:
  return cohort_context.CohortContext(
    functools.partial(runtime.create_sync_context, concurrency, default_num_clients),
    concurrency,
    block_size=block_size,
    default_num_clients=default_num_clients,
  )


def create_async_simulation_context(
  max_concurrent_computation_calls: int | None = None,
  block_size: int | None = None,
  default_num_clients: int = 0,
) -> cohort_context.AsyncCohortContext:
  """Creates a context of this process for `tff.program.NativeFederatedContext`.

  Args:
    max_concurrent_computation_calls: As for `set_simulation_context`.
    block_size: As for `set_simulation_context`.
    default_num_clients: As for `set_simulation_context`.

  Returns:
    The context, whose computations return coroutines.

  Raises:
    ValueError: If a number is out of range.
  """
  _check_numbers(max_concurrent_computation_calls, block_size, default_num_clients)
  limit_threads()
  concurrency = max_concurrent_computation_calls or num_cores()
  return cohort_context.AsyncCohortContext(
    _in_process(concurrency, block_size, default_num_clients)
  )


def _check_numbers(
  concurrency: int | None, block_size: int | None, default_num_clients: int, **others: int | None
) -> None:
  positive = dict(max_concurrent_computation_calls=concurrency, block_size=block_size, **others)
  for name, number in positive.items():
    if number is not None and number < 1:
      raise ValueError(f"Found {name} = {number}; expected at least 1.")
  if default_num_clients < 0:
    raise ValueError(f"Found default_num_clients = {default_num_clients}; expected at least 0.")


def set_simulation_context(
  max_concurrent_computation_calls: int | None = None,
  engine: str = "in_process",
  block_size: int | None = None,
  cluster: Cluster = Cluster(),
  default_num_clients: int = 0,
) -> None:
  """Makes a context with simulated secure aggregation the default one.

  Args:
    max_concurrent_computation_calls: How many clients compute at once; None for the number of
      cores.
    engine: "in_process": this process computes the whole cohort at once, and what cannot be
      computed so client by client, as TFF's runtime would, with a warning that says for what; or
      "ray": the blocks of a cohort on the workers of a cluster.
    block_size: The largest number of clients whose updates are in memory at once, in this process:
      larger cohorts are computed in blocks, which are then added up. That changes the last bits of
      the results. None for whole cohorts.
    cluster: The cluster of "ray".
    default_num_clients: The number of clients where no argument of a computation tells it, in this
      process.

  Raises:
    ValueError: If a number is out of range, the engine is unknown, or Ray is not installed.
    ClusterError: If the cluster or its workers are not as they should be.
  """
  _check_numbers(
    max_concurrent_computation_calls,
    block_size,
    default_num_clients,
    num_blocks=cluster.num_blocks,
    threads_per_worker=cluster.threads_per_worker,
  )
  if engine not in ENGINES:
    raise ValueError(
      f"Found engine = {engine!r}; expected one of {', '.join(ENGINES)}. {errors.TFFS_OWN}"
    )
  limit_threads()
  concurrency = max_concurrent_computation_calls or num_cores()
  if engine == "ray":
    # An earlier context of Ray frees its workers, whose cores the new workers need.
    tff.framework.set_default_context(cohort_context.CohortContext(None, concurrency))
    context = _ray_context(cluster, concurrency)
  else:
    context = _in_process(concurrency, block_size, default_num_clients)
  tff.framework.set_default_context(context)
