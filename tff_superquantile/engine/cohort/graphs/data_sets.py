"""Data sets that clients hold, as values of a computation's argument."""

import collections
from collections.abc import Callable, Iterator, Sequence
import functools
import hashlib
import itertools
import pickle
import threading
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import purity
from tff_superquantile.engine.cohort.graphs import rewriting
from tff_superquantile.engine.cohort.graphs import shuffles

# What `DatasetToGraphV2` is to do about functions that draw numbers, or call Python: nothing.
_IGNORE_STATE = 1
# Rewriting a data set takes longer than reading most of them. TensorFlow's own rewriting
# changes no element but where it fuses a shuffle with the repeat that follows.
_AS_IT_IS = tf.data.Options()
_AS_IT_IS.experimental_optimization.apply_default_optimizations = False
_TENSORFLOWS_OWN = tf.data.experimental.OptimizationOptions()
_MAX_BYTES_OF_LISTS = 2**28
# A name that no resource has, so that a data set does not find its own and makes a new one.
_NOBODYS = "of no data set"
# The graphs of data sets that are the same each time, once they are needed again, up to so many
# bytes; what was used last is last. Several threads read data sets.
_serialized: collections.OrderedDict[tuple[int, bool], bytes] = collections.OrderedDict()
_MAX_BYTES_OF_SERIALIZED = 2**28
_lock = threading.RLock()


class Source:
  """A data set of a type, for as long as it lives."""

  def __init__(self, data_set: tf.data.Dataset):
    self._data_set = weakref.ref(data_set)
    element = tff.types.tensorflow_to_type(data_set.element_spec)
    self.type = tff.SequenceType(element)
    self._was_serialized = False

  @property
  def data_set(self) -> tf.data.Dataset:
    """Returns the data set, which the caller of a computation holds."""
    data_set = self._data_set()
    if data_set is None:  # Of a list, which another computation has pushed out.
      raise errors.UnsupportedError("more lists than fit")
    return data_set

  def _graph_def(self, as_it_is: bool = False) -> tf.compat.v1.GraphDef:
    data_set = self.data_set.with_options(_AS_IT_IS) if as_it_is else self.data_set
    serialized = tf.raw_ops.DatasetToGraphV2(
      input_dataset=tf.data.experimental.to_variant(data_set), external_state_policy=_IGNORE_STATE
    )
    return tf.compat.v1.GraphDef.FromString(serialized.numpy())

  @functools.cached_property
  def _known(self) -> tuple[list[bytes] | None, list[bool]]:
    """Returns the files of `purity.files_of`, but for shuffles, and whether each has a seed."""
    try:
      graph_def = self._graph_def()
    except tf.errors.OpError:  # A kind of data set that no graph can have.
      return None, []
    nodes, library = ops.by_name(graph_def), ops.functions_by_name(graph_def)
    of_shuffles = [node for node in nodes.values() if node.op == "ShuffleDatasetV3"]
    others = (node for node in nodes.values() if node.op != "ShuffleDatasetV3")
    have_seeds = [shuffles.has_seed(node, nodes) for node in of_shuffles]
    return purity.files_of(others, nodes, library), have_seeds

  @functools.cached_property
  def may_be_read_again(self) -> bool:
    """Tells whether reading it is known to change nothing, whatever it draws and however often."""
    try:
      graph_def = self._graph_def()
    except tf.errors.OpError:
      return False
    return all(map(purity.has_no_effect, ops.nodes_of(graph_def)))

  def version(self) -> tuple[tuple[Any, ...], ...] | None:
    """Returns what changes when a file does that is read; None for a data set not to be kept."""
    paths, have_seeds = self._known
    return purity.versions(paths) if paths is not None and all(have_seeds) else None

  @property
  def is_fixed(self) -> bool:
    """Tells whether every first reading of one `version` is known to give the same elements."""
    return self.version() is not None

  @property
  def is_shuffled(self) -> bool:
    """Tells whether the second reading of one that `is_fixed` has another order than the first."""
    return bool(self._known[1])

  def serialized(self, reader_repeats: bool = True) -> bytes:
    """Returns the data set as `begin` takes it, for a reader that may repeat it, or does not.

    The orders in which it was read so far, and the elements that it keeps, are not a part of it;
    what lies below a shuffle is kept, so that the order alone is drawn anew.
    """
    with _lock:
      key = id(self), reader_repeats
      if key not in _serialized:
        graph_def, seen = self._to_be_read(reader_repeats), self._was_serialized
        self._was_serialized = True
        serialized = graph_def.SerializeToString()
        if not seen or self._known[0] != []:  # It reads files, or draws more than orders.
          return serialized
        _serialized[key] = serialized
        weakref.finalize(self, _serialized.pop, key, None)
        size = sum(map(len, _serialized.values()))
        while size > _MAX_BYTES_OF_SERIALIZED:
          size -= len(_serialized.popitem(last=False)[1])
        return serialized
      _serialized.move_to_end(key)
      return _serialized[key]

  def _to_be_read(self, reader_repeats: bool) -> tf.compat.v1.GraphDef:
    has_own_options = self.data_set.options().experimental_optimization != _TENSORFLOWS_OWN
    graph_def = self._graph_def(as_it_is=not has_own_options)
    if not has_own_options:
      shuffles.fuse_with_repeats(graph_def)
      if shuffles.may_be_repeated(graph_def, reader_repeats):
        graph_def = self._graph_def()
    return shuffles.keep_what_is_below(as_another_process(graph_def))


def as_another_process(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  """Changes a data set's graph to what it is in TFF's worker, and returns it.

  What stands for the resources of this process, but for tables, gets names that nobody has. A data
  set makes anew what it does not find: the order in which it shuffles, the elements that it keeps,
  its draws. So each call begins with the first ones. What cannot be made anew, as an iterator, is
  an error here and there.
  """
  rewriting.drop_xla(graph_def)
  for node in filter(purity.is_handle, ops.nodes_of(graph_def)):
    for handle in node.attr["value"].tensor.resource_handle_val:
      if "Lookup" not in handle.maybe_type_name:
        handle.name = _NOBODYS
  return graph_def


def begin(tensor: tf.Tensor) -> tf.Tensor:
  """Returns `Source.serialized`, string [], or a made variant as a variant that nobody has read.

  TFF's runtime hands a copy to each call of a component: it sees the first order of what is
  shuffled with a seed, and the second one if it goes over it twice.
  """
  if tensor.dtype == tf.variant:
    return tensor
  return tf.raw_ops.DatasetFromGraph(graph_def=tensor)


# Data sets compare by identity.
_sources: "weakref.WeakKeyDictionary[tf.data.Dataset, Source]" = weakref.WeakKeyDictionary()


# The data sets of lists with their bytes, by digests, so that equal lists are read once. What was
# used last is last.
_of_lists: collections.OrderedDict[bytes, tuple[tf.data.Dataset, int]] = collections.OrderedDict()


def of_list(
  elements: Sequence[Sequence[np.ndarray]],
  empty: Sequence[np.ndarray],
  pack: Callable[[Iterator[Any]], Any],
) -> tf.data.Dataset:
  """Returns a data set of elements, arrays that `pack` packs; of `empty` if there are none."""
  kinds = (f"{array.dtype} {array.shape}" for array in empty)
  hasher = hashlib.sha256(repr((len(elements), pack(kinds))).encode())
  for array in itertools.chain(*elements):
    content = pickle.dumps(array.tolist()) if array.dtype == np.object_ else array.tobytes()
    hasher.update(f"{array.dtype} {array.shape} {len(content)} ".encode())
    hasher.update(content)
  key = hasher.digest()
  if key not in _of_lists:
    size = sum(array.nbytes for array in itertools.chain(*elements))
    _of_lists[key] = _of_runs(elements, empty, pack), size
  _of_lists.move_to_end(key)
  return _of_lists[key][0]


def forget_lists() -> None:
  """Forgets the oldest lists, if there are many; called between computations."""
  total = sum(size for _, size in _of_lists.values())
  while total > _MAX_BYTES_OF_LISTS:
    total -= _of_lists.popitem(last=False)[1][1]


def _of_runs(
  elements: Sequence[Sequence[np.ndarray]],
  empty: Sequence[np.ndarray],
  pack: Callable[[Iterator[Any]], Any],
) -> tf.data.Dataset:
  """Concatenates the runs of elements of the same shapes."""
  runs = [
    [np.stack(arrays) for arrays in zip(*run)]
    for _, run in itertools.groupby(elements, lambda element: [array.shape for array in element])
  ]
  parts = [
    tf.data.Dataset.from_tensor_slices(pack(iter(run)))
    for run in runs or [[array[np.newaxis][:0] for array in empty]]
  ]
  return functools.reduce(tf.data.Dataset.concatenate, parts)


def source(value: Any, sequence: tff.SequenceType) -> Source:
  """Returns an argument's data set; `TypeError` for anything else, or for other elements."""
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(f"Found a {type(value).__name__}; expected a tf.data.Dataset.")
  cached = _sources.get(value)
  if cached is None:
    cached = _sources[value] = Source(value)
  if not sequence.is_assignable_from(cached.type):
    raise TypeError(f"Found a data set of type {cached.type}; expected {sequence}.")
  return cached


def as_tensor(array: Any, is_used: bool = True) -> tf.Tensor:
  """Returns an array of an argument as a tensor, in which data sets are strings for `begin`.

  `is_used` tells whether more than its shape matters.
  """
  if not sources_of([array]):
    return tf.convert_to_tensor(array)
  if not is_used:
    return tf.fill(array.shape, "")
  serialized = [entry.serialized() for entry in array.ravel()]
  return tf.constant(serialized, tf.string, array.shape)


def sources_of(arrays: Sequence[np.ndarray]) -> list[Source]:
  """Lists the data sets among the arrays of an argument."""
  return [
    part
    for array in arrays
    if isinstance(array, np.ndarray) and array.dtype == np.object_
    for part in array.ravel()
    if isinstance(part, Source)
  ]
