"""TensorFlow components of a federated computation: read once, called in a trace or taken apart."""

from collections.abc import Callable, Mapping, Sequence
import copy
import hashlib
import logging
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import inlining
from tff_superquantile.engine.cohort.graphs import ops as op_types
from tff_superquantile.engine.cohort.graphs import purity
from tff_superquantile.engine.cohort.graphs import rewriting
from tff_superquantile.engine.cohort.graphs import sessions

_LOG = logging.getLogger(__name__)

# Ops that make a resource anew in each run, and variables, which are values here. Resources of
# other ops would be shared by all clients and runs, unless each has a session.
_OWN_STATE = ("Anonymous", "Dummy", "TensorArray", "VarHandleOp")


def tensor_names(binding: Any) -> list[str]:
  """Lists the tensors of a component's parameter or result, in the order of its leaves."""
  kind = binding.WhichOneof("binding")
  if kind is None:
    return []
  if kind == "struct":
    return [name for element in binding.struct.element for name in tensor_names(element)]
  if kind == "tensor":
    return [binding.tensor.tensor_name]
  return [binding.sequence.variant_tensor_name]


def digest(block: tff.framework.CompiledComputation) -> bytes:
  """Returns what is equal for equal graphs; a component with a state is an `UnsupportedError`."""
  proto, graph_def = block.proto, Source(block).graph_def
  if stateful := [n.op for n in op_types.nodes_of(graph_def) if op_types.is_stateful(n.op)]:
    raise errors.UnsupportedError(f"a component with {', '.join(stateful)}")
  library = op_types.functions_by_name(graph_def)
  around = (proto.type, proto.tensorflow.parameter, proto.tensorflow.result)
  parts = [each.SerializeToString(deterministic=True) for each in around]
  for node in graph_def.node:
    parts += [node.name.encode(), *(name.encode() for name in node.input)]
    parts.append(op_types.digest(node, library))
  return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


class Source:
  """The TensorFlow graph of a component, and the names and types of what goes in and comes out."""

  def __init__(self, block: tff.framework.CompiledComputation):
    """Reads a component; one that is not TensorFlow is an `UnsupportedError`."""
    if block.proto.WhichOneof("computation") != "tensorflow":
      raise errors.UnsupportedError(f"a component that is not TensorFlow. {errors.TFFS_OWN}")
    proto, self.type_signature = block.proto.tensorflow, block.type_signature
    self.graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(self.graph_def)
    rewriting.drop_xla(self.graph_def)
    self.parameters = tensor_names(proto.parameter)
    self.results = tensor_names(proto.result)
    parameter_type = self.type_signature.parameter
    self.parameter_types = [] if parameter_type is None else values.leaf_types(parameter_type)
    self.result_types = values.leaf_types(self.type_signature.result)
    self.session_token = proto.session_token_tensor_name
    self.initialize_op = proto.initialize_op


class Component(Source):
  """A component that is called in traces."""

  def __init__(self, block: tff.framework.CompiledComputation, takes_apart: bool = False):
    """Reads a component; data sets beside shared state are an `UnsupportedError`.

    One with variables is taken apart (into expressions), and any if `takes_apart`.
    """
    super().__init__(block)
    ops = {node.op for node in op_types.nodes_of(self.graph_def)}
    makers = (op for op in ops if op_types.makes_resource(op))
    self._shared = sorted(op for op in makers if not op.startswith(_OWN_STATE))
    self._has_session_token = any(
      f"{node.name}:0" == self.session_token for node in self.graph_def.node
    )
    takes_apart |= bool(self.initialize_op) or "VarHandleOp" in ops
    takes_apart |= any(map(purity.may_read, ops))  # See `emission.Emitter`.
    self.is_deterministic = not any(op_types.is_stateful(op) for op in ops)
    if self._shared:
      leaves = (*self.parameter_types, *self.result_types)
      if any(leaf.is_data_set for leaf in leaves):
        raise errors.UnsupportedError(f"a component with {', '.join(self._shared)}")
      self._function = self._in_sessions()
    elif takes_apart:
      self._function = self._taken_apart()
    else:
      with tf.init_scope():
        specs = [leaf.spec for leaf in self.parameter_types]
        self._function = tf.compat.v1.wrap_function(self._import, specs)

  def body(self, roots: Sequence[expressions.Ref], pool: expressions.Pool) -> expressions.Body:
    """Returns what the component computes of roots, one a leaf of the parameter, as expressions."""
    if self._shared:
      raise errors.UnsupportedError(f"a component with {', '.join(self._shared)}")
    names = [name.rpartition(":")[0] for name in self.parameters]
    return inlining.graph_body(
      self.graph_def, dict(zip(names, roots)), self.results, pool, self.initialize_op
    )

  def _taken_apart(self) -> Callable[..., list[tf.Tensor]]:
    """Returns what computes the component of its arguments, without variables and functions."""
    pool = expressions.Pool()
    roots = [
      expressions.Ref(pool.root(f"argument {i}", is_pure=not leaf.is_data_set), 0)
      for i, leaf in enumerate(self.parameter_types)
    ]
    body = self.body(roots, pool)

    def emit(*arguments: tf.Tensor) -> list[tf.Tensor]:
      return emission.Emitter(dict(zip(roots, arguments))).emit(body.outputs, body.effects)

    return emit

  def _in_sessions(self) -> Callable[..., list[tf.Tensor]]:
    """Returns what computes the component of its arguments, in a session of its own."""
    with tf.Graph().as_default() as graph:
      inputs = {self.session_token: tf.constant("")} if self._has_session_token else {}
      tf.graph_util.import_graph_def(sessions.with_own_queues(self.graph_def), inputs, name="")
    run = sessions.Sessions(graph, self.parameters, self.results, self.initialize_op)
    types = [leaf.argument_dtype for leaf in self.result_types]
    return lambda *arguments: tf.numpy_function(run, arguments, types)

  def _import(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
    inputs = dict(zip(self.parameters, arguments))
    if self._has_session_token:
      inputs[self.session_token] = tf.constant("")
    return tf.graph_util.import_graph_def(
      self.graph_def, input_map=inputs, return_elements=self.results, name=""
    )

  def call(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies the graph into the current one; arguments and results are one tensor a leaf."""
    begun = [
      data_sets.begin(argument) if leaf.is_data_set else argument
      for argument, leaf in zip(arguments, self.parameter_types)
    ]
    results = self._function(*begun)
    return [tf.ensure_shape(result, leaf.shape) for result, leaf in zip(results, self.result_types)]


class Library:
  """Reads each component of a computation once, and makes expressions of all in one pool."""

  def __init__(self, names: Mapping[int, str]):
    """Initializes a library: what clients hold has roots of `names`, by argument positions."""
    self.pool = expressions.Pool()
    self._names = names
    # The key is the block's id; the block is kept so that no other block gets that id.
    self._components: dict[int, tuple[Any, Component]] = {}
    # What components compute, by the number of the call in its trace, component and arguments.
    self._bodies: dict[tuple[int, int, tuple[expressions.Ref, ...]], expressions.Body] = {}
    self._count = 0

  def of_trace(self) -> "Library":
    """Returns the library for a trace, in which the same calls have the same expressions again.

    So what one trace has found to be read is what another uses, also draws and looks that equal
    no other.
    """
    return copy.copy(self)  # Which counts for itself.

  def component(self, block: tff.framework.CompiledComputation) -> Component:
    """Returns the component of a building block."""
    if id(block) not in self._components:
      self._components[id(block)] = (block, Component(block))
    return self._components[id(block)][1]

  def refs(
    self, leaves: Sequence[values.Leaf], types: Sequence[values.LeafType]
  ) -> tuple[list[expressions.Ref], list[values.Input]]:
    """Returns leaves as expressions, and the roots of these.

    Arguments of the computation that say from where clients read have the same root wherever they
    are used. Every other argument has a new root in each call, so none is taken for another.
    """
    refs: list[expressions.Ref] = []
    inputs: dict[expressions.Ref, values.Input] = {}
    for leaf, parameter in zip(leaves, types):
      if leaf.maps:
        raise errors.UnsupportedError("what tff.sequence_map makes, in a component")
      if leaf.made is not None:
        refs.append(leaf.made.ref)
        inputs.update((entry.root, entry) for entry in leaf.made.inputs)
        continue
      name = None if leaf.origin is None else self._names.get(leaf.origin)
      is_named, is_data_set = name is not None, parameter.is_data_set
      if name is None:
        self._count += 1
        # Traces have the same names, whatever these stand for.
        name = f"{'data set' if is_data_set else 'value'} {self._count} of a trace"
      root = self.pool.root(name, reads=is_data_set, is_pure=is_named or not is_data_set)
      refs.append(expressions.Ref(root, 0))
      inputs[refs[-1]] = values.Input(refs[-1], leaf, parameter)
    return refs, list(inputs.values())

  def body(
    self, component: Component, leaves: Sequence[values.Leaf]
  ) -> tuple[list[values.Input], expressions.Body] | None:
    """Returns a component's inputs and its body, or None if it cannot be taken apart."""
    refs, inputs = self.refs(leaves, component.parameter_types)
    self._count += 1
    key = self._count, id(component), tuple(refs)
    try:
      if key not in self._bodies:
        self._bodies[key] = component.body(refs, self.pool)
    except errors.UnsupportedError as error:
      if any(leaf.made is not None for leaf in leaves):  # These are computed as parts of it.
        raise
      _LOG.info("The engine maps a component as it is, as it cannot take apart %s", error)
      return None
    of_made = [effect for leaf in leaves if leaf.made is not None for effect in leaf.made.effects]
    body = self._bodies[key]
    return inputs, body._replace(effects=tuple(dict.fromkeys((*of_made, *body.effects))))

  def is_read(self, expression: expressions.Expression) -> bool:
    """Tells whether an expression is read from a client's files or data sets alone.

    It may be read before what uses it: each time, unless it is pure.
    """
    return (
      expression.node is not None
      and expression.reads
      and not op_types.is_variant(expression.op)
      and not expression.of_shape  # It is known as soon as the shape is.
      and expression.is_of_looks
      and expression.roots <= set(self._names.values())
    )
