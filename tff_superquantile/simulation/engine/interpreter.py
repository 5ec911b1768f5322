"""Interprets TFF's language into one TensorFlow graph for a whole cohort."""

from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import components
from tff_superquantile.simulation.engine import expressions
from tff_superquantile.simulation.engine import mapping
from tff_superquantile.simulation.engine import values

Leaf = values.Leaf

# What a function of the language is here: from (argument or None, whether at clients) to a value.
Function = Callable[[Any, bool], Any]


def _map_leaves(fn: Callable[..., Leaf], *operands: Any) -> Any:
  """`fn` on the leaves of values of the same structure."""
  if not isinstance(operands[0], tff.structure.Struct):
    return fn(*operands)
  elements = zip(*(tff.structure.to_elements(operand) for operand in operands))
  return tff.structure.Struct(
    [(of_all[0][0], _map_leaves(fn, *(value for _, value in of_all))) for of_all in elements]
  )


def _like(value: Any, structure: Any) -> Any:
  """`value` for each leaf of `structure`, if it is one leaf itself."""
  if isinstance(value, tff.structure.Struct) == isinstance(structure, tff.structure.Struct):
    return value
  return _map_leaves(lambda _: value, structure)


class Interpreter:
  """Evaluates building blocks; every value it returns is a `Leaf`, a `Struct`, or a function."""

  def __init__(self, num_clients: tf.Tensor, mapper: "mapping.Mapper"):
    """Initializes an interpreter for one trace.

    Args:
      num_clients: int32 [], the size of the cohort.
      mapper: Calls components.
    """
    self._num_clients = num_clients
    self._mapper = mapper
    self._intrinsics = {
      "federated_aggregate": self._aggregate,
      "federated_apply": lambda arg: arg[0](arg[1], False),
      "federated_broadcast": lambda arg: arg,
      "federated_eval_at_clients": lambda arg: arg(None, True),
      "federated_eval_at_server": lambda arg: arg(None, False),
      "federated_map": lambda arg: arg[0](arg[1], True),
      "federated_map_all_equal": lambda arg: arg[0](arg[1], True),
      "federated_max": lambda arg: self._reduce(tf.reduce_max, arg),
      "federated_mean": lambda arg: self._reduce(tf.reduce_mean, arg),
      "federated_min": lambda arg: self._reduce(tf.reduce_min, arg),
      "federated_secure_modular_sum": self._secure_modular_sum,
      "federated_secure_sum": self._secure_sum,
      "federated_secure_sum_bitwidth": self._secure_sum_bitwidth,
      "federated_sum": self._sum,
      "federated_value_at_clients": lambda arg: arg,
      "federated_value_at_server": lambda arg: arg,
      "federated_weighted_mean": self._weighted_mean,
      "federated_zip_at_clients": lambda arg: arg,
      "federated_zip_at_server": lambda arg: arg,
    }

  def evaluate(
    self,
    block: tff.framework.ComputationBuildingBlock,
    scope: Mapping[str, Any],
    at_clients: bool = False,
  ) -> Any:
    """The value of a building block.

    Args:
      block: The block.
      scope: The values of the names in it.
      at_clients: Whether it is evaluated once a client.

    Returns:
      See the class.

    Raises:
      UnsupportedError: If there is something in it that the engine does not know.
    """
    if isinstance(block, tff.framework.Reference):
      return scope[block.name]
    if isinstance(block, tff.framework.Selection):
      return self.evaluate(block.source, scope, at_clients)[block.as_index()]
    if isinstance(block, tff.framework.Struct):
      return tff.structure.Struct(
        [
          (name, self.evaluate(element, scope, at_clients))
          for name, element in tff.structure.to_elements(block)
        ]
      )
    if isinstance(block, tff.framework.Call):
      function = self.evaluate(block.function, scope, at_clients)
      argument = block.argument and self.evaluate(block.argument, scope, at_clients)
      return function(argument, at_clients)
    if isinstance(block, tff.framework.Lambda):
      return self._closure(block, scope)
    if isinstance(block, tff.framework.Block):
      scope = dict(scope)
      for name, local in block.locals:
        scope[name] = self.evaluate(local, scope, at_clients)
      return self.evaluate(block.result, scope, at_clients)
    if isinstance(block, tff.framework.CompiledComputation):
      return self._function_of_component(block)
    if isinstance(block, tff.framework.Intrinsic):
      if block.uri not in self._intrinsics:
        raise values.UnsupportedError(f"the intrinsic {block.uri}")
      intrinsic = self._intrinsics[block.uri]
      return lambda argument, at_clients: intrinsic(argument)
    if isinstance(block, tff.framework.Literal):
      return Leaf(tf.constant(block.value, tf.as_dtype(block.type_signature.dtype)), False)
    raise values.UnsupportedError(f"a {type(block).__name__}")

  def _closure(self, block: tff.framework.Lambda, scope: Mapping[str, Any]) -> Function:
    def function(argument: Any, at_clients: bool) -> Any:
      inner = dict(scope)
      if block.parameter_name is not None:
        inner[block.parameter_name] = argument
      return self.evaluate(block.result, inner, at_clients)

    return function

  def _function_of_component(self, block: tff.framework.CompiledComputation) -> Function:
    component = self._mapper.component(block)

    def function(argument: Optional[Any], at_clients: bool) -> Any:
      leaves = [] if argument is None else list(values.flatten(argument))
      if at_clients:
        results = self._mapper.map(component, leaves, self._num_clients)
      else:
        results = self._mapper.call(component, leaves)
      return values.pack(component.type_signature.result, iter(results))

    return function

  def stack(self, leaf: Leaf) -> tf.Tensor:
    """One tensor of all clients, whether they have the same or not."""
    if leaf.stacked:
      return leaf.tensor
    shape = tf.concat([[self._num_clients], tf.shape(leaf.tensor)], axis=0)
    return tf.broadcast_to(leaf.tensor, shape)

  def _reduce(self, reduction: Callable[..., tf.Tensor], value: Any) -> Any:
    return _map_leaves(lambda leaf: Leaf(reduction(self.stack(leaf), axis=0), False), value)

  def _sum(self, value: Any) -> Any:
    return self._reduce(tf.reduce_sum, value)

  def _weighted_mean(self, argument: Any) -> Any:
    value, weight = argument[0], argument[1]
    weights = self.stack(weight)

    def mean(leaf: Leaf) -> Leaf:
      stacked = self.stack(leaf)
      own = tf.cast(weights, stacked.dtype)
      products = stacked * tf.reshape(own, [-1] + [1] * (stacked.shape.rank - 1))
      return Leaf(tf.reduce_sum(products, axis=0) / tf.reduce_sum(own), False)

    return _map_leaves(mean, value)

  def _secure_modular_sum(self, argument: Any) -> Any:
    def modulo(leaf: Leaf, modulus: Leaf) -> Leaf:
      return Leaf(tf.math.floormod(leaf.tensor, modulus.tensor), False)

    return _map_leaves(modulo, self._sum(argument[0]), _like(argument[1], argument[0]))

  def _secure_sum(self, argument: Any) -> Any:
    def check(leaf: Leaf, max_input: Leaf) -> Leaf:
      stacked = self.stack(leaf)
      within = tf.cast(stacked, tf.int64) <= tf.cast(max_input.tensor, tf.int64)
      message = "client value larger than maximum specified for secure sum"
      with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(within), [message])]):
        return Leaf(tf.identity(stacked), True)

    return self._sum(_map_leaves(check, argument[0], _like(argument[1], argument[0])))

  def _secure_sum_bitwidth(self, argument: Any) -> Any:
    def largest(bits: Leaf) -> Leaf:
      return Leaf(
        tf.bitwise.left_shift(tf.constant(1, tf.int64), tf.cast(bits.tensor, tf.int64)) - 1, False
      )

    return self._secure_sum(
      tff.structure.Struct([(None, argument[0]), (None, _map_leaves(largest, argument[1]))])
    )

  def _appends(self, accumulate: Function, zero: Any, value: Any) -> bool:
    """Whether each step of a fold puts one row below the others, so that there is no need to."""
    if any(isinstance(operand, tff.structure.Struct) for operand in (zero, value)):
      return False
    mapper, self._mapper = self._mapper, self._mapper.symbolic()
    try:
      rows, row = self._mapper.symbol("accumulator"), self._mapper.symbol("value")
      pair = tff.structure.Struct([(None, rows), (None, row)])
      result = accumulate(pair, False)
    except values.UnsupportedError:
      return False
    finally:
      self._mapper = mapper
    return isinstance(result, values.Leaf) and expressions.is_append(
      result.tensor, rows.tensor, row.tensor
    )

  def _aggregate(self, argument: Any) -> Any:
    """federated_aggregate, client after client; `merge` has nothing to do in one process."""
    value, zero, accumulate, _, report = (argument[i] for i in range(5))
    stacked = _map_leaves(lambda leaf: Leaf(self.stack(leaf), True), value)
    zero_leaves = list(values.flatten(zero))
    if self._appends(accumulate, zero, value):
      return report(Leaf(tf.concat([zero.tensor, stacked.tensor], axis=0), False), False)

    def step(state: list[tf.Tensor], i: tf.Tensor) -> list[tf.Tensor]:
      leaves = iter([Leaf(tensor, False) for tensor in state])
      accumulator = _map_leaves(lambda _: next(leaves), zero)
      own = _map_leaves(lambda leaf: Leaf(leaf.tensor[i], False), stacked)
      pair = tff.structure.Struct([(None, accumulator), (None, own)])
      return [leaf.tensor for leaf in values.flatten(accumulate(pair, False))]

    types = [
      values.LeafType(leaf.tensor.dtype.as_numpy_dtype, leaf.tensor.shape, False)
      for leaf in zero_leaves
    ]
    final = components.fold(step, [leaf.tensor for leaf in zero_leaves], types, self._num_clients)
    leaves = iter([Leaf(tensor, False) for tensor in final])
    return report(_map_leaves(lambda _: next(leaves), zero), False)
