"""Takes aggregations apart, so that the blocks of a cohort can be added up one after the other.

The result of an aggregation is finish(merge(...merge(partial(block 1), partial(block 2))...)). With
one block it is finish(partial(cohort)).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import errors

Leaf = values.Leaf


class Clients(NamedTuple):
  """The clients of one trace, `num_clients` (int32 []): a whole cohort, or a part of it."""

  num_clients: tf.Tensor
  mapper: mapping.Mapper

  def stack(self, leaf: Leaf) -> tf.Tensor:
    """Returns one tensor of all clients, whether they have the same or not."""
    if leaf.stacked:
      return leaf.tensor
    shape = tf.concat([[self.num_clients], tf.shape(leaf.tensor)], axis=0)
    return tf.broadcast_to(leaf.tensor, shape)


class Aggregation(NamedTuple):
  """The three steps of an aggregation.

  Each gets the arguments of the aggregation, a sequence. Values at the clients are None in it but
  for `partial`. All values are a `Leaf`, a `Struct` of values, or a function (`language.Function`).

  Attributes:
    partial: Returns the value of a block, from (block, arguments).
    merge: Returns that of two consecutive parts of the cohort, from (arguments, first, second).
    finish: Returns the value at the server, from (arguments, value of the cohort).
  """

  partial: Callable[[Clients, Sequence[Any]], Any]
  merge: Callable[[Sequence[Any], Any, Any], Any]
  finish: Callable[[Sequence[Any], Any], Any]


def _pair(first: Any, second: Any) -> tff.structure.Struct:
  return tff.structure.Struct([(None, first), (None, second)])


def _like(value: Any, structure: Any) -> Any:
  """Returns `value` for each leaf of `structure`, if it is one leaf itself."""
  if isinstance(value, tff.structure.Struct) == isinstance(structure, tff.structure.Struct):
    return value
  return values.map_leaves(lambda _: value, structure)


def _reduction(
  reduction: Callable[..., tf.Tensor], operation: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> Aggregation:
  return Aggregation(
    partial=lambda clients, arguments: values.map_leaves(
      lambda leaf: Leaf(reduction(clients.stack(leaf), axis=0), False), arguments[0]
    ),
    merge=lambda _, *both: values.map_leaves(
      lambda a, b: Leaf(operation(a.tensor, b.tensor), False), *both
    ),
    finish=lambda _, total: total,
  )


_SUM = _reduction(tf.reduce_sum, tf.add)


def _reduce_min(values_: tf.Tensor, axis: int) -> tf.Tensor:
  """Returns the least value; the largest number, as in TFF's language, if there is none."""
  return tf.minimum(tf.reduce_min(values_, axis), values_.dtype.max)


def _reduce_max(values_: tf.Tensor, axis: int) -> tf.Tensor:
  return tf.maximum(tf.reduce_max(values_, axis), values_.dtype.min)


def _total_and_weight(clients: Clients, value: Any, weight: Leaf) -> Any:
  """Returns the weighted sum of a block, and the sum of the weights."""
  weights = clients.stack(weight)

  def times(leaf: Leaf) -> Leaf:
    stacked = clients.stack(leaf)
    factors = tf.reshape(tf.cast(weights, stacked.dtype), [-1] + [1] * (stacked.shape.rank - 1))
    return Leaf(stacked * factors, True)

  return _pair(
    _SUM.partial(clients, [values.map_leaves(times, value)]), Leaf(tf.reduce_sum(weights), False)
  )


def _divide(_: Sequence[Any], total_and_weight: Any) -> Any:
  total, weight = total_and_weight
  return values.map_leaves(
    lambda leaf: Leaf(leaf.tensor / tf.cast(weight.tensor, leaf.tensor.dtype), False), total
  )


def _total_and_count(clients: Clients, arguments: Sequence[Any]) -> Any:
  return _pair(_SUM.partial(clients, arguments), Leaf(clients.num_clients, False))


def _modulo(arguments: Sequence[Any], total: Any) -> Any:
  def modulo(leaf: Leaf, modulus: Leaf) -> Leaf:
    if leaf.tensor.dtype != modulus.tensor.dtype:
      raise errors.UnsupportedError("a modulus of another type than the sum's")
    return Leaf(tf.math.floormod(leaf.tensor, modulus.tensor), False)

  return values.map_leaves(modulo, total, _like(arguments[1], total))


def _checked_sum(clients: Clients, arguments: Sequence[Any]) -> Any:
  def check(leaf: Leaf, max_input: Leaf) -> Leaf:
    stacked = clients.stack(leaf)
    within = tf.cast(stacked, tf.int64) <= tf.cast(max_input.tensor, tf.int64)
    message = "client value larger than maximum specified for secure sum"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(within), [message])]):
      return Leaf(tf.identity(stacked), True)

  value, max_input = arguments
  return _SUM.partial(clients, [values.map_leaves(check, value, _like(max_input, value))])


def _sum_of_bits(clients: Clients, arguments: Sequence[Any]) -> Any:
  def largest(bits: Leaf) -> Leaf:
    return Leaf(
      tf.bitwise.left_shift(tf.constant(1, tf.int64), tf.cast(bits.tensor, tf.int64)) - 1, False
    )

  value, bitwidth = arguments
  return _checked_sum(clients, [value, values.map_leaves(largest, bitwidth)])


def _fold(clients: Clients, arguments: Sequence[Any]) -> Any:
  """Accumulates the clients of a block one after the other, from zero."""
  value, zero, accumulate = arguments[:3]
  stacked = values.map_leaves(lambda leaf: Leaf(clients.stack(leaf), True), value)

  def like_zero(tensors: Iterable[tf.Tensor]) -> Any:
    leaves = (Leaf(tensor, False) for tensor in tensors)
    return values.map_leaves(lambda _: next(leaves), zero)

  def step(i: tf.Tensor, *state: tf.Tensor) -> list[tf.Tensor]:
    own = values.map_leaves(lambda leaf: Leaf(leaf.tensor[i], False), stacked)
    total = accumulate(_pair(like_zero(state), own), False)
    return [i + 1, *(leaf.tensor for leaf in values.flatten(total))]

  initial = [tf.constant(0), *(leaf.tensor for leaf in values.flatten(zero))]
  _, *final = emission.loop(lambda i, *_: i < clients.num_clients, step, initial)
  return like_zero(final)


# What the aggregations of TFF's language are, by the name of the intrinsic.
AGGREGATIONS: Mapping[str, Aggregation] = {
  "federated_aggregate": Aggregation(
    partial=_fold,
    merge=lambda arguments, *both: arguments[3](_pair(*both), False),
    finish=lambda arguments, total: arguments[4](total, False),
  ),
  "federated_max": _reduction(_reduce_max, tf.maximum),
  "federated_mean": Aggregation(_total_and_count, _SUM.merge, _divide),
  "federated_min": _reduction(_reduce_min, tf.minimum),
  "federated_secure_modular_sum": _SUM._replace(finish=_modulo),
  "federated_secure_sum": _SUM._replace(partial=_checked_sum),
  "federated_secure_sum_bitwidth": _SUM._replace(partial=_sum_of_bits),
  "federated_sum": _SUM,
  "federated_weighted_mean": Aggregation(
    lambda clients, arguments: _total_and_weight(clients, *arguments), _SUM.merge, _divide
  ),
}
# Those whose one argument is the clients' value; the others have a tuple.
OF_ONE_ARGUMENT = ("federated_max", "federated_mean", "federated_min", "federated_sum")


def arguments_of(name: str, argument: Any) -> Sequence[Any]:
  """Returns the arguments of an aggregation as a sequence, from the one that an intrinsic has."""
  return [argument] if name in OF_ONE_ARGUMENT else list(argument)
