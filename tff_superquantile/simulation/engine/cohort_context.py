"""A TFF context that runs computations in this process, and hands the rest to another context."""

from collections.abc import Callable, Sequence
from typing import Any, Optional
import weakref

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import data_sets
from tff_superquantile.simulation.engine import interpreter
from tff_superquantile.simulation.engine import mapping
from tff_superquantile.simulation.engine import reading
from tff_superquantile.simulation.engine import values


class _Program:
  """A computation as traced TensorFlow functions, for cohorts of any size."""

  def __init__(self, comp: tff.framework.ConcreteComputation, store: reading.Store, parallel: int):
    self._parallel = parallel
    self._store = store
    self._parameter_type = comp.type_signature.parameter
    # Compiling loses the Python containers that the annotated type has.
    self._result_type = comp.type_signature.result
    block = tff.framework.to_call_dominant(comp.to_building_block())
    if not isinstance(block, tff.framework.Lambda):
      block = _wrap(block, self._parameter_type)  # A bare component.
    self._block = block
    self._parameters = (
      [] if self._parameter_type is None else values.leaf_types(self._parameter_type)
    )
    self._converter = None
    if self._parameter_type is not None:
      self._converter = values.Converter(self._parameter_type)
    self._results = values.leaf_types(self._result_type)
    self._to_python = values.build_to_python(self._result_type)
    if any(leaf.is_data_set for leaf in self._results):
      raise values.UnsupportedError("a data set as a result")
    origins = values.origins(self._parameters)
    self._library = mapping.Library({i: origin.name for i, origin in origins.items()})
    discovery = mapping.Discovery(self._library)
    with tf.Graph().as_default():
      parameters = [leaf.spec for leaf in self._parameters]
      self._run([tf.compat.v1.placeholder(p.dtype, p.shape) for p in parameters], discovery)
    self._reader = None
    if discovery.reads:
      self._reader = reading.Reader(discovery.reads, origins)
    self._looks_again = discovery.looks_again
    self._functions: dict[Optional[reading.Key], Any] = {}
    self._can_compile = True

  def _run(self, tensors: Sequence[tf.Tensor], mapper: mapping.Mapper) -> list[tf.Tensor]:
    leaves = [
      values.Leaf(tensor, leaf.stacked, i)
      for i, (tensor, leaf) in enumerate(zip(tensors, self._parameters))
    ]
    stacked = [leaf.tensor for leaf in leaves if leaf.stacked]
    num_clients = tf.shape(stacked[0])[0] if stacked else tf.constant(0)
    evaluator = interpreter.Interpreter(num_clients, mapper)
    scope = {}
    if self._block.parameter_name is not None:
      scope[self._block.parameter_name] = values.pack(self._parameter_type, iter(leaves))
    results = list(values.flatten(evaluator.evaluate(self._block.result, scope)))
    return [
      evaluator.stack(leaf) if leaf_type.stacked else leaf.tensor
      for leaf, leaf_type in zip(results, self._results)
    ]

  def _function(self, key: Optional[reading.Key], reads: Sequence[reading.Read]) -> Any:
    """The traced function for what is read: of any shapes, or with a key of these shapes."""
    if key not in self._functions:

      def run(parameters: Sequence[tf.Tensor], given: Sequence[tuple]) -> list[tf.Tensor]:
        mapper: mapping.Mapper
        if key is None or not reads:
          by_ref = {r.ref: parts for r, parts in zip(reads, given)}
          mapper = mapping.Sequential(self._library, by_ref, self._parallel)
        else:
          # All but the values follow from the key.
          by_ref = {
            r.ref: (flat, *map(tf.constant, r.places())) for r, (flat,) in zip(reads, given)
          }
          stacked = {
            r.ref: tf.reshape(flat, [key.capacity, *r.shapes[0]])
            for r, (flat,) in zip(reads, given)
          }
          mapper = mapping.Compiled(self._library, by_ref, self._parallel, stacked, key.capacity)
        return self._run(parameters, mapper)

      signature = ([p.spec for p in self._parameters], [r.specs(key) for r in reads])
      function = tf.function(run, input_signature=signature, autograph=False)
      self._functions[key] = function.get_concrete_function()
    return self._functions[key]

  def __call__(self, arg: Any) -> Any:
    arrays = []
    if self._converter is not None:
      arrays = self._converter.arrays(arg)
    key: Optional[reading.Key] = None
    reads: list[reading.Read] = []
    sources = data_sets.sources_of(arrays)
    if not all(source.is_fixed for source in sources):
      key = reading.LIVE
    elif self._looks_again and any(source.is_shuffled for source in sources):
      raise values.UnsupportedError("a shuffled data set that is read several times")
    elif self._reader is not None:
      compiled = self._functions if self._can_compile else None
      reads, key = self._store.read(self._reader, arrays, compiled)
    results = self._invoke(key, arrays, reads)
    return self._to_python([result.numpy() for result in results])

  def _invoke(
    self, key: Optional[reading.Key], arrays: Sequence[np.ndarray], reads: Sequence[reading.Read]
  ) -> Sequence[tf.Tensor]:
    try:
      function = self._function(key, reads)
      # Data sets that have been read need not be handed over.
      tensors = [
        data_sets.as_tensor(array, tensor.dtype, _is_used(tensor))
        for array, tensor in zip(arrays, function.inputs)
      ]
      parts = [tuple(map(tf.constant, r.parts(key))) for r in reads]
      return function(tensors, parts)
    except tf.errors.OpError as error:
      if key in (None, reading.LIVE):
        raise
      logging.info("The engine computes without XLA, which cannot: %s", error)
      self._can_compile = False
    assert self._reader is not None
    num_clients = len(arrays[self._reader.positions[0]])
    reads = [r.without_padding(num_clients) for r in reads]
    return self._invoke(None, arrays, reads)


def _is_used(tensor: tf.Tensor) -> bool:
  return any(consumer.type != "Shape" for consumer in tensor.consumers())


def _wrap(
  block: tff.framework.ComputationBuildingBlock, parameter_type: Optional[tff.Type]
) -> tff.framework.Lambda:
  if parameter_type is None:
    return tff.framework.Lambda(None, None, tff.framework.Call(block))
  argument = tff.framework.Reference("engine_argument", block.type_signature.parameter)
  return tff.framework.Lambda(
    argument.name, argument.type_signature, tff.framework.Call(block, argument)
  )


class CohortContext(tff.framework.SyncContext):
  """Compiles each computation once, into one TensorFlow function for the whole cohort.

  Values at the clients are tensors with the clients along the first dimension, so that a
  computation is traced once for cohorts of all sizes. Secure sums are simulated by plain ones.

  What the engine does not know (tables, tensors of unknown shape between the computations of
  clients) another context does, if there is one, after a warning that says why; a computation that
  went there once stays there.
  """

  def __init__(
    self,
    fallback: Optional[Callable[[], tff.framework.SyncContext]] = None,
    parallel: int = 2,
    max_bytes: int = 2**30,
  ):
    """Initializes the context.

    Args:
      fallback: Makes the context for what cannot be done here, called when it is needed for the
        first time; None to raise instead.
      parallel: How many clients compute at once.
      max_bytes: How much of what clients read from files and data sets is kept in memory. A file is
        taken not to change while the context lives, nor is what a data set reads, unless it draws
        at random without a seed. What was read from a data set goes with it.
    """
    self._make_fallback = fallback
    self._fallback_context: Optional[tff.framework.SyncContext] = None
    self._parallel = parallel
    # By identity: comparing computations, or hashing them, means to serialize them.
    self._programs: dict[int, Optional[_Program]] = {}
    self._store = reading.Store(max_bytes)

  def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    """See `tff.framework.SyncContext`.

    Raises:
      UnsupportedError: If the computation cannot be done and there is no other context.
    """
    program = self._program(comp)
    if program is None:
      return self._fallback(comp, arg)
    try:
      return program(arg)
    except (tf.errors.OpError, values.UnsupportedError) as error:
      if self._make_fallback is None:
        raise
      self._log(comp, error)
      result = self._fallback(comp, arg)  # Raises where the computation itself is at fault.
      self._programs[id(comp)] = None
      return result
    except (TypeError, ValueError) as error:
      if self._make_fallback is None:
        raise
      self._log(comp, error)
      return self._fallback(comp, arg)  # Whose errors people know.

  def _program(self, comp: tff.framework.ConcreteComputation) -> Optional[_Program]:
    key = id(comp)
    if key not in self._programs:
      try:
        program = _Program(comp, self._store, self._parallel)
      except Exception as error:  # Whatever TensorFlow finds wrong in tracing.
        if self._make_fallback is None:
          raise
        program = None
        self._log(comp, error)
      weakref.finalize(comp, self._programs.pop, key, None)
      self._programs[key] = program
    return self._programs[key]

  def _log(self, comp: tff.framework.ConcreteComputation, error: Exception) -> None:
    # What starts the other context, often another process, is worth a warning; the rest is not.
    logging.log(
      logging.INFO if self._fallback_context else logging.WARNING,
      "TFF's runtime computes a computation of type %.200s, as this process cannot: %s",
      comp.type_signature.compact_representation(),
      error,
    )

  def _fallback(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    if self._fallback_context is None:
      assert self._make_fallback is not None  # Otherwise `invoke` and `_program` raise.
      self._fallback_context = self._make_fallback()
    return self._fallback_context.invoke(comp, arg)
