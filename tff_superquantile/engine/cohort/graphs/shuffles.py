"""The graphs of data sets: what they read, how they shuffle, and what lies below that."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import hashlib
import os
from typing import Any

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import ops

Nodes = Mapping[str, tf.compat.v1.NodeDef]
# What keeps elements counts as constant.
_CONSTANT = frozenset(("CacheDatasetV2", "SparseTensorSliceDataset"))
# What lies below shuffles is kept up to these numbers; larger data sets are read anew.
_MAX_ELEMENTS, _MAX_BYTES = 2**16, 2**28


def by_name(graph_def: tf.compat.v1.GraphDef) -> dict[str, tf.compat.v1.NodeDef]:
  """Returns the nodes by their names."""
  return {node.name: node for node in graph_def.node}


def maker(name: str) -> str:
  """Returns the name of the node that makes an input."""
  return name.lstrip("^").partition(":")[0]


def fuse_with_repeats(graph_def: tf.compat.v1.GraphDef) -> None:
  """Fuses each shuffle with the repeat that follows, as TensorFlow's own rewriting does.

  That drops what repeats once, before.
  """
  nodes = by_name(graph_def)
  for node in nodes.values():
    if node.op != "RepeatDataset":
      continue
    data_set, count = node.input
    shuffle = nodes[maker(data_set)]
    if shuffle.op == "ShuffleDatasetV3" and not _repeats_once(node, nodes):
      *shuffled, generator = shuffle.input
      node.op = "ShuffleAndRepeatDatasetV2"
      node.input[:] = [*shuffled, count, generator]
      node.attr["reshuffle_each_iteration"].CopyFrom(shuffle.attr["reshuffle_each_iteration"])


def _repeats_once(node: tf.compat.v1.NodeDef, nodes: Nodes) -> bool:
  return node.op == "RepeatDataset" and (
    tf.make_ndarray(nodes[maker(node.input[1])].attr["value"].tensor) == 1
  )


def may_be_repeated(graph_def: tf.compat.v1.GraphDef) -> bool:
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
    if node.name not in inputs or ("Repeat" in node.op and not _repeats_once(node, nodes))
  ]
  while below:
    for node in (nodes[maker(name)] for name in below.pop().input):
      if node.op.startswith("ShuffleDataset"):
        return True
      if "Batch" not in node.op:
        below.append(node)
  return False


def has_seed(shuffle: tf.compat.v1.NodeDef, nodes: Nodes) -> bool:
  """Tells whether a shuffle's first order is always the same."""
  # The inputs behind the data set and the size of the buffer.
  seeds = [nodes[maker(name)].attr["value"].tensor for name in shuffle.input[2:4]]
  return any(map(tf.make_ndarray, seeds))


def files_of(part: Iterable[tf.compat.v1.NodeDef], nodes: Nodes) -> list[bytes] | None:
  """Returns the files that a part of a graph reads, or None if it differs from time to time."""
  paths = []
  for node in part:
    if node.op == "SqlDataset":  # What TFF's own SqlClientData makes.
      paths.append(tf.make_ndarray(nodes[maker(node.input[1])].attr["value"].tensor)[()])
    elif node.op not in _CONSTANT and not node.op.startswith("_") and ops.is_stateful(node.op):
      return None
  return paths


def versions(paths: Iterable[bytes]) -> tuple[tuple[int, ...], ...]:
  """Returns what changes when a file does."""
  stats = (os.stat(path) for path in paths if os.path.exists(path))
  return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


# The elements below shuffles, one array a component, by digests; what was used last is last.
_kept: collections.OrderedDict[Any, Sequence[Any]] = collections.OrderedDict()


def keep_what_is_below(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  """Returns a graph with the elements of what lies below shuffles, and gives the same each time.

  The graph's functions must have no state and read no files.
  """
  nodes = by_name(graph_def)
  for shuffle in nodes.values():
    if "Shuffle" not in shuffle.op:
      continue
    below = nodes[maker(shuffle.input[0])]
    elements = [] if below.op == "TensorSliceDataset" else _elements(graph_def, nodes, shuffle)
    if not elements:
      continue
    kept = graph_def.node.add(name=f"{below.name}/kept", op="TensorSliceDataset")
    kept.attr["Toutput_types"].CopyFrom(shuffle.attr["output_types"])
    for i, tensor in enumerate(elements):
      constant = graph_def.node.add(name=f"{kept.name}_{i}", op="Const")
      constant.attr["value"].tensor.CopyFrom(tensor)
      constant.attr["dtype"].type = tensor.dtype
      kept.input.append(constant.name)
      shape = kept.attr["output_shapes"].list.shape.add()
      shape.dim.extend(tensor.tensor_shape.dim[1:])
    shuffle.input[0] = kept.name
  return _pruned(graph_def)


def _pruned(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  """Returns the nodes and functions that the result needs, since TensorFlow reads all of them."""
  nodes, library = by_name(graph_def), _library(graph_def)
  pruned = tf.compat.v1.GraphDef(versions=graph_def.versions)
  functions: dict[str, Any] = {}
  stack = [node.name for node in graph_def.node if node.op == "_Retval"]
  while stack:
    node = nodes.pop(stack.pop(), None)
    if node is not None:
      pruned.node.append(node)
      functions.update((f.signature.name, f) for f in ops.functions_of(node, library))
      stack.extend(map(maker, node.input))
  pruned.library.function.extend(functions.values())
  return pruned


def _library(graph_def: tf.compat.v1.GraphDef) -> dict[str, Any]:
  return {function.signature.name: function for function in graph_def.library.function}


def _elements(
  graph_def: tf.compat.v1.GraphDef, nodes: Nodes, shuffle: tf.compat.v1.NodeDef
) -> Sequence[Any]:
  """Returns the elements that a shuffle gets, one array a component; none if they are not kept."""
  library = _library(graph_def)
  digests: dict[str, bytes] = {}

  def digest(name: str) -> bytes:
    node = nodes[name]
    if name not in digests:
      is_resource = node.attr["dtype"].type == tf.resource.as_datatype_enum  # Of a cache: anyone's.
      parts = [b"" if is_resource else ops.digest(node, library)]
      for source in node.input:
        parts += [digest(maker(source)), source.rpartition(":")[2].encode()[:1]]
      digests[name] = hashlib.sha256(b"".join(parts)).digest()
    return digests[name]

  key_of_below = digest(maker(shuffle.input[0]))
  part = [nodes[name] for name in digests]
  paths = None if any("Shuffle" in node.op for node in part) else files_of(part, nodes)
  if paths is None:
    return ()
  key = key_of_below, versions(paths)
  if key not in _kept:
    try:
      _kept[key] = _read(graph_def, shuffle)
    except (tf.errors.OpError, TypeError, ValueError):  # Elements of several shapes, or no tensors.
      _kept[key] = ()
  _kept.move_to_end(key)
  while sum(tensor.ByteSize() for tensors in _kept.values() for tensor in tensors) > _MAX_BYTES:
    _kept.popitem(last=False)
  return _kept.get(key, ())


def _read(graph_def: tf.compat.v1.GraphDef, shuffle: tf.compat.v1.NodeDef) -> Sequence[Any]:
  below = tf.compat.v1.GraphDef()
  below.CopyFrom(graph_def)
  for node in below.node:
    if node.op == "_Retval":
      node.input[:] = shuffle.input[:1]
  attributes = shuffle.attr["output_types"].list.type, shuffle.attr["output_shapes"].list.shape
  specs = tuple(tf.TensorSpec(tf.TensorShape(shape), dtype) for dtype, shape in zip(*attributes))
  variant = tf.raw_ops.DatasetFromGraph(graph_def=_pruned(below).SerializeToString())
  elements = tf.data.experimental.from_variant(variant, specs).take(_MAX_ELEMENTS + 1)
  for batch in elements.batch(_MAX_ELEMENTS + 1):
    if len(batch[0]) <= _MAX_ELEMENTS:
      return [tf.make_tensor_proto(tensor.numpy()) for tensor in batch]
  return ()
