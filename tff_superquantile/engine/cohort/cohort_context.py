"""A TFF context that runs computations in this process, and hands the rest to another context."""

from collections.abc import Callable, Sequence
import functools
import inspect
import logging
import math
import threading
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import programs
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import stages
from tff_superquantile.engine.cohort.graphs import calls
from tff_superquantile.engine.cohort.graphs import errors

_LOG = logging.getLogger(__name__)


class CohortContext(tff.framework.SyncContext):
  """Compiles each computation once, into TensorFlow functions for the whole cohort or its blocks.

  Values at the clients are tensors with the clients along the first dimension, so that a
  computation is traced once for cohorts of all sizes. Secure sums are simulated by plain ones.

  Another context, if there is one, computes what the engine does not know (tables beside data sets,
  data sets as results, tensors of unknown shape between the computations of clients). A warning
  says why. A computation that has failed here once is always computed there.
  """

  def __init__(
    self,
    fallback: Callable[[], tff.framework.SyncContext] | None = None,
    parallel: int = 2,
    max_bytes: int = 2**30,
    block_size: int | None = None,
    default_num_clients: int = 0,
    num_blocks: int | None = None,
    map_blocks: stages.MapBlocks = map,
  ):
    """Initializes the context, with numbers as for `engine.context.set_simulation_context`.

    `fallback` makes the context for what cannot be done here, when it is first needed; None to
    raise instead. Up to `max_bytes` of what clients read from files and data sets are kept in
    memory. A file is taken not to change while the context lives, nor is what a data set reads,
    unless it draws at random without a seed. What was read from a data set goes with it. A cohort
    larger than `block_size` is computed in the fewest blocks that are not larger, or any of two
    clients or more in `num_blocks`, of one client at least.
    """
    self._make_fallback = fallback
    self._fallback_context: tff.framework.SyncContext | None = None
    self._parallel = parallel
    # The keys are ids, as comparing or hashing a computation would serialize it.
    self._programs: dict[int, programs.Program | None] = {}
    self._store = reading.Store(max_bytes)
    self._block_size = block_size
    self._num_blocks = num_blocks
    self._map_blocks = map_blocks
    self._default_num_clients = default_num_clients

  def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    """See `tff.framework.SyncContext`; TensorFlow's errors keep TensorFlow's sentence."""
    if not tf.executing_eagerly():
      # A new thread is outside of the caller's graph, as TFF's worker is.
      return calls.call(lambda: self._invoke(comp, arg), outside=True)
    return self._invoke(comp, arg)

  def _invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    try:
      return self._compute_or_fall_back(comp, arg)
    except tf.errors.OpError as error:
      raise type(error)(None, None, errors.sentence(error)) from None

  def _compute_or_fall_back(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    program = self._program(comp)
    if program is None:
      return self._fallback(comp, arg)
    try:
      arrays = program.arrays(arg)
    except (TypeError, ValueError, errors.UnsupportedError) as error:
      self._log(comp, error)
      # TFF's error messages are the familiar ones. The next argument may be computed here.
      return self._fallback(comp, arg)
    try:
      return self._compute(program, arrays)
    except (tf.errors.OpError, TypeError, ValueError, errors.UnsupportedError) as error:
      self._log(comp, error)
      result = self._fallback(comp, arg)  # Raises where the computation itself is at fault.
      self._programs[id(comp)] = None
      return result

  def _compute(self, program: programs.Program, arrays: Sequence[np.ndarray]) -> Any:
    num_clients = program.num_clients(arrays)
    num_blocks = self._blocks_of(num_clients)
    if num_blocks == 1:
      return program.to_python(program.whole(arrays))
    if isinstance(program.stages, str):
      message = "The engine computes all %d clients in one block, as it cannot cut %s"
      errors.warn_once(_LOG, message, num_clients, program.stages)
      return program.to_python(program.whole(arrays))
    return program.to_python(program.stages(arrays, num_blocks, self._map_blocks))

  def _blocks_of(self, num_clients: int) -> int:
    """Returns the number of blocks of a cohort, of which none is empty."""
    if self._num_blocks is not None:
      return max(1, min(self._num_blocks, num_clients))
    if self._block_size is None or num_clients <= self._block_size:
      return 1
    return math.ceil(num_clients / self._block_size)

  def _program(self, comp: tff.framework.ConcreteComputation) -> programs.Program | None:
    key = id(comp)
    if key not in self._programs:
      try:
        program = programs.of(comp, self._store, self._parallel, self._default_num_clients)
      except Exception as error:  # Whatever TensorFlow finds wrong in tracing.
        self._log(comp, error)
        program = None
      weakref.finalize(comp, self._programs.pop, key, None)
      self._programs[key] = program
    return self._programs[key]

  def _log(self, comp: tff.framework.ConcreteComputation, error: Exception) -> None:
    """Says why the other context computes; raises the error if there is none."""
    if self._make_fallback is None:
      raise error
    # One warning is enough to say that computations are slower; the log has the others.
    _LOG.log(
      logging.INFO if self._fallback_context else logging.WARNING,
      "A computation of type %.200s is done client by client, since all at once cannot be: %s",
      comp.type_signature.compact_representation(),
      errors.sentence(error),
    )

  def _fallback(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    if self._fallback_context is None:
      assert self._make_fallback is not None  # Otherwise `_log` raises.
      self._fallback_context = self._make_fallback()
    return calls.call(functools.partial(self._fallback_context.invoke, comp, arg))


class AsyncCohortContext(tff.framework.AsyncContext):
  """Computes as `CohortContext`, asynchronously: one computation runs at a time."""

  def __init__(self, context: CohortContext):
    """Initializes the context, whose work `context` does."""
    self._context = context
    self._lock = threading.Lock()

  def _invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    with self._lock:
      return self._context.invoke(comp, arg)

  async def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    """See `tff.framework.AsyncContext`; the argument may be a coroutine, too."""
    if inspect.isawaitable(arg):
      arg = await arg
    return await calls.awaited(self._invoke, comp, arg)
