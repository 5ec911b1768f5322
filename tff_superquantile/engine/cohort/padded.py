"""Emits expressions for all clients at once if what they have read differs in length.

A value is padded if a client's own is the beginning of its row: row i of [n, most, ...] has the
value [lengths[i], ...] first, and then whatever ops have made of zeros.

What is promised beside what `rows` promises:

Padding: It enters no number of a client. An op of padded values is emitted only if it is listed
here, with what makes it exact: it works on each example by itself, or the padding is replaced by
what changes nothing (`padding.NEUTRAL`), or it divides by the client's own number. Values that are
combined have the same lengths: not equal ones, but those of one source. All else is an
`UnsupportedError`. tests/engine/test_padded.py compares with eager TensorFlow, client by client.

Loops: One goes on until it ends for each client. A client for whom it has ended keeps its values.

Draws: An order is drawn for each client by itself, of its own length and its own seed.
"""

from collections.abc import Sequence

import tensorflow as tf

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import padding
from tff_superquantile.engine.cohort import rows
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions

# Ops that have one of each example, of padded values of the same lengths.
_OF_EACH = rows.ELEMENTWISE | {
  *("AddN", "Cast", "ReluGrad", "SigmoidGrad", "SparseSoftmaxCrossEntropyWithLogits", "TanhGrad"),
  *("BiasAdd", "EnsureShape", "ExpandDims", "Select", "Squeeze"),
}
# Ops of a client's own bounds, seed or shape, beside those of `rows`.
_DRAWS = ("StatelessRandomGetKeyCounter", "StatelessShuffle")
_OF_CLIENT = (padding.AXES, "Select", *_DRAWS)
OPS = rows.OPS | {*_OF_CLIENT, "BroadcastTo"}
# Any length of several examples: what holds for it when shapes are broadcast, holds for all.
_SOME_LENGTH = 2**20


class PaddedEmitter(padding.PaddingEmitter):
  """Emits expressions for some clients: with rows that differ in the number of their examples."""

  def _op(
    self, expression: expressions.Expression, inputs: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    lengths = [self._length(ref) for ref in expression.inputs]
    shaped = [padding.shape_of(ref) for ref in expression.inputs]
    op, of_shapes = expression.op, [self._length(ref) for ref in shaped]
    result: padding.Lengths | None = None
    if op == "Shape" and not any(lengths):
      results = super()._op(expression, inputs)
      if (
        expressions.Ref(expression, 0) in self._stacked
      ):  # It was not known before that all have the same.
        results = [self._repeat(results[0])]
      return results
    if op == padding.AXES:
      return self._axes_of_gradients(expression, inputs)
    if op in padding.OF_SHAPE and of_shapes[1] is not None and shaped[1] is not None:
      result = of_shapes[1]
      results = self._shaped(expression, inputs, lengths[0], result, shaped[1])
    elif op in padding.OF_SHAPE and shaped[1] is not None and expression.inputs[1] in self._stacked:
      shape = tf.shape(self._find(shaped[1]))[1 if shaped[1] in self._stacked else 0 :]
      results = self._of_rows(expression, [inputs[0], tf.cast(shape, inputs[1].dtype)])
      result = None
      if lengths[0] is not None:
        raise errors.UnsupportedError("examples in a shape that all clients have")
    elif op in _DRAWS and self._stacked.intersection(expression.inputs):
      results, result = self._drawn(expression, lengths[0]), lengths[0]
    elif op == "GatherV2" and any(lengths):
      results, result = self._taken(expression, inputs, lengths), lengths[1]
    elif op == "GatherV2" and expression.inputs[0] in self._stacked:
      if padding.constant(expression.inputs[2]) != [0] or expression.inputs[1] in self._stacked:
        raise errors.UnsupportedError("an op GatherV2 of tables of each client")
      results = [tf.gather(*inputs[:2], axis=1)]
    elif op == "StridedSlice" and (lengths[0] or self._stacked.intersection(expression.inputs[1:])):
      results, result = self._sliced_rows(expression, inputs, lengths)
    elif not any(lengths):
      if op in _OF_CLIENT:
        raise errors.UnsupportedError(f"an op {op} for all clients at once")
      return super()._op(expression, inputs)
    elif op in rows.SIZES:
      sizes = self._sizes(inputs[0], lengths[0])  # type: ignore[arg-type]
      sizes = tf.cast(sizes, tf.as_dtype(expression.node.attr["out_type"].type))
      return [sizes if op == "Shape" else tf.reduce_prod(sizes, 1)]
    else:
      results, result = self._combined(expression, inputs, lengths)
    if result is not None:
      for i in range(len(results)):
        self._lengths[expressions.Ref(expression, i)] = result
    return results

  def _of_rows(
    self, expression: expressions.Expression, inputs: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    """Emits an op of a row and of a shape that all clients have."""
    if expression.inputs[0] in self._stacked:
      return rows.of_first(expression.node, *inputs)
    if expressions.Ref(expression, 0) in self._stacked:
      return [self._repeat(emission.create(expression.node, inputs)[0])]
    return emission.create(expression.node, inputs)

  def _axes_of_gradients(
    self, expression: expressions.Expression, inputs: Sequence[tf.Tensor]
  ) -> list[tf.Tensor]:
    """Returns the axes along which gradients are added up, which no client's length changes."""
    shapes, lengths = [], []
    for ref, value in zip(expression.inputs, inputs):
      shaped = padding.shape_of(ref)
      shape = None if ref in self._stacked else tf.get_static_value(value)
      if shaped is not None:
        like = self._find(shaped)
        shape = like.shape[1 if shaped in self._stacked else 0 :]  # type: ignore[union-attr]
        if (own := self._length(shaped)) is not None:
          shape = [_SOME_LENGTH, *shape[1:]]
          lengths.append((own, len(shape)))
      if shape is None or any(size is None for size in shape):
        raise errors.UnsupportedError("gradients of values of unknown shapes")
      shapes.append(list(shape))
    if any(not own.same(lengths[0][0]) or rank != lengths[0][1] for own, rank in lengths):
      raise errors.UnsupportedError("gradients of examples of different numbers")
    with tf.init_scope():  # They are constants in the graph.
      axes = tf.raw_ops.BroadcastGradientArgs(
        s0=tf.constant(shapes[0], tf.int32, [len(shapes[0])]),
        s1=tf.constant(shapes[1], tf.int32, [len(shapes[1])]),
      )
      axes = [each.numpy() for each in axes]
    return [tf.constant(each, inputs[0].dtype) for each in axes]

  def _shaped(
    self,
    expression: expressions.Expression,
    inputs: Sequence[tf.Tensor],
    lengths: padding.Lengths | None,
    result: padding.Lengths,
    shaped: expressions.Ref,
  ) -> list[tf.Tensor]:
    """Emits an op that gives a value the shape of padded ones."""
    like = self._find(shaped)
    assert like is not None
    values, most, rest = inputs[0], tf.shape(like)[1], like.shape[2:]
    num_of_rest = rest.num_elements()
    if num_of_rest is None:
      raise errors.UnsupportedError("examples of unknown shapes")
    if expression.op == "Reshape":
      own = values.shape[2:].num_elements() if lengths is not None else None
      if (
        lengths is None
        or own is None
        or lengths.source is not result.source
        or own * lengths.factor != num_of_rest * result.factor
      ):
        raise errors.UnsupportedError("a shape of other examples")
      return [tf.reshape(values, [self._num_rows, most, *rest])]
    is_stacked = expression.inputs[0] in self._stacked
    of_row = values.shape[1:] if is_stacked else values.shape
    fits = of_row.rank is not None and (of_row.rank < 1 + rest.rank or of_row[0] == 1)
    if (
      lengths is not None or not fits or (expression.op == "Tile" and of_row.rank != 1 + rest.rank)
    ):
      raise errors.UnsupportedError("copies of values of examples")
    if expression.op == "Tile":
      copied = tf.tile(values, [*[1] * is_stacked, most, *rest])
      return [copied if is_stacked else self._repeat(copied)]
    for _ in range(1 + rest.rank - of_row.rank if is_stacked else 0):
      values = tf.expand_dims(values, 1)
    return [tf.broadcast_to(values, [self._num_rows, most, *rest])]

  def _drawn(
    self, expression: expressions.Expression, lengths: padding.Lengths | None
  ) -> Sequence[tf.Tensor]:
    """Emits a draw, or what makes a key of a seed, for one client after the other."""
    node, refs = expression.node, expression.inputs
    key = refs[1].expression if len(refs) > 1 else None
    if key is not None and key.op == _DRAWS[0] and refs[2].expression is key:
      refs = (refs[0], key.inputs[0], refs[3])  # A second loop would take as long again.
    else:
      key = None
    inputs = self.emit(refs)  # All of them are there.
    elements = [
      value if ref in self._stacked else self._repeat(value) for ref, value in zip(refs, inputs)
    ]

    def draw(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
      if key is not None:
        values = [values[0], *emission.create(key.node, [values[1]]), *values[2:]]
      return emission.create(node, values)

    most = None if lengths is None else tf.shape(inputs[0])[1]

    def of_client(of_inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
      *own, length = of_inputs
      if lengths is None:
        return draw(own)
      (drawn,) = draw([own[0][:length], *own[1:]])
      paddings = [[0, most - length], *[[0, 0]] * (drawn.shape.rank - 1)]
      return [tf.pad(drawn, paddings)]

    own_lengths = (
      tf.zeros([self._num_rows], tf.int32) if lengths is None else lengths.source * lengths.factor
    )
    with tf.Graph().as_default():
      like = draw([tf.compat.v1.placeholder(t.dtype, t.shape[1:]) for t in elements])
    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in like]
    return tf.map_fn(of_client, [*elements, own_lengths], fn_output_signature=signature)

  def _taken(
    self,
    expression: expressions.Expression,
    inputs: Sequence[tf.Tensor],
    lengths: Sequence[padding.Lengths | None],
  ) -> list[tf.Tensor]:
    """Emits what clients take of a table that all have, or of examples of their own."""
    table, places, _ = inputs
    is_first = (
      padding.constant(expression.inputs[2]) == [0] and not expression.node.attr["batch_dims"].i
    )
    if not is_first or lengths[1] is None:
      raise errors.UnsupportedError("values of other axes than the first")
    places = self._masked(places, lengths[1], 0)
    if lengths[0] is None:
      if expression.inputs[0] in self._stacked:
        raise errors.UnsupportedError("an op GatherV2 of tables of each client")
      return [tf.gather(table, places)]
    if not lengths[0].same(lengths[1]):
      raise errors.UnsupportedError("examples in places of other examples")
    # A place in the padding is none, and is refused as TensorFlow would.
    limit = tf.cast(lengths[0].source * lengths[0].factor, places.dtype)
    limit = tf.maximum(tf.reshape(limit, [-1, *[1] * (places.shape.rank - 1)]), 1)
    places = tf.where(places < limit, places, tf.cast(tf.shape(table)[1], places.dtype))
    return [tf.gather(table, places, batch_dims=1)]

  def _sliced_rows(
    self,
    expression: expressions.Expression,
    inputs: Sequence[tf.Tensor],
    lengths: Sequence[padding.Lengths | None],
  ) -> tuple[Sequence[tf.Tensor], padding.Lengths | None]:
    """Emits a slice of examples: all of them, or a client's own from one to another."""
    node, (values, begin, end, _) = expression.node, inputs
    own = lengths[0]
    masks = {
      name: node.attr[f"{name}_mask"].i
      for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    strides = _strides(expression.inputs[3])
    if own is None or strides is None or any(map(self._length, expression.inputs[1:])):
      raise errors.UnsupportedError("a slice from each client's own place")
    bounds_differ = self._stacked.intersection(expression.inputs[1:])
    is_whole = masks["begin"] & masks["end"] & 1 and strides[0] == 1
    if masks["ellipsis"] & 1:
      is_whole = len(strides) <= values.shape.rank - 1 and not masks["new_axis"]
    if is_whole and not (masks["new_axis"] | masks["shrink_axis"]) & 1 and not bounds_differ:
      return rows.of_first(node, *inputs), own
    others = masks["ellipsis"] | masks["new_axis"] | masks["shrink_axis"]
    if strides != [1] or others:
      raise errors.UnsupportedError("a slice of examples and of other axes")
    key = (id(own.source), own.factor, id(begin), id(end), masks["begin"], masks["end"])
    if key not in self._sliced:  # Slices with the same bounds have the same lengths.
      total = own.source * own.factor
      edges = []
      for bound, is_open, limit in ((begin, masks["begin"], 0), (end, masks["end"], total)):
        at = tf.cast(bound[..., 0], tf.int32)
        at = tf.clip_by_value(tf.where(at < 0, at + total, at), 0, total)
        edges.append(tf.broadcast_to(limit, tf.shape(total)) if is_open else at)
      size = tf.maximum(edges[1] - edges[0], 0)
      most = tf.reduce_max(tf.concat([size, [0]], 0))
      places = tf.expand_dims(edges[0], 1) + tf.range(most)
      self._sliced[key] = padding.Lengths(size), places, (own.source, begin, end)
    result, places, _ = self._sliced[key]
    places = tf.minimum(places, tf.maximum(tf.shape(values)[1] - 1, 0))
    return [tf.gather(values, places, batch_dims=1)], result

  def _combined(
    self,
    expression: expressions.Expression,
    inputs: Sequence[tf.Tensor],
    lengths: Sequence[padding.Lengths | None],
  ) -> tuple[Sequence[tf.Tensor], padding.Lengths | None]:
    """Emits an op of each example, or one that makes one value of all of a client's."""
    op, refs = expression.op, expression.inputs
    first = lengths[0]
    if op == "MatMul":
      return self._product(expression, inputs, lengths)
    if op == "Reshape" and first is not None:
      return self._reshaped(expression, inputs, first)
    if op in ("BiasAddGrad", "L2Loss"):
      assert first is not None
      return super()._op(expression, [self._masked(inputs[0], first, 0)]), None
    if op in padding.NEUTRAL or op in ("ArgMax", "Max", "Min"):
      return self._reduced(expression, inputs, first)
    if op not in _OF_EACH:
      raise errors.UnsupportedError(f"an op {op} of numbers of examples that differ")
    if op in ("ExpandDims", "Squeeze"):
      rank = self._rank(refs[0], inputs[0])
      dims = list(expression.node.attr["squeeze_dims"].list.i) if op == "Squeeze" else None
      axes = dims if op == "Squeeze" else padding.constant(refs[1])
      after = rank + (op == "ExpandDims")
      if not axes or any(axis in (0, -after) for axis in axes):
        raise errors.UnsupportedError(f"an op {op} of the examples' axis")
      return super()._op(expression, inputs), first
    ranks = [self._rank(ref, value) for ref, value in zip(refs, inputs)]
    rank = max(ranks)
    result = next(length for length in lengths if length is not None)
    if op in ("BiasAdd", "Softmax") and rank < 2:
      raise errors.UnsupportedError(f"an op {op} of the examples' axis")
    must_be_examples = op in rows.OF_ALL or op == "Select"
    for ref, value, own_rank, own in zip(refs, inputs, ranks, lengths):
      if own is not None:
        fits = own_rank == rank or op == "SparseSoftmaxCrossEntropyWithLogits"
        fits &= own.same(result)
      else:
        fits = own_rank < rank or value.shape[1 if ref in self._stacked else 0] == 1
        fits &= not must_be_examples
      if not fits:
        raise errors.UnsupportedError(f"an op {op} of examples and others")
    if op == "EnsureShape" and expression.node.attr["shape"].shape.dim[0].size != -1:
      raise errors.UnsupportedError("a number of examples that is known")
    if op == "Select":
      return [tf.where(*inputs)], result
    return super()._op(expression, inputs), result

  def _product(
    self,
    expression: expressions.Expression,
    inputs: Sequence[tf.Tensor],
    lengths: Sequence[padding.Lengths | None],
  ) -> tuple[Sequence[tf.Tensor], padding.Lengths | None]:
    of_a, of_b = lengths
    attr = expression.node.attr
    if of_a is not None and of_b is None and not attr["transpose_a"].b:
      return super()._op(expression, inputs), of_a
    is_sum = attr["transpose_a"].b and not attr["transpose_b"].b
    if of_a is None or not is_sum or not of_a.same(of_b):
      raise errors.UnsupportedError("a product of the examples of clients with others")
    masked = [self._masked(value, of_a, 0) for value in inputs]
    return super()._op(expression, masked), None

  def _reshaped(
    self, expression: expressions.Expression, inputs: Sequence[tf.Tensor], lengths: padding.Lengths
  ) -> tuple[Sequence[tf.Tensor], padding.Lengths]:
    shape = padding.constant(expression.inputs[1])
    own = inputs[0].shape[2:].num_elements()
    if not shape or shape[0] != -1 or own is None or any(size < 1 for size in shape[1:]):
      raise errors.UnsupportedError("examples in a shape that all clients have")
    num = 1
    for size in shape[1:]:
      num *= size
    if not own or own % num:
      raise errors.UnsupportedError("a shape of parts of examples")
    factor = own // num
    sizes = tf.shape(inputs[0])
    values = tf.reshape(inputs[0], [sizes[0], sizes[1] * factor, *shape[1:]])
    return [values], lengths._replace(factor=lengths.factor * factor)

  def _reduced(
    self,
    expression: expressions.Expression,
    inputs: Sequence[tf.Tensor],
    lengths: padding.Lengths | None,
  ) -> tuple[Sequence[tf.Tensor], padding.Lengths | None]:
    """Emits an op along the axes of each example, or along all of a client's examples."""
    known = tf.get_static_value(inputs[1])
    if lengths is None or known is None:
      raise errors.UnsupportedError("axes of examples that are not known")
    rank = inputs[0].shape.rank - 1
    axes = [int(axis) for axis in known.ravel()]
    if not all(-rank <= axis < rank for axis in axes):
      raise errors.UnsupportedError("axes that examples lack")
    axes = [axis % rank for axis in axes]
    op = expression.op
    if 0 not in axes:
      return super()._op(expression, inputs), lengths
    if op not in padding.NEUTRAL:
      raise errors.UnsupportedError(f"an op {op} of all examples of a client")
    values = self._masked(inputs[0], lengths, padding.NEUTRAL[op])
    if op != "Mean":
      return super()._op(expression, [values, inputs[1]]), None
    if not values.dtype.is_floating:
      raise errors.UnsupportedError("a mean of whole numbers")
    keeps = expression.node.attr["keep_dims"].b
    sums = tf.reduce_sum(values, [axis + 1 for axis in axes], keepdims=keeps)
    counts = lengths.source * lengths.factor
    for axis in axes:
      if axis:
        counts *= tf.shape(values)[axis + 1]
    counts = tf.reshape(counts, [-1, *[1] * (sums.shape.rank - 1)])
    return [sums / tf.cast(counts, sums.dtype)], None


def _strides(ref: expressions.Ref) -> list[int] | None:
  """Returns constant strides, which may be packed of constants."""
  if ref.expression.op != "Pack":
    return padding.constant(ref)
  parts = [padding.constant(part) for part in ref.expression.inputs]
  return None if None in parts else [number for part in parts for number in part or ()]
