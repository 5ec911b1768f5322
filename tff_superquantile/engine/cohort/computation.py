"""A federated computation in one form, and the TensorFlow functions of a cohort that it becomes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import interpreter
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import traces
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors


class Outline:
  """A computation, in call-dominant form `block`, of which stages make functions of a cohort.

  Attributes:
    block: The computation.
    parameters: The leaves of its parameter.
  """

  def __init__(
    self,
    block: tff.framework.Lambda,
    store: reading.Store,
    parallel: int,
    default_num_clients: int,
  ):
    """Reads the parameter; a part that the engine does not know is an `UnsupportedError`."""
    self.block = block
    self._default_num_clients = default_num_clients
    self._store = store
    self._parallel = parallel
    self._parameter_type = block.parameter_type
    self.parameters = (
      [] if block.parameter_type is None else values.leaf_types(block.parameter_type)
    )
    self._origins = values.origins(self.parameters)
    self._library = components.Library({i: origin.name for i, origin in self._origins.items()})

  def num_clients(self, arrays: Sequence[Any]) -> int:
    """Returns the number of clients of an argument; the default if nothing in it tells."""
    lengths = (len(a) for a, leaf in zip(arrays, self.parameters) if leaf.stacked)
    return next(lengths, self._default_num_clients)

  def cohort_function(
    self,
    function: Callable[[Sequence[tf.Tensor], aggregations.Clients], list[tf.Tensor]],
    more: Sequence[tf.TensorSpec] = (),
  ) -> traces.CohortFunction:
    """Builds a function of the parameter's leaves, and of more tensors behind them."""

    def run(tensors: Sequence[tf.Tensor], mapper: mapping.Mapper) -> list[tf.Tensor]:
      stacked = [t for t, leaf in zip(tensors, self.parameters) if leaf.stacked]
      default = self._default_num_clients
      num_clients = tf.shape(stacked[0])[0] if stacked else tf.constant(default)
      return function(tensors, aggregations.Clients(num_clients, mapper))

    specs = [leaf.argument_spec for leaf in self.parameters]
    return traces.CohortFunction(
      run, [*specs, *more], self._origins, self._library, self._store, self._parallel
    )

  def server(self) -> aggregations.Clients:
    """Returns what stands for the clients in a trace that has none."""
    return aggregations.Clients(
      tf.constant(0), mapping.Sequential(self._library, {}, self._parallel)
    )

  def scope(self, tensors: Sequence[tf.Tensor | None]) -> dict[str, Any]:
    """Returns the scope of the computation for the tensors of its parameter."""
    if self.block.parameter_name is None:
      return {}
    leaves = [
      values.Leaf(tensor, leaf.stacked, i)
      for i, (tensor, leaf) in enumerate(zip(tensors, self.parameters))
    ]
    return {self.block.parameter_name: values.pack(self._parameter_type, iter(leaves))}


class Computation(Outline):
  """Reads a computation, in call-dominant form `block`, and makes functions of a cohort of it.

  `whole` is that of a whole cohort, one tensor a leaf.
  """

  def __init__(
    self,
    block: tff.framework.ComputationBuildingBlock,
    type_signature: tff.FunctionType,
    store: reading.Store,
    parallel: int,
    default_num_clients: int,
  ):
    """Reads a computation, whose annotated type has the Python containers.

    A part that the engine does not know is an `UnsupportedError`.
    """
    parameter_type, result_type = type_signature.parameter, type_signature.result
    block = tff.framework.to_call_dominant(block)
    if not isinstance(block, tff.framework.Lambda):
      block = _wrap(block, parameter_type)  # A bare component.
    super().__init__(block, store, parallel, default_num_clients)
    self._converter = None if parameter_type is None else values.Converter(parameter_type)
    self._results = values.leaf_types(result_type)
    self._to_python = values.build_to_python(result_type)
    if any(leaf.is_data_set for leaf in self._results):
      raise errors.UnsupportedError("a data set as a result")
    self._returns_clients_values = tff.types.contains(
      result_type, lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS
    )
    self.whole = self.cohort_function(self._evaluate)

  def arrays(self, arg: Any) -> list[np.ndarray]:
    """Returns an argument as one array a leaf, those at clients with the clients in rows.

    It refuses what TFF does: another type (`TypeError`), parts of different numbers of clients, and
    values of no clients as a result (`ValueError`); and shapes that differ between clients.
    """
    data_sets.forget_lists()
    arrays = [] if self._converter is None else self._converter.arrays(arg)
    lengths = {len(a) for a, leaf in zip(arrays, self.parameters) if leaf.stacked}
    if len(lengths) > 1:
      found = " and ".join(map(str, sorted(lengths)))
      raise ValueError(
        f"Found arguments of {found} clients; expected one value a client in each of them."
      )
    if self._returns_clients_values and not self.num_clients(arrays):
      raise ValueError("Found no clients; expected some, since the result is of values at clients.")
    return arrays

  def to_python(self, results: Sequence[tf.Tensor]) -> Any:
    """Returns the Python value of a result, one tensor a leaf."""
    return self._to_python([result.numpy() for result in results])

  def _evaluate(
    self, tensors: Sequence[tf.Tensor], clients: aggregations.Clients
  ) -> list[tf.Tensor]:
    evaluator = interpreter.TracingInterpreter(clients)
    results = values.flatten(evaluator.evaluate(self.block.result, self.scope(tensors)))
    return [
      clients.stack(leaf) if leaf_type.stacked else leaf.tensor
      for leaf, leaf_type in zip(results, self._results)
    ]


def _wrap(
  block: tff.framework.ComputationBuildingBlock, parameter_type: tff.Type | None
) -> tff.framework.Lambda:
  if parameter_type is None:
    return tff.framework.Lambda(None, None, tff.framework.Call(block))
  argument = tff.framework.Reference("engine_argument", block.type_signature.parameter)
  return tff.framework.Lambda(
    argument.name, argument.type_signature, tff.framework.Call(block, argument)
  )
