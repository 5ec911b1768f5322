"""What the engine knows about TensorFlow's ops and functions."""

from collections.abc import Iterator, Mapping, Sequence
import hashlib
from typing import Any

import tensorflow as tf

# These modules are private to TensorFlow. Nothing public makes functions known to its runtime, or
# lists the inputs and outputs of op types.
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
CONDITIONS = frozenset(("If", "StatelessIf"))
LOOPS = frozenset(("While", "StatelessWhile"))
SHAPES = frozenset(("Rank", "Shape", "ShapeN", "Size"))
# Ops that look into a data set, which may be another one each time.
LOOKS = frozenset(("DatasetCardinality", "DatasetToSingleElement"))
# Ops that go over a data set, or begin to; each in the next order of what is shuffled.
READS = frozenset(("DatasetToSingleElement", "MakeIterator", "OneShotIterator"))
# TensorFlow marks these ops as stateful, though they give the same result in every run.
_PURE = frozenset(
  (
    "DatasetToSingleElement",
    "RangeDataset",
    "ReadFile",
    "ReduceDataset",
    "TensorDataset",
    "TensorSliceDataset",
    *CALLS,
    *CONDITIONS,
    *LOOPS,
  )
)
# TensorFlow does not mark this one.
_SHUFFLES = frozenset(("ShuffleDataset", "ShuffleAndRepeatDataset"))

# Maps a function's name to its FunctionDef, a protocol buffer that TensorFlow does not export.
Functions = Mapping[str, Any]


def nodes_of(graph_def: tf.compat.v1.GraphDef) -> Iterator[tf.compat.v1.NodeDef]:
  """Yields the nodes of a graph and of its functions."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def by_name(graph_def: tf.compat.v1.GraphDef) -> dict[str, tf.compat.v1.NodeDef]:
  """Returns the nodes by their names."""
  return {node.name: node for node in graph_def.node}


def functions_by_name(graph_def: tf.compat.v1.GraphDef) -> dict[str, Any]:
  """Returns the FunctionDefs of a graph by their names."""
  return {function.signature.name: function for function in graph_def.library.function}


def maker(name: str) -> str:
  """Returns the name of the node that makes an input."""
  return name.lstrip("^").partition(":")[0]


def is_stateful(op: str) -> bool:
  """Tells whether an op has an effect, or results that differ from run to run."""
  registered = op_def_registry.get(op)
  return registered is None or op in _SHUFFLES or (registered.is_stateful and op not in _PURE)


def has_effect(op: str) -> bool:
  """Tells whether an op must run though nobody needs its results: a random draw need not."""
  return is_stateful(op) and not op.startswith("Random") and op not in _SHUFFLES


def reads_text(op: str) -> bool:
  """Tells whether the first input of an op is text, such as the name of a file."""
  registered = op_def_registry.get(op)
  inputs = [] if registered is None else list(registered.input_arg)
  return bool(inputs) and inputs[0].type == tf.string.as_datatype_enum


def makes_resource(op: str) -> bool:
  """Tells whether an op makes what keeps a state: a variable, a table, a queue, an iterator."""
  registered = op_def_registry.get(op)
  return registered is not None and any(
    output.is_ref or output.type == tf.resource.as_datatype_enum for output in registered.output_arg
  )


def is_onednns(op: str) -> bool:
  """Tells whether oneDNN has a kernel that may take the place of TensorFlow's own."""
  names = (f"_Mkl{op.lstrip('_')}", f"_MklNative{op.lstrip('_')}")
  return any(op_def_registry.get(name) is not None for name in names)


def is_variant(op: str) -> bool:
  """Tells whether the result of an op is a data set, or another value without numbers."""
  outputs = op_def_registry.get(op).output_arg
  return any(output.type == tf.variant.as_datatype_enum for output in outputs)


def output_offset(node: tf.compat.v1.NodeDef, argument: str | None, library: Functions) -> int:
  """Returns the position of the first tensor of an op's output argument."""
  if argument is None:
    return 0
  if node.op in library:
    names = [output.name for output in library[node.op].signature.output_arg]
    return names.index(argument)
  offset = 0
  for output in op_def_registry.get(node.op).output_arg:
    if output.name == argument:
      return offset
    if output.number_attr:
      offset += node.attr[output.number_attr].i
    elif output.type_list_attr:
      offset += len(node.attr[output.type_list_attr].list.type)
    else:
      offset += 1
  raise ValueError(f"Found an output {argument} of the op {node.op}, which has none.")


def called(attr: tf.compat.v1.AttrValue) -> list[str]:
  """Lists the names of the functions in an attribute: one, or several as of a case's branches."""
  return [attr.func.name] if attr.HasField("func") else [f.name for f in attr.list.func]


def functions_of(node: tf.compat.v1.NodeDef, library: Functions) -> list[Any]:
  """Lists the FunctionDefs that a node calls, and those that they call, each once."""
  found: dict[str, Any] = {}
  stack = [node]
  while stack:
    inner = stack.pop()
    names = [name for attr in inner.attr.values() for name in called(attr)]
    for name in [*names, inner.op]:
      if name in library and name not in found:
        found[name] = library[name]
        stack.extend(library[name].node_def)
  return list(found.values())


def digest(node: tf.compat.v1.NodeDef, library: Functions) -> bytes:
  """Returns the digest of a node without its inputs, equal for functions of different names."""
  hasher = hashlib.sha256(b"" if node.op in library else node.op.encode())
  for name in sorted(node.attr):
    if name.startswith("_") or name == "metadata":  # Data sets have their numbers there.
      continue
    hasher.update(name.encode())
    attr = node.attr[name]
    names = called(attr)
    for function in names:
      if function in library:
        hasher.update(_function_digest(library[function], library))
    if not names:
      hasher.update(attr.SerializeToString(deterministic=True))
  if node.op in library:
    hasher.update(_function_digest(library[node.op], library))
  return hasher.digest()


def _function_digest(function: Any, library: Functions) -> bytes:
  # Names of arguments may have the number of a function in them.
  arguments = function.signature.input_arg
  places = {argument.name: f"\0{place}" for place, argument in enumerate(arguments)}
  parts = []
  for argument in arguments:
    unnamed = type(argument)()
    unnamed.CopyFrom(argument)
    unnamed.ClearField("name")
    parts.append(unnamed.SerializeToString())
  parts += [argument.SerializeToString() for argument in function.signature.output_arg]
  for node in function.node_def:
    inputs = (places.get(name, name).encode() for name in node.input)
    parts += [node.name.encode(), *inputs, digest(node, library)]
  for results in (function.ret, function.control_ret):
    parts += [f"{n} {places.get(results[n], results[n])}".encode() for n in sorted(results)]
  return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).digest()


_registered: set[str] = set()


def register(functions: Sequence[Any]) -> None:
  """Makes FunctionDefs known to TensorFlow's runtime, which forgets those whose tracer is gone."""
  for function in functions:
    if function.signature.name not in _registered:
      # Not by an import within `tf.init_scope`, which ends at a `tf.Graph` that is around it.
      context.context().add_function_def(function)
      _registered.add(function.signature.name)


def make_node(op: str, **attributes: tf.compat.v1.AttrValue) -> tf.compat.v1.NodeDef:
  """Returns the NodeDef of an op without its inputs."""
  return tf.compat.v1.NodeDef(op=op, attr=attributes)


def type_attr(dtype: tf.DType) -> tf.compat.v1.AttrValue:
  """Returns an attribute that is a type."""
  return tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)


def constant(value: Any, dtype: tf.DType) -> tf.compat.v1.NodeDef:
  """Returns the NodeDef of a constant."""
  tensor = tf.make_tensor_proto(value, dtype)
  value_attr = tf.compat.v1.AttrValue(tensor=tensor)
  return make_node("Const", dtype=type_attr(dtype), value=value_attr)
