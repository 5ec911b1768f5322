"""The graphs of data sets: what they read, how they shuffle, and what lies below that."""

import collections
from collections.abc import Sequence
import functools
import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import purity

# What lies below shuffles is kept up to these numbers; larger data sets are read anew.
_MAX_ELEMENTS, _MAX_BYTES = 2**16, 2**28
_ELEMENTS_AT_ONCE = 256


by_name, maker = ops.by_name, ops.maker


def fuse_with_repeats(graph_def: tf.compat.v1.GraphDef) -> None:
  """Fuses each shuffle with the repeat that follows, as TensorFlow's own rewriting does.

  That drops what repeats once, before.
  """
  nodes = by_name(graph_def)
  repeats = [node for node in nodes.values() if node.op == "RepeatDataset"]
  counts = [tf.make_ndarray(nodes[maker(node.input[1])].attr["value"].tensor) for node in repeats]
  once = {node.name: node.input[0] for node, count in zip(repeats, counts) if count == 1}
  for node in nodes.values():
    for i, name in enumerate(node.input):
      while maker(name) in once:
        name = once[maker(name)]
      node.input[i] = name
  for name in once:
    graph_def.node.remove(nodes[name])
  for node in repeats:
    shuffle = nodes[maker(node.input[0])]
    if node.name not in once and shuffle.op == "ShuffleDatasetV3":
      *shuffled, generator = shuffle.input
      node.input[:] = [*shuffled, node.input[1], generator]
      node.op = "ShuffleAndRepeatDatasetV2"
      node.attr["reshuffle_each_iteration"].CopyFrom(shuffle.attr["reshuffle_each_iteration"])


def may_be_repeated(graph_def: tf.compat.v1.GraphDef, reader_repeats: bool) -> bool:
  """Tells whether a shuffle may be fused with a repeat, of the data set or of who reads it.

  A batch between the two keeps them apart.
  """
  inner = (node.op for function in graph_def.library.function for node in function.node_def)
  if any("Shuffle" in op or "Repeat" in op for op in inner):
    return True
  nodes = by_name(graph_def)
  inputs = {maker(name) for node in nodes.values() for name in node.input}
  # What repeats, or is handed over.
  below = [
    node
    for node in nodes.values()
    if "Repeat" in node.op or (reader_repeats and node.name not in inputs)
  ]
  while below:
    for node in (nodes[maker(name)] for name in below.pop().input):
      if node.op.startswith("ShuffleDataset"):
        return True
      if "Batch" not in node.op:
        below.append(node)
  return False


def has_seed(shuffle: tf.compat.v1.NodeDef, nodes: purity.Nodes) -> bool:
  """Tells whether a shuffle's first order is always the same."""
  # The inputs behind the data set and the size of the buffer.
  seeds = [purity.constant(nodes[maker(name)]) for name in shuffle.input[2:4]]
  return None not in seeds and any(seeds)


# The elements below shuffles, a tensor a component, and their bytes, by digests; None for what was
# seen once. What was used last is last.
_kept: collections.OrderedDict[Any, tuple[Sequence[Any], int] | None] = collections.OrderedDict()


def keep_what_is_below(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  """Returns a graph with the elements of what lies below shuffles, if that is known to be pure."""
  shuffling = [node for node in graph_def.node if "Shuffle" in node.op]
  for shuffle in shuffling:
    user, nodes = shuffle, ops.by_name(graph_def)
    while nodes[ops.maker(user.input[0])].op == "RepeatDataset":  # Its copies would all be kept.
      user = nodes[ops.maker(user.input[0])]
    elements = _elements(_pruned(graph_def, user.input[0]), shuffle)
    if not elements:
      continue
    kept = graph_def.node.add(name=f"{shuffle.name}/kept", op="TensorSliceDataset")
    kept.attr["Toutput_types"].CopyFrom(shuffle.attr["output_types"])
    for i, tensor in enumerate(elements):
      constant = graph_def.node.add(name=f"{kept.name}_{i}", op="Const")
      constant.attr["value"].tensor.CopyFrom(tensor)
      constant.attr["dtype"].type = tensor.dtype
      kept.input.append(constant.name)
      kept.attr["output_shapes"].list.shape.add(dim=tensor.tensor_shape.dim[1:])
    user.input[0] = kept.name
  return _pruned(graph_def) if shuffling else graph_def


def _pruned(graph_def: tf.compat.v1.GraphDef, result: str = "") -> tf.compat.v1.GraphDef:
  """Returns the nodes and functions that a result needs, as TensorFlow reads all that are there."""
  nodes = by_name(graph_def)
  library = ops.functions_by_name(graph_def)
  pruned = tf.compat.v1.GraphDef(versions=graph_def.versions)
  pruned.node.extend(node for node in graph_def.node if node.op == "_Retval")
  if result:
    pruned.node[0].input[:] = [result]
  functions: dict[str, Any] = {}
  stack = [maker(pruned.node[0].input[0])]
  while stack:
    node = nodes.pop(stack.pop(), None)
    if node is not None:
      pruned.node.append(node)
      functions.update((f.signature.name, f) for f in ops.functions_of(node, library))
      stack.extend(map(maker, node.input))
  pruned.library.function.extend(functions.values())
  return pruned


def _elements(below: tf.compat.v1.GraphDef, shuffle: tf.compat.v1.NodeDef) -> Sequence[Any]:
  """Returns the elements that a shuffle gets, a tensor a component; none if they are not kept."""
  result, *part = below.node
  if part[0].op == "TensorSliceDataset":
    return ()  # They are in memory.
  paths = purity.files_of(part, by_name(below), ops.functions_by_name(below))
  versions = None if paths is None else purity.versions(paths)
  if versions is None:
    return ()
  key = _digest(below, result.input[0]), versions
  if key in _kept and _kept[key] is None:
    try:
      read = _read(below, shuffle)
    except (tf.errors.OpError, TypeError, ValueError):  # Elements of several shapes, or no tensors.
      read = ()
    _kept[key] = read, sum(tensor.ByteSize() for tensor in read)
    sizes = [entry[1] if entry else 0 for entry in _kept.values()]
    while sum(sizes) > _MAX_BYTES or len(sizes) > _MAX_ELEMENTS:
      _kept.popitem(last=False)
      del sizes[0]
  kept = _kept.setdefault(key, None)
  _kept.move_to_end(key)
  return kept[0] if kept else ()


def _digest(graph_def: tf.compat.v1.GraphDef, result: str) -> bytes:
  """Returns what is equal if data sets are, whatever the names of nodes, functions and caches."""
  nodes = by_name(graph_def)
  library = ops.functions_by_name(graph_def)

  @functools.cache
  def digest(name: str) -> bytes:
    node = nodes[maker(name)]
    own = b"" if purity.is_handle(node) else ops.digest(node, library)
    parts = [own, name.partition(":")[2].encode(), *map(digest, node.input)]
    return hashlib.sha256(b"".join(parts)).digest()

  return digest(result)


def _read(below: tf.compat.v1.GraphDef, shuffle: tf.compat.v1.NodeDef) -> Sequence[Any]:
  attributes = shuffle.attr["output_types"].list.type, shuffle.attr["output_shapes"].list.shape
  specs = tuple(tf.TensorSpec(tf.TensorShape(shape), dtype) for dtype, shape in zip(*attributes))
  variant = tf.raw_ops.DatasetFromGraph(graph_def=below.SerializeToString())
  batches: list[list[np.ndarray]] = []
  num_elements = num_bytes = 0
  for batch in tf.data.experimental.from_variant(variant, specs).batch(_ELEMENTS_AT_ONCE):
    batches.append([tensor.numpy() for tensor in batch])
    num_elements += len(batch[0])
    num_bytes += sum(array.nbytes for array in batches[-1])
    if num_elements > _MAX_ELEMENTS or num_bytes > _MAX_BYTES:
      return ()
  return [tf.make_tensor_proto(np.concatenate(arrays)) for arrays in zip(*batches)]
