"""A federated computation in one form, and the TensorFlow functions of a cohort that it becomes.

Whole cohorts (`program`) and stages for their blocks (`stages`) are both built of this.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import traces
from tff_superquantile.engine.cohort import values


class Computation:
  """Reads a computation, in call-dominant form `block`, and makes functions of a cohort of it."""

  def __init__(
    self,
    block: tff.framework.ComputationBuildingBlock,
    type_signature: tff.FunctionType,
    store: reading.Store,
    parallel: int,
    default_num_clients: int,
  ):
    """Reads a computation; a parameter with unknown parts is an `UnsupportedError`."""
    self._default_num_clients = default_num_clients
    self._store = store
    self._parallel = parallel
    self._parameter_type = type_signature.parameter
    block = tff.framework.to_call_dominant(block)
    if not isinstance(block, tff.framework.Lambda):
      block = _wrap(block, self._parameter_type)  # A bare component.
    self.block = block
    self.parameters: list[values.LeafType] = []
    if self._parameter_type is not None:
      self.parameters = values.leaf_types(self._parameter_type)
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


def _wrap(
  block: tff.framework.ComputationBuildingBlock, parameter_type: tff.Type | None
) -> tff.framework.Lambda:
  if parameter_type is None:
    return tff.framework.Lambda(None, None, tff.framework.Call(block))
  argument = tff.framework.Reference("engine_argument", block.type_signature.parameter)
  return tff.framework.Lambda(
    argument.name, argument.type_signature, tff.framework.Call(block, argument)
  )
