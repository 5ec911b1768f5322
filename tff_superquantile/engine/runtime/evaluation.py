"""Evaluates TFF's language on values, one client after the other or a few at once.

A value is a numpy array or scalar, a `sequences.Sequence`, a `tff.structure.Struct` of values, a
`Federated` one, or a function. TFF's compiler has replaced sums, means and the like by
`federated_aggregate`, so what is left of the language is short.
"""

from collections.abc import Callable, Iterator, Mapping
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import language
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import calls
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.runtime import sequences

# A TensorFlow graph, from the value of its parameter (None without one) to that of its result.
Component = Callable[[Any], Any]


class Federated(NamedTuple):
  """Values at a placement: one a client, or a single one if all are equal, and at the server."""

  members: list[Any]
  is_all_equal: bool


def _take(value: Any, i: int) -> Any:
  """Returns what client i has of a structure of federated values."""
  return values.map_leaves(lambda part: part.members[0 if part.is_all_equal else i], value)


def _at_server(value: Any) -> Federated:
  return Federated([value], is_all_equal=True)


class Evaluator(language.Interpreter):
  """Evaluates building blocks for a number of clients."""

  def __init__(
    self,
    num_clients: int,
    parallel: int,
    library: Mapping[tff.framework.CompiledComputation, Component],
  ):
    """Initializes an evaluator: `parallel` clients at once, `library` gets and keeps components."""
    self._num_clients = num_clients
    self._parallel = parallel
    self._library = library

  def component(self, block: tff.framework.CompiledComputation) -> language.Function:
    component = self._library[block]
    return lambda argument, _: calls.call(functools.partial(component, argument))

  def literal(self, block: tff.framework.Literal) -> Any:
    if isinstance(block.value, (str, bytes)):
      return block.value
    return np.asarray(block.value, block.type_signature.dtype)[()]

  def intrinsic(self, block: tff.framework.Intrinsic) -> language.Function:
    function = _INTRINSICS.get(block.uri)
    if function is None:
      raise errors.UnsupportedError(
        f"Found the intrinsic {block.uri}, which this process does not compute. {errors.TFFS_OWN}"
      )
    return lambda argument, _: function(self, argument, block.type_signature.result)

  def at_clients(self, function: language.Function, value: Any) -> Federated:
    """Calls a function once for each client, with a structure of federated values."""
    arguments = (_take(value, i) for i in range(self._num_clients))
    tasks = [functools.partial(_call, function, argument) for argument in arguments]
    return Federated(list(calls.results(tasks, self._parallel)), is_all_equal=False)


def _call(function: language.Function, *arguments: Any) -> Any:
  argument = arguments[0]
  if len(arguments) > 1:
    argument = tff.structure.Struct([(None, part) for part in arguments])
  return function(argument, False)


def _map(evaluator: Evaluator, argument: Any, _: tff.Type) -> Federated:
  function, value = argument
  return evaluator.at_clients(function, value)


def _apply(evaluator: Evaluator, argument: Any, _: tff.Type) -> Federated:
  function, value = argument
  return _at_server(_call(function, _take(value, 0)))


def _zip(evaluator: Evaluator, argument: Any, _: tff.Type) -> Federated:
  parts: Iterator[Any] = values.flatten(argument)
  if all(part.is_all_equal for part in parts):
    return Federated([_take(argument, 0)], is_all_equal=True)
  members = [_take(argument, i) for i in range(evaluator._num_clients)]
  return Federated(members, is_all_equal=False)


def _aggregate(evaluator: Evaluator, argument: Any, _: tff.Type) -> Federated:
  value, zero, accumulate, _, report = argument
  total = zero
  for i in range(evaluator._num_clients):
    total = _call(accumulate, total, _take(value, i))
  return _at_server(_call(report, total))


def _select(evaluator: Evaluator, argument: Any, type_spec: Any) -> Federated:
  keys, _, server_value, select = argument

  def slices(own: Any, _: bool) -> sequences.Sequence:
    elements = [_call(select, _take(server_value, 0), key) for key in own]
    return sequences.Sequence(type_spec.member.element, elements=elements)

  return evaluator.at_clients(slices, keys)


def _sequence_map(evaluator: Evaluator, argument: Any, type_spec: Any) -> sequences.Sequence:
  function, sequence = argument
  elements = [_call(function, element) for element in sequence.elements()]
  return sequences.Sequence(type_spec.element, elements=elements)


def _sequence_reduce(evaluator: Evaluator, argument: Any, _: tff.Type) -> Any:
  sequence, zero, operation = argument
  total = zero
  for element in sequence.elements():
    total = _call(operation, total, element)
  return total


_INTRINSICS: Mapping[str, Callable[[Evaluator, Any, tff.Type], Any]] = {
  "federated_aggregate": _aggregate,
  "federated_apply": _apply,
  "federated_broadcast": lambda evaluator, argument, _: argument,
  "federated_eval_at_clients": lambda evaluator, argument, _: evaluator.at_clients(
    lambda nothing, at_clients: argument(None, at_clients), tff.structure.Struct([])
  ),
  "federated_eval_at_server": lambda evaluator, argument, _: _at_server(argument(None, False)),
  "federated_map": _map,
  "federated_map_all_equal": _apply,
  "federated_select": _select,
  "federated_value_at_clients": lambda evaluator, argument, _: _at_server(argument),
  "federated_value_at_server": lambda evaluator, argument, _: _at_server(argument),
  "federated_zip_at_clients": _zip,
  "federated_zip_at_server": _zip,
  "sequence_map": _sequence_map,
  "sequence_reduce": _sequence_reduce,
}
