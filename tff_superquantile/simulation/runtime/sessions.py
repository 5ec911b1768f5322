"""TensorFlow components in sessions, as TFF's worker runs them: state begins anew in each call."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import components
from tff_superquantile.simulation.engine import values
from tff_superquantile.simulation.engine.graphs import errors
from tff_superquantile.simulation.engine.graphs import sessions
from tff_superquantile.simulation.runtime import sequences


class Component:
  """A function of one TensorFlow graph, which several threads may call."""

  def __init__(self, block: tff.framework.CompiledComputation):
    """Builds the graph.

    Args:
      block: The component.

    Raises:
      UnsupportedError: If it is not TensorFlow.
    """
    if block.proto.WhichOneof("computation") != "tensorflow":
      raise errors.UnsupportedError(
        f"Found a component that is not TensorFlow; this process has no other. {errors.TFFS_OWN}"
      )
    proto = block.proto.tensorflow
    self._type = block.type_signature
    parameter = self._type.parameter
    parameters = [] if parameter is None else values.leaf_types(parameter)
    self._dtypes = [leaf.argument_dtype.as_numpy_dtype for leaf in parameters]
    self._results = values.leaf_types(self._type.result)
    self._element_types = sequences.element_types(self._type.result)
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    graph = tf.Graph()
    with graph.as_default():
      given = dict(zip(components.tensor_names(proto.parameter), parameters))
      kinds = sequences.element_types(parameter)
      names = [name for name, leaf in given.items() if leaf.is_data_set]
      serialized = {name: tf.compat.v1.placeholder(tf.string, []) for name in names}
      inputs: dict[str, Any] = {
        name: sequences.begin(serialized[name], kind) for name, kind in zip(names, kinds)
      }
      if proto.session_token_tensor_name:
        inputs[proto.session_token_tensor_name] = tf.constant("")
      controls = {name for node in graph_def.node for name in node.input if name.startswith("^")}
      for name, tensor in list(inputs.items()):
        control = "^" + name.partition(":")[0]
        if control in controls:
          inputs[control] = tensor
      results = tf.graph_util.import_graph_def(
        sessions.with_own_queues(graph_def), inputs, components.tensor_names(proto.result), name=""
      )
      fed = [serialized[name].name if name in serialized else name for name in given]
      fetched = [
        (tf.raw_ops.DatasetToGraphV2(input_dataset=tensor) if leaf.is_data_set else tensor).name
        for tensor, leaf in zip(results, self._results)
      ]
    self._run = sessions.Sessions(graph, fed, fetched, proto.initialize_op)

  def __call__(self, argument: Any) -> Any:
    """Computes the component.

    Args:
      argument: The value of its parameter, as in `evaluation`; None without one.

    Returns:
      The value of its result.

    Raises:
      tf.errors.OpError: If TensorFlow cannot compute it.
    """
    leaves = [] if argument is None else values.flatten(argument)
    fed = [
      np.asarray(leaf.graph_def() if isinstance(leaf, sequences.Sequence) else leaf, dtype)
      for leaf, dtype in zip(leaves, self._dtypes)
    ]
    found = self._run(*fed)
    kinds = iter(self._element_types)
    results = (
      sequences.Sequence(next(kinds), serialized=tensor, is_made=True)
      if leaf.is_data_set
      else tensor
      for tensor, leaf in zip(found, self._results)
    )
    return values.pack(self._type.result, results)


def constant(value: Any, dtype: Any) -> Any:
  """Returns the value of a literal."""
  return value if isinstance(value, (str, bytes)) else np.asarray(value, dtype)[()]
