"""Emits expressions for all clients at once: what differs between them has a row for each.

What is promised:

Results: Those of each client on its own, but for the order of sums. Only deterministic expressions
are emitted, and of rows only the ops that are listed here, each with what makes it one of rows.
tests/engine/test_ops.py compares each with eager TensorFlow. All else is an `UnsupportedError`.

Branches and loops: Each branch is computed for the clients that take it, be it none. A loop ends
for all clients at once, so its condition may not differ between them.

Errors: What raises for one client raises here. What nobody's branch needs may raise, too, so
`traces` computes client by client after an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import walks

Ref = expressions.Ref

# Ops of each number by itself, or of numbers in the same place once they are broadcast; Softmax is
# of the last axis.
_ELEMENTWISE = frozenset(
  "Abs AddV2 Bitcast BitwiseAnd BitwiseXor DivNoNan Equal Exp Floor FloorMod Greater GreaterEqual"
  " IsFinite IsInf IsNan Less LessEqual Log LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul Neg"
  " NotEqual RealDiv Reciprocal Relu RightShift Round Rsqrt SelectV2 Sigmoid Sign Softmax Sqrt"
  " Square Sub Tanh ZerosLike".split()
)
_OF_LAST_AXIS = ("Bitcast", "Softmax")
# Ops of which all clients have the same, since their rows have one shape.
_SIZES = ("Shape", "Size")


def _axis(axis: int, rank: int) -> int:
  """Returns an axis of a row of that rank as one of rows."""
  if not -rank <= axis < rank:  # It would be that of the clients.
    raise errors.UnsupportedError(f"an axis {axis} of values of rank {rank}")
  return axis + (axis >= 0)


def _int(value: int) -> tf.compat.v1.AttrValue:
  return tf.compat.v1.AttrValue(i=value)


def _rank(rows: tf.Tensor) -> int:
  """Returns the number of dimensions of a row."""
  if rows.shape.rank is None:
    raise errors.UnsupportedError("values of clients of unknown rank")
  return rows.shape.rank - 1


def _aligned(tensors: Sequence[tf.Tensor], stacked: Sequence[bool]) -> list[tf.Tensor]:
  """Gives all rows one rank, so that they are broadcast against each other, not against clients."""
  if not all(stacked) and any(t.shape.rank is None for t in tensors):
    raise errors.UnsupportedError("values of unknown rank")
  rank = max(_rank(t) + (not is_stacked) for t, is_stacked in zip(tensors, stacked))
  aligned = []
  for tensor, is_stacked in zip(tensors, stacked):
    while is_stacked and _rank(tensor) < rank:
      tensor = tf.expand_dims(tensor, 1)
    aligned.append(tensor)
  return aligned


def _moved(axes: tf.Tensor, rank: int) -> tf.Tensor:
  """Returns axes of a row of that rank as axes of rows; those that a row lacks, rows lack, too."""
  dtype, known = axes.dtype, tf.get_static_value(axes)
  # Constants stay constants, without which TensorFlow does not know the result's rank.
  where, axes = (tf.where, axes) if known is None else (np.where, known)
  return tf.cast(where(axes < -rank, 0 * axes + rank + 1, where(axes < 0, axes, axes + 1)), dtype)


def _after_clients(first: Any, rest: tf.Tensor) -> tf.Tensor:
  return tf.concat([tf.reshape(tf.cast(first, rest.dtype), [1]), rest], 0)


class RowEmitter(emission.Emitter):
  """Emits expressions for some clients: those that are `stacked` as one row for each of them."""

  def __init__(
    self,
    known: Mapping[Ref, tf.Tensor],
    stacked: set[Ref],
    num_rows: tf.Tensor,
    parent: "RowEmitter | None" = None,
    own: tf.Tensor | None = None,
  ):
    """Initializes an emitter; `stacked` has all values with rows, `num_rows` is int32 [].

    `own`, int32 [num_rows], has the positions of these clients' rows among the parent's.
    """
    super().__init__(known, parent)
    self._stacked = stacked
    self._num_rows = num_rows
    self._own = own
    self._graph = tf.compat.v1.get_default_graph()

  def _find(self, ref: Ref) -> tf.Tensor | None:
    if self._own is None or ref in self._known or ref not in self._stacked:
      return super()._find(ref)
    with self._graph.as_default():  # Once, before loops within the branch.
      rows = super()._find(ref)
      if rows is not None:
        self._known[ref] = rows = tf.gather(rows, self._own)
    return rows

  def emit_rows(self, refs: Sequence[Ref], like: Iterable[Ref] | None = None) -> list[tf.Tensor]:
    """Emits values with a row for each client: all, or those for which `like` has rows."""
    flags = [ref in self._stacked for ref in like or ()] or [True] * len(refs)
    return [
      self._repeat(value) if flag and ref not in self._stacked else value
      for value, ref, flag in zip(self.emit(refs), refs, flags)
    ]

  def _repeat(self, value: tf.Tensor) -> tf.Tensor:
    return tf.broadcast_to(value, _after_clients(self._num_rows, tf.shape(value)))

  def _inside(
    self, body: expressions.Body, known: Mapping[Ref, tf.Tensor], targets: Sequence[Ref]
  ) -> list[tf.Tensor]:
    return RowEmitter(known, self._stacked, self._num_rows, self).emit_rows(body.outputs, targets)

  def _loop(
    self, expression: expressions.Expression, initial: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    own = zip(initial, expression.inputs, expression.bodies[1].parameters)
    initial = [
      self._repeat(value) if Ref(p, 0) in self._stacked and ref not in self._stacked else value
      for value, ref, p in own
    ]
    return super()._loop(expression, initial)

  def _condition(
    self, expression: expressions.Expression, predicate: tf.Tensor
  ) -> Sequence[tf.Tensor]:
    if expression.inputs[0] not in self._stacked:
      return super()._condition(expression, predicate)
    if predicate.dtype != tf.bool or _rank(predicate):
      raise errors.UnsupportedError("a condition that is no truth value")
    takers, results = [], []
    for body, takes in zip(expression.bodies, (predicate, tf.logical_not(predicate))):
      own = tf.cast(tf.reshape(tf.where(takes), [-1]), tf.int32)
      branch = RowEmitter({}, self._stacked, tf.size(own), self, own)
      takers.append(own)
      results.append(branch.emit_rows(body.outputs))
    return [tf.dynamic_stitch(takers, list(of_both)) for of_both in zip(*results)]

  def _op(
    self, expression: expressions.Expression, inputs: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    stacked = [ref in self._stacked for ref in expression.inputs]
    if not any(stacked):
      return super()._op(expression, inputs)
    node, op = expression.node, expression.op
    ranks = [t.shape.rank and t.shape.rank - of_rows for t, of_rows in zip(inputs, stacked)]
    if op in _ELEMENTWISE:
      if op in _OF_LAST_AXIS and not ranks[0]:
        raise errors.UnsupportedError(f"an op {op} of the clients' axis")
      return emission.create(node, _aligned(inputs, stacked))
    if op == "BiasAdd":
      widths = {t.shape[-1] for t in inputs if t.shape.rank}
      if None in ranks or ranks[0] < 2 or ranks[1] != 1 or None in widths or len(widths) > 1:
        raise errors.UnsupportedError("values and biases of widths that may differ")
      return [tf.add(*_aligned(inputs, stacked))]
    if op == "MatMul":  # It broadcasts what all clients have.
      if ranks != [2, 2]:
        raise errors.UnsupportedError("a product of what may be no matrices")
      transposed = (node.attr[f"transpose_{side}"].b for side in "ab")
      return [tf.matmul(*inputs, *transposed)]
    if op in _OF_ALL:
      rows = [t if is_stacked else self._repeat(t) for t, is_stacked in zip(inputs, stacked)]
      return _OF_ALL[op](node, *rows)
    if op == "ConcatV2" and not stacked[-1]:
      rows = [t if is_stacked else self._repeat(t) for t, is_stacked in zip(inputs[:-1], stacked)]
      return [tf.concat(rows, _axis(int(tf.get_static_value(inputs[-1])), _rank(rows[0])))]
    of_one = _OF_SECOND if op in _OF_SECOND else _OF_FIRST
    if sum(stacked) > 1 or not stacked[of_one is _OF_SECOND]:
      raise errors.UnsupportedError(f"an op {op} with an axis, a shape or a table of each client")
    return of_one[op](node, *inputs)


def _pack(node: Any, *rows: tf.Tensor) -> list[tf.Tensor]:
  axis = _axis(node.attr["axis"].i, _rank(rows[0]) + 1)
  return emission.create(node, rows, axis=_int(axis))


def _cross_entropy(node: Any, logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
  """Computes that of all clients' examples in one op."""
  del node
  if _rank(logits) != 2 or _rank(labels) != 1 or not logits.shape[-1]:
    raise errors.UnsupportedError("a cross entropy of what may be no examples or no classes")
  # In TensorFlow's steps. Its kernel takes twice the time, and each exponential by itself.
  logits -= tf.reduce_max(logits, -1, keepdims=True)
  exponentials = tf.exp(logits)
  sums = tf.reduce_sum(exponentials, -1, keepdims=True)
  num_classes = tf.shape(logits)[-1]
  labels = tf.gather(tf.range(num_classes), labels)  # No other label is taken.
  losses = tf.math.log(sums[..., 0]) - tf.gather(logits, labels, batch_dims=2)
  return [losses, exponentials / sums - tf.one_hot(labels, num_classes, dtype=logits.dtype)]


def _reduce(node: Any, rows: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
  return emission.create(node, [rows, _moved(axes, _rank(rows))])


def _expand_dims(node: Any, rows: tf.Tensor, axis: tf.Tensor) -> list[tf.Tensor]:
  return emission.create(node, [rows, _moved(axis, _rank(rows) + 1)])


def _bias_add_grad(node: Any, rows: tf.Tensor) -> list[tf.Tensor]:
  del node
  if _rank(rows) < 2:
    raise errors.UnsupportedError("a bias of what may be no matrix")
  return [tf.reduce_sum(rows, range(1, _rank(rows)))]


def _ensure_shape(node: Any, rows: tf.Tensor) -> list[tf.Tensor]:
  return [tf.ensure_shape(rows, tf.TensorShape([None]).concatenate(node.attr["shape"].shape))]


def _squeeze(node: Any, rows: tf.Tensor) -> list[tf.Tensor]:
  axes = [_axis(axis, _rank(rows)) for axis in node.attr["squeeze_dims"].list.i]
  if not axes:  # All of size one, which may be no axis of the clients.
    if not rows.shape[1:].is_fully_defined():
      raise errors.UnsupportedError("a squeezed value of unknown shape")
    axes = [axis for axis, size in enumerate(rows.shape) if axis and size == 1]
    if not axes:
      return [rows]
  dims = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=axes))
  return emission.create(node, [rows], squeeze_dims=dims)


def _shape(node: Any, rows: tf.Tensor) -> list[tf.Tensor]:
  sizes = tf.shape(rows, tf.as_dtype(node.attr["out_type"].type))[1:]
  return [sizes if node.op == "Shape" else tf.reduce_prod(sizes)]


def _reshape(node: Any, rows: tf.Tensor, shape: tf.Tensor) -> list[tf.Tensor]:
  del node
  # A size of -1 is found for a row, since it cannot be where there are no rows.
  sizes, known = tf.shape(rows, shape.dtype), tf.get_static_value(shape)
  others = tf.where(tf.reduce_any(shape < 0), -tf.reduce_prod(shape), tf.cast(1, shape.dtype))
  found = tf.reduce_prod(sizes[1:]) // others
  if known is not None and np.minimum(known, 0).sum() >= -1:  # TensorFlow knows these sizes then.
    return [tf.reshape(rows, [sizes[0], *(found if size < 0 else size for size in known)])]
  # Several sizes below zero, or another than -1, are refused: they stay.
  is_one = tf.reduce_sum(tf.minimum(shape, 0)) >= -1
  shape = tf.where(is_one, tf.where(shape < 0, found, shape), tf.minimum(shape, -2))
  return [tf.reshape(rows, _after_clients(sizes[0], shape))]


def _slice(node: Any, rows: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> list[tf.Tensor]:
  return [tf.slice(rows, _after_clients(0, begin), _after_clients(-1, size))]


def _tile(node: Any, rows: tf.Tensor, multiples: tf.Tensor) -> list[tf.Tensor]:
  return [tf.tile(rows, _after_clients(1, multiples))]


def _strided_slice(node: Any, rows: tf.Tensor, *of_row: tf.Tensor) -> list[tf.Tensor]:
  inputs = [_after_clients(first, rest) for first, rest in zip((0, 0, 1), of_row)]
  masks = dict(begin_mask=1, end_mask=1, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)
  masks = {name: _int(node.attr[name].i << 1 | bit) for name, bit in masks.items()}
  return emission.create(node, [rows, *inputs], **masks)


def _gather(node: Any, values: tf.Tensor, rows: tf.Tensor, axis: tf.Tensor) -> list[tf.Tensor]:
  if tf.get_static_value(axis) != 0 or node.attr["batch_dims"].i:
    raise errors.UnsupportedError("values of other axes than the first")
  return emission.create(node, [values, rows, axis])


def _search(node: Any, values: tf.Tensor, rows: tf.Tensor) -> list[tf.Tensor]:
  if values.shape[0] != 1:
    raise errors.UnsupportedError("a search of several sequences")
  rows = tf.ensure_shape(rows, [None, 1, None])  # As the op would ask for.
  (places,) = emission.create(node, [values, tf.reshape(rows, [1, -1])])
  return [tf.reshape(places, tf.shape(rows))]


def _one_by_one(node: Any, *inputs: tf.Tensor) -> list[tf.Tensor]:
  """Creates an op for one client after the other: of the last input each has its own row."""
  *same, rows = inputs

  def of_client(row: tf.Tensor) -> tf.Tensor:
    return emission.create(node, [*same, row])[0]

  like = of_client(rows[0])
  return [tf.map_fn(of_client, rows, fn_output_signature=tf.TensorSpec(like.shape, like.dtype))]


def _cast(node: Any, rows: tf.Tensor) -> list[tf.Tensor]:
  if tf.as_dtype(node.attr["DstT"].type).is_integer and rows.dtype.is_floating:
    # The integers that floats beyond their range become depend on their place in a tensor.
    return _one_by_one(node, rows)
  return emission.create(node, [rows])


_Op = Callable[..., Sequence[tf.Tensor]]
# Ops of values that must all have rows.
_OF_ALL: Mapping[str, _Op] = {
  **dict.fromkeys(
    ("AddN", "ReluGrad", "SigmoidGrad", "TanhGrad"),
    lambda node, *rows: emission.create(node, rows),
  ),
  "Pack": _pack,
  "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
}
# Ops of rows, and of axes or shapes that are the same for all clients.
_OF_FIRST: Mapping[str, _Op] = {
  **dict.fromkeys(("All", "Any", "ArgMax", "Max", "Mean", "Min", "Prod", "Sum"), _reduce),
  "BiasAddGrad": _bias_add_grad,
  "Cast": _cast,
  "EnsureShape": _ensure_shape,
  "ExpandDims": _expand_dims,
  "L2Loss": lambda node, rows: [tf.reduce_sum(rows * rows, range(1, _rank(rows) + 1)) / 2],
  "Reshape": _reshape,
  **dict.fromkeys(_SIZES, _shape),
  "Slice": _slice,
  "Squeeze": _squeeze,
  "StridedSlice": _strided_slice,
  "Tile": _tile,
}
# Ops of a shape or a table that is the same for all clients, and of rows.
_OF_SECOND: Mapping[str, _Op] = {
  "GatherV2": _gather,
  "StatelessRandomUniformFullInt": _one_by_one,
  "UpperBound": _search,
}
OPS = frozenset((*_ELEMENTWISE, *_OF_ALL, *_OF_FIRST, *_OF_SECOND, "BiasAdd", "ConcatV2", "MatMul"))


def _differ(
  needed: Sequence[expressions.Expression], refs: Sequence[Ref], stacked: Iterable[Ref]
) -> set[Ref]:
  """Returns all values that may differ between clients, of those that differ at first."""
  used = [*refs, *(ref for e in needed for ref in e.inputs)]
  used += [ref for e in needed for body in e.bodies for ref in body.outputs]
  outputs: dict[expressions.Expression, list[Ref]] = {}
  for ref in set(used):
    outputs.setdefault(ref.expression, []).append(ref)
  differing, size = set(stacked), -1
  while size < len(differing):  # Once more for what a loop hands on to its next step.
    size = len(differing)
    for e in needed:
      if e.op in ops.CONDITIONS:
        for i, of_both in enumerate(zip(*(body.outputs for body in e.bodies))):
          if not differing.isdisjoint((e.inputs[0], *of_both)):
            differing.add(Ref(e, i))
      elif e.op in ops.LOOPS:
        body = e.bodies[1]
        for i, (parameter, *values) in enumerate(zip(body.parameters, e.inputs, body.outputs)):
          if not differing.isdisjoint(values):
            differing.update((Ref(e, i), Ref(parameter, 0)))
      elif e.op not in _SIZES and not differing.isdisjoint(e.inputs):
        differing.update(outputs.get(e, ()))
  return differing


def plan(refs: Sequence[Ref], stacked: Iterable[Ref], known: Iterable[Ref]) -> set[Ref]:
  """Returns the values with rows in what is emitted for all clients, of those that have rows first.

  What cannot be emitted at once is an `UnsupportedError`; `known` need not be emitted.
  """
  ready = {ref.expression for ref in known}
  needed = walks.walk(refs, stop=lambda expression: expression in ready)
  with_rows = _differ([e for e in needed if e not in ready], refs, stacked)
  for e in needed:
    if e in ready or e.op == "parameter":
      continue
    if e.node is None:
      raise errors.UnsupportedError("a data set for all clients at once")
    if e.op in ops.LOOPS and e.bodies[0].outputs[0] in with_rows:
      raise errors.UnsupportedError("a loop of a length of each client")
    is_same = bool(e.bodies) or with_rows.isdisjoint(e.inputs)
    if ops.is_stateful(e.op) or ops.is_variant(e.op) or not (is_same or _is_listed(e.node)):
      raise errors.UnsupportedError(f"an op {e.op} for all clients at once")
  return with_rows


def _is_listed(node: tf.compat.v1.NodeDef) -> bool:
  if "data_format" in node.attr and node.attr["data_format"].s != b"NHWC":
    return False
  if "incompatible_shape_error" in node.attr and not node.attr["incompatible_shape_error"].b:
    return False  # One truth value then, instead of an error.
  return node.op in OPS
