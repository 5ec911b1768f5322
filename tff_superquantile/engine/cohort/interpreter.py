"""Interprets TFF's language into one TensorFlow graph for a whole cohort."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import language
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import errors

Leaf = values.Leaf

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


class Interpreter(language.Interpreter):
  """Evaluates building blocks; every value it returns is a `Leaf`, a `Struct`, or a function."""

  def __init__(self, clients: aggregations.Clients):
    """Initializes an interpreter for one trace, in which aggregations aggregate `clients`."""
    self._clients = clients

  def intrinsic(self, block: tff.framework.Intrinsic) -> language.Function:
    name = block.uri
    if name in _INTRINSICS:
      return lambda argument, at_clients: _INTRINSICS[name](argument)
    if name not in aggregations.AGGREGATIONS:
      raise errors.UnsupportedError(f"the intrinsic {name}")
    aggregation = aggregations.AGGREGATIONS[name]

    def aggregate(argument: Any, at_clients: bool) -> Any:
      arguments = aggregations.arguments_of(name, argument)
      return aggregation.finish(arguments, aggregation.partial(self._clients, arguments))

    return aggregate

  def component(self, block: tff.framework.CompiledComputation) -> language.Function:
    component = self._clients.mapper.component(block)

    def function(argument: Any | None, at_clients: bool) -> Any:
      leaves = [] if argument is None else list(values.flatten(argument))
      if at_clients:
        results = self._clients.mapper.map(component, leaves, self._clients.num_clients)
      else:
        results = self._clients.mapper.call(component, leaves)
      return values.pack(component.type_signature.result, iter(results))

    return function

  def literal(self, block: tff.framework.Literal) -> Leaf:
    return Leaf(tf.constant(block.value, tf.as_dtype(block.type_signature.dtype)), False)
