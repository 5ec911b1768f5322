"""Traces functions of a cohort, and gives them what the clients have read."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import logging
from typing import Any

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import calls
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import kernels
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import walks

_LOG = logging.getLogger(__name__)


class Discovery(mapping.Mapper):
  """Finds the values that clients read from files, and computes nothing.

  It notes in a fixed order what is read, and whether a component may go over a data set several
  times, whether two components would see what one look finds, and whether clients make data sets
  for other components.
  """

  def __init__(self, library: components.Library):
    super().__init__(library)
    self.reads: list[expressions.Ref] = []
    self.looks_again = False
    self.shares_looks = False
    self.makes_data_sets = False
    self._looks: set[expressions.Expression] = set()

  def _made_data_sets(
    self, component: components.Component, leaves: Sequence[values.Leaf]
  ) -> list[values.Leaf]:
    self.makes_data_sets = True
    return super()._made_data_sets(component, leaves)

  def _taken_apart(
    self, component: components.Component, leaves: Sequence[values.Leaf]
  ) -> tuple[list[values.Input], expressions.Body]:
    if self._step is not None:  # It would look in each step.
      self.looks_again |= any(leaf.is_data_set for leaf in component.parameter_types)
    return super()._taken_apart(component, leaves)

  def call(
    self, component: components.Component, leaves: Sequence[values.Leaf]
  ) -> list[values.Leaf]:
    return [values.Leaf(tensor, False) for tensor in _nothing(component.result_types, False)]

  def _map(self, work: mapping.Work, num_clients: tf.Tensor) -> list[tf.Tensor]:
    body = work.body
    if body is None:
      assert work.component is not None
      self.looks_again |= any(leaf.is_data_set for leaf in work.component.parameter_types)
    else:
      self.looks_again |= body.looks_again
      effects = [expressions.Ref(effect, 0) for effect in body.effects]
      read = walks.frontier([*body.outputs, *effects], self._library.is_read)
      if work.component is None:  # Its looks are others in each trace.
        read = [ref for ref in read if ref.expression.is_pure]
      self.reads += [ref for ref in read if ref not in self.reads]
      looks = {e for e in walks.walk(read) if e.op in ops.READS}
      self.shares_looks |= not looks.isdisjoint(self._looks)
      self._looks |= looks
    return _nothing(work.types, True)


# Said once, for the first computation that gains little.
_HINT = (
  "The engine reads data sets client by client in each round, which takes about as long as in TFF's"
  " runtime, since %s. Data sets that are made once, with `seed=` in each shuffle and without"
  " Python code, are read once."
)


def _nothing(types: Sequence[values.LeafType], stacked: bool) -> list[tf.Tensor]:
  specs = (leaf._replace(stacked=stacked).spec for leaf in types)
  return [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]


class CohortFunction:
  """A function of tensors of a cohort, or of a part of it, as traced TensorFlow functions.

  It is traced for cohorts of all sizes: once for what clients have read, and once for data sets
  that give other elements, or another order, each time.
  """

  def __init__(
    self,
    function: Callable[[Sequence[tf.Tensor], mapping.Mapper], list[tf.Tensor]],
    specs: Sequence[tf.TensorSpec],
    origins: Mapping[int, values.Origin],
    library: components.Library,
    store: reading.Store,
    parallel: int,
  ):
    """Initializes a function, and finds out what its clients read.

    `function` goes from tensors and the mapper of a trace to the results; `origins` says from where
    clients read, by positions among the tensors; `store` keeps what was read. What the engine does
    not know is an `UnsupportedError`.
    """
    self._run = function
    self._specs = specs
    self._library = library
    self.store = store
    self._parallel = parallel
    discovery = Discovery(library)
    with tf.Graph().as_default():
      function([tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs], discovery)
    self._reader = reading.Reader(discovery.reads, origins, parallel) if discovery.reads else None
    self._draws = not all(ref.expression.is_pure for ref in discovery.reads)
    self._looks_again = discovery.looks_again
    self._makes_data_sets = discovery.makes_data_sets
    # What one look finds is what one component finds: it may be read before, for one call.
    self._why_not_before = ""
    if discovery.looks_again or discovery.shares_looks:
      self._why_not_before = "clients go over a data set several times, each time in another order"
    self._functions: dict[tuple[tuple[reading.Form, ...], bool], tuple] = {}

  def __call__(self, arrays: Sequence[Any]) -> Sequence[tf.Tensor]:
    """Returns the results of arrays or tensors; strings and data sets are arrays.

    It refuses (`UnsupportedError`) data sets that clients make of others that they see in several
    orders: TFF's runtime serializes what they make in between, which changes the orders.
    """
    sources = data_sets.sources_of(arrays)
    if self._makes_data_sets and any(not s.is_fixed or s.is_shuffled for s in sources):
      raise errors.UnsupportedError("data sets that clients make of others in changing orders")
    # A second look sees another order of what is shuffled (which is known once `is_fixed` is).
    is_live = (
      self._draws
      or not all(source.is_fixed for source in sources)
      or (self._looks_again and any(source.is_shuffled for source in sources))
    )
    reads: list[reading.Read] = []
    if self._reader is not None and not is_live:
      reads = self.store.read(self._reader, arrays)
    elif sources or self._reader is not None:
      reads = self._read_once(arrays, sources)
    forms = tuple(read.form() for read in reads)
    if reading.Form.APART in forms:
      forms = (reading.Form.APART,) * len(reads)
    constants = [tuple(map(tf.constant, r.parts(form))) for r, form in zip(reads, forms)]

    def compute(at_once: bool) -> Sequence[tf.Tensor]:
      function, turns, _ = self._function(reads, forms, at_once)
      # Data sets that have been read need not be handed over.
      tensors = [data_sets.as_tensor(a, _is_used(t)) for a, t in zip(arrays, function.inputs)]

      def run() -> Sequence[tf.Tensor]:
        with turns:
          return function(tensors, constants)

      return calls.call(run)

    try:
      return compute(at_once=True)
    except tf.errors.OpError:
      if not self._function(reads, forms, at_once=True)[-1]:
        raise
      return compute(at_once=False)  # Only that knows what each client's branches need.

  def _read_once(
    self,
    arrays: Sequence[np.ndarray],
    sources: Sequence[data_sets.Source],
  ) -> list[reading.Read]:
    """Returns what the clients read for this call alone; nothing if they are to read themselves.

    Only what reading leaves as it is, and may thus be read again after a failure, is read here.
    """
    why = self._why_not_before
    if self._reader is None:
      why = why or "no part of what they compute is known to be of their data sets alone"
    elif not all(source.may_be_read_again for source in sources):
      why = why or "a data set calls Python, or has a state or an op of which nothing is known"
    elif not why:
      try:
        return self.store.read_once(self._reader, arrays)
      except (tf.errors.OpError, errors.UnsupportedError) as error:
        # A client may need less than all elements, which are endless, wrong or too many.
        self._why_not_before = why = errors.sentence(error)
    errors.warn_once(_LOG, _HINT, why)
    return []

  def _function(
    self, reads: Sequence[reading.Read], forms: tuple[reading.Form, ...], at_once: bool
  ) -> tuple[Any, contextlib.AbstractContextManager, bool]:
    """Returns the function of values that were read, or of data sets, and the turns of its threads.

    The last value tells whether it computes any component for all clients `at_once`.
    """
    key = forms, at_once
    if key not in self._functions:
      mappers = []

      def run(tensors: Sequence[tf.Tensor], constants: Sequence[tuple]) -> list[tf.Tensor]:
        by_ref = {r.ref: (form, parts) for r, form, parts in zip(reads, forms, constants)}
        own = mapping.Sequential(self._library, by_ref, self._parallel, at_once)
        mappers.append(own)
        return self._run(tensors, own)

      signature = (list(self._specs), [r.specs(form) for r, form in zip(reads, forms)])
      function = tf.function(run, input_signature=signature, autograph=False)
      traced = function.get_concrete_function()
      turns = kernels.turns(ops.nodes_of(traced.graph.as_graph_def()))
      self._functions[key] = traced, turns, any(mapper.has_rows for mapper in mappers)
    return self._functions[key]


def _is_used(tensor: tf.Tensor) -> bool:
  return any(consumer.type != "Shape" for consumer in tensor.consumers())
