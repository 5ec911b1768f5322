"""Finds out what a stage reads of the server's values: whoever computes it is sent nothing else."""

from typing import Any

from tff_superquantile.simulation.engine import computation
from tff_superquantile.simulation.engine import interpreter
from tff_superquantile.simulation.engine import values
from tff_superquantile.simulation.engine.stages import plan as plan_lib


def leaves(
  program: computation.Computation, plan: plan_lib.Plan, stage: plan_lib.Stage
) -> dict[str, list[int]]:
  """Returns the leaves at the server that a stage reads, by the names of the values.

  Args:
    program: The computation.
    plan: Its plan.
    stage: The stage.

  Returns:
    Positions among the leaves of each value that the stage receives, and among those of the
    computation's parameter if the stage reads any of them.
  """
  # In the place of tensors there are the names of the values.
  scope: dict[str, Any] = dict(program.scope([plan.parameter] * len(program.parameters)))
  for name in stage.received:
    type_spec = plan.type_of(name)
    number = len(values.leaf_types(type_spec))
    of_value = iter([values.Leaf(name, False, i) for i in range(number)])
    scope[name] = values.pack(type_spec, of_value)
  found: dict[str, set[int]] = {name: set() for name in stage.received}
  evaluator = interpreter.Interpreter(program.server())
  for block in plan.selections(stage):
    for leaf in values.flatten(evaluator.evaluate(block, scope)):
      if leaf.origin is not None and not leaf.stacked:
        found.setdefault(leaf.tensor, set()).add(leaf.origin)
  return {name: sorted(positions) for name, positions in found.items()}
