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
from typing import Any

import tensorflow as tf

from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import rows
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import walks

Leaf = values.Leaf

# Clients may run ahead of the slowest by this number times the clients that compute at once.
# TensorFlow's loops end in order, so that one slow client would otherwise keep all cores waiting.
_WINDOW = 4
# Clients that read, and compute more numbers than this, are computed one by one: all at once, they
# would take more memory, and not less time.
_MAX_ROW = 2**14


class Mapper(abc.ABC):
  """Calls components in one trace; its tensors are of no use in another."""

  def __init__(self, library: components.Library):
    self._library = library
    self.component = library.component

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
    if component.is_deterministic and not any(leaf.stacked for leaf in leaves):
      return self.call(component, leaves)
    if not component.result_types:
      return []
    if any(t.is_data_set for t in component.result_types):
      return self._made(component, leaves)
    if any(not tf.TensorShape(t.shape).is_fully_defined() for t in component.result_types):
      raise errors.UnsupportedError("client values of unknown shape between computations")
    return [Leaf(tensor, True) for tensor in self._map(component, leaves, num_clients)]

  def _made(self, component: components.Component, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Returns clients' data sets, made where they are used; refuses any that would differ there."""
    found = self._library.body(component, leaves)
    if found is None or not all(t.is_data_set for t in component.result_types):
      raise errors.UnsupportedError("data sets that clients make beside other values")
    inputs, body = found
    roots = {one.root.expression for one in inputs}
    made = [expression for expression in walks.walk(body.outputs) if expression not in roots]
    if any(expression.node is None for expression in made):
      raise errors.UnsupportedError("a data set that hands on a state")
    drawn = [e.op for e in made if ops.is_stateful(e.op) and not ops.is_variant(e.op)]
    if drawn or body.effects:
      raise errors.UnsupportedError(f"data sets that depend on {drawn or 'effects'}")
    # TFF's runtime serializes data sets between computations. Some of them then have a fixed order.
    if any(e.op.startswith("Cache") or expressions.shuffles_with_seed(e) for e in made):
      raise errors.UnsupportedError("a data set that clients keep, or shuffle with a seed")
    return [Leaf(None, True, made=values.Made(ref, tuple(inputs))) for ref in body.outputs]

  @abc.abstractmethod
  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    """Does the work of `map`, except for the cases that need no mapping."""


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
    reads: Mapping[expressions.Ref, tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
    parallel: int,
    at_once: bool = True,
    are_rows: bool = False,
  ):
    """Initializes the mapper, which computes `parallel` clients at once.

    `reads` has the values that clients have read: all of them in a row, client by client; the
    positions at which each client's values begin, int64 [n + 1]; their shapes, int32 [n, rank]. If
    `at_once`, all clients are computed at once where they can: if `are_rows`, also where they read.
    """
    super().__init__(library)
    self._reads = reads
    self._parallel = parallel
    self._at_once = at_once
    self._rows = reads if are_rows else {}
    self.has_rows = False

  def _map_rows(
    self,
    component: components.Component,
    inputs: Sequence[values.Input],
    body: expressions.Body,
    num_clients: tf.Tensor,
  ) -> list[tf.Tensor]:
    """Computes a component for all clients at once, or raises `UnsupportedError`."""
    if body.effects or any(leaf.made is not None for _, leaf, _ in inputs):
      raise errors.UnsupportedError("effects of each client")
    sizes = [tf.TensorShape(leaf.shape).num_elements() for leaf in component.result_types]
    if sum(sizes) > _MAX_ROW and any(ref.expression.reads for ref in body.outputs):
      raise errors.UnsupportedError("large values of each client")
    known = {root: leaf.tensor for root, leaf, kind in inputs if not kind.is_data_set}
    stacked = {root for root, leaf, _ in inputs if leaf.stacked}
    stacked = rows.plan(body.outputs, {*stacked, *self._rows}, {*known, *self._rows})
    for ref, (flat, _, shapes) in self._rows.items():
      known[ref] = tf.reshape(flat, tf.concat([[num_clients], shapes[0]], 0))
    results = rows.RowEmitter(known, stacked, num_clients).emit_rows(body.outputs)
    self.has_rows = True
    return [
      tf.ensure_shape(result, tf.TensorShape([None]).concatenate(leaf.shape))
      for result, leaf in zip(results, component.result_types)
    ]

  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    found = self._library.body(component, leaves)
    if found is not None and self._at_once:
      with contextlib.suppress(errors.UnsupportedError, TypeError, ValueError):
        return self._map_rows(component, *found, num_clients)
    if not self._reads and not any(leaf.made is not None for leaf in leaves):
      found = None  # Its own graph is enough.
    needed: set[expressions.Expression] = set()
    if found is not None:
      effects = [expressions.Ref(effect, 0) for effect in found[1].effects]
      refs = [*found[1].outputs, *effects]
      given = {ref.expression for ref in self._reads}
      needed.update(walks.walk(refs, stop=lambda expression: expression in given))

    def call_one(client: tf.Tensor) -> list[tf.Tensor]:
      def argument(leaf: Leaf) -> tf.Tensor:
        # Rows are taken one at a time, because all of them would be in memory a second time.
        return leaf.tensor[client] if leaf.stacked else leaf.tensor

      if found is None:
        return component.call([argument(leaf) for leaf in leaves])
      inputs, body = found
      known = {
        root: data_sets.begin(argument(leaf)) if parameter.is_data_set else argument(leaf)
        for root, leaf, parameter in inputs
        if root.expression in needed
      }
      for ref, (flat, offsets, shapes) in self._reads.items():
        known[ref] = tf.reshape(flat[offsets[client] : offsets[client + 1]], shapes[client])
      results = emission.Emitter(known).emit(body.outputs, body.effects)
      return [
        tf.ensure_shape(result, leaf.shape) for result, leaf in zip(results, component.result_types)
      ]

    return _map_fn(
      call_one,
      tf.range(num_clients),
      fn_output_signature=[leaf.spec for leaf in component.result_types],
      parallel_iterations=_WINDOW * self._parallel,
    )
