"""A federated computation as functions of a cohort, from Python's values to Python's values."""

import collections
from collections.abc import Sequence
import copy
import functools
import hashlib
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort import interpreter
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import stages as stages_lib
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors


class Program(computation.Computation):
  """A computation, for whole cohorts (`whole`, one tensor a leaf) or in `stages` for blocks."""

  def __init__(
    self,
    block: tff.framework.ComputationBuildingBlock,
    type_signature: tff.FunctionType,
    store: reading.Store,
    parallel: int,
    default_num_clients: int,
  ):
    """Reads and traces a computation, whose annotated type has the Python containers."""
    super().__init__(block, type_signature, store, parallel, default_num_clients)
    parameter_type, result_type = type_signature.parameter, type_signature.result
    self._converter = None if parameter_type is None else values.Converter(parameter_type)
    self._results = values.leaf_types(result_type)
    self._to_python = values.build_to_python(result_type)
    if any(leaf.is_data_set for leaf in self._results):
      raise errors.UnsupportedError("a data set as a result")
    self._returns_clients_values = tff.types.contains(
      result_type, lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS
    )
    self.whole = self.cohort_function(self._evaluate)

  def with_store(self, store: reading.Store) -> "Program":
    """Returns the program, with its traces, for clients whose values another store keeps."""
    shared = copy.copy(self)
    vars(shared).pop("stages", None)
    shared._store = store
    shared.whole = copy.copy(self.whole)
    shared.whole.store = store
    return shared

  def arrays(self, arg: Any) -> list[np.ndarray]:
    """Returns an argument as one array a leaf, those at clients with the clients in rows.

    It refuses what TFF does: another type (`TypeError`), parts of different numbers of clients, and
    values of no clients as a result (`ValueError`); and shapes that differ between clients.
    """
    data_sets.forget_lists()
    arrays = [] if self._converter is None else self._converter.arrays(arg)
    lengths = {len(a) for a, leaf in zip(arrays, self.parameters) if leaf.stacked}
    if len(lengths) > 1:
      numbers = " and ".join(map(str, sorted(lengths)))
      raise ValueError(
        f"Found arguments of {numbers} clients; expected one value a client in each of them."
      )
    if self._returns_clients_values and not self.num_clients(arrays):
      raise ValueError("Found no clients; expected some, since the result is of values at clients.")
    return arrays

  @functools.cached_property
  def stages(self) -> stages_lib.Stages | str:
    """Returns the computation, cut at its aggregations; or a sentence on why it cannot be cut."""
    try:
      return stages_lib.Stages(self)
    except Exception as error:  # Whatever TensorFlow finds wrong in tracing.
      return str(error)

  def to_python(self, results: Sequence[tf.Tensor]) -> Any:
    """Returns the Python value of a result, one tensor a leaf."""
    return self._to_python([result.numpy() for result in results])

  def _evaluate(
    self, tensors: Sequence[tf.Tensor], clients: aggregations.Clients
  ) -> list[tf.Tensor]:
    evaluator = interpreter.Interpreter(clients)
    results = values.flatten(evaluator.evaluate(self.block.result, self.scope(tensors)))
    return [
      clients.stack(leaf) if leaf_type.stacked else leaf.tensor
      for leaf, leaf_type in zip(results, self._results)
    ]


# Programs that have read nothing, by what they compute; what was used last is last.
_traced: collections.OrderedDict[Any, Program] = collections.OrderedDict()
_MOST_TRACED = 8  # Of some 10 MB each.


def of(
  comp: tff.framework.ConcreteComputation,
  store: reading.Store,
  parallel: int,
  default_num_clients: int,
) -> Program:
  """Returns a computation's program, with the traces of an equal one; a state needs its own."""
  block, type_signature = comp.to_building_block(), comp.type_signature
  try:
    digest = _digest(block)
  except errors.UnsupportedError:
    return Program(block, type_signature, store, parallel, default_num_clients)
  key = digest, type_signature, parallel, default_num_clients
  if key not in _traced:
    empty = reading.Store(0)
    _traced[key] = Program(block, type_signature, empty, parallel, default_num_clients)
  _traced.move_to_end(key)
  while len(_traced) > _MOST_TRACED:
    _traced.popitem(last=False)
  return _traced[key].with_store(store)


def _digest(block: tff.framework.ComputationBuildingBlock) -> bytes:
  """Returns what is equal for blocks of equal graphs; a state is an `UnsupportedError`."""
  if isinstance(block, tff.framework.CompiledComputation):
    return components.digest(block)
  parts = [_digest(child) for child in block.children()]
  names = [getattr(block, name, None) for name in ("name", "index", "parameter_name")]
  names += [name for name, _ in getattr(block, "locals", ())]
  parts.append(f"{type(block).__name__} {block.type_signature} {names}".encode())
  if len(parts) == 1:
    parts.append(block.proto.SerializeToString(deterministic=True))  # It may be a literal.
  return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
