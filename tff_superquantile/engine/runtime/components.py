"""TensorFlow components as functions of values, which several threads may call.

A component runs in a session, as in TFF's worker: its state begins anew in each call. One that goes
over data sets is taken apart instead, as the engine does: TensorFlow builds the kernels of a loop
over a data set anew each time, 20 to 30 ms for a model's training, and those of a loop over the
elements' positions once.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import kernels
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import sessions
from tff_superquantile.engine.runtime import sequences


class InSessions(components.Source):
  """A component in sessions."""

  def __init__(self, block: tff.framework.CompiledComputation):
    """Builds the graph of a component; one that is not TensorFlow is an `UnsupportedError`."""
    super().__init__(block)
    self._dtypes = [leaf.argument_dtype.as_numpy_dtype for leaf in self.parameter_types]
    self._element_types = sequences.element_types(self.type_signature.result)
    graph = tf.Graph()
    with graph.as_default():
      leaves = dict(zip(self.parameters, self.parameter_types))
      kinds = sequences.element_types(self.type_signature.parameter)
      names = [name for name, leaf in leaves.items() if leaf.is_data_set]
      serialized = {name: tf.compat.v1.placeholder(tf.string, []) for name in names}
      inputs: dict[str, Any] = {
        name: sequences.begin(serialized[name], kind) for name, kind in zip(names, kinds)
      }
      if self.session_token:
        inputs[self.session_token] = tf.constant("")
      controls = {
        name for node in self.graph_def.node for name in node.input if name.startswith("^")
      }
      for name, tensor in list(inputs.items()):
        control = "^" + name.partition(":")[0]
        if control in controls:
          inputs[control] = tensor
      results = tf.graph_util.import_graph_def(
        sessions.with_own_queues(self.graph_def), inputs, self.results, name=""
      )
      fed = [serialized[name].name if name in serialized else name for name in leaves]
      fetched = [
        (tf.raw_ops.DatasetToGraphV2(input_dataset=tensor) if leaf.is_data_set else tensor).name
        for tensor, leaf in zip(results, self.result_types)
      ]
    self._run = sessions.Sessions(graph, fed, fetched, self.initialize_op)

  def __call__(self, argument: Any) -> Any:
    """Computes the component on a value as in `evaluation`, None without a parameter."""
    leaves = [] if argument is None else values.flatten(argument)
    fed = [
      np.asarray(leaf.graph_def() if isinstance(leaf, sequences.Sequence) else leaf, dtype)
      for leaf, dtype in zip(leaves, self._dtypes)
    ]
    tensors = self._run(*fed)
    kinds = iter(self._element_types)
    results = (
      sequences.Sequence(next(kinds), serialized=tensor, is_made=True)
      if leaf.is_data_set
      else tensor
      for tensor, leaf in zip(tensors, self.result_types)
    )
    return values.pack(self.type_signature.result, results)


class TakenApart:
  """A component that goes over data sets, and makes none."""

  def __init__(self, block: tff.framework.CompiledComputation):
    """Builds the function, or raises `UnsupportedError`: no data sets, or none to take apart."""
    self._block = block
    self._type = block.type_signature.result
    source = components.Source(block)
    if not any(leaf.is_data_set for leaf in source.parameter_types):
      raise errors.UnsupportedError("a component without data sets")
    if any(leaf.is_data_set for leaf in source.result_types):
      raise errors.UnsupportedError("a component that makes data sets")
    component = components.Component(block, takes_apart=True)
    specs = [leaf.argument_spec for leaf in component.parameter_types]
    traced = tf.function(lambda *arguments: component.call(arguments), specs, autograph=False)
    self._function = traced.get_concrete_function()
    self._turns = kernels.turns(ops.nodes_of(component.graph_def))
    self._dtypes = [spec.dtype for spec in specs]

  @functools.cached_property
  def _in_session(self) -> InSessions:
    return InSessions(self._block)

  def __call__(self, argument: Any) -> Any:
    """Computes the component, as `InSessions` does."""
    leaves: list[Any] = list(values.flatten(argument))
    are_sequences = [isinstance(leaf, sequences.Sequence) for leaf in leaves]
    # In TensorFlow's own loops, these data sets have the same order in each reading.
    if any(is_one and leaf.is_made_shuffled for leaf, is_one in zip(leaves, are_sequences)):
      return self._in_session(argument)
    arguments = [
      tf.constant(leaf.graph_def() if is_one else leaf, dtype)
      for leaf, is_one, dtype in zip(leaves, are_sequences, self._dtypes)
    ]
    try:
      with self._turns:
        tensors = self._function(*arguments)
    except tf.errors.OpError as error:
      if errors.sentence(error) not in errors.NOT_HELD:
        raise
      return self._in_session(argument)  # Its own graph holds one element at a time.
    return values.pack(self._type, (tensor.numpy() for tensor in tensors))


def component(block: tff.framework.CompiledComputation) -> InSessions | TakenApart:
  """Returns the function of a component; one that is not TensorFlow is an `UnsupportedError`."""
  try:
    return TakenApart(block)
  except Exception:  # Whatever TensorFlow finds wrong in tracing what was taken apart.
    return InSessions(block)
