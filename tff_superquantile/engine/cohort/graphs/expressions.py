"""What a component computes, as expressions.

Equal expressions are one object wherever they stand, and each knows the inputs on which it depends.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Any, NamedTuple

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import purity


class Ref(NamedTuple):
  """Refers to one output of an expression."""

  expression: "Expression"
  index: int  # type: ignore[assignment]  # Hides a method of tuples, unused here.


@dataclasses.dataclass(slots=True, eq=False)
class Expression:
  """Applies an op to inputs.

  Attributes:
    order: A number larger than that of every expression on which it depends.
    op: The type of the op; "root" for a given value, "parameter" for a variable of a loop.
    digest: Equal for equal expressions of equal roots, also those of other computations.
    node: Its NodeDef; None for roots and parameters.
    inputs: The inputs of the op. For conditions and loops, the values that are computed before they
      are entered, the predicate and the initial variables first.
    bodies: The two branches of a condition, or the condition and the body of a loop.
    roots: The names of the roots that it depends on.
    reads: Whether it depends on a file, or on a data set of which roots tell.
    is_pure: Whether it depends on nothing but its roots.
    changes_nothing: Whether computing it is known to change nothing, whatever it draws or reads.
    is_of_looks: Whether it depends on nothing but its roots and what looks into data sets find, of
      which each changes nothing.
    functions: The FunctionDefs that the node calls, which are not taken apart: those of data sets.
    of_shape: Whether it depends on a shape.
    of_loop: Whether it depends on a variable of a loop, which only steps of that know.
  """

  order: int
  op: str
  digest: bytes
  node: Any = None  # tf.compat.v1.NodeDef
  inputs: tuple[Ref, ...] = ()
  bodies: tuple["Body", ...] = ()
  roots: frozenset[str] = frozenset()
  reads: bool = False
  is_pure: bool = False
  changes_nothing: bool = True
  is_of_looks: bool = False
  functions: tuple[Any, ...] = ()
  of_shape: bool = False
  of_loop: bool = False


class Body(NamedTuple):
  """Describes a branch, or a loop's condition or body.

  Attributes:
    parameters: The loop variables that change; empty for branches.
    outputs: Its results; the results of a loop's body are the next values of its parameters.
    effects: Expressions that must run beside it, such as assertions.
    looks_again: Whether it goes over a data set several times.
  """

  parameters: tuple[Expression, ...]
  outputs: tuple[Ref, ...]
  effects: tuple[Expression, ...]
  looks_again: bool = False


class Pool:
  """Makes expressions, so that equal ones are one object."""

  def __init__(self) -> None:
    self._by_digest: dict[bytes, Expression] = {}
    self._count = 0

  def __len__(self) -> int:
    """Returns the order of the newest expression."""
    return self._count

  def _add(self, op: str, digest: bytes, **attributes: Any) -> Expression:
    if digest not in self._by_digest:
      self._count += 1
      self._by_digest[digest] = Expression(self._count, op, digest, **attributes)
    return self._by_digest[digest]

  def root(self, name: str, reads: bool = False, is_pure: bool = True) -> Expression:
    """Returns the root of that name, a given value.

    `reads`: what is computed of it counts as read from a file. `is_pure`: it gives the same
    whenever it is used; some data sets do not.
    """
    digest = hashlib.sha256(f"root {name}".encode()).digest()
    attributes = dict(roots=frozenset([name]), reads=reads, is_pure=is_pure, is_of_looks=is_pure)
    return self._add("root", digest, **attributes)

  def parameter(self) -> Expression:
    """Makes a new variable of a loop, unlike all others."""
    digest = hashlib.sha256(f"parameter {self._count}".encode()).digest()
    return self._add("parameter", digest, of_loop=True)

  def apply(
    self,
    node: tf.compat.v1.NodeDef,
    inputs: Sequence[Ref],
    bodies: Sequence[Body] = (),
    functions: Sequence[Any] = (),
  ) -> Expression:
    """Applies an op to inputs, with the branches or the loop in `bodies`."""
    library = {function.signature.name: function for function in functions}
    hasher = hashlib.sha256(ops.digest(node, library))
    refs = [*inputs, *(ref for body in bodies for ref in body.outputs)]
    for body in bodies:
      hasher.update(f"body {len(body.parameters)} {len(body.outputs)}".encode())
      for expression in (*body.parameters, *body.effects):
        hasher.update(expression.digest)
    stateful = (
      ops.is_stateful(node.op)
      or any(body.effects for body in bodies)
      or any(ops.is_stateful(inner.op) for function in functions for inner in function.node_def)
      # A data set that changes has other elements in each look, so each look is an expression.
      or (node.op in ops.LOOKS and not all(ref.expression.is_pure for ref in refs))
    )
    if stateful:
      hasher.update(f"stateful {self._count}".encode())
    for ref in refs:
      hasher.update(ref.expression.digest)
      hasher.update(b"%d " % ref.index)
    of_read = any(ref.expression.reads for ref in refs)
    is_known = bool(bodies) or purity.is_pure(node, functions)
    if node.op == "ReadFile":  # A file that a client names is taken not to change, and no other.
      is_known = bool(refs[0].expression.roots) and not of_read
    used = [*(ref.expression for ref in refs), *(e for body in bodies for e in body.effects)]
    inner = (inner for function in functions for inner in function.node_def)
    changes_nothing = all(map(purity.has_no_effect, (node, *inner)))
    changes_nothing &= all(expression.changes_nothing for expression in used)
    roots = frozenset[str]().union(*(ref.expression.roots for ref in refs))
    of_looks = is_known and not stateful and all(ref.expression.is_of_looks for ref in refs)
    of_loop = any(ref.expression.of_loop for ref in refs)
    return self._add(
      node.op,
      hasher.digest(),
      node=node,
      inputs=tuple(inputs),
      bodies=tuple(bodies),
      roots=roots,
      reads=node.op == "ReadFile" or of_read or (node.op in ops.LOOKS and bool(roots)),
      is_pure=is_known and not stateful and all(ref.expression.is_pure for ref in refs),
      changes_nothing=changes_nothing,
      is_of_looks=of_looks or (node.op in ops.LOOKS and changes_nothing and not of_loop),
      functions=tuple(functions),
      of_shape=node.op in ops.SHAPES or any(ref.expression.of_shape for ref in refs),
      of_loop=of_loop,
    )


def shuffles_with_seed(expression: Expression) -> bool:
  """Tells whether a data set has an order that may follow from a seed, which is no constant 0."""
  seeds = [ref.expression for ref in expression.inputs[2:4]]
  return "Shuffle" in expression.op and any(
    seed.op != "Const" or tf.make_ndarray(seed.node.attr["value"].tensor) != 0 for seed in seeds
  )
