"""Sets up where TFF's computations are executed, with simulated secure sums.

Secure intrinsics are simulated by plain sums, as in TFF's test contexts.
"""

import contextlib
import functools

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import runtime
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import stages
from tff_superquantile.engine.processes import limits


def limit_threads(number: int | None = None) -> None:
  """Has TensorFlow take so many threads, unless it has begun to compute or has a number already.

  Results of convolutions depend on the number of threads, and not on that of the cores which carry
  them out. Left alone, TensorFlow takes one a core of the machine.

  Args:
    number: The number of threads; None for as many as there are cores, or as a quota allows.
  """
  number = number or limits.num_cores()
  if tf.config.threading.get_intra_op_parallelism_threads() == 0 and number != len(limits.cores()):
    with contextlib.suppress(RuntimeError):  # It has begun.
      tf.config.threading.set_intra_op_parallelism_threads(number)
      tf.config.threading.set_inter_op_parallelism_threads(number)


def num_threads() -> int:
  """Returns how many threads compute one op of TensorFlow's in this process.

  Returns:
    The number that was set, or that of this process's cores.
  """
  return tf.config.threading.get_intra_op_parallelism_threads() or len(limits.cores())


def _context(
  concurrency: int | None,
  block_size: int | None,
  default_num_clients: int,
  num_blocks: int | None,
  map_blocks: stages.MapBlocks,
) -> cohort_context.CohortContext:
  positive = dict(
    max_concurrent_computation_calls=concurrency, block_size=block_size, num_blocks=num_blocks
  )
  for name, number in positive.items():
    if number is not None and number < 1:
      raise ValueError(f"Found {name} = {number}; expected at least 1.")
  if default_num_clients < 0:
    raise ValueError(f"Found default_num_clients = {default_num_clients}; expected at least 0.")
  if num_blocks is not None and block_size is not None:
    raise ValueError(
      f"Found num_blocks = {num_blocks} beside block_size = {block_size}; expected one of them."
    )
  if num_blocks is None and map_blocks is not map:
    raise ValueError("Found map_blocks without num_blocks; expected both.")
  limit_threads()
  concurrency = concurrency or limits.num_cores()
  return cohort_context.CohortContext(
    functools.partial(runtime.create_sync_context, concurrency, default_num_clients),
    concurrency,
    block_size=block_size,
    default_num_clients=default_num_clients,
    num_blocks=num_blocks,
    map_blocks=map_blocks,
  )


def set_simulation_context(
  max_concurrent_computation_calls: int | None = None,
  block_size: int | None = None,
  default_num_clients: int = 0,
  num_blocks: int | None = None,
  map_blocks: stages.MapBlocks = map,
) -> None:
  """Makes a context with simulated secure aggregation the default one.

  This process computes the whole cohort at once, and what cannot be computed so client by client,
  as TFF's runtime would, with a warning that says for what.

  Args:
    max_concurrent_computation_calls: How many clients compute at once; None for the number of
      cores.
    block_size: The largest number of clients whose updates are in memory at once: larger cohorts
      are computed in blocks, which are then added up. That changes the last bits of the results.
      None for whole cohorts.
    default_num_clients: The number of clients where no argument of a computation tells it.
    num_blocks: The number of blocks of each cohort, in place of `block_size`. The bits of the
      results depend on it, and not on who computes the blocks.
    map_blocks: Who computes the blocks of a cohort: from a function, which `pickle` takes, and
      blocks to its results in their order, as by `map` or the `map` of a thread pool.

  Raises:
    ValueError: If a number is out of range, or contradicts another.
  """
  tff.framework.set_default_context(
    _context(
      max_concurrent_computation_calls, block_size, default_num_clients, num_blocks, map_blocks
    )
  )


def create_async_simulation_context(
  max_concurrent_computation_calls: int | None = None,
  block_size: int | None = None,
  default_num_clients: int = 0,
  num_blocks: int | None = None,
  map_blocks: stages.MapBlocks = map,
) -> cohort_context.AsyncCohortContext:
  """Creates a context of this process for `tff.program.NativeFederatedContext`.

  Args:
    max_concurrent_computation_calls: As for `set_simulation_context`.
    block_size: As for `set_simulation_context`.
    default_num_clients: As for `set_simulation_context`.
    num_blocks: As for `set_simulation_context`.
    map_blocks: As for `set_simulation_context`.

  Returns:
    The context, whose computations return coroutines.

  Raises:
    ValueError: If a number is out of range, or contradicts another.
  """
  return cohort_context.AsyncCohortContext(
    _context(
      max_concurrent_computation_calls, block_size, default_num_clients, num_blocks, map_blocks
    )
  )
