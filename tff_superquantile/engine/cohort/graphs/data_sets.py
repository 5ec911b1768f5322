"""Data sets that clients hold, as values of a computation's argument."""

import collections
from collections.abc import Callable, Iterator, Sequence
import functools
import hashlib
import itertools
import pickle
from typing import Any
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import shuffles

# Ops that read files.
_READERS = frozenset(
  (
    "FixedLengthRecordDatasetV2",
    "ReadFile",
    "SqlDataset",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
  )
)
# What `DatasetToGraphV2` does about functions that draw numbers, or call Python.
_IGNORE_STATE, _FAIL_ON_STATE = 1, 2
# Rewriting a data set takes longer than reading most of them. TensorFlow's own rewriting
# changes no element but where it fuses a shuffle with the repeat that follows.
_AS_IT_IS = tf.data.Options()
_AS_IT_IS.experimental_optimization.apply_default_optimizations = False
_TENSORFLOWS_OWN = tf.data.experimental.OptimizationOptions()
_MAX_BYTES_OF_LISTS = 2**28
# A name that no resource has, so that a data set does not find its own and makes a new one.
_NOBODYS = "of no data set"


class Source:
  """A data set of a type, for as long as it lives.

  `is_shuffled` tells whether every first reading, but not every other, is in the same order; it is
  known once `is_fixed` is.
  """

  def __init__(self, data_set: tf.data.Dataset):
    self._data_set = weakref.ref(data_set)
    self.is_shuffled = False
    self._draws_in_shuffles_alone = False
    self._paths: list[bytes] = []
    element = tff.types.tensorflow_to_type(data_set.element_spec)
    self.type = tff.SequenceType(element)

  @property
  def data_set(self) -> tf.data.Dataset:
    """Returns the data set, which the caller of a computation holds."""
    data_set = self._data_set()
    if data_set is None:  # Of a list, which another computation has pushed out.
      raise errors.UnsupportedError("more lists than fit")
    return data_set

  def _graph_def(self, policy: int, as_it_is: bool = False) -> tf.compat.v1.GraphDef:
    data_set = self.data_set.with_options(_AS_IT_IS) if as_it_is else self.data_set
    serialized = tf.raw_ops.DatasetToGraphV2(
      input_dataset=tf.data.experimental.to_variant(data_set), external_state_policy=policy
    )
    return tf.compat.v1.GraphDef.FromString(serialized.numpy())

  def version(self) -> tuple[tuple[int, ...], ...]:
    """Returns what changes when a file does that is read; for a data set that `is_fixed`."""
    return shuffles.versions(self._paths)

  @functools.cached_property
  def is_fixed(self) -> bool:
    """Tells whether every reading of one `version` gives the same elements."""
    try:
      graph_def = self._graph_def(_FAIL_ON_STATE)
    except tf.errors.OpError:
      return False
    inner = (node.op for function in graph_def.library.function for node in function.node_def)
    if not _READERS.isdisjoint(inner):
      return False  # As `tf.data.TextLineDataset`: the names of the files are known in there alone.
    self._draws_in_shuffles_alone = True
    nodes = shuffles.by_name(graph_def)
    of_shuffles = [node for node in nodes.values() if "Shuffle" in node.op]
    if not all(shuffles.has_seed(node, nodes) for node in of_shuffles):
      return False
    self.is_shuffled = bool(of_shuffles)
    paths = shuffles.files_of([n for n in nodes.values() if "Shuffle" not in n.op], nodes)
    self._paths = paths or []
    return paths is not None

  def serialized(self) -> bytes:
    """Returns the data set as `begin` takes it.

    The orders in which it was read so far, and the elements that it keeps, are not a part of it;
    what lies below a shuffle is kept, so that the order alone is drawn anew.
    """
    has_own_options = self.data_set.options().experimental_optimization != _TENSORFLOWS_OWN
    graph_def = self._graph_def(_IGNORE_STATE, as_it_is=not has_own_options)
    if not has_own_options:
      shuffles.fuse_with_repeats(graph_def)
      if shuffles.may_be_repeated(graph_def):
        graph_def = self._graph_def(_IGNORE_STATE)
    nodes = shuffles.by_name(graph_def)
    for node in nodes.values():
      if "Shuffle" in node.op or node.op.startswith("CacheDataset"):
        for name in node.input:
          for handle in nodes[shuffles.maker(name)].attr["value"].tensor.resource_handle_val:
            handle.name = _NOBODYS
    if self.is_fixed or self._draws_in_shuffles_alone:
      graph_def = shuffles.keep_what_is_below(graph_def)
    return graph_def.SerializeToString()


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
  kinds = (f"{array.dtype} {array.ndim}" for array in empty)
  hasher = hashlib.sha256(repr((len(elements), pack(kinds))).encode())
  for array in itertools.chain(*elements):
    content = pickle.dumps(array.tolist()) if array.dtype == np.object_ else array.tobytes()
    hasher.update(b"%r %d " % (array.shape, len(content)))
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
  found = _sources.get(value)
  if found is None:
    found = _sources[value] = Source(value)
  if not sequence.is_assignable_from(found.type):
    raise TypeError(f"Found a data set of type {found.type}; expected {sequence}.")
  return found


def as_tensor(array: Any, is_used: bool = True) -> tf.Tensor:
  """Returns an array of an argument as a tensor, in which data sets are strings for `begin`.

  `is_used` tells whether more than its shape matters.
  """
  if not sources_of([array]):
    return tf.convert_to_tensor(array)
  if not is_used:
    return tf.fill(array.shape, "")
  serialized = [one.serialized() for one in array.ravel()]
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
