"""Turns TensorFlow graphs into expressions, with all function calls inlined.

A component's graph hides its work in functions: a branch of a condition may call the function that
reads the file. What is promised, as far as no `UnsupportedError` says that it cannot be:

Effects: An op with an effect (`ops.has_effect`, such as an assertion, a print, a step of an
iterator, but no data set whose making changes nothing) is in a body's `effects` if TensorFlow would
run it: a result needs it by a data or
control input, a called function runs it, or the initializer does. A condition or loop with effects
in it is one effect. What nobody runs is dropped. An expression gets its number after all on which
it depends, by control inputs too; apart from that in the order of the graph's nodes, which is the
program's. Who emits by numbers repeats this order. A loop's condition may have no effects.

Draws: An op that draws is an expression of its own each time its function is called, never the
same as an equal one. It is no effect, so it may be dropped. What a branch or loop uses of a draw,
or of a look into a data set, before it is an input of it: drawn once. What is drawn within a
loop's body is drawn in each step.

Variables: They begin without values in each call of `graph_body`, and get them from the
initializer. They are values from then on (`variables`), so nothing of them is left afterwards.
Branches begin with the same values, and what one of them changes is a result of the condition.
Loops hand the values of all variables on. A variable that comes from outside of the graph is
refused.

Shapes: They do not matter here. An expression is for all shapes, and says nothing of them but what
its node says. Elements of data sets may be of several shapes, if their rank is known.

Aliasing: The graph is read and not changed. Results may be the arguments themselves. Expressions
are values without a place in memory. Equal ones of one pool are one object, also those of several
components; one with a state of its own (a draw, an effect) equals no other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import elements
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import variables
from tff_superquantile.engine.cohort.graphs import walks

Body = expressions.Body
Expression = expressions.Expression
Pool = expressions.Pool
Ref = expressions.Ref


class _Graph:
  """Holds a GraphDef or a FunctionDef, which name their tensors in different ways."""

  def __init__(
    self,
    nodes: Iterable[tf.compat.v1.NodeDef],
    arguments: Mapping[str, Ref],
    library: ops.Functions,
  ):
    self.nodes = {node.name: node for node in nodes}
    self.arguments = arguments
    self.library = library

  @classmethod
  def of(cls, graph_def: tf.compat.v1.GraphDef, arguments: Mapping[str, Ref]) -> "_Graph":
    """Returns a GraphDef with values in the place of some nodes."""
    return cls(graph_def.node, arguments, ops.functions_by_name(graph_def))

  def parse(self, name: str) -> tuple[str, str | None, int]:
    """Splits a tensor's name into (node, output argument or None, index)."""
    node, *parts = name.split(":")
    return node, parts[0] if len(parts) == 2 else None, int(parts[-1]) if parts else 0


def _computed(refs: Sequence[Ref]) -> list[Ref]:
  """Returns the values that are neither roots nor parameters, which bodies may not use."""
  return [ref for ref in refs if ref.expression.node is not None]


_Result: TypeAlias = Expression | tuple[Ref, ...]
# The next values of what a loop hands on, and effects.
Step: TypeAlias = tuple[Sequence[Ref], Sequence[Expression]]


class _Evaluator:
  """Turns one graph into expressions."""

  def __init__(self, graph: _Graph, pool: Pool, state: variables.State):
    self._graph = graph
    self._pool = pool
    self._state = state
    # Maps a node's name to the Refs of its outputs, or to its expression.
    self._results: dict[str, _Result] = {}
    self.effects: list[Expression] = []

  def run(self, names: Sequence[str]) -> tuple[Ref, ...]:
    """Returns the values of some tensors, and adds the nodes that must run first to `effects`."""
    self.run_for_effect([self._graph.parse(name)[0] for name in names])
    return tuple(self._ref(name) for name in names)

  def run_for_effect(self, names: Sequence[str]) -> None:
    """Evaluates nodes, and adds those with effects to `effects`."""
    for name in self._order(names):
      self._results[name] = self._evaluate(self._graph.nodes[name])

  def _order(self, names: Sequence[str]) -> list[str]:
    """Returns the nodes that these need: by dependence, and otherwise in the program's order."""
    needed: set[str] = set()
    unseen = list(names)
    while unseen:
      name = unseen.pop()
      if name in needed or name in self._results or name in self._graph.arguments:
        continue
      needed.add(name)
      unseen.extend(self._inputs(name))
    ordered, seen = [], set()
    stack = [(name, False) for name in reversed(self._graph.nodes) if name in needed]
    while stack:  # Without recursion, as graphs are deep.
      name, is_ready = stack.pop()
      if is_ready:
        ordered.append(name)
      elif name not in seen:
        seen.add(name)
        stack.append((name, True))
        stack.extend((source, False) for source in self._inputs(name) if source in needed)
    return ordered

  def _inputs(self, name: str) -> list[str]:
    """Lists the nodes on which a node depends."""
    inputs = self._graph.nodes[name].input
    return [self._graph.parse(tensor.lstrip("^"))[0] for tensor in inputs]

  def _ref(self, name: str) -> Ref:
    node_name, argument, index = self._graph.parse(name)
    if node_name in self._graph.arguments:
      return self._graph.arguments[node_name]
    result = self._results[node_name]
    index += ops.output_offset(self._graph.nodes[node_name], argument, self._graph.library)
    return result[index] if isinstance(result, tuple) else Ref(result, index)

  def _evaluate(self, node: tf.compat.v1.NodeDef) -> _Result:
    inputs = [self._ref(name) for name in node.input if not name.startswith("^")]
    library, state = self._graph.library, self._state
    if node.op in ("Identity", "StopGradient", "PreventGradient"):
      return (inputs[0],)
    if node.op == "IdentityN":
      return tuple(inputs)
    if node.op in ops.CALLS or node.op in library:
      name = node.op if node.op in library else node.attr["f"].func.name
      body = function_body(library[name], inputs, library, self._pool, state)
      self.effects.extend(body.effects)
      return body.outputs
    if node.op in ops.CONDITIONS:
      return self._condition(node, inputs)
    if node.op in ops.LOOPS:
      return self._loop(node, inputs)
    if node.op == "ReduceDataset":
      return self._reduce(node, inputs)
    if node.op == "ScanDataset" and any(state.is_handle(ref) for ref in inputs):
      symbol = Ref(self._pool.parameter(), 0)
      state.scans[symbol] = variables.as_scan(node, inputs, library)
      return (symbol,)
    if node.op in variables.OPS:
      return state.apply(node, inputs, self._pool)
    if any(state.is_handle(ref) or ref in state.scans for ref in inputs):
      raise errors.UnsupportedError(f"an op {node.op} on a variable")
    functions = ops.functions_of(node, library)
    if functions and "Dataset" not in node.op:
      raise errors.UnsupportedError(f"an op {node.op}, which calls functions")
    expression = self._pool.apply(node, inputs, functions=functions)
    if node.op in ops.READS:
      state.looks += 2 if state.num_loops else 1
    if ops.has_effect(node.op) and not (expression.changes_nothing and ops.is_variant(node.op)):
      self.effects.append(expression)
    return expression

  def _condition(self, node: tf.compat.v1.NodeDef, inputs: Sequence[Ref]) -> _Result:
    library, before = self._graph.library, dict(self._state.held)
    branches, after = [], []
    since = len(self._pool)
    for name in ("then_branch", "else_branch"):
      self._state.held = dict(before)
      function = library[node.attr[name].func.name]
      branches.append(function_body(function, inputs[1:], library, self._pool, self._state))
      after.append(self._state.held)
    # The last value of a variable is one more result.
    changed = [key for key in before if any(held[key] != before[key] for held in after)]
    branches = [
      branch._replace(outputs=(*branch.outputs, *(held[key] for key in changed)))
      for branch, held in zip(branches, after)
    ]
    inputs = [ref for ref in inputs if not self._state.is_handle(ref)]
    outside = walks.used_from_outside(branches, since)
    expression = self._pool.apply(node, [inputs[0], *_computed(inputs[1:]), *outside], branches)
    first = len(branches[0].outputs) - len(changed)
    results = {key: Ref(expression, first + i) for i, key in enumerate(changed)}
    self._state.held = {**before, **results}
    if any(branch.effects for branch in branches):
      self.effects.append(expression)
    return expression

  def _reduce(self, node: tf.compat.v1.NodeDef, inputs: Sequence[Ref]) -> tuple[Ref, ...]:
    last = variables.as_scan(node, inputs, self._graph.library)

    def step(total: Sequence[Ref], element: Sequence[Ref]) -> Step:
      body = self._apply(last, total, element)
      return body.outputs, body.effects

    return self.fold(last.source, last.element_specs(), last.initial, step)

  def _apply(self, scan: variables.Scan, before: Sequence[Ref], element: Sequence[Ref]) -> Body:
    arguments = [*before, *element, *scan.captured]
    return function_body(scan.function, arguments, scan.library, self._pool, self._state)

  def fold(
    self,
    source: Ref,
    specs: Sequence[tf.TensorSpec],
    initial: Sequence[Ref],
    step: Callable[[Sequence[Ref], Sequence[Ref]], Step],
  ) -> tuple[Ref, ...]:
    """Makes a loop over a data set's elements: step(what is handed on, element) from `initial`."""
    scans: list[variables.Scan] = []
    while (scan := self._state.scans.get(source) or variables.scan_of_others(source)) is not None:
      scans.insert(0, scan)
      source, specs = scan.source, scan.element_specs()
    read, take = elements.build_graphs(tuple(specs))
    all_elements = self._inline(read, [source])
    # The position in the data set is a variable of the loop.
    first = self._pool.apply(ops.constant(0, tf.int32), [])
    begin = [Ref(first, 0), *(ref for scan in scans for ref in scan.initial), *initial]

    def run(own: Sequence[Ref]) -> tuple[list[Ref], list[Ref], list[Expression]]:
      goes_on, position, *element = self._inline(take, [own[0], *all_elements])
      after: list[Ref] = [position]
      effects: list[Expression] = []
      for scan in scans:
        before = own[len(after) : len(after) + len(scan.initial)]
        body = self._apply(scan, before, element)
        after += body.outputs[: len(before)]
        element = list(body.outputs[len(before) :])
        effects += body.effects
      total, of_step = step(own[len(after) :], element)
      return [goes_on], [*after, *total], [*effects, *of_step]

    results = self._repeat(ops.make_node("StatelessWhile"), begin, run, all_elements)
    return results[len(results) - len(initial) :]

  def _inline(self, graph: Any, arguments: Sequence[Ref]) -> tuple[Ref, ...]:
    names = dict(zip(graph.arguments, arguments))
    return _run(_Graph.of(graph.graph_def, names), graph.results, self._pool, self._state).outputs

  def _loop(self, node: tf.compat.v1.NodeDef, inputs: Sequence[Ref]) -> tuple[Ref, ...]:
    library = self._graph.library
    body_def = library[node.attr["body"].func.name]
    condition_def = library[node.attr["cond"].func.name]

    def step(own: Sequence[Ref]) -> tuple[Sequence[Ref], Sequence[Ref], Sequence[Expression]]:
      condition = function_body(condition_def, own, library, self._pool, self._state)
      if condition.effects:
        raise errors.UnsupportedError("effects in a loop's condition")
      body = function_body(body_def, own, library, self._pool, self._state)
      return condition.outputs, body.outputs, body.effects

    return self._repeat(node, inputs, step)

  def _repeat(
    self,
    node: tf.compat.v1.NodeDef,
    inputs: Sequence[Ref],
    step: Callable[[Sequence[Ref]], tuple[Sequence[Ref], Sequence[Ref], Sequence[Expression]]],
    elements_of_loop: Sequence[Ref] = (),
  ) -> tuple[Ref, ...]:
    """Makes a loop of its initial values, and returns the last ones.

    `step` takes the loop's variables to whether it goes on, their next values, and effects. Of
    `elements_of_loop`, what the loop uses is computed once, before it.
    """
    state, before, since = self._state, dict(self._state.held), len(self._pool)
    # The values of the component's own variables are variables of the loop, too.
    keys = list(before)
    initial = [*inputs, *before.values()]
    fixed = [state.is_handle(ref) for ref in initial]
    parameters = [
      ref if is_fixed else Ref(self._pool.parameter(), 0) for ref, is_fixed in zip(initial, fixed)
    ]

    def run(own: Sequence[Ref]) -> tuple[Sequence[Ref], list[Ref], Sequence[Expression]]:
      state.held = dict(zip(keys, own[len(inputs) :]))
      condition, outputs, effects = step(own[: len(inputs)])
      return condition, [*outputs, *(state.held[key] for key in keys)], effects

    state.num_loops += 1
    _, outputs, _ = run(parameters)
    # A variable that the loop only hands on keeps its initial value.
    changes = [new != old for new, old in zip(outputs, parameters)]
    arguments = [p if change else i for p, i, change in zip(parameters, initial, changes)]
    goes_on, outputs, effects = run(arguments)
    state.num_loops -= 1
    own = tuple(p.expression for p, change in zip(parameters, changes) if change)
    bodies = [
      Body(own, tuple(goes_on), ()),
      Body(own, tuple(o for o, change in zip(outputs, changes) if change), tuple(effects)),
    ]
    variable = [i for i, change in zip(initial, changes) if change]
    constant = [i for i, change in zip(initial, changes) if not change and not state.is_handle(i)]
    outside = walks.used_from_outside(bodies, since)
    refs = [ref for body in bodies for ref in body.outputs]
    used = {ref for e in walks.walk(refs) for ref in e.inputs} if elements_of_loop else set()
    outside += [ref for ref in elements_of_loop if ref in used]
    expression = self._pool.apply(node, [*variable, *_computed(constant), *outside], bodies)
    if effects:
      self.effects.append(expression)
    positions = iter(range(len(variable)))
    results = [
      Ref(expression, next(positions)) if change else i for i, change in zip(initial, changes)
    ]
    state.held = dict(zip(keys, results[len(inputs) :]))
    return tuple(results[: len(inputs)])


def function_body(
  function: Any,
  arguments: Sequence[Ref],
  library: ops.Functions,
  pool: Pool,
  state: variables.State,
) -> Body:
  """Applies a FunctionDef to arguments and the state of the variables, which it changes."""
  names = [argument.name for argument in function.signature.input_arg]
  graph = _Graph(function.node_def, dict(zip(names, arguments)), library)
  evaluator = _Evaluator(graph, pool, state)
  outputs = evaluator.run([function.ret[o.name] for o in function.signature.output_arg])
  evaluator.run_for_effect(list(function.control_ret.values()))
  return Body((), outputs, tuple(dict.fromkeys(evaluator.effects)))


def graph_body(
  graph_def: tf.compat.v1.GraphDef,
  arguments: Mapping[str, Ref],
  results: Sequence[str],
  pool: Pool,
  initialize_op: str = "",
) -> Body:
  """Applies a GraphDef to arguments, with variables of its own.

  Each argument stands in the place of the node of its name, which is not looked at. As in a
  session, only what the `results` (tensors) need is run, and before it `initialize_op` ("" for
  none), which gives variables their values and whose effects come first. An op that cannot be taken
  apart is an `UnsupportedError`.
  """
  graph, state = _Graph.of(graph_def, arguments), variables.State()
  effects: tuple[Expression, ...] = ()
  if initialize_op:
    # An initial value that is drawn, and replaced before it is read, is not needed.
    initializer = _Evaluator(graph, pool, state)
    initializer.run_for_effect([initialize_op])
    effects = tuple(initializer.effects)
  body = _run(graph, results, pool, state)
  return body._replace(
    effects=tuple(dict.fromkeys((*effects, *body.effects))),
    looks_again=state.looks > 1,
  )


def _run(graph: _Graph, results: Sequence[str], pool: Pool, state: variables.State) -> Body:
  evaluator = _Evaluator(graph, pool, state)
  outputs = evaluator.run(results)
  return Body((), outputs, tuple(dict.fromkeys(evaluator.effects)))


def fold(
  source: Ref,
  specs: Sequence[tf.TensorSpec],
  initial: Sequence[Ref],
  step: Callable[[Sequence[Ref], Sequence[Ref]], Step],
  pool: Pool,
) -> Body:
  """Returns what a loop over a data set hands on at its end, as `_Evaluator.fold`."""
  evaluator = _Evaluator(_Graph((), {}, {}), pool, variables.State())
  outputs = evaluator.fold(source, specs, initial, step)
  return Body((), outputs, tuple(dict.fromkeys(evaluator.effects)))
