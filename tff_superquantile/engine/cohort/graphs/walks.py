"""What expressions depend on: all of it, parts of one kind, looks into data sets."""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops

Body = expressions.Body
Expression = expressions.Expression
Ref = expressions.Ref


def walk(
  refs: Iterable[Ref], stop: Callable[[Expression], bool] = lambda expression: False
) -> list[Expression]:
  """Lists all expressions on which these depend, also within branches, until those to `stop` at."""
  seen: dict[int, Expression] = {}
  stack = [ref.expression for ref in refs]
  while stack:
    expression = stack.pop()
    if expression.order in seen:
      continue
    seen[expression.order] = expression
    if stop(expression):
      continue
    stack.extend(ref.expression for ref in expression.inputs)
    for body in expression.bodies:
      stack.extend(ref.expression for ref in body.outputs)
      stack.extend(body.effects)
  return [seen[order] for order in sorted(seen)]


def nodes_of(parts: Iterable[Expression]) -> Iterator[tf.compat.v1.NodeDef]:
  """Yields the nodes of expressions, and those of the functions that they call."""
  for expression in parts:
    if expression.node is not None:
      yield expression.node
    for function in expression.functions:
      yield from function.node_def


def used_from_outside(bodies: Iterable[Body], since: int) -> list[Ref]:
  """Lists what branches or a loop use of before, and what would be another value if made again.

  Such as a random draw, or a look into a data set that sees other elements each time. It has to be
  computed once, before they are entered; the rest may be computed where it is needed. `since` is
  the size of the pool when the first of the bodies began.
  """
  refs = [ref for body in bodies for ref in body.outputs]
  refs += [Ref(effect, 0) for body in bodies for effect in body.effects]

  def is_outside(expression: Expression) -> bool:
    return expression.order <= since

  return [
    Ref(expression, 0)
    for expression in walk(refs, stop=is_outside)
    if is_outside(expression) and expression.node is not None and not expression.is_pure
  ]


def frontier(refs: Iterable[Ref], belongs: Callable[[Expression], bool]) -> list[Ref]:
  """Lists the largest parts of some values that `belongs` holds of, in order."""
  refs = list(refs)
  used = list(refs)
  for expression in walk(refs, stop=belongs):
    if not belongs(expression):
      used.extend(expression.inputs)
      for body in expression.bodies:
        used.extend(body.outputs)
  return sorted(
    {ref for ref in used if belongs(ref.expression)}, key=lambda r: (r.expression.order, r.index)
  )


def by_looks(refs: Sequence[Ref]) -> list[list[Ref]]:
  """Groups values by the looks into data sets on which they depend."""
  groups: dict[frozenset[int], list[Ref]] = collections.defaultdict(list)
  for ref in refs:
    looks = (expression.order for expression in walk([ref]) if expression.op in ops.LOOKS)
    groups[frozenset(looks)].append(ref)
  return list(groups.values())
