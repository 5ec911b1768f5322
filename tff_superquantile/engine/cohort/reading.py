"""What clients read from files, kept in memory from round to round."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import itertools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import emission
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import walks

# The number of clients whose files are read in one call; these are in memory twice.
_CLIENTS_A_CALL = 64
# Larger values of a client gain little if all clients are computed at once, and take memory. At
# once a linear model takes 0.43 of the CPU time with 61 kB a client (100 clients), 0.57 with 245,
# 0.79 with 490, 0.88 with 980.
_MAX_BYTES_OF_ROW = 2**19


class Read(NamedTuple):
  """One value that all clients of a cohort have read, one client after the other in `flat`.

  `shapes`, int32 [n, rank], has what each client's shape was.
  """

  ref: expressions.Ref
  flat: np.ndarray
  shapes: np.ndarray

  def are_rows(self) -> bool:
    """Tells whether values of one shape are small enough to be computed for all clients at once."""
    if not len(self.shapes) or self.flat.nbytes > _MAX_BYTES_OF_ROW * len(self.shapes):
      return False
    return bool((self.shapes == self.shapes[0]).all())

  def parts(self) -> tuple[np.ndarray, ...]:
    """Returns the values, where each client's begin (int64 [n + 1]), and their shapes."""
    ends = np.cumsum(np.prod(self.shapes, axis=1, dtype=np.int64))
    return self.flat, np.concatenate([np.zeros(1, np.int64), ends]), self.shapes

  def specs(self) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of `parts`."""
    return (
      tf.TensorSpec([None], self.flat.dtype),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None, self.shapes.shape[1]], tf.int32),
    )


# What says from where a client's values are read.
_Names = tuple[bytes | data_sets.Source, ...]


class Reader:
  """Reads the files and data sets of clients."""

  def __init__(
    self, refs: Sequence[expressions.Ref], origins: Mapping[int, values.Origin], parallel: int
  ):
    """Initializes a reader of `refs`, which sets up `parallel` data sets at once.

    `origins` says from where clients read, by the positions among the arguments.
    """
    self.refs = refs
    self.positions = list(origins)
    self._dtypes = [origin.dtype for origin in origins.values()]
    self._parallel = parallel if tf.variant in self._dtypes else 1
    self.keys = [(ref.expression.digest, ref.index) for ref in refs]

    groups = walks.by_looks(refs)

    def read(*names: tf.Tensor) -> list[tf.Tensor]:
      by_name = {frozenset([o.name]): name for o, name in zip(origins.values(), names)}
      found: dict[expressions.Ref, tf.Tensor] = {}
      for group in groups:
        # Other groups are looks of other components, which get copies of their own.
        roots = [e for e in walks.walk(group) if e.op == "root"]
        given = [data_sets.begin(by_name[e.roots]) if e.reads else by_name[e.roots] for e in roots]
        known = {expressions.Ref(e, 0): value for e, value in zip(roots, given)}
        found.update(zip(group, emission.Emitter(known).emit(group)))
      return [found[ref] for ref in refs]

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


class Store:
  """Keeps what was read, up to a number of bytes; what was not used for longest goes first."""

  def __init__(self, max_bytes: int):
    self._max_bytes = max_bytes
    self._bytes = 0
    # From (a key of the reader, the names of a client and a version).
    self._values: collections.OrderedDict[tuple[tuple[bytes, int], tuple], np.ndarray]
    self._values = collections.OrderedDict()
    self._keys_of_data_sets = data_sets.Keys()

  def _clients(self, reader: Reader, names: Sequence[_Names]) -> list[list[np.ndarray]]:
    """Returns the values of each client."""
    clients: dict[_Names, list[np.ndarray]] = {}
    # Under a version of the files that data sets read; those of older versions are not used again.
    versions = {
      name: (name, *(one.version() for one in name if isinstance(one, data_sets.Source)))
      for name in names
    }
    missing = []
    for name, version in versions.items():
      found = [self._values.get((key, version)) for key in reader.keys]
      clients[name] = [value for value in found if value is not None]
      if len(clients[name]) < len(found):
        missing.append(name)
    for name, own in zip(missing, reader(missing)):
      clients[name] = own
      for key, value in zip(reader.keys, own):
        full_key = (key, versions[name])
        if full_key not in self._values:
          self._bytes += value.nbytes
        self._values[full_key] = value
        for source in name:
          if isinstance(source, data_sets.Source):
            self._keys_of_data_sets.watch(source, full_key)
    for version in versions.values():
      for key in reader.keys:
        self._values.move_to_end((key, version))
    while self._bytes > self._max_bytes:
      _, value = self._values.popitem(last=False)
      self._bytes -= value.nbytes
    return [clients[name] for name in names]

  def read(self, reader: Reader, arrays: Sequence[np.ndarray]) -> list[Read]:
    """Returns what a cohort has read, of the arguments of the computation."""
    for key_and_name in self._keys_of_data_sets.pop_gone():
      gone = self._values.pop(key_and_name, None)
      self._bytes -= 0 if gone is None else gone.nbytes
    clients = self._clients(reader, list(zip(*(arrays[i].tolist() for i in reader.positions))))
    reads = []
    for index, (ref, spec) in enumerate(zip(reader.refs, reader.specs())):
      own = [client[index] for client in clients]
      empty = np.zeros(0, spec.dtype.as_numpy_dtype)
      shapes = np.array([value.shape for value in own], np.int32)
      reads.append(
        Read(
          ref,
          np.concatenate([empty, *(value.ravel() for value in own)]),
          shapes.reshape(len(own), spec.shape.rank),
        )
      )
    return reads
