"""Graphs in sessions, as TFF's worker runs them: their state begins anew in each run."""

from collections.abc import Callable, Sequence
import queue
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tff_superquantile.engine.cohort.graphs import calls
from tff_superquantile.engine.cohort.graphs import kernels
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import purity

# Resources that an initializer sets anew, or that end with the step which made them. A table gets
# values once, so that in the same session they must be the same in each run.
_BEGIN_ANEW = ("Anonymous", "HashTable", "VarHandleOp", "Variable")
_TO_TABLES = ("InitializeTable", "LookupTableImport")
# Once it is empty, such a queue is as good as new, if it draws without a seed.
_QUEUES = ("FIFOQueueV2", "RandomShuffleQueueV2")


def _is_queue(node: tf.compat.v1.NodeDef) -> bool:
  seeds = [node.attr[name].i for name in ("seed", "seed2") if name in node.attr]
  return node.op in _QUEUES and not any(seeds)


def with_own_queues(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  """Returns a copy whose queues have names by which `Sessions` finds them, also in functions."""
  own = tf.compat.v1.GraphDef()
  own.CopyFrom(graph_def)
  for i, node in enumerate(filter(_is_queue, ops.nodes_of(own))):
    node.attr["shared_name"].s = f"queue_{i}".encode()
  return own


def _has_own_table(graph: tf.Graph, fed: Sequence[str]) -> bool:
  """Tells whether a HashTable gets values that may differ from run to run."""
  graph_def = graph.as_graph_def()
  fed_ops = {name.partition(":")[0] for name in fed}
  stack = [node.name for node in graph_def.node if node.op.startswith(_TO_TABLES)]
  num_initialized = sum(n.op.startswith(_TO_TABLES) for n in ops.nodes_of(graph_def))
  if len(stack) < num_initialized:
    return True  # In a function, where nobody looks.
  seen: set[str] = set()
  while stack:
    name = stack.pop()
    if name not in seen:
      seen.add(name)
      op = graph.get_operation_by_name(name)
      stack += [other.name for other in (*op.control_inputs, *(t.op for t in op.inputs))]
  return bool(seen & fed_ops)


def _config(reads: bool) -> tf.compat.v1.ConfigProto:
  config = tf.compat.v1.ConfigProto()
  if reads:  # Each time, and not once for all calls.
    config.graph_options.optimizer_options.opt_level = -1
  # It would be applied to the body of a data set's loop in every call.
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config


def _discard(idle: queue.SimpleQueue) -> None:
  while not idle.empty():
    idle.get_nowait()


class Sessions:
  """A function of one graph, which several threads may call.

  Effects: none is left. A run has a session of its own, which another run gets only if it cannot
  tell it from a new one: all its state is set anew by the initializer, or is queues that are empty
  and open.
  """

  def __init__(self, graph: tf.Graph, fed: Sequence[str], fetched: Sequence[str], initializer: str):
    """Prepares a graph, to which nothing may be added later, by the names of its tensors.

    Its queues are named by `with_own_queues`. The op `initializer`, "" for none, runs first, and
    may depend on what is fed.
    """
    nodes = list(ops.nodes_of(graph.as_graph_def()))
    makers = {n.op for n in nodes if ops.makes_resource(n.op) and not _is_queue(n)}
    queues = list(filter(_is_queue, nodes))
    self._reads = any(purity.may_read(node.op) for node in nodes)
    has_state = makers or queues or initializer
    self._shares_session = not has_state and kernels.may_be_shared(nodes)
    self._keeps_sessions = all(op.startswith(_BEGIN_ANEW) for op in makers) and not (
      any(op.startswith("HashTable") for op in makers) and _has_own_table(graph, fed)
    )
    self._graph, self._fed, self._fetched = graph, list(fed), list(fetched)
    self._initializer = initializer
    self._used: list[str] = []
    self._open_ones: weakref.WeakSet[tf.compat.v1.Session] = weakref.WeakSet()
    with graph.as_default():
      for node in queues:
        same = tf.compat.v1.GraphDef(node=[node])
        name = f"{node.name}:0"
        (handle,) = tf.graph_util.import_graph_def(same, return_elements=[name], name="same")
        size = tf.raw_ops.QueueSizeV2(handle=handle)
        is_closed = tf.raw_ops.QueueIsClosedV2(handle=handle)
        self._used.append(tf.logical_or(size > 0, is_closed).name)
    self._idle: queue.SimpleQueue[list[Callable[..., Any]]] = queue.SimpleQueue()
    # Sessions are closed at the latest when Python exits, while TensorFlow is still there.
    weakref.finalize(self, _discard, self._idle)

  def _open(self) -> list[Callable[..., Any]]:
    """Returns what to call in a new session, in order: the initializer, the graph, the queues."""
    session = tf.compat.v1.Session(graph=self._graph, config=_config(self._reads))
    self._open_ones.add(session)

    def build(**options: list[str]) -> Callable[..., Any]:
      if not options.get("target") and not options.get("fetch"):
        return lambda *fed: []
      # The public `make_callable` takes 0.15 ms more where there is something to feed.
      return session._make_callable_from_options(config_pb2.CallableOptions(**options))

    initializers = [self._initializer] if self._initializer else []
    return [
      build(feed=self._fed, target=initializers),  # Initial values may depend on what is fed.
      build(feed=self._fed, fetch=self._fetched),
      build(fetch=self._used),
    ]

  def _cancel(self) -> None:
    """Ends the runs that are under way by an error; later ones have new sessions."""
    _discard(self._idle)
    for session in list(self._open_ones):
      self._open_ones.discard(session)
      session.close()

  def __call__(self, *fed: np.ndarray) -> list[Any]:
    """Runs the graph: one array a tensor; text without dimensions comes as bytes."""
    with calls.interrupted_by(self._cancel):
      try:
        in_session = self._idle.get_nowait()
      except queue.Empty:
        in_session = self._open()
      if self._shares_session:
        self._idle.put(in_session)
      initialize, compute, used = in_session
      initialize(*fed)
      computed = compute(*fed)
      if self._keeps_sessions and not self._shares_session and not any(used()):
        self._idle.put(in_session)
    return computed
