"""From expressions back to TensorFlow ops, with what is constant computed at once.

What is promised, if the current graph is one of a `tf.function`:

Effects: All that are asked for are emitted, and within branches and loops those of their bodies,
even if nobody needs a result. Ops are made by the numbers of their expressions, and TensorFlow
runs ops with state in this order. A condition that is known becomes the branch taken, with its
effects. Loops are tried out for a step beforehand, but not those with effects, draws or looks into
data sets. The steps of a loop run one after the other. (In the graph of `traces.Discovery`
nothing has to run.)

Draws: An op keeps its attributes but those that say where it was. It draws anew each time it runs,
so for each client and in each call. One with a seed of its own begins anew in each call of the
trace, where TFF's runtime goes on; stateless draws follow from their seed alone.

Shapes: Constants of up to 64 elements, what ops make of them alone, and shapes that are known in
the trace are computed at once. All else has the static shape that TensorFlow finds. Variables of a
loop have the shapes of their initial values; if its body gives others, all dimensions are unknown.

Aliasing: An expression is emitted once, for all who use it, and a result may be a tensor that was
given. What a branch or step emits is known there alone; what the graph around it has is captured.
Resources are made by ops, so a loop over clients makes them for each anew; ops that would find one
by its name never get here (`components`).
"""

from collections.abc import Iterable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_superquantile.simulation.engine.graphs import errors
from tff_superquantile.simulation.engine.graphs import expressions
from tff_superquantile.simulation.engine.graphs import folding
from tff_superquantile.simulation.engine.graphs import ops
from tff_superquantile.simulation.engine.graphs import walks

# Constants are folded up to this size: shapes, bounds and conditions, not data.
_MAX_FOLDED_SIZE = 64
# Loops of at most so many steps are unrolled, where that is known.
_MAX_UNROLLED_STEPS = 1
# Attributes that hold in an op's former graph alone: its colocation, and the shapes of its outputs.
_DROPPED = ("_class", "_output_shapes")


class LoopError(Exception):
  """Signals a loop where none may be: it has too many steps to unroll, or an unknown number."""


class Value(NamedTuple):
  """An output that has been emitted: a tensor, or a small constant that is known.

  Constants are shared, and nobody writes to them.
  """

  tensor: tf.Tensor | None
  constant: np.ndarray | None

  def as_tensor(self) -> tf.Tensor:
    """Returns the tensor; a constant becomes a new one in the current graph."""
    return tf.constant(self.constant) if self.tensor is None else self.tensor


def _call(
  node: tf.compat.v1.NodeDef, inputs: Sequence[tf.Tensor], functions: Sequence[Any]
) -> Sequence[tf.Tensor]:
  """Emits one op."""
  attributes = {name: value for name, value in node.attr.items() if name not in _DROPPED}
  if functions:
    return _call_with_functions(node.op, attributes, inputs, functions)
  graph = tf.compat.v1.get_default_graph()
  return graph.create_op(node.op, inputs, attrs=attributes, name=node.op).outputs


def _call_with_functions(
  op: str, attributes: Mapping[str, Any], inputs: Sequence[tf.Tensor], functions: Sequence[Any]
) -> Sequence[tf.Tensor]:
  """Emits one op and the functions that it calls, which the graph may not know."""
  inputs = [tf.identity(tensor) for tensor in inputs]  # They may be of the graph around this one.
  graph_def = tf.compat.v1.GraphDef()
  names = [f"input_{i}" for i in range(len(inputs))]
  for name, tensor in zip(names, inputs):
    dtype = ops.type_attr(tensor.dtype)
    graph_def.node.add(name=name, op="Placeholder").attr["dtype"].CopyFrom(dtype)
  node = graph_def.node.add(name=op, op=op, input=names)
  for name, value in attributes.items():
    node.attr[name].CopyFrom(value)
  graph_def.library.function.extend(functions)
  ops.register(functions)
  (operation,) = tf.graph_util.import_graph_def(
    graph_def, input_map=dict(zip(names, inputs)), return_elements=[op], name=op
  )
  return operation.outputs


def _has_traces(body: expressions.Body) -> bool:
  """Tells whether to compute a body once more changes what is computed afterwards."""
  return bool(body.effects) or any(
    ops.is_stateful(expression.op) or expression.op in ops.READS
    for expression in walks.walk(body.outputs)
    if expression.node is not None  # Roots and parameters are no ops.
  )


class Emitter:
  """Emits expressions into the current graph, each once; it is of no use in another graph."""

  def __init__(
    self,
    known: Mapping[expressions.Ref, Value],
    parent: "Emitter | None" = None,
    may_loop: bool = True,
  ):
    """Initializes an emitter.

    Args:
      known: What has a value already, such as the roots.
      parent: Emits into the graph around this one; what it has emitted is not emitted again.
      may_loop: Whether loops may be emitted; otherwise one that cannot be unrolled is an error.
    """
    self._known = dict(known)
    self._parent = parent
    self._may_loop = may_loop

  def _find(self, ref: expressions.Ref) -> Value | None:
    emitter: Emitter | None = self
    while emitter is not None:
      if ref in emitter._known:
        return emitter._known[ref]
      emitter = emitter._parent
    return None

  def _value(self, ref: expressions.Ref) -> Value:
    value = self._find(ref)
    assert value is not None
    return value

  def emit(
    self,
    refs: Sequence[expressions.Ref],
    effects: Iterable[expressions.Expression] = (),
  ) -> list[Value]:
    """Emits values, what they depend on, and effects, in the order of their numbers.

    Raises:
      LoopError, UnsupportedError: If there is a loop where none may be, or something has no value.
    """
    pending: dict[int, expressions.Expression] = {}
    stack = [*refs, *(expressions.Ref(effect, 0) for effect in effects)]
    while stack:
      ref = stack.pop()
      expression = ref.expression
      if expression.order in pending or self._find(ref) is not None:
        continue
      pending[expression.order] = expression
      stack.extend(expression.inputs)
    for order in sorted(pending):
      self._emit(pending[order])
    return [self._value(ref) for ref in refs]

  def _emit(self, expression: expressions.Expression) -> None:
    if expression.node is None:
      raise errors.UnsupportedError("a value that is not there")
    inputs = [self._value(ref) for ref in expression.inputs]
    if expression.op in ("If", "StatelessIf"):
      results = self._condition(expression, inputs)
    elif expression.op in ("While", "StatelessWhile"):
      results = self._loop(expression, inputs[: len(expression.bodies[1].parameters)])
    else:
      results = self._op(expression, inputs)
    for index, result in enumerate(results or [Value(None, np.zeros([]))]):
      self._known[expressions.Ref(expression, index)] = result

  def _op(self, expression: expressions.Expression, inputs: Sequence[Value]) -> list[Value]:
    node = expression.node
    if node.op == "Const":
      constant = folding.constant(node.attr["value"].tensor)
      if constant.size <= _MAX_FOLDED_SIZE and constant.dtype != np.object_:
        return [Value(None, constant)]
      return [Value(tf.constant(constant), None)]
    constants = [i.constant for i in inputs if i.constant is not None]
    are_constant = bool(inputs) and len(constants) == len(inputs)
    folded = folding.fold(node, constants) if are_constant else None
    if folded is not None:
      return [Value(None, folded)]
    results = _call(node, [i.as_tensor() for i in inputs], expression.functions)
    if are_constant or node.op == "Shape":
      static = [tf.get_static_value(t) for t in results]
      if all(s is not None and s.size <= _MAX_FOLDED_SIZE for s in static):
        return [Value(None, np.asarray(s)) for s in static]
    return [Value(t, None) for t in results]

  def _condition(self, expression: expressions.Expression, inputs: Sequence[Value]) -> list[Value]:
    predicate = inputs[0]
    if predicate.constant is not None:
      body = expression.bodies[0 if predicate.constant else 1]
      return self.emit(body.outputs, body.effects)

    def branch(body: expressions.Body) -> list[tf.Tensor]:
      inner = Emitter({}, self, self._may_loop)
      return [value.as_tensor() for value in inner.emit(body.outputs, body.effects)]

    results = tf.cond(
      predicate.tensor, *(functools.partial(branch, body) for body in expression.bodies)
    )
    return [Value(t, None) for t in results]

  def _step(self, body: expressions.Body, variables: Sequence[Value]) -> list[Value]:
    known = {expressions.Ref(p, 0): value for p, value in zip(body.parameters, variables)}
    return Emitter(known, self, self._may_loop).emit(body.outputs, body.effects)

  def _loop(self, expression: expressions.Expression, initial: Sequence[Value]) -> list[Value]:
    condition, body = expression.bodies
    variables = list(initial)
    for steps in range(_MAX_UNROLLED_STEPS + 1):
      if _has_traces(condition):
        break
      (goes_on,) = self._step(condition, variables)
      if goes_on.constant is None:
        break
      if not goes_on.constant:
        return variables
      # The loop is too long to be unrolled. What was emitted of it must leave no trace.
      if steps == _MAX_UNROLLED_STEPS or _has_traces(body):
        break
      variables = self._step(body, variables)
    if not self._may_loop:
      raise LoopError

    def as_values(tensors: Iterable[tf.Tensor]) -> list[Value]:
      return [Value(tensor, None) for tensor in tensors]

    tensors = [value.as_tensor() for value in initial]

    def loop(shapes: list[tf.TensorShape]) -> list[Value]:
      results = tf.while_loop(
        lambda *v: self._step(condition, as_values(v))[0].as_tensor(),
        lambda *v: [value.as_tensor() for value in self._step(body, as_values(v))],
        tensors,
        shape_invariants=shapes,
        parallel_iterations=1,
      )
      return as_values(results)

    shapes = [tensor.shape for tensor in tensors]
    try:
      return loop(shapes)
    except ValueError:  # A variable that grows, or whose shape is known at first alone.
      return loop([tf.TensorShape(None if s.rank is None else [None] * s.rank) for s in shapes])
