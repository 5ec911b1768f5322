"""What clients read from files, kept in memory from round to round."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import enum
import functools
import itertools
import math
from typing import NamedTuple
import weakref

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import calls
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import sessions
from tff_superquantile.engine.cohort.graphs import walks

# The number of clients whose files are read in one call; these are in memory twice.
_CLIENTS_A_CALL = 64
# Larger values of a client gain little if all clients are computed at once, and take memory. At
# once a linear model takes 0.43 of the CPU time with 61 kB a client (100 clients), 0.57 with 245,
# 0.79 with 490, 0.88 with 980.
_MAX_BYTES_OF_ROW = 2**19
# The shapes of so many elements are compared, as each may be a dimension that is not known.
_MAX_BYTES_OF_SHAPES = 2**13


class Form(enum.Enum):
  """How a cohort's values are given to its trace."""

  APART = enum.auto()
  ROWS = enum.auto()
  SAME = enum.auto()


class Read(NamedTuple):
  """One value that all clients of a cohort have read: the array of each client."""

  ref: expressions.Ref
  spec: tf.TensorSpec
  arrays: Sequence[np.ndarray]

  def form(self) -> Form:
    """Tells whether the values can be rows, or are the same: shapes of elements may be."""
    if len({array.shape for array in self.arrays}) != 1:
      return Form.APART
    first, *others = self.arrays
    if first.nbytes > _MAX_BYTES_OF_ROW:
      return Form.APART
    may_be_shapes = others and first.dtype == np.int32 and first.nbytes <= _MAX_BYTES_OF_SHAPES
    if may_be_shapes and all(np.array_equal(first, array) for array in others):
      return Form.SAME
    return Form.ROWS

  def parts(self, form: Form) -> tuple[np.ndarray, ...]:
    """Returns the values as rows, [n, ...], or as that of all clients.

    Or one client after the other, where each client's begin (int64 [n + 1]), and their shapes.
    """
    if form is not Form.APART:
      return (np.stack(self.arrays) if form is Form.ROWS else self.arrays[0],)
    flat = [np.zeros(0, self.spec.dtype.as_numpy_dtype), *(array.ravel() for array in self.arrays)]
    shapes = np.array([array.shape for array in self.arrays], np.int32)
    ends = np.cumsum([part.size for part in flat])
    return np.concatenate(flat), ends, shapes.reshape(len(self.arrays), self.spec.shape.rank)

  def specs(self, form: Form) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of `parts`."""
    rank, dtype = self.spec.shape.rank, self.spec.dtype
    if form is not Form.APART:
      clients = [None] if form is Form.ROWS else []
      return (tf.TensorSpec([*clients, *self.spec.shape], dtype),)
    lengths = tf.TensorSpec([None, rank], tf.int32)
    return tf.TensorSpec([None], dtype), tf.TensorSpec([None], tf.int64), lengths


# What says from where a client's values are read.
_Names = tuple[bytes | data_sets.Source, ...]


class Reader:
  """Reads the files and data sets of clients."""

  def __init__(
    self, refs: Sequence[expressions.Ref], origins: Mapping[int, values.Origin], parallel: int
  ):
    """Initializes a reader of `refs`, which reads parts of the clients in `parallel` threads.

    `origins` says from where clients read, by the positions among the arguments.
    """
    self.refs = refs
    self.positions = list(origins)
    self._dtypes = [origin.dtype for origin in origins.values()]
    self._parallel = parallel
    self.keys = [(ref.expression.digest, ref.index) for ref in refs]

    groups = walks.by_looks(refs)

    def read(*names: tf.Tensor) -> list[tf.Tensor]:
      by_name = {frozenset([o.name]): name for o, name in zip(origins.values(), names)}
      tensors: dict[expressions.Ref, tf.Tensor] = {}
      for group in groups:
        # Other groups are looks of other components, which get copies of their own.
        roots = [e for e in walks.walk(group) if e.op == "root"]
        known = {
          expressions.Ref(e, 0): data_sets.begin(by_name[e.roots]) if e.reads else by_name[e.roots]
          for e in roots
        }
        tensors.update(zip(group, emission.Emitter(known).emit(group)))
      return [tensors[ref] for ref in refs]

    def read_all(*names: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
      flat = [
        tf.TensorArray(spec.dtype, 0, True, infer_shape=False, element_shape=[None])
        for spec in self.specs
      ]
      shapes = [
        tf.TensorArray(tf.int32, 0, True, element_shape=[spec.shape.rank]) for spec in self.specs
      ]

      def step(
        i: tf.Tensor, flat: list[tf.TensorArray], shapes: list[tf.TensorArray]
      ) -> tuple[tf.Tensor, list[tf.TensorArray], list[tf.TensorArray]]:
        own = read(*(name[i] for name in names))
        flat = [array.write(i, tf.reshape(value, [-1])) for array, value in zip(flat, own)]
        shapes = [array.write(i, tf.shape(value)) for array, value in zip(shapes, own)]
        return i + 1, flat, shapes

      num_clients = tf.shape(names[0])[0]
      _, flat, shapes = tf.while_loop(lambda i, *_: i < num_clients, step, (0, flat, shapes))
      return [array.concat() for array in flat], [array.stack() for array in shapes]

    with tf.Graph().as_default():
      of_client = read(*(tf.compat.v1.placeholder(tf.string, []) for _ in self._dtypes))
    self.specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in of_client]
    with tf.Graph().as_default() as graph:
      names = [tf.compat.v1.placeholder(tf.string, [None]) for _ in self._dtypes]
      flat, shapes = read_all(*names)
    # A session need not rewrite the functions of data sets, which takes longer than most of them.
    fetched = [tensor.name for tensor in (*flat, *shapes)]
    self._read_all = sessions.Sessions(graph, [tensor.name for tensor in names], fetched, "")
    self._repeats = any("Repeat" in node.op for node in walks.nodes_of(walks.walk(refs)))

  def __call__(self, clients: Sequence[_Names]) -> Iterator[list[np.ndarray]]:
    """Yields the values of each client, in the order of `refs`, as parts of arrays of several."""
    size = max(1, min(_CLIENTS_A_CALL, math.ceil(len(clients) / self._parallel)))
    parts = [clients[first : first + size] for first in range(0, len(clients), size)]
    tasks = [functools.partial(self._read_part, part) for part in parts]
    of_parts = calls.results(tasks, self._parallel)
    yield from itertools.chain.from_iterable(of_parts)

  def _read_part(self, clients: Sequence[_Names]) -> list[list[np.ndarray]]:
    names = [
      np.array(
        [each.serialized(self._repeats) for each in column] if dtype == tf.variant else column,
        np.object_,
      )
      for column, dtype in zip(zip(*clients), self._dtypes)
    ]
    results = self._read_all(*names)
    of_refs = []
    for one_flat, all_shapes in zip(results[: len(self.refs)], results[len(self.refs) :]):
      ends = np.cumsum(np.prod(all_shapes, axis=1, dtype=np.int64))
      parts = np.split(one_flat, ends[:-1])
      of_refs.append([part.reshape(s) for part, s in zip(parts, all_shapes)])
    return list(map(list, zip(*of_refs)))


def _values_read(
  reader: Reader, clients: Sequence[Mapping[tuple[bytes, int], np.ndarray]]
) -> list[Read]:
  return [
    Read(ref, spec, [client[key] for client in clients])
    for ref, spec, key in zip(reader.refs, reader.specs, reader.keys)
  ]


class Store:
  """Keeps what was read, up to a number of bytes; what was not used for longest goes first."""

  def __init__(self, max_bytes: int):
    self._max_bytes = max_bytes
    self._bytes = 0
    # Of each client, by its names and their version, and then by the keys of a reader.
    self._clients: collections.OrderedDict[tuple, dict[tuple[bytes, int], np.ndarray]]
    self._clients = collections.OrderedDict()
    # The keys of clients with data sets that are gone, which may be at any time.
    self._gone: collections.deque[tuple] = collections.deque()

  def _kept(self, name: _Names) -> dict[tuple[bytes, int], np.ndarray]:
    """Returns what is kept of a client, from now on the one that was used last."""
    sources = [part for part in name if isinstance(part, data_sets.Source)]
    # What was read of older versions of the files that data sets read is not used again.
    version = (name, *(source.version() for source in sources))
    if version not in self._clients:
      self._clients[version] = {}
      for source in sources:
        weakref.finalize(source.data_set, self._gone.append, version)
    self._clients.move_to_end(version)
    return self._clients[version]

  def _forget(self, values_read: Mapping[tuple[bytes, int], np.ndarray]) -> None:
    self._bytes -= sum(value.nbytes for value in values_read.values())

  def read(self, reader: Reader, arrays: Sequence[np.ndarray]) -> list[Read]:
    """Returns what a cohort has read, of the arguments of the computation."""
    while self._gone:
      self._forget(self._clients.pop(self._gone.popleft(), {}))
    names = list(zip(*(arrays[i].tolist() for i in reader.positions)))
    clients = {name: self._kept(name) for name in dict.fromkeys(names)}
    keys = frozenset(reader.keys)
    missing = [name for name, kept in clients.items() if not kept.keys() >= keys]
    for name, own in zip(missing, reader(missing)):
      self._forget({key: clients[name][key] for key in keys & clients[name].keys()})
      # Copies, so that one client can be forgotten and the others kept.
      clients[name].update(zip(reader.keys, map(np.copy, own)))
      self._bytes += sum(value.nbytes for value in own)
    while self._bytes > self._max_bytes:
      self._forget(self._clients.popitem(last=False)[1])
    return _values_read(reader, [clients[name] for name in names])

  def read_once(self, reader: Reader, arrays: Sequence[np.ndarray]) -> list[Read]:
    """Returns what a cohort reads for one call, in which each client has draws of its own.

    More than the store may keep is an `UnsupportedError`.
    """
    names = list(zip(*(arrays[i].tolist() for i in reader.positions)))
    clients, num_bytes = [], 0
    for own in reader(names):
      clients.append(dict(zip(reader.keys, own)))
      num_bytes += sum(value.nbytes for value in own)
      if num_bytes > self._max_bytes:
        raise errors.UnsupportedError("clients that read more than is kept in memory")
    return _values_read(reader, clients)
