"""Sets up where TFF's computations are executed, with simulated secure sums.

Secure intrinsics are simulated: TFF's test context rewrites them to plain sums, and runs everything
else as the native one does.
"""

import contextlib
import dataclasses
import functools

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation import engine as cohort_engine
from tff_superquantile.simulation import limits

ENGINES = ("auto", "in_process", "native", "ray")


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


def _native_context(concurrency: int) -> tff.framework.SyncContext:
  return tff.backends.test.create_sync_test_cpp_execution_context(
    max_concurrent_computation_calls=concurrency
  )


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
    from tff_superquantile.simulation.cluster import ray_context  # Ray is an extra.
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


def set_simulation_context(
  max_concurrent_computation_calls: int | None = None,
  engine: str = "auto",
  block_size: int | None = None,
  cluster: Cluster = Cluster(),
) -> None:
  """Makes a context with simulated secure aggregation the default one.

  Args:
    max_concurrent_computation_calls: How many clients compute at once; None for the number of
      cores.
    engine: "native", TFF's C++ runtime; "in_process", the whole cohort at once in this process,
      which raises for what it does not know; "auto", in this process what can be done there, and
      the rest by TFF's runtime, which is not started before it is needed, with a warning that says
      for what; or "ray", the blocks of
      a cohort on the workers of a cluster.
    block_size: The largest number of clients whose updates are in memory at once, in this process:
      larger cohorts are computed in blocks, which are then added up. That changes the last bits of
      the results. None for whole cohorts.
    cluster: The cluster of "ray".

  Raises:
    ValueError: If a number is not positive, the engine is unknown, or Ray is not installed.
    ClusterError: If the cluster or its workers are not as they should be.
  """
  concurrency = max_concurrent_computation_calls
  for name, number in (
    ("max_concurrent_computation_calls", concurrency),
    ("block_size", block_size),
    ("num_blocks", cluster.num_blocks),
    ("threads_per_worker", cluster.threads_per_worker),
  ):
    if number is not None and number < 1:
      raise ValueError(f"Found {name} = {number}; expected at least 1.")
  if engine not in ENGINES:
    raise ValueError(f"Found engine = {engine!r}; expected one of {', '.join(ENGINES)}.")
  limit_threads()
  concurrency = concurrency or num_cores()
  native = functools.partial(_native_context, concurrency)
  if engine == "native":
    context = native()
  elif engine == "ray":
    # An earlier one lets its workers go, and with them the cores that the new ones need.
    tff.framework.set_default_context(cohort_engine.CohortContext(None, concurrency))
    context = _ray_context(cluster, concurrency)
  else:
    context = cohort_engine.CohortContext(
      native if engine == "auto" else None, concurrency, block_size=block_size
    )
  tff.framework.set_default_context(context)
