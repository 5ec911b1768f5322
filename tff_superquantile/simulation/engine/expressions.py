"""Turns TensorFlow graphs into expressions, with all function calls inlined.

A component's graph hides its work in functions: a branch of a condition may call the function that
reads the file. Equal expressions are one object wherever they stand, and each knows the inputs on
which it depends.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import hashlib
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

# This module is private to TensorFlow. Nothing public lists the inputs and outputs of op types.
from tensorflow.python.framework import op_def_registry

from tff_superquantile.simulation.engine import values

_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_CONDITIONS = frozenset(("If", "StatelessIf"))
_LOOPS = frozenset(("While", "StatelessWhile"))
CONTROL_FLOW = _CALLS | _CONDITIONS | _LOOPS
_SHAPES = frozenset(("Rank", "Shape", "ShapeN", "Size"))
# TensorFlow marks these ops as stateful, though they give the same result in every run.
_PURE = frozenset(("ReadFile", *_CALLS, *_CONDITIONS, *_LOOPS))


def is_stateful(op: str) -> bool:
  """Tells whether an op has an effect, or results that differ from run to run."""
  registered = op_def_registry.get(op)
  return registered is None or (registered.is_stateful and op not in _PURE)


class Ref(NamedTuple):
  """Refers to one output of an expression."""

  expression: "Expression"
  index: int  # type: ignore[assignment]  # Hides a method of tuples, unused here.


class Expression:
  """Applies an op to inputs.

  Attributes:
    order: A number larger than that of every expression on which it depends.
    op: The type of the op; "root" for a given value, "parameter" for a variable of a loop.
    node: Its NodeDef; None for roots and parameters.
    inputs: The inputs of the op. For conditions and loops, the values that are computed before they
      are entered, the predicate and the initial variables first.
    bodies: The two branches of a condition, or the condition and the body of a loop.
    roots: The names of the roots that it depends on.
    reads: Whether it depends on a file.
    of_shape: Whether it depends on a shape.
    is_pure: Whether it depends on nothing but its roots.
    digest: Equal for equal expressions of equal roots, also those of other computations.
  """

  __slots__ = (
    "order",
    "op",
    "node",
    "inputs",
    "bodies",
    "roots",
    "reads",
    "of_shape",
    "is_pure",
    "digest",
  )
  order: int
  op: str
  node: Any  # tf.compat.v1.NodeDef
  inputs: tuple[Ref, ...]
  bodies: tuple["Body", ...]
  roots: frozenset[str]
  reads: bool
  of_shape: bool
  is_pure: bool
  digest: bytes


class Body(NamedTuple):
  """Describes a branch, or a loop's condition or body.

  Attributes:
    parameters: The loop variables that change; empty for branches.
    outputs: Its results; the results of a loop's body are the next values of its parameters.
    effects: Expressions that must run beside it, such as assertions.
  """

  parameters: tuple[Expression, ...]
  outputs: tuple[Ref, ...]
  effects: tuple[Expression, ...]


class Pool:
  """Makes expressions, so that equal ones are one object."""

  def __init__(self) -> None:
    self._by_digest: dict[bytes, Expression] = {}
    self._count = 0

  def _add(
    self,
    op: str,
    node: Optional[tf.compat.v1.NodeDef],
    inputs: tuple[Ref, ...],
    bodies: tuple[Body, ...],
    digest: bytes,
    roots: frozenset[str],
    reads: bool,
    is_pure: bool,
  ) -> Expression:
    known = self._by_digest.get(digest)
    if known is not None:
      return known
    expression = Expression()
    expression.order = self._count = self._count + 1
    expression.op, expression.node, expression.inputs = op, node, inputs
    expression.bodies, expression.digest = bodies, digest
    expression.roots, expression.reads, expression.is_pure = roots, reads, is_pure
    refs = [*inputs, *(ref for body in bodies for ref in body.outputs)]
    expression.of_shape = op in _SHAPES or any(ref.expression.of_shape for ref in refs)
    self._by_digest[digest] = expression
    return expression

  def root(self, name: str) -> Expression:
    """Returns the root of that name, a given value."""
    digest = hashlib.sha256(f"root {name}".encode()).digest()
    return self._add("root", None, (), (), digest, frozenset([name]), False, True)

  def parameter(self) -> Expression:
    """Makes a new variable of a loop, unlike all others."""
    digest = hashlib.sha256(f"parameter {self._count}".encode()).digest()
    return self._add("parameter", None, (), (), digest, frozenset(), False, False)

  def apply(
    self, node: tf.compat.v1.NodeDef, inputs: Sequence[Ref], bodies: Sequence[Body] = ()
  ) -> Expression:
    """Applies an op to inputs."""
    hasher = hashlib.sha256(node.op.encode())
    for name in sorted(node.attr):
      if not name.startswith("_") and not node.attr[name].HasField("func"):
        hasher.update(name.encode())
        hasher.update(node.attr[name].SerializeToString(deterministic=True))
    refs = [*inputs, *(ref for body in bodies for ref in body.outputs)]
    for body in bodies:
      hasher.update(f"body {len(body.parameters)} {len(body.outputs)}".encode())
      for expression in (*body.parameters, *body.effects):
        hasher.update(expression.digest)
    stateful = is_stateful(node.op) or any(body.effects for body in bodies)
    if stateful:
      hasher.update(f"stateful {self._count}".encode())
    for ref in refs:
      hasher.update(ref.expression.digest)
      hasher.update(b"%d " % ref.index)
    return self._add(
      node.op,
      node,
      tuple(inputs),
      tuple(bodies),
      hasher.digest(),
      frozenset().union(*(ref.expression.roots for ref in refs)),
      node.op == "ReadFile" or any(ref.expression.reads for ref in refs),
      not stateful and all(ref.expression.is_pure for ref in refs),
    )


# Maps a function's name to its FunctionDef, a protocol buffer that TensorFlow does not export.
_Functions = Mapping[str, Any]


class _Graph:
  """Holds a GraphDef or a FunctionDef, which name their tensors in different ways."""

  def __init__(
    self,
    nodes: Iterable[tf.compat.v1.NodeDef],
    arguments: Mapping[str, Ref],
    library: _Functions,
  ):
    self.nodes = {node.name: node for node in nodes}
    self.arguments = arguments
    self.library = library

  def parse(self, name: str) -> tuple[str, Optional[str], int]:
    """Splits a tensor's name into (node, output argument or None, index)."""
    parts = name.split(":")
    if len(parts) == 1:
      return parts[0], None, 0
    if len(parts) == 2:
      return parts[0], None, int(parts[1])
    return parts[0], parts[1], int(parts[2])


def _output_offset(node: tf.compat.v1.NodeDef, argument: Optional[str], library: _Functions) -> int:
  """Returns the position of the first tensor of an op's output argument."""
  if argument is None:
    return 0
  if node.op in library:
    names = [output.name for output in library[node.op].signature.output_arg]
    return names.index(argument)
  offset = 0
  for output in op_def_registry.get(node.op).output_arg:
    if output.name == argument:
      return offset
    if output.number_attr:
      offset += node.attr[output.number_attr].i
    elif output.type_list_attr:
      offset += len(node.attr[output.type_list_attr].list.type)
    else:
      offset += 1
  raise values.UnsupportedError(f"an output {argument} of {node.op}")


def _computed(refs: Sequence[Ref]) -> list[Ref]:
  """Drops roots and parameters, which the bodies may not even use."""
  return [ref for ref in refs if ref.expression.node is not None]


_Result = Union[Expression, tuple[Ref, ...]]


class _Evaluator:
  """Turns one graph into expressions."""

  def __init__(self, graph: _Graph, pool: Pool):
    self._graph = graph
    self._pool = pool
    # Maps a node's name to the Refs of its outputs, or to its expression.
    self._results: dict[str, _Result] = {}
    self.effects: list[Expression] = []

  def run(self, names: Sequence[str]) -> tuple[Ref, ...]:
    """Returns the values of some tensors, and adds the nodes that must run first to `effects`."""
    order = self._order([self._graph.parse(name)[0] for name in names])
    for name in order:
      self._results[name] = self._evaluate(self._graph.nodes[name])
    return tuple(self._ref(name) for name in names)

  def run_for_effect(self, names: Sequence[str]) -> None:
    """Evaluates nodes, and adds those with effects to `effects`."""
    for name in self._order(names):
      self._results[name] = self._evaluate(self._graph.nodes[name])

  def _order(self, names: Sequence[str]) -> list[str]:
    """Orders the nodes that these need by dependence, without recursion, as graphs are deep."""
    ordered, seen = [], set(self._results)
    stack = [(name, False) for name in reversed(names)]
    while stack:
      name, is_ready = stack.pop()
      if is_ready:
        ordered.append(name)
        continue
      if name in seen or name in self._graph.arguments:
        continue
      seen.add(name)
      stack.append((name, True))
      for tensor in self._graph.nodes[name].input:
        stack.append((self._graph.parse(tensor.lstrip("^"))[0], False))
    return ordered

  def _ref(self, name: str) -> Ref:
    node_name, argument, index = self._graph.parse(name)
    if node_name in self._graph.arguments:
      return self._graph.arguments[node_name]
    result = self._results[node_name]
    index += _output_offset(self._graph.nodes[node_name], argument, self._graph.library)
    return result[index] if isinstance(result, tuple) else Ref(result, index)

  def _evaluate(self, node: tf.compat.v1.NodeDef) -> _Result:
    inputs = [self._ref(name) for name in node.input if not name.startswith("^")]
    library = self._graph.library
    if node.op in ("Identity", "StopGradient", "PreventGradient"):
      return (inputs[0],)
    if node.op == "IdentityN":
      return tuple(inputs)
    if node.op in _CALLS or node.op in library:
      name = node.op if node.op in library else node.attr["f"].func.name
      body = function_body(library[name], inputs, library, self._pool)
      self.effects.extend(body.effects)
      return body.outputs
    if node.op in _CONDITIONS:
      branches = [
        function_body(library[node.attr[name].func.name], inputs[1:], library, self._pool)
        for name in ("then_branch", "else_branch")
      ]
      expression = self._pool.apply(node, [inputs[0], *_computed(inputs[1:])], branches)
      if any(branch.effects for branch in branches):
        self.effects.append(expression)
      return expression
    if node.op in _LOOPS:
      return self._loop(node, inputs)
    if any(attr.HasField("func") for attr in node.attr.values()):
      raise values.UnsupportedError(f"an op {node.op}, which calls functions")
    expression = self._pool.apply(node, inputs)
    if is_stateful(node.op):
      self.effects.append(expression)
    return expression

  def _loop(self, node: tf.compat.v1.NodeDef, inputs: Sequence[Ref]) -> tuple[Ref, ...]:
    library = self._graph.library
    body_def = library[node.attr["body"].func.name]
    parameters = [Ref(self._pool.parameter(), 0) for _ in inputs]
    body = function_body(body_def, parameters, library, self._pool)
    # A variable that the loop only hands on keeps its initial value.
    changes = [new != old for new, old in zip(body.outputs, parameters)]
    arguments = [p if change else i for p, i, change in zip(parameters, inputs, changes)]
    body = function_body(body_def, arguments, library, self._pool)
    condition_def = library[node.attr["cond"].func.name]
    condition = function_body(condition_def, arguments, library, self._pool)
    if condition.effects:
      raise values.UnsupportedError("effects in a loop's condition")
    own = tuple(p.expression for p, change in zip(parameters, changes) if change)
    body = body._replace(
      parameters=own, outputs=tuple(o for o, change in zip(body.outputs, changes) if change)
    )
    initial = [i for i, change in zip(inputs, changes) if change]
    fixed = [i for i, change in zip(inputs, changes) if not change]
    expression = self._pool.apply(
      node, [*initial, *_computed(fixed)], [condition._replace(parameters=own), body]
    )
    if body.effects:
      self.effects.append(expression)
    positions = iter(range(len(initial)))
    return tuple(
      Ref(expression, next(positions)) if change else i for i, change in zip(inputs, changes)
    )


def function_body(function: Any, arguments: Sequence[Ref], library: _Functions, pool: Pool) -> Body:
  """Applies a FunctionDef to arguments."""
  names = [argument.name for argument in function.signature.input_arg]
  graph = _Graph(function.node_def, dict(zip(names, arguments)), library)
  evaluator = _Evaluator(graph, pool)
  outputs = evaluator.run([function.ret[o.name] for o in function.signature.output_arg])
  evaluator.run_for_effect(list(function.control_ret.values()))
  return Body((), outputs, tuple(dict.fromkeys(evaluator.effects)))


def graph_body(
  graph_def: tf.compat.v1.GraphDef, arguments: Mapping[str, Ref], results: Sequence[str], pool: Pool
) -> Body:
  """Applies a GraphDef to arguments.

  Args:
    graph_def: The graph.
    arguments: Maps the name of a node to the value in its place.
    results: The tensors to compute.
    pool: Makes the expressions.

  Returns:
    The results, and the expressions that must run beside them.

  Raises:
    UnsupportedError: If the graph has an op that cannot be taken apart.
  """
  library = {function.signature.name: function for function in graph_def.library.function}
  evaluator = _Evaluator(_Graph(graph_def.node, arguments, library), pool)
  outputs = evaluator.run(results)
  return Body((), outputs, tuple(dict.fromkeys(evaluator.effects)))


def walk(
  refs: Iterable[Ref], stop: Callable[[Expression], bool] = lambda expression: False
) -> list[Expression]:
  """Lists all expressions on which these depend, also within branches and loops, in their order.

  Args:
    refs: The outputs to begin with.
    stop: Marks expressions whose inputs are left out; they are in the result themselves.

  Returns:
    Expressions by their order.
  """
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


def frontier(refs: Iterable[Ref], wanted: Callable[[Expression], bool]) -> list[Ref]:
  """Lists the largest parts of some values that are `wanted`, in order.

  Args:
    refs: The values.
    wanted: A function of an expression.

  Returns:
    The outputs of wanted expressions that another expression uses, or that are among `refs`.
  """
  refs = list(refs)
  used = list(refs)
  for expression in walk(refs, stop=wanted):
    if not wanted(expression):
      used.extend(expression.inputs)
      for body in expression.bodies:
        used.extend(body.outputs)
  return sorted(
    {ref for ref in used if wanted(ref.expression)}, key=lambda r: (r.expression.order, r.index)
  )


def _is_constant(ref: Ref, value: int) -> bool:
  node = ref.expression.node
  return (
    node is not None and node.op == "Const" and tf.make_ndarray(node.attr["value"].tensor) == value
  )


def is_append(result: Ref, rows: Ref, row: Ref) -> bool:
  """Tells whether result = concat([rows, [row]], axis=0)."""
  concat = result.expression
  if concat.op != "ConcatV2" or len(concat.inputs) != 3 or concat.inputs[0] != rows:
    return False
  last, axis = concat.inputs[1:]
  pack = last.expression
  is_one_row = pack.op == "Pack" and pack.inputs == (row,) and pack.node.attr["axis"].i == 0
  return is_one_row and _is_constant(axis, 0)
