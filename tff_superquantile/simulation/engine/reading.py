"""What clients read from files, kept in memory from round to round."""

import collections
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures
import itertools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_superquantile.simulation.engine import emission
from tff_superquantile.simulation.engine import values
from tff_superquantile.simulation.engine.graphs import data_sets
from tff_superquantile.simulation.engine.graphs import expressions
from tff_superquantile.simulation.engine.graphs import walks

# Compiling takes about a second, which smaller cohorts do not gain.
_MIN_COMPILED_CLIENTS = 16
# The number of clients whose files are read in one call; these are in memory twice.
_CLIENTS_A_CALL = 64


class Key(NamedTuple):
  """What is compiled: a loop over so many clients, who have all read values of these shapes."""

  capacity: int
  shapes: tuple[tuple[int, ...], ...]


# Nothing has been read before: data sets give other elements, or another order, each time.
LIVE = Key(0, ())


class Read(NamedTuple):
  """One value that all clients of a cohort have read.

  Attributes:
    ref: What it is in the components' expressions.
    flat: All values, one client after the other.
    shapes: int32 [n, rank], what each client's were.
  """

  ref: expressions.Ref
  flat: np.ndarray
  shapes: np.ndarray

  def places(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each client's values begin, int64 [n + 1], and their shapes."""
    sizes = np.prod(self.shapes, axis=1, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), self.shapes

  def parts(self, key: Key | None) -> tuple[np.ndarray, ...]:
    """Returns the arguments of a key's function: the values, and without a key their places."""
    return (self.flat,) if key is not None else (self.flat, *self.places())

  def specs(self, key: Key | None) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of `parts`."""
    if key is not None:
      return (tf.TensorSpec(self.flat.shape, self.flat.dtype),)
    return (
      tf.TensorSpec([None], self.flat.dtype),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None, self.shapes.shape[1]], tf.int32),
    )

  def without_padding(self, num_clients: int) -> "Read":
    """Returns what the first clients have read."""
    shapes = self.shapes[:num_clients]
    size = np.prod(shapes, axis=1, dtype=np.int64).sum()
    return Read(self.ref, self.flat[:size], shapes)


# What says from where a client's values are read.
_Names = tuple[bytes | data_sets.Source, ...]


class Reader:
  """Reads the files and data sets of clients."""

  def __init__(
    self, refs: Sequence[expressions.Ref], origins: Mapping[int, values.Origin], parallel: int
  ):
    """Initializes a reader.

    Args:
      refs: What is read.
      origins: What says from where, by the positions among the arguments.
      parallel: How many data sets are set up at once.
    """
    self.refs = refs
    self.positions = list(origins)
    self._dtypes = [origin.dtype for origin in origins.values()]
    self._parallel = parallel if tf.variant in self._dtypes else 1
    self.keys = [(ref.expression.digest, ref.index) for ref in refs]

    groups = walks.by_looks(refs)

    def read(*names: tf.Tensor) -> list[tf.Tensor]:
      by_name = {frozenset([o.name]): name for o, name in zip(origins.values(), names)}
      found: dict[expressions.Ref, emission.Value] = {}
      for group in groups:
        # Other groups are looks of other components, which get copies of their own.
        roots = [e for e in walks.walk(group) if e.op == "root"]
        given = [data_sets.begin(by_name[e.roots]) if e.reads else by_name[e.roots] for e in roots]
        known = {expressions.Ref(e, 0): emission.Value(g, None) for e, g in zip(roots, given)}
        found.update(zip(group, emission.Emitter(known).emit(group)))
      return [found[ref].as_tensor() for ref in refs]

    def read_all(*names: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
      flat = [
        tf.TensorArray(spec.dtype, 0, True, infer_shape=False, element_shape=[None])
        for spec in self._specs
      ]
      shapes = [
        tf.TensorArray(tf.int32, 0, True, element_shape=[spec.shape.rank]) for spec in self._specs
      ]

      def step(
        i: tf.Tensor, flat: list[tf.TensorArray], shapes: list[tf.TensorArray]
      ) -> tuple[tf.Tensor, list[tf.TensorArray], list[tf.TensorArray]]:
        found = read(*(name[i] for name in names))
        flat = [array.write(i, tf.reshape(value, [-1])) for array, value in zip(flat, found)]
        shapes = [array.write(i, tf.shape(value)) for array, value in zip(shapes, found)]
        return i + 1, flat, shapes

      num_clients = tf.shape(names[0])[0]
      _, flat, shapes = tf.while_loop(lambda i, *_: i < num_clients, step, (0, flat, shapes))
      return [array.concat() for array in flat], [array.stack() for array in shapes]

    one = tf.function(read, autograph=False).get_concrete_function(
      *[tf.TensorSpec([], tf.string) for _ in self._dtypes]
    )
    self._specs = one.structured_outputs
    signature = [tf.TensorSpec([None], tf.string) for _ in self._dtypes]
    function = tf.function(read_all, input_signature=signature, autograph=False)
    self._read_all = function.get_concrete_function()

  def specs(self) -> list[tf.TensorSpec]:
    """Returns the specs of the values that a client reads."""
    return self._specs

  def __call__(self, clients: Sequence[_Names]) -> Iterator[list[np.ndarray]]:
    """Yields the values of each client, in the order of `refs`."""
    size = max(1, min(_CLIENTS_A_CALL, math.ceil(len(clients) / self._parallel)))
    parts = [clients[first : first + size] for first in range(0, len(clients), size)]
    with futures.ThreadPoolExecutor(self._parallel, thread_name_prefix="reads") as pool:
      # Files are read in this thread, as others would not make it faster.
      at_once = map if self._parallel == 1 else pool.map
      yield from itertools.chain.from_iterable(at_once(self._read_part, parts))

  def _read_part(self, clients: Sequence[_Names]) -> list[list[np.ndarray]]:
    names = [
      [one.serialized() for one in column] if dtype == tf.variant else column
      for column, dtype in zip(zip(*clients), self._dtypes)
    ]
    flat, shapes = self._read_all(*names)
    of_refs = []
    for one_flat, all_shapes in zip(flat, shapes):
      ends = np.cumsum(np.prod(all_shapes, axis=1, dtype=np.int64))
      parts = np.split(one_flat.numpy(), ends[:-1])
      # Copies, so that one client can be forgotten and the others kept.
      of_refs.append([part.reshape(s).copy() for part, s in zip(parts, all_shapes.numpy())])
    return list(map(list, zip(*of_refs)))


def _key(
  num_clients: int, shapes: tuple[tuple[int, ...], ...], compiled: Collection[Key | None]
) -> Key:
  """A key with room for a cohort; a few are enough for all cohorts.

  Cohorts of one size get just that. Once there is a larger one, sizes are drawn, and what is
  compiled next has room for larger ones still.
  """
  earlier = [key for key in compiled if key is not None and key.shapes == shapes]
  wide_enough = [key for key in earlier if num_clients <= key.capacity <= 2 * num_clients]
  if wide_enough:
    return min(wide_enough)
  return Key(num_clients + (num_clients // 4 if earlier else 0), shapes)


class Store:
  """Keeps what was read, up to a number of bytes; what was not used for longest goes first."""

  def __init__(self, max_bytes: int):
    self._max_bytes = max_bytes
    self._bytes = 0
    # From (a key of the reader, the names of a client).
    self._values: collections.OrderedDict[tuple[tuple[bytes, int], _Names], np.ndarray]
    self._values = collections.OrderedDict()
    self._keys_of_data_sets = data_sets.Keys()

  def _clients(self, reader: Reader, names: Sequence[_Names]) -> list[list[np.ndarray]]:
    """Returns the values of each client."""
    clients: dict[_Names, list[np.ndarray]] = {}
    missing = []
    for name in dict.fromkeys(names):
      found = [self._values.get((key, name)) for key in reader.keys]
      clients[name] = [value for value in found if value is not None]
      if len(clients[name]) < len(found):
        missing.append(name)
    for name, own in zip(missing, reader(missing)):
      clients[name] = own
      for key, value in zip(reader.keys, own):
        if (key, name) not in self._values:
          self._bytes += value.nbytes
        self._values[key, name] = value
        for source in name:
          if isinstance(source, data_sets.Source):
            self._keys_of_data_sets.watch(source, (key, name))
    for name in clients:
      for key in reader.keys:
        self._values.move_to_end((key, name))
    while self._bytes > self._max_bytes:
      _, value = self._values.popitem(last=False)
      self._bytes -= value.nbytes
    return [clients[name] for name in names]

  def read(
    self,
    reader: Reader,
    arrays: Sequence[np.ndarray],
    compiled: Collection[Key | None] | None,
  ) -> tuple[list[Read], Key | None]:
    """What a cohort has read.

    Args:
      reader: Reads what is not kept.
      arrays: The arguments of the computation.
      compiled: The keys for which it is compiled; None not to prepare for compiling.

    Returns:
      The values, and a key if all clients' have the same shapes; then they are padded to its
      capacity, by repeating the last client.
    """
    for key_and_name in self._keys_of_data_sets.pop_gone():
      gone = self._values.pop(key_and_name, None)
      self._bytes -= 0 if gone is None else gone.nbytes
    names = list(zip(*(arrays[i].tolist() for i in reader.positions)))
    clients = self._clients(reader, names)
    if not clients:
      return [
        Read(ref, np.zeros(0, spec.dtype.as_numpy_dtype), np.zeros([0, spec.shape.rank], np.int32))
        for ref, spec in zip(reader.refs, reader.specs())
      ], None
    key = None
    shapes = tuple(value.shape for value in clients[0])
    if compiled is not None and len(clients) >= _MIN_COMPILED_CLIENTS:
      if all(value.shape == s for client in clients for value, s in zip(client, shapes)):
        key = _key(len(clients), shapes, compiled)
        clients += clients[-1:] * (key.capacity - len(clients))
    reads = []
    for index, ref in enumerate(reader.refs):
      own = [client[index] for client in clients]
      reads.append(
        Read(
          ref,
          np.concatenate([value.ravel() for value in own]),
          np.array([value.shape for value in own], np.int32).reshape(len(own), own[0].ndim),
        )
      )
    return reads, key
