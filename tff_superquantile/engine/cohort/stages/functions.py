"""A stage of a block and a step of the server, as TensorFlow functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort import interpreter
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import calls
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.stages import plans

Leaf = values.Leaf
# A value whose leaves have specs in the place of tensors.
Template = Any


def _tensors(values_: Iterable[Any]) -> list[tf.Tensor]:
  """Lists the tensors of values, or the specs of templates."""
  return [leaf.tensor for value in values_ for leaf in values.flatten(value)]


def _template(value: Any) -> Template:
  """Puts the specs of a value's tensors in their place."""
  return values.map_leaves(
    lambda leaf: Leaf(tf.TensorSpec(leaf.tensor.shape, leaf.tensor.dtype), leaf.stacked), value
  )


def _server_templates(plan: plans.Plan, names: Iterable[str]) -> dict[str, Template]:
  """Returns templates of what the server has of some calls, by their names."""
  templates = {}
  for name in names:
    type_spec = plan.calls[name].type_signature
    specs = (leaf._replace(stacked=False).spec for leaf in values.leaf_types(type_spec))
    templates[name] = values.pack(type_spec, (Leaf(spec, False) for spec in specs))
  return templates


def _filled(template: Template, tensors: Iterator[tf.Tensor]) -> Any:
  """Puts tensors in the place of specs."""
  return values.map_leaves(lambda leaf: leaf._replace(tensor=next(tensors)), template)


# The tensors of some values, by their names.
Named = dict[str, list[tf.Tensor]]


def _by_name(templates: Mapping[str, Template], tensors: Iterator[tf.Tensor]) -> Named:
  return {
    name: [next(tensors) for _ in values.flatten(template)] for name, template in templates.items()
  }


class StageFunction:
  """Computes one stage of a block, and merges what blocks give.

  Attributes:
    parameters: The leaves of the computation's parameter.
    inputs: Names of what it uses of the server and of earlier stages of the same block.
    kept: Templates of what later stages of the same block use, by name.
    partials: Templates of the partial aggregates, by the aggregations' names.
    merge: Returns the partial aggregates of two consecutive parts of the cohort.
  """

  def __init__(
    self,
    program: computation.Outline,
    plan: plans.Plan,
    stage: plans.Stage,
    kept: Mapping[str, Template],
  ):
    self.parameters = program.parameters
    self._program = program
    self._plan = plan
    self._stage = stage
    self._inputs = _server_templates(plan, stage.received)
    self._inputs.update((name, kept[name]) for name in stage.carried)
    self.inputs = tuple(self._inputs)
    self.kept: dict[str, Template] = {}
    self.partials: dict[str, Template] = {}
    # The first trace fills the templates.
    self._function = program.cohort_function(self._compute, _tensors(self._inputs.values()))
    specs = _tensors(self.partials.values())
    merge = tf.function(self._merge, input_signature=[specs, specs], autograph=False)
    merge = merge.get_concrete_function()
    self.merge = lambda *parts: calls.call(lambda: merge(*parts))

  def __call__(
    self, arrays: Sequence[Any], inputs: Sequence[Any]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns a block's partial aggregates, and what the stage keeps for it."""
    results = iter(self._function([*arrays, *inputs]))
    return [next(results) for _ in _tensors(self.partials.values())], list(results)

  def named(self, kept: Iterable[Any]) -> Named:
    """Returns what the stage keeps, by its names."""
    return _by_name(self.kept, iter(kept))

  def _compute(
    self, tensors: Sequence[tf.Tensor], clients: aggregations.Clients
  ) -> list[tf.Tensor]:
    inputs = iter(tensors[len(self._program.parameters) :])
    scope = self._program.scope(tensors)
    scope.update((name, _filled(template, inputs)) for name, template in self._inputs.items())
    evaluator = interpreter.TracingInterpreter(clients)
    for name in self._stage.calls:
      scope[name] = evaluator.evaluate(self._plan.calls[name], scope)
    partials = {
      name: self._plan.aggregation(name).partial(
        clients, self._plan.arguments(name, scope, evaluator)
      )
      for name in self._stage.aggregations
    }
    kept = {name: scope[name] for name in self._stage.kept}
    if not self.partials:
      self.partials.update((name, _template(value)) for name, value in partials.items())
      self.kept.update((name, _template(value)) for name, value in kept.items())
    return _tensors([*partials.values(), *kept.values()])

  def _merge(self, first: list[tf.Tensor], second: list[tf.Tensor]) -> list[tf.Tensor]:
    evaluator = interpreter.TracingInterpreter(self._program.server())
    parts = [iter(first), iter(second)]
    return _tensors(
      self._plan.aggregation(name).merge(
        self._plan.arguments(name, {}, evaluator), *(_filled(template, part) for part in parts)
      )
      for name, template in self.partials.items()
    )


def of_plan(program: computation.Outline, plan: plans.Plan) -> list[StageFunction]:
  """Builds the functions of a plan's stages."""
  stages: list[StageFunction] = []
  kept: dict[str, Template] = {}
  for stage in plan.stages:
    stages.append(StageFunction(program, plan, stage, kept))
    kept.update(stages[-1].kept)
  return stages


class StepFunction:
  """Computes what the server does between two stages."""

  def __init__(
    self,
    program: computation.Computation,
    plan: plans.Plan,
    step: plans.Step,
    totals: Mapping[str, Template],
    returns: bool,
  ):
    self._program = program
    self._plan = plan
    self._step = step
    self._totals = totals
    self._returns = returns
    self._known = _server_templates(plan, step.known)
    self._kept = _server_templates(plan, step.kept)
    specs = [leaf.argument_spec for leaf in program.parameters if not leaf.stacked]
    signature = [specs, _tensors(self._known.values()), _tensors(totals.values())]
    function = tf.function(self._compute, input_signature=signature, autograph=False)
    self._function = function.get_concrete_function()

  def __call__(
    self, arrays: Sequence[np.ndarray], known: Named, totals: Sequence[tf.Tensor]
  ) -> tuple[Named, list[tf.Tensor]]:
    """Returns what the step keeps, and the computation's result if it is the last step."""
    own = [a for a, leaf in zip(arrays, self._program.parameters) if not leaf.stacked]
    tensors = [*map(data_sets.as_tensor, own)], [t for n in self._known for t in known[n]], totals
    results = iter(calls.call(lambda: self._function(*tensors)))
    return _by_name(self._kept, results), list(results)

  def _compute(
    self, own: list[tf.Tensor], known: list[tf.Tensor], totals: list[tf.Tensor]
  ) -> list[tf.Tensor]:
    tensors = iter(own)
    leaves = [None if leaf.stacked else next(tensors) for leaf in self._program.parameters]
    scope = self._program.scope(leaves)
    of_known, of_totals = iter(known), iter(totals)
    scope.update((name, _filled(template, of_known)) for name, template in self._known.items())
    evaluator = interpreter.TracingInterpreter(self._program.server())
    for name in self._step.calls:
      if name in self._totals:
        total = _filled(self._totals[name], of_totals)
        arguments = self._plan.arguments(name, scope, evaluator)
        scope[name] = self._plan.aggregation(name).finish(arguments, total)
      else:
        scope[name] = evaluator.evaluate(self._plan.calls[name], scope)
    kept = [scope[name] for name in self._kept]
    return _tensors(
      [*kept, evaluator.evaluate(self._plan.result, scope)] if self._returns else kept
    )
