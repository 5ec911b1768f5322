"""From expressions back to TensorFlow ops.

What is promised, if the current graph is one of a `tf.function`:

Effects: All that are asked for are emitted, and within branches and loops those of their bodies,
even if nobody needs a result. Ops are made by the numbers of their expressions, and TensorFlow
runs ops with state in this order. The steps of a loop run one after the other. (In the graph of
`traces.Discovery` nothing has to run.)

Draws: An op keeps its attributes but those that say where it was. It draws anew each time it runs,
so for each client and in each call. One with a seed of its own goes on from call to call, also
within a data set's loop, which begins anew in each call of TFF's runtime; stateless draws follow
from their seed alone.

Shapes: They are what TensorFlow finds. Variables of a loop have the shapes of their initial values;
if its body gives others, only their ranks are known, or nothing.

Aliasing: An expression is emitted once, for all who use it, and a result may be a tensor that was
given. What a branch or step emits is known there alone; what the graph around it has is captured.
Resources are made by ops, so a loop over clients makes them for each anew; ops that would find one
by its name never get here (`components`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import functools
from typing import Any

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import purity

# Attributes that hold in an op's former graph alone: its colocation, and the shapes of its outputs.
_DROPPED = ("_class", "_output_shapes")


def _attributes(node: tf.compat.v1.NodeDef) -> dict[str, Any]:
  return {name: value for name, value in node.attr.items() if name not in _DROPPED}


def create(
  node: tf.compat.v1.NodeDef, inputs: Sequence[tf.Tensor], **attributes: Any
) -> list[tf.Tensor]:
  """Creates the op of a node, with its attributes but for those that are given."""
  graph = tf.compat.v1.get_default_graph()
  attrs = {**_attributes(node), **attributes}
  return graph.create_op(node.op, inputs, attrs=attrs, name=node.op).outputs


def _chooses_one(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> bool:
  """Tells whether one truth value chooses between tensors of one known shape."""
  return condition.shape.rank == 0 and x.shape.is_fully_defined() and x.shape == y.shape


def _create_with_functions(
  node: tf.compat.v1.NodeDef, inputs: Sequence[tf.Tensor], functions: Sequence[Any]
) -> list[tf.Tensor]:
  """Creates an op and the functions that it calls, which the graph may not know."""
  inputs = [tf.identity(tensor) for tensor in inputs]  # They may be of the graph around this one.
  graph_def = tf.compat.v1.GraphDef()
  names = [f"input_{i}" for i in range(len(inputs))]
  for name, tensor in zip(names, inputs):
    dtype = ops.type_attr(tensor.dtype)
    graph_def.node.add(name=name, op="Placeholder").attr["dtype"].CopyFrom(dtype)
  graph_def.node.add(name=node.op, op=node.op, input=names, attr=_attributes(node))
  graph_def.library.function.extend(functions)
  ops.register(functions)
  (operation,) = tf.graph_util.import_graph_def(
    graph_def, input_map=dict(zip(names, inputs)), return_elements=[node.op], name=node.op
  )
  return operation.outputs


def loop(
  condition: Callable[..., tf.Tensor],
  body: Callable[..., Sequence[tf.Tensor]],
  initial: Sequence[tf.Tensor],
) -> Sequence[tf.Tensor]:
  """Makes a loop, step after step, whose variables may grow."""
  shapes = [tensor.shape for tensor in initial]
  ranks = [tf.TensorShape(None if s.rank is None else [None] * s.rank) for s in shapes]
  make = functools.partial(tf.while_loop, condition, body, initial, parallel_iterations=1)
  for known in (shapes, ranks):
    with contextlib.suppress(ValueError):  # One grows, or its shape is known at first alone.
      return make(shape_invariants=known)
  return make(shape_invariants=[tf.TensorShape(None)] * len(shapes))


class Emitter:
  """Emits expressions into the current graph, each once; it is of no use in another graph."""

  def __init__(self, known: Mapping[expressions.Ref, tf.Tensor], parent: "Emitter | None" = None):
    """Initializes an emitter, which emits nothing that is `known` or that `parent` has emitted."""
    self._known = dict(known)
    self._parent = parent

  def _find(self, ref: expressions.Ref) -> tf.Tensor | None:
    # Each graph has its own constants: one that a loop's body captured would be handed on from step
    # to step, and no shape or number would be known to follow from it.
    if ref in self._known or self._parent is None or ref.expression.op == "Const":
      return self._known.get(ref)
    return self._parent._find(ref)

  def emit(
    self,
    refs: Sequence[expressions.Ref],
    effects: Iterable[expressions.Expression] = (),
  ) -> list[tf.Tensor]:
    """Emits values, what they depend on, and effects, in the order of their numbers."""
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
    return [self._find(ref) for ref in refs]

  def _emit(self, expression: expressions.Expression) -> None:
    if expression.node is None:
      raise errors.UnsupportedError("a value that is not there")
    inputs = [self._find(ref) for ref in expression.inputs]
    if expression.op in ops.CONDITIONS:
      results = self._condition(expression, inputs[0])
    elif expression.op in ops.LOOPS:
      results = self._loop(expression, inputs[: len(expression.bodies[1].parameters)])
    else:
      results = self._op(expression, inputs)
    for index, result in enumerate(results or [tf.constant(0)]):  # So that an effect is known, too.
      self._known[expressions.Ref(expression, index)] = result

  def _op(
    self, expression: expressions.Expression, inputs: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    if purity.may_read(expression.op) and not expression.inputs[0].expression.roots:
      # TensorFlow is not to find that the name is constant.
      nothing = tf.strings.substr(tf.strings.as_string(tf.timestamp()), 0, 0)
      inputs = [tf.strings.join([inputs[0], nothing]), *inputs[1:]]
    if expression.op == "SelectV2" and _chooses_one(*inputs):
      # The same, in a sixth of the time.
      return [tf.raw_ops.Select(condition=inputs[0], x=inputs[1], y=inputs[2])]
    if expression.functions:
      return _create_with_functions(expression.node, inputs, expression.functions)
    return create(expression.node, inputs)

  def _inside(
    self,
    body: expressions.Body,
    known: Mapping[expressions.Ref, tf.Tensor],
    targets: Sequence[expressions.Ref],
  ) -> list[tf.Tensor]:
    """Emits a branch or a step into the current graph; `targets` are what its results become."""
    del targets
    return Emitter(known, self).emit(body.outputs, body.effects)

  def _condition(
    self, expression: expressions.Expression, predicate: tf.Tensor
  ) -> Sequence[tf.Tensor]:
    results = [expressions.Ref(expression, i) for i in range(len(expression.bodies[0].outputs))]
    branches = (functools.partial(self._inside, body, {}, results) for body in expression.bodies)
    return tf.cond(predicate, *branches)

  def _loop(
    self, expression: expressions.Expression, initial: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    condition, body = expression.bodies
    parameters = [expressions.Ref(p, 0) for p in body.parameters]
    return loop(
      lambda *own: self._inside(condition, dict(zip(parameters, own)), condition.outputs)[0],
      lambda *own: self._inside(body, dict(zip(parameters, own)), parameters),
      initial,
    )
