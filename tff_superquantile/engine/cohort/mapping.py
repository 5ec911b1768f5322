"""Runs the clients' part of a computation, some clients at once.

What is promised of each component:

Effects: Those of a component happen once for each client, within a client in the program's order,
and between clients in any. One that draws or has effects is called for each client even if all
have the same arguments; one without results is not called at all. So no number is shared: clients,
components, calls of one component, and rounds each have their own draws, but for ops with seeds of
their own (`emission`).

Variables and other state: A component with variables is always taken apart, so each client and
call has them anew (`graphs.inlining`). `components` refuses other state that clients would share.

Shapes: Results at clients have one static shape without unknown dimensions, and its rows are [n,
*shape]. A component whose results have unknown ones is refused, and a client whose result is of
another shape than its type says raises TensorFlow's error. What clients read may have another
shape for each client. The number of clients is not known in the trace.

Aliasing: Leaves that are not stacked, and all that a component captures, are one tensor for all
clients. Of stacked ones each client is given its own row. What a client reads is its own part of
one tensor of all. Only pure expressions of named roots count as read, so only they are kept from
round to round: never a draw. Data sets that clients make are made again by each component that
goes over them, and refused where that could be seen.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import rows
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import inlining
from tff_superquantile.engine.cohort.graphs import kernels
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import walks

Leaf = values.Leaf

# Clients may run ahead of the slowest by this number times the clients that compute at once.
# TensorFlow's loops end in order, so that one slow client would otherwise keep all cores waiting.
_WINDOW = 4
# Clients that read, and compute more numbers than this, are computed one by one: all at once, they
# would take more memory, and hardly less time. At once a linear model of 16,000 numbers takes 0.51
# of the CPU time (100 clients of 20 examples), one of 49,000 0.63, of 100,000 0.82.
_MAX_ROW = 2**16


class Work(NamedTuple):
  """What each client computes: `body` of `inputs`, or a component of `leaves`; or both are known.

  `types` are those of the results.
  """

  types: Sequence[values.LeafType]
  inputs: Sequence[values.Input]
  body: expressions.Body | None
  component: components.Component | None = None
  leaves: Sequence[Leaf] = ()


class Mapper(abc.ABC):
  """Calls components in one trace; its tensors are of no use in another."""

  def __init__(self, library: components.Library):
    self._library = library.of_trace()
    self.component = library.component
    # What the components in a step of `fold` use, and their effects; None outside of steps.
    self._step: tuple[list[values.Input], list[expressions.Expression]] | None = None

  def call(self, component: components.Component, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Calls a component at the server, once, with all its effects; leaves are not stacked."""
    return [Leaf(r, False) for r in component.call([leaf.tensor for leaf in leaves])]

  def map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[Leaf]:
    """Calls a component once for each of the clients, int32 [], and stacks its results.

    They are not stacked if they must be the same for all clients: without draws and effects, of
    arguments that are the same. Results of unknown shape are an `UnsupportedError`.
    """
    if self._step is not None:
      inputs, part = self._taken_apart(component, leaves)
      self._step[0].extend(inputs)
      self._step[1].extend(part.effects)
      return _made(inputs, part.outputs)
    if component.is_deterministic and not any(leaf.stacked for leaf in leaves):
      return self.call(component, leaves)
    if not component.result_types:
      return []
    if any(t.is_data_set for t in component.result_types):
      return self._made_data_sets(component, leaves)
    inputs, body = self._library.body(component, leaves) or ([], None)
    work = Work(component.result_types, inputs, body, component, leaves)
    return self._stacked(work, num_clients)

  def fold(
    self,
    source: Leaf,
    specs: Sequence[tf.TensorSpec],
    zero: Sequence[Leaf],
    step: Callable[[Sequence[Leaf], Sequence[Leaf]], Sequence[Leaf]],
    types: Sequence[values.LeafType],
    num_clients: tf.Tensor,
  ) -> list[Leaf]:
    """Folds over the elements, of `specs`, of each client's sequence, from `zero`.

    `step` takes a total, of `types`, and an element to the next total.
    """
    if self._step is not None:
      raise errors.UnsupportedError("a fold over a sequence within another")
    sequence = values.LeafType(tf.variant, (), True)
    (begin, *initial), inputs = self._library.refs(
      [source._replace(maps=()), *zero], [sequence, *types]
    )

    def next_total(
      total: Sequence[expressions.Ref], element: Sequence[expressions.Ref]
    ) -> inlining.Step:
      effects: list[expressions.Expression] = []
      self._step = inputs, effects
      try:
        results = step(*(_made((), refs) for refs in (total, element)))
        refs, more = self._library.refs(results, types)
      finally:
        self._step = None
      inputs.extend(more)
      return refs, effects

    body = inlining.fold(begin, specs, initial, next_total, self._library.pool)
    return self._stacked(Work(types, inputs, body), num_clients)

  def _stacked(self, work: Work, num_clients: tf.Tensor) -> list[Leaf]:
    if any(not tf.TensorShape(t.shape).is_fully_defined() for t in work.types):
      raise errors.UnsupportedError("client values of unknown shape between computations")
    return [Leaf(tensor, True) for tensor in self._map(work, num_clients)]

  def _taken_apart(
    self, component: components.Component, leaves: Sequence[Leaf]
  ) -> tuple[list[values.Input], expressions.Body]:
    taken_apart = self._library.body(component, leaves)
    if taken_apart is None:
      raise errors.UnsupportedError("an intermediate result of clients")
    return taken_apart

  def _made_data_sets(self, component: components.Component, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Returns clients' data sets, made where they are used; refuses any that would differ there."""
    if not all(t.is_data_set for t in component.result_types):
      raise errors.UnsupportedError("data sets that clients make beside other values")
    inputs, body = self._taken_apart(component, leaves)
    roots = {entry.root.expression for entry in inputs}
    made = [expression for expression in walks.walk(body.outputs) if expression not in roots]
    if any(expression.node is None for expression in made):
      raise errors.UnsupportedError("a data set that hands on a state")
    drawn = [e.op for e in made if ops.is_stateful(e.op) and not ops.is_variant(e.op)]
    # What changes nothing may raise, wherever they are made.
    if drawn or not all(effect.changes_nothing for effect in body.effects):
      raise errors.UnsupportedError(f"data sets that depend on {drawn or 'effects'}")
    # TFF's runtime serializes data sets between computations. Some of them then have a fixed order.
    if any(e.op.startswith("Cache") or expressions.shuffles_with_seed(e) for e in made):
      raise errors.UnsupportedError("a data set that clients keep, or shuffle with a seed")
    return _made(inputs, body.outputs, body.effects)

  @abc.abstractmethod
  def _map(self, work: Work, num_clients: tf.Tensor) -> list[tf.Tensor]:
    """Computes the results of each client."""


def _made(
  inputs: Sequence[values.Input],
  refs: Sequence[expressions.Ref],
  effects: Sequence[expressions.Expression] = (),
) -> list[Leaf]:
  """Returns values that are computed, with effects, as a part of what uses them."""
  return [Leaf(None, True, made=values.Made(ref, tuple(inputs), tuple(effects))) for ref in refs]


def _map_fn(function: Callable[[Any], Any], elements: Any, **options: Any) -> Any:
  """Calls `tf.map_fn`, and restores the variable scope if the function raises.

  `tf.map_fn` sets a caching device on the variable scope, which all graphs share, and leaves it
  there if the function raises: no graph of variables could be built after that.
  """
  scope = tf.compat.v1.get_variable_scope()
  device = scope.caching_device
  try:
    return tf.map_fn(function, elements, **options)
  finally:
    scope.set_caching_device(device)


class Sequential(Mapper):
  """Maps the clients in order, some at once; the values that they read may have any shape.

  A component is computed for all of them at once if `rows` can, and what they read has one shape.
  """

  def __init__(
    self,
    library: components.Library,
    reads: Mapping[expressions.Ref, tuple[reading.Form, Sequence[tf.Tensor]]],
    parallel: int,
    at_once: bool = True,
  ):
    """Initializes the mapper, which computes `parallel` clients at once.

    `reads` has the form of what clients have read, and its parts. If `at_once`, clients are
    computed at once where they can, and where they read if nothing is apart.
    """
    super().__init__(library)
    self._reads = reads
    self._parallel = parallel
    self._at_once = at_once
    self.has_rows = False

  def _map_rows(self, work: Work, num_clients: tf.Tensor) -> list[tf.Tensor]:
    """Computes results for all clients at once, or raises `UnsupportedError`."""
    types, inputs, body = work[:3]
    if body is None:
      raise errors.UnsupportedError("a component that is not taken apart")
    if body.effects or any(leaf.made is not None for _, leaf, _ in inputs):
      raise errors.UnsupportedError("effects of each client")
    sizes = [tf.TensorShape(leaf.shape).num_elements() for leaf in types]
    if sum(sizes) > _MAX_ROW and any(ref.expression.reads for ref in body.outputs):
      raise errors.UnsupportedError("large values of each client")
    known = {root: leaf.tensor for root, leaf, kind in inputs if not kind.is_data_set}
    stacked = {root for root, leaf, _ in inputs if leaf.stacked}
    for ref, (form, parts) in self._reads.items():
      if form is not reading.Form.APART:
        known[ref] = parts[0]
      if form is reading.Form.ROWS:
        stacked.add(ref)
    stacked = rows.plan(body.outputs, stacked, known)
    results = rows.RowEmitter(known, stacked, num_clients).emit_rows(body.outputs)
    self.has_rows = True
    return [
      tf.ensure_shape(result, tf.TensorShape([None]).concatenate(leaf.shape))
      for result, leaf in zip(results, types)
    ]

  def _map(self, work: Work, num_clients: tf.Tensor) -> list[tf.Tensor]:
    if self._at_once:
      with contextlib.suppress(errors.UnsupportedError):  # All else would be a slip in `rows`.
        return self._map_rows(work, num_clients)
    types, inputs, body, component, leaves = work
    if component and not self._reads and not any(leaf.made is not None for leaf in leaves):
      body = None  # Its own graph is enough.
    needed: set[expressions.Expression] = set()
    if body is not None:
      refs = [*body.outputs, *(expressions.Ref(effect, 0) for effect in body.effects)]
      read = {ref.expression for ref in self._reads}
      needed.update(walks.walk(refs, stop=lambda expression: expression in read))
      nodes = list(walks.nodes_of(needed))
    else:
      assert component is not None
      nodes = list(ops.nodes_of(component.graph_def))

    def call_one(client: tf.Tensor) -> list[tf.Tensor]:
      def argument(leaf: Leaf) -> tf.Tensor:
        # Rows are taken one at a time, because all of them would be in memory a second time.
        return leaf.tensor[client] if leaf.stacked else leaf.tensor

      if body is None:
        assert component is not None
        return component.call([argument(leaf) for leaf in leaves])
      known = {
        root: data_sets.begin(argument(leaf)) if parameter.is_data_set else argument(leaf)
        for root, leaf, parameter in inputs
        if root.expression in needed
      }
      for ref, (form, parts) in self._reads.items():
        if form is reading.Form.APART:
          flat, offsets, shapes = parts
          own = flat[offsets[client] : offsets[client + 1]]
          known[ref] = tf.reshape(own, shapes[client])
        else:
          known[ref] = parts[0] if form is reading.Form.SAME else parts[0][client]
      results = emission.Emitter(known).emit(body.outputs, body.effects)
      return [tf.ensure_shape(result, leaf.shape) for result, leaf in zip(results, types)]

    return _map_fn(
      call_one,
      tf.range(num_clients),
      fn_output_signature=[leaf.spec for leaf in types],
      parallel_iterations=_WINDOW * self._parallel if kernels.may_be_shared(nodes) else 1,
    )
