"""What values with padding are: rows of which each client's own are the beginning."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import rows
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions

Ref = expressions.Ref

AXES = "BroadcastGradientArgs"
# The ops that make one value of a client's examples, and what is in the place of the padding.
NEUTRAL: Mapping[str, Any] = {
  "All": True,
  "Any": False,
  "BiasAddGrad": 0,
  "L2Loss": 0,
  "Mean": 0,
  "Prod": 1,
  "Sum": 0,
}
# Ops of the last input's shape, whose results have its lengths.
OF_SHAPE = ("BroadcastTo", "Reshape", "Tile")


class Lengths(NamedTuple):
  """The lengths of padded values: `factor` times those of a source, int32 [n]."""

  source: tf.Tensor
  factor: int = 1

  def same(self, other: "Lengths | None") -> bool:
    return other is not None and self.source is other.source and self.factor == other.factor


def shape_of(ref: Ref) -> Ref | None:
  """Returns the value of which this is the shape; None if it is none."""
  return ref.expression.inputs[0] if ref.expression.op == "Shape" else None


def constant(ref: Ref) -> list[int] | None:
  """Returns the numbers of a constant; None if it is none."""
  if ref.expression.op != "Const":
    return None
  numbers = tf.make_ndarray(ref.expression.node.attr["value"].tensor)
  return [int(number) for number in numbers.ravel()]


class PaddingEmitter(rows.RowEmitter):
  """Knows of some clients' values which have padding, and how much; loops end for each client."""

  def __init__(
    self,
    known: Mapping[Ref, tf.Tensor],
    stacked: set[Ref],
    num_rows: tf.Tensor,
    parent: "PaddingEmitter | None" = None,
    own: tf.Tensor | None = None,
    lengths: Mapping[Ref, Lengths] | None = None,
  ):
    """Initializes an emitter; `lengths` has those of the values with padding."""
    super().__init__(known, stacked, num_rows, parent, own)
    self._parent_padded = parent
    self._lengths = dict(lengths or {})
    self._gathered: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
    self._sliced: dict[tuple, tuple[Any, ...]] = {}

  def emit_rows(self, refs: Sequence[Ref], like: Iterable[Ref] | None = None) -> list[tf.Tensor]:
    results = super().emit_rows(refs, like)
    if any(self._length(ref) is not None for ref in refs):
      raise errors.UnsupportedError("a number of examples that is each client's own, as a result")
    return results

  def _length(self, ref: Ref | None) -> Lengths | None:
    """Returns the lengths of a padded value for these clients; None for all others."""
    if ref is None or ref in self._lengths:
      return None if ref is None else self._lengths[ref]
    parent = self._parent_padded
    if parent is None or (ref in self._known and self._own is None):
      return None
    found = parent._length(ref)
    if found is None or self._own is None:
      return found
    key = id(found.source)
    if key not in self._gathered:
      with self._graph.as_default():
        self._gathered[key] = found.source, tf.gather(found.source, self._own)
    self._lengths[ref] = found._replace(source=self._gathered[key][1])
    return self._lengths[ref]

  def _masked(self, values: tf.Tensor, lengths: Lengths, neutral: Any) -> tf.Tensor:
    mask = tf.sequence_mask(lengths.source * lengths.factor, tf.shape(values)[1])
    for _ in range(values.shape.rank - 2):
      mask = tf.expand_dims(mask, -1)
    return tf.where(mask, values, tf.cast(neutral, values.dtype))

  def _loop(
    self, expression: expressions.Expression, initial: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    condition, body = expression.bodies
    if condition.outputs[0] not in self._stacked:
      return super()._loop(expression, initial)
    parameters = [Ref(p, 0) for p in body.parameters]
    initial = [
      value if ref in self._stacked else self._repeat(value)
      for value, ref in zip(initial, expression.inputs)
    ]

    def goes_on(own: Sequence[tf.Tensor]) -> tf.Tensor:
      known = dict(zip(parameters, own))
      (value,) = self._inside(condition, known, condition.outputs)
      return tf.ensure_shape(value, [None])

    def step(*own: tf.Tensor) -> list[tf.Tensor]:
      here = goes_on(own)
      new = self._inside(body, dict(zip(parameters, own)), parameters)
      shapes = [(value.shape[1:], old.shape[1:]) for value, old in zip(new, own)]
      if not all(shape.is_fully_defined() and shape == before for shape, before in shapes):
        raise errors.UnsupportedError("variables of a loop that may change their shapes")
      heres = (tf.reshape(here, [-1, *[1] * (n.shape.rank - 1)]) for n in new)
      return [tf.where(each, n, o) for each, n, o in zip(heres, new, own)]

    return emission.loop(lambda *own: tf.reduce_any(goes_on(own)), step, initial)

  def _sizes(self, values: tf.Tensor, lengths: Lengths) -> tf.Tensor:
    """Returns the shape of each client's value, int32 [n, rank]."""
    own = tf.expand_dims(lengths.source * lengths.factor, 1)
    rest = tf.shape(values)[2:]
    return tf.concat([own, tf.broadcast_to(rest, [tf.shape(own)[0], tf.size(rest)])], 1)

  def _rank(self, ref: Ref, value: tf.Tensor) -> int:
    if value.shape.rank is None:
      raise errors.UnsupportedError("values of unknown rank")
    return value.shape.rank - (ref in self._stacked)
