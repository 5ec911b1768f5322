"""Plans what has a row for each client where all are computed at once, and refuses all else."""

from collections.abc import Callable, Container, Iterable, Sequence

import tensorflow as tf

from tff_superquantile.engine.cohort import padding
from tff_superquantile.engine.cohort import rows
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import walks

Ref = expressions.Ref


def _differ(
  needed: Sequence[expressions.Expression],
  refs: Sequence[Ref],
  stacked: Iterable[Ref],
  padded: Container[expressions.Expression],
) -> set[Ref]:
  """Returns all values that may differ between clients, of those that differ at first."""
  used = [*refs, *(ref for e in needed for ref in e.inputs)]
  used += [ref for e in needed for body in e.bodies for ref in body.outputs]
  outputs: dict[expressions.Expression, list[Ref]] = {}
  for ref in set(used):
    outputs.setdefault(ref.expression, []).append(ref)
  differing, size = set(stacked), -1
  while size < len(differing):  # Once more for what a loop hands on to its next step.
    size = len(differing)
    for e in needed:
      if e.op in ops.CONDITIONS:
        for i, of_both in enumerate(zip(*(body.outputs for body in e.bodies))):
          if not differing.isdisjoint((e.inputs[0], *of_both)):
            differing.add(Ref(e, i))
      elif e.op in ops.LOOPS:
        (ends, *_), body = e.bodies[0].outputs, e.bodies[1]
        for i, (parameter, *values) in enumerate(zip(body.parameters, e.inputs, body.outputs)):
          if not differing.isdisjoint((ends, *values)):
            differing.update((Ref(e, i), Ref(parameter, 0)))
      elif e.op in rows.SIZES:
        if e.inputs[0].expression in padded:
          differing.update(outputs.get(e, ()))
      elif e.op != padding.AXES and not differing.isdisjoint(e.inputs):
        differing.update(outputs.get(e, ()))
  return differing


def plan(
  refs: Sequence[Ref],
  stacked: Iterable[Ref],
  known: Iterable[Ref],
  listed: Container[str] = rows.OPS,
  spread: Callable[[Sequence[expressions.Expression]], Container[expressions.Expression]]
  | None = None,
) -> set[Ref]:
  """Returns the values with rows in what is emitted for all clients, of those that have rows first.

  What cannot be emitted at once is an `UnsupportedError`; `known` need not be emitted. Of rows only
  ops that are `listed` are. `spread` tells, of all that is needed, what has a length of each client
  if anything has; then loops may have, too.
  """
  ready = {ref.expression for ref in known}
  needed = walks.walk(refs, stop=lambda expression: expression in ready)
  rest = [e for e in needed if e not in ready]
  with_rows = _differ(rest, refs, stacked, spread(rest) if spread else ())
  for e in rest:
    if e.op == "parameter":
      continue
    if e.node is None:
      raise errors.UnsupportedError("a data set for all clients at once")
    if e.op in ops.LOOPS and e.bodies[0].outputs[0] in with_rows and not spread:
      raise errors.UnsupportedError("a loop of a length of each client")
    is_same = bool(e.bodies) or with_rows.isdisjoint(e.inputs)
    may_be = is_same or (e.op in listed and _is_usual(e.node))
    if ops.is_stateful(e.op) or ops.is_variant(e.op) or not may_be:
      raise errors.UnsupportedError(f"an op {e.op} for all clients at once")
  return with_rows


def _is_usual(node: tf.compat.v1.NodeDef) -> bool:
  if "data_format" in node.attr and node.attr["data_format"].s != b"NHWC":
    return False
  # If not, a comparison gives one truth value, instead of an error.
  return "incompatible_shape_error" not in node.attr or node.attr["incompatible_shape_error"].b


def spread(
  needed: Sequence[expressions.Expression], padded: Iterable[Ref]
) -> set[expressions.Expression]:
  """Returns the expressions that may be padded, of those that are needed, in order.

  It may name too many: of their shapes there is then a row for each client. What cannot be padded
  is an `UnsupportedError`.
  """
  read = set(padded)
  found: set[expressions.Expression] = set()

  def is_padded(ref: Ref) -> bool:
    return ref in read or ref.expression in found

  for e in needed:
    if any(ref.expression.op == padding.AXES for ref in e.inputs) and not _adds_up(e):
      raise errors.UnsupportedError("axes of gradients for another use than to add them up")
    if e.bodies:
      changing = e.inputs[: len(e.bodies[-1].parameters)] if e.op in ops.LOOPS else ()
      results = [ref for body in e.bodies for ref in body.outputs]
      if any(map(is_padded, (*changing, *results))):
        raise errors.UnsupportedError("examples that a loop or a branch makes")
    elif _may_be_padded(e, is_padded):
      found.add(e)
  return found | {ref.expression for ref in read}


def _adds_up(e: expressions.Expression) -> bool:
  """Tells whether an op gives the same along an axis of size one as without it."""
  return e.op == "Sum" and e.node.attr["keep_dims"].b


def _may_be_padded(e: expressions.Expression, is_padded: Callable[[Ref], bool]) -> bool:
  """Tells whether a result of an op without bodies may have a length of each client."""
  if e.op in rows.SIZES or e.op in ("BiasAddGrad", "L2Loss", padding.AXES):
    return False
  if e.op in padding.OF_SHAPE and (shaped := padding.shape_of(e.inputs[1])) is not None:
    return is_padded(shaped)
  if e.op == "MatMul":
    return is_padded(e.inputs[0]) and not e.node.attr["transpose_a"].b
  if e.op in padding.NEUTRAL:
    return is_padded(e.inputs[0]) and 0 not in (padding.constant(e.inputs[1]) or ())
  return any(map(is_padded, e.inputs))
