"""A federated computation as TensorFlow functions of a cohort."""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import aggregations
from tff_superquantile.simulation.engine import interpreter
from tff_superquantile.simulation.engine import mapping
from tff_superquantile.simulation.engine import reading
from tff_superquantile.simulation.engine import stages as stages_lib
from tff_superquantile.simulation.engine import traces
from tff_superquantile.simulation.engine import values
from tff_superquantile.simulation.engine.graphs import errors


class Program:
  """A computation in this process, for whole cohorts or in stages for their blocks.

  Attributes:
    block: The computation in call-dominant form.
    parameters: The leaves of its parameter.
    whole: Returns the result for a whole cohort at once, one tensor a leaf.
  """

  def __init__(
    self,
    comp: tff.framework.ConcreteComputation,
    store: reading.Store,
    parallel: int,
    default_num_clients: int = 0,
  ):
    """Reads a computation.

    Args:
      comp: The computation.
      store: Keeps what clients read.
      parallel: How many clients compute at once.
      default_num_clients: The number of clients where no argument tells it.

    Raises:
      UnsupportedError: If there is something in it that the engine does not know.
    """
    self._default_num_clients = default_num_clients
    self._store = store
    self._parallel = parallel
    self._parameter_type = comp.type_signature.parameter
    # Compiling loses the Python containers that the annotated type has.
    result_type = comp.type_signature.result
    block = tff.framework.to_call_dominant(comp.to_building_block())
    if not isinstance(block, tff.framework.Lambda):
      block = _wrap(block, self._parameter_type)  # A bare component.
    self.block = block
    self.parameters: list[values.LeafType] = []
    self._converter = None
    if self._parameter_type is not None:
      self.parameters = values.leaf_types(self._parameter_type)
      self._converter = values.Converter(self._parameter_type)
    self._results = values.leaf_types(result_type)
    self._to_python = values.build_to_python(result_type)
    if any(leaf.is_data_set for leaf in self._results):
      raise errors.UnsupportedError("a data set as a result")
    self._returns_clients_values = tff.types.contains(
      result_type, lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS
    )
    self._origins = values.origins(self.parameters)
    self._library = mapping.Library({i: origin.name for i, origin in self._origins.items()})
    self.whole = self.cohort_function(self._evaluate)

  def arrays(self, arg: Any) -> list[np.ndarray]:
    """Returns an argument as one array a leaf, those at clients with the clients in rows.

    Raises:
      TypeError: If the argument is not of the parameter's type.
      ValueError: If its parts are of different numbers of clients, or if values of no clients would
        be returned, which TFF does not allow.
      UnsupportedError: If tensors of several clients do not have the same shape.
    """
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

  def num_clients(self, arrays: Sequence[Any]) -> int:
    """Returns the number of clients of an argument; the default if nothing in it tells."""
    lengths = (len(a) for a, leaf in zip(arrays, self.parameters) if leaf.stacked)
    return next(lengths, self._default_num_clients)

  @functools.cached_property
  def stages(self) -> stages_lib.Stages | str:
    """The computation, cut at its aggregations; or why it cannot be cut."""
    try:
      return stages_lib.Stages(self)
    except Exception as error:  # Whatever TensorFlow finds wrong in tracing.
      return str(error)

  def to_python(self, results: Sequence[tf.Tensor]) -> Any:
    """Returns the Python value of a result, one tensor a leaf."""
    return self._to_python([result.numpy() for result in results])

  def cohort_function(
    self,
    function: Callable[[Sequence[tf.Tensor], aggregations.Clients], list[tf.Tensor]],
    more: Sequence[tf.TensorSpec] = (),
  ) -> traces.CohortFunction:
    """Builds a function of the parameter's leaves, and of more tensors.

    Args:
      function: From the tensors and the clients of a trace to the results.
      more: The specs of tensors behind those of the parameter.

    Returns:
      A function of arrays or tensors.
    """

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

  def _evaluate(
    self, tensors: Sequence[tf.Tensor], clients: aggregations.Clients
  ) -> list[tf.Tensor]:
    evaluator = interpreter.Interpreter(clients)
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
