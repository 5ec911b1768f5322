"""Components that go over data sets, as functions that the engine has taken apart.

TensorFlow builds the kernels of a loop over a data set anew each time: 20 to 30 ms for a model's
training. A loop over the elements' positions keeps them.
"""

import functools
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import components
from tff_superquantile.simulation.engine import values
from tff_superquantile.simulation.engine.graphs import data_sets
from tff_superquantile.simulation.engine.graphs import errors
from tff_superquantile.simulation.runtime import sequences
from tff_superquantile.simulation.runtime import sessions


class Function:
  """A function of one TensorFlow graph, which several threads may call."""

  def __init__(self, block: tff.framework.CompiledComputation):
    """Builds the function.

    Args:
      block: The component.

    Raises:
      UnsupportedError: If it does not go over data sets, or cannot be taken apart.
    """
    self._block = block
    parameter = block.type_signature.parameter
    parameters = [] if parameter is None else values.leaf_types(parameter)
    if not any(leaf.is_data_set for leaf in parameters):
      raise errors.UnsupportedError("a component without data sets")
    self._type = block.type_signature.result
    results = values.leaf_types(self._type)
    if any(leaf.is_data_set for leaf in results):
      raise errors.UnsupportedError("a component that makes data sets")
    compute = components.Component(block).taken_apart()

    def function(*arguments: tf.Tensor) -> list[tf.Tensor]:
      found = compute(
        *(
          data_sets.begin(argument) if leaf.is_data_set else argument
          for argument, leaf in zip(arguments, parameters)
        )
      )
      return [tf.ensure_shape(tensor, leaf.shape) for tensor, leaf in zip(found, results)]

    specs = [leaf.argument_spec for leaf in parameters]
    traced = tf.function(function, specs, autograph=False)
    self._function = traced.get_concrete_function()
    self._dtypes = [leaf.argument_dtype for leaf in parameters]

  @functools.cached_property
  def _in_session(self) -> sessions.Component:
    return sessions.Component(self._block)

  def __call__(self, argument: Any) -> Any:
    """Computes the component; as `sessions.Component`."""
    leaves: list[Any] = list(values.flatten(argument))
    are_sequences = [isinstance(leaf, sequences.Sequence) for leaf in leaves]
    # In TensorFlow's own loops, these data sets have the same order in each reading.
    if any(is_one and leaf.is_made_shuffled for leaf, is_one in zip(leaves, are_sequences)):
      return self._in_session(argument)
    arguments = [
      tf.constant(leaf.graph_def() if is_one else leaf, dtype)
      for leaf, is_one, dtype in zip(leaves, are_sequences, self._dtypes)
    ]
    found = self._function(*arguments)
    return values.pack(self._type, (tensor.numpy() for tensor in found))
