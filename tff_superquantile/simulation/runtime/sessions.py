"""TensorFlow components in sessions, as TFF's worker runs them: state begins anew in each call."""

from collections.abc import Callable, Iterator
import contextlib
import queue
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import components
from tff_superquantile.simulation.engine import values
from tff_superquantile.simulation.engine.graphs import errors
from tff_superquantile.simulation.engine.graphs import ops
from tff_superquantile.simulation.runtime import sequences

# Resources that a component's initializer sets anew, or that end with the step which made them.
_BEGIN_ANEW = ("Anonymous", "HashTable", "VarHandleOp", "Variable")


def _config() -> tf.compat.v1.ConfigProto:
  config = tf.compat.v1.ConfigProto()
  # It would be applied to the body of a data set's loop in every call.
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config


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
    makers = {node.op for node in components.nodes_of(graph_def) if ops.makes_resource(node.op)}
    self._shares_session = not makers and not proto.initialize_op
    self._keeps_sessions = all(op.startswith(_BEGIN_ANEW) for op in makers)
    self._graph = tf.Graph()
    with self._graph.as_default():
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
      fetched = tf.graph_util.import_graph_def(
        graph_def, inputs, components.tensor_names(proto.result), name=""
      )
      self._fed = [
        serialized[name] if name in serialized else self._graph.get_tensor_by_name(name)
        for name in given
      ]
      self._fetched = [
        (tf.raw_ops.DatasetToGraphV2(input_dataset=tensor) if leaf.is_data_set else tensor).name
        for tensor, leaf in zip(fetched, self._results)
      ]
    self._initializer = proto.initialize_op
    self._idle: queue.SimpleQueue[list[Callable[..., Any]]] = queue.SimpleQueue()

  def _open(self) -> list[Callable[..., Any]]:
    """Returns what to call in a new session, in order: the initializer, the component."""
    session = tf.compat.v1.Session(graph=self._graph, config=_config())
    feed = [tensor.name for tensor in self._fed]
    options = []
    if self._initializer:  # An initial value may depend on the argument.
      options.append(config_pb2.CallableOptions(feed=feed, target=[self._initializer]))
    if self._fetched:
      options.append(config_pb2.CallableOptions(feed=feed, fetch=self._fetched))
    # The public `make_callable` takes 0.15 ms more where there is something to feed.
    return [session._make_callable_from_options(option) for option in options]

  @contextlib.contextmanager
  def _session(self) -> Iterator[list[Callable[..., Any]]]:
    try:
      found = self._idle.get_nowait()
    except queue.Empty:
      found = self._open()
    if self._shares_session:
      self._idle.put(found)
    yield found
    if self._keeps_sessions and not self._shares_session:
      self._idle.put(found)

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
    found: list[Any] = []
    with self._session() as steps:
      for step in steps:
        found = step(*fed)
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
