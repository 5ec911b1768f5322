"""Interprets TFF's language into one TensorFlow graph for a whole cohort."""

from collections.abc import Callable, Mapping, Sequence
import itertools
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


def _mapped(function: language.Function, sequence: Leaf, element_type: tff.Type) -> Leaf:
  return sequence._replace(maps=(*sequence.maps, (function, element_type)))


class TracingInterpreter(language.Interpreter):
  """Evaluates building blocks; every value it returns is a `Leaf`, a `Struct`, or a function."""

  def __init__(self, clients: aggregations.Clients):
    """Initializes an interpreter for one trace, in which aggregations aggregate `clients`."""
    self._clients = clients

  def intrinsic(self, block: tff.framework.Intrinsic) -> language.Function:
    name = block.uri
    if name in _INTRINSICS:
      return lambda argument, at_clients: _INTRINSICS[name](argument)
    if name == "sequence_map":
      element_type = block.type_signature.parameter[1].element
      return lambda argument, _: _mapped(argument[0], argument[1], element_type)
    if name == "sequence_reduce":
      return self._sequence_reduce(block.type_signature)
    if name not in aggregations.AGGREGATIONS:
      raise errors.UnsupportedError(f"the intrinsic {name}")
    aggregation = aggregations.AGGREGATIONS[name]

    def aggregate(argument: Any, at_clients: bool) -> Any:
      arguments = aggregations.arguments_of(name, argument)
      return aggregation.finish(arguments, aggregation.partial(self._clients, arguments))

    return aggregate

  def _sequence_reduce(self, type_spec: tff.FunctionType) -> language.Function:
    sequence_type, total_type = type_spec.parameter[0], type_spec.result

    def reduce(argument: Any, at_clients: bool) -> Any:
      if not at_clients:
        raise errors.UnsupportedError("tff.sequence_reduce of a value that no client holds")
      source, zero, accumulate = argument
      element_type = source.maps[0][1] if source.maps else sequence_type.element
      leaf_types = values.leaf_types(element_type)
      order = tf.nest.flatten(values.in_data_sets(element_type, itertools.count()))

      def step(total: Sequence[Leaf], tensors: Sequence[Leaf]) -> list[Leaf]:
        leaves = dict(zip(order, tensors))
        element = values.pack(element_type, (leaves[i] for i in range(len(order))))
        for function, _ in source.maps:
          element = function(element, True)
        pair = [(None, values.pack(total_type, iter(total))), (None, element)]
        return list(values.flatten(accumulate(tff.structure.Struct(pair), True)))

      results = self._clients.mapper.fold(
        source,
        [leaf_types[i].spec for i in order],
        list(values.flatten(zero)),
        step,
        values.leaf_types(total_type),
        self._clients.num_clients,
      )
      return values.pack(total_type, iter(results))

    return reduce

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
