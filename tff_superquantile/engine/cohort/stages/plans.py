"""Cuts a federated computation at its aggregations into stages.

    server   step 0
    clients  stage 0, on every block of the cohort: partial aggregates
    server   step 1: merges them, finishes the aggregations, goes on
    clients  stage 1, on every block
    ...

A computation in call-dominant form is a list of calls. The level of a call is the number of
aggregations, one after the other, on which it depends. Stage k computes what the aggregations of
level k + 1 need at the clients; server step k computes what the server has of level k.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import interpreter
from tff_superquantile.engine.cohort.graphs import errors

# Intrinsics at the clients that only pass values on. Repeating them costs nothing.
_HANDS_ON = frozenset(
  ("federated_broadcast", "federated_value_at_clients", "federated_zip_at_clients")
)


class Stage(NamedTuple):
  """What the clients of a block compute between two steps of the server; all are names of calls.

  Attributes:
    aggregations: The aggregations whose partial values are the stage's result.
    calls: The calls to evaluate, in order.
    received: Values of the server that they use.
    carried: Values of the same clients that earlier stages have computed.
    kept: Those of this stage that later ones use.
  """

  aggregations: tuple[str, ...]
  calls: tuple[str, ...]
  received: tuple[str, ...]
  carried: tuple[str, ...]
  kept: tuple[str, ...]


class Step(NamedTuple):
  """What the server computes between two stages; all are names of calls.

  Attributes:
    calls: The calls to evaluate, in order, aggregations among them.
    known: Values of earlier steps that they use.
    kept: Those of this step that stages, later steps or the result use.
  """

  calls: tuple[str, ...]
  known: tuple[str, ...]
  kept: tuple[str, ...]


def _intrinsic(block: tff.framework.ComputationBuildingBlock) -> str | None:
  if isinstance(block, tff.framework.Call) and isinstance(block.function, tff.framework.Intrinsic):
    return block.function.uri
  return None


def _is_at_clients(block: tff.framework.ComputationBuildingBlock) -> bool:
  type_spec = block.type_signature
  return isinstance(type_spec, tff.FederatedType) and type_spec.placement is tff.CLIENTS


class Plan:
  """The stages and steps of a computation; equal computations have equal plans.

  Attributes:
    parameter: The name of the computation's parameter; None if it has none.
    calls: The calls by name, in an order in which they can be evaluated.
    result: What is returned, in terms of the names.
    stages: What clients do.
    steps: What the server does, one step more than there are stages.
  """

  def __init__(self, block: tff.framework.Lambda):
    """Makes the plan of a computation in call-dominant form, whose result is at the server."""
    body = block.result
    is_block = isinstance(body, tff.framework.Block)
    locals_: Sequence[tuple[str, Any]] = body.locals if is_block else []
    self.parameter = block.parameter_name
    self.calls = dict(locals_)
    self.result = body.result if is_block else body
    if len(self.calls) < len(locals_):
      raise errors.UnsupportedError("two values of one name")
    self._at_clients = {name for name, call in self.calls.items() if _is_at_clients(call)}
    self._aggregations = {
      name: uri
      for name, call in self.calls.items()
      if (uri := _intrinsic(call)) is not None and uri in aggregations.AGGREGATIONS
    }
    self._uses = {name: self._names(call) - {self.parameter} for name, call in self.calls.items()}
    self._level: dict[str, int] = {}
    for name, uses in self._uses.items():
      level = max((self._level[used] for used in uses), default=0)
      self._level[name] = level + (name in self._aggregations)
    for name, uri in self._aggregations.items():
      self._check(uri, self.calls[name].argument)
    if not self._aggregations:
      raise errors.UnsupportedError("a computation that aggregates nothing")
    if self._names(self.result) & self._at_clients or _is_at_clients(self.result):
      raise errors.UnsupportedError("a result at the clients, cut at its aggregations")
    num_stages = max(self._level.values())
    self.stages = self._make_stages(num_stages)
    self.steps = self._make_steps(num_stages)

  def _check(self, uri: str, argument: tff.framework.ComputationBuildingBlock) -> None:
    """Raises an `UnsupportedError` unless blocks can be merged by an aggregation alone."""
    if uri in aggregations.OF_ONE_ARGUMENT:
      return
    if not isinstance(argument, tff.framework.Struct):
      raise errors.UnsupportedError(f"the arguments of {uri} from one value")
    if uri == "federated_aggregate" and self._names(argument[3]):
      raise errors.UnsupportedError("a merge that depends on other values")

  def is_of_clients(self, name: str) -> bool:
    """Tells whether clients have a part in the call of that name, be it that they are summed."""
    return name in self._at_clients or name in self._aggregations

  def aggregation(self, name: str) -> aggregations.Aggregation:
    """Returns the aggregation that the call of that name does."""
    return aggregations.AGGREGATIONS[self._aggregations[name]]

  def arguments(
    self, name: str, scope: Mapping[str, Any], evaluator: interpreter.TracingInterpreter
  ) -> list[Any]:
    """Evaluates the arguments of an aggregation; None for those that use what `scope` lacks."""
    uri, argument = self._aggregations[name], self.calls[name].argument
    known = self._names(argument) & set(scope)
    return [
      evaluator.evaluate(part, scope) if self._names(part) <= known else None
      for part in aggregations.arguments_of(uri, argument)
    ]

  def _names(self, block: tff.framework.ComputationBuildingBlock) -> set[str]:
    """The names of calls, and of the parameter, in a block; all names are unique in this form."""
    names = set()

    def visit(part: Any) -> tuple[Any, bool]:
      if isinstance(part, tff.framework.Reference):
        if part.name in self.calls or part.name == self.parameter:
          names.add(part.name)
      return part, False

    tff.framework.transform_postorder(block, visit)
    return names

  def _in_order(self, names: Iterable[str]) -> tuple[str, ...]:
    names = set(names)
    return tuple(name for name in self.calls if name in names)

  def _make_stages(self, num_stages: int) -> list[Stage]:
    stages: list[Stage] = []
    computed: set[str] = set()
    for k in range(num_stages):
      own = [name for name in self._aggregations if self._level[name] == k + 1]
      calls, received, carried = set(), set(), set()
      todo = [used for name in own for used in self._uses[name]]
      while todo:
        name = todo.pop()
        if name not in self._at_clients:
          received.add(name)
        elif name in computed and _intrinsic(self.calls[name]) not in _HANDS_ON:
          carried.add(name)
        elif name not in calls:
          calls.add(name)
          todo += self._uses[name]
      computed |= calls
      for i, stage in enumerate(stages):
        stages[i] = stage._replace(kept=self._in_order({*stage.kept, *carried & set(stage.calls)}))
      stages.append(
        Stage(
          aggregations=tuple(own),
          calls=self._in_order(calls),
          received=self._in_order(received),
          carried=self._in_order(carried),
          kept=(),
        )
      )
    return stages

  def _make_steps(self, num_stages: int) -> list[Step]:
    at_server = [name for name in self.calls if name not in self._at_clients]
    of_result = self._names(self.result) - {self.parameter}
    steps = []
    for k in range(num_stages + 1):
      calls = [name for name in at_server if self._level[name] == k]
      uses = {used for name in calls for used in self._uses[name]} - self._at_clients
      if k == num_stages:
        uses |= of_result
      later = {used for n in at_server if self._level[n] > k for used in self._uses[n]}
      later |= {name for stage in self.stages for name in stage.received} | of_result
      known = {name for name in uses if self._level[name] < k}
      steps.append(Step(tuple(calls), self._in_order(known), self._in_order(later & set(calls))))
    return steps
