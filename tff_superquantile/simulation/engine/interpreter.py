"""Interprets TFF's language into one TensorFlow graph for a whole cohort."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import aggregations
from tff_superquantile.simulation.engine import values

Leaf = values.Leaf


# What a function of the language is here: from (argument or None, whether at clients) to a value.
Function = Callable[[Any, bool], Any]


# Intrinsics that aggregate nothing. Broadcast values and zipped ones are what they were before.
_INTRINSICS: Mapping[str, Callable[[Any], Any]] = {
  "federated_apply": lambda arg: arg[0](arg[1], False),
  "federated_broadcast": lambda arg: arg,
  "federated_eval_at_clients": lambda arg: arg(None, True),
  "federated_eval_at_server": lambda arg: arg(None, False),
  "federated_map": lambda arg: arg[0](arg[1], True),
  "federated_map_all_equal": lambda arg: arg[0](arg[1], True),
  "federated_value_at_clients": lambda arg: arg,
  "federated_value_at_server": lambda arg: arg,
  "federated_zip_at_clients": lambda arg: arg,
  "federated_zip_at_server": lambda arg: arg,
}


class Interpreter:
  """Evaluates building blocks; every value it returns is a `Leaf`, a `Struct`, or a function."""

  def __init__(self, clients: aggregations.Clients):
    """Initializes an interpreter for one trace.

    Args:
      clients: The cohort, or a part of it, for which aggregations aggregate.
    """
    self._clients = clients

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
      return self._intrinsic(block.uri)
    if isinstance(block, tff.framework.Literal):
      return Leaf(tf.constant(block.value, tf.as_dtype(block.type_signature.dtype)), False)
    raise values.UnsupportedError(f"a {type(block).__name__}")

  def _intrinsic(self, name: str) -> Function:
    if name in _INTRINSICS:
      return lambda argument, at_clients: _INTRINSICS[name](argument)
    if name not in aggregations.AGGREGATIONS:
      raise values.UnsupportedError(f"the intrinsic {name}")
    aggregation = aggregations.AGGREGATIONS[name]

    def aggregate(argument: Any, at_clients: bool) -> Any:
      arguments = aggregations.arguments_of(name, argument)
      return aggregation.finish(arguments, aggregation.partial(self._clients, arguments))

    return aggregate

  def _closure(self, block: tff.framework.Lambda, scope: Mapping[str, Any]) -> Function:
    def function(argument: Any, at_clients: bool) -> Any:
      inner = dict(scope)
      if block.parameter_name is not None:
        inner[block.parameter_name] = argument
      return self.evaluate(block.result, inner, at_clients)

    return function

  def _function_of_component(self, block: tff.framework.CompiledComputation) -> Function:
    component = self._clients.mapper.component(block)

    def function(argument: Any | None, at_clients: bool) -> Any:
      leaves = [] if argument is None else list(values.flatten(argument))
      if at_clients:
        results = self._clients.mapper.map(component, leaves, self._clients.num_clients)
      else:
        results = self._clients.mapper.call(component, leaves)
      return values.pack(component.type_signature.result, iter(results))

    return function
