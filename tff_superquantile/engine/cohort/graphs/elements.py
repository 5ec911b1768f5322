"""The elements of a data set as tensors, so that a loop over it is one over their positions."""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import errors

# More elements are not held. TensorFlow allocates room for a whole batch beforehand.
_MAX_ELEMENTS = 1 << 20
# Nor are those that would take more, with room for the longest element in the place of each.
_MAX_BYTES_WITH_ROOM = 1 << 29


class Graph(NamedTuple):
  """A graph, the names of the nodes that arguments replace, and of the tensors that it gives."""

  graph_def: tf.compat.v1.GraphDef
  arguments: tuple[str, ...]
  results: tuple[str, ...]
  # Holds the functions of data sets, which TensorFlow forgets with what it has traced.
  traced: Any


def argument_specs(function: Any) -> list[tf.TensorSpec]:
  """Returns the types of a FunctionDef's arguments; unknown shapes where it does not say them."""
  specs = []
  for i, argument in enumerate(function.signature.input_arg):
    attributes = function.arg_attr[i].attr if i in function.arg_attr else {}
    shapes = attributes["_output_shapes"].list.shape if "_output_shapes" in attributes else ()
    shape = tf.TensorShape(shapes[0]) if shapes else None
    specs.append(tf.TensorSpec(shape, tf.as_dtype(argument.type)))
  return specs


@functools.cache
def build_graphs(specs: tuple[tf.TensorSpec, ...]) -> tuple[Graph, Graph]:
  """Builds what reads all elements of a data set, and what takes one of them.

  They are a graph from the data set to, tensor by tensor, all elements (padded to the largest) and
  their shapes, int32 [n, rank]; and one from a position i, int32 [], and these to (i < n, i + 1,
  the tensors of element i). Dimensions in `specs` may be unknown, and differ between elements;
  parts other than tensors of known rank are an `UnsupportedError`.
  """
  if not specs or any(spec.shape.rank is None or spec.dtype == tf.variant for spec in specs):
    raise errors.UnsupportedError(f"a loop over a data set of elements {specs}")

  def read(variant: tf.Tensor) -> list[tf.Tensor]:
    data_set = tf.data.experimental.from_variant(variant, specs)
    if all(spec.shape.is_fully_defined() for spec in specs):
      shaped = data_set.map(lambda *element: (element, tuple(map(tf.shape, element))))
    else:
      shaped = data_set.scan((tf.constant(0.0), tf.constant(0.0)), _with_shapes)
    # An element of zeros comes first, since a data set without elements has no batch.
    nothing = tf.nest.map_structure(
      lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype), shaped.element_spec
    )
    # No batch has 0 elements, so an endless data set fails at once (`errors.sentence`).
    is_endless = tf.equal(data_set.cardinality(), tf.data.INFINITE_CARDINALITY)
    size = tf.where(is_endless, tf.constant(0, tf.int64), _MAX_ELEMENTS)
    padded = tf.data.Dataset.from_tensors(nothing).concatenate(shaped).padded_batch(size)
    # Autotuning's thread outlives its data set where a single element is taken, and TensorFlow 2.21
    # crashes.
    options = tf.data.Options()
    options.autotune.enabled = False
    padded = padded.scan(tf.constant(True), _if_first).with_options(options)
    # TensorFlow rewrites a data set before a loop over it. So does this: a fused shuffle and repeat
    # draws fewer orders.
    types, shapes = zip(
      *((spec.dtype, spec.shape) for spec in tf.nest.flatten(padded.element_spec))
    )
    rewritten = tf.raw_ops.FinalizeDataset(
      input_dataset=tf.data.experimental.to_variant(padded),
      output_types=types,
      output_shapes=shapes,
    )
    final = tf.data.experimental.from_variant(rewritten, padded.element_spec)
    return [part[1:] for part in tf.nest.flatten(final.get_single_element())]

  def take(position: tf.Tensor, *read: tf.Tensor) -> list[tf.Tensor]:
    element = []
    for spec, padded, shapes in zip(specs, read[: len(specs)], read[len(specs) :]):
      own = padded[position]
      if not spec.shape.is_fully_defined():
        own = tf.slice(own, [0] * spec.shape.rank, shapes[position])
      element.append(tf.ensure_shape(own, spec.shape))
    return [position < tf.shape(read[0])[0], position + 1, *element]

  stacked = [tf.TensorSpec([None, *([None] * spec.shape.rank)], spec.dtype) for spec in specs]
  shapes = [tf.TensorSpec([None, spec.shape.rank], tf.int32) for spec in specs]
  return (
    _trace(read, [tf.TensorSpec([], tf.variant)]),
    _trace(take, [tf.TensorSpec([], tf.int32), *stacked, *shapes]),
  )


def _zero_if(condition: tf.Tensor, sentence: str) -> tf.Tensor:
  """Returns 0.0, or fails with a sentence: by an op without a state, unlike an assertion."""
  return tf.strings.to_number(tf.where(condition, "0", sentence))


def _with_shapes(before: tuple[tf.Tensor, ...], element: tuple[tf.Tensor, ...]) -> Any:
  """Adds an element's shapes; `before` has the number of elements and the bytes of the longest."""
  sizes = [tf.cast(tf.size(part), tf.float32) * max(1, part.dtype.size) for part in element]
  number, longest = before[0] + 1, tf.maximum(before[1], tf.add_n(sizes))
  fits = number * longest <= _MAX_BYTES_WITH_ROOM
  state = number + _zero_if(fits, errors.TOO_LONG), longest
  return state, (element, tuple(map(tf.shape, element)))


def _if_first(is_first: tf.Tensor, batch: Any) -> Any:
  return _zero_if(is_first, errors.TOO_MANY) > 0, batch


def _trace(function: Any, specs: Sequence[tf.TensorSpec]) -> Graph:
  # Not a part of the graph that is being traced, if one is.
  with tf.init_scope():
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
  return Graph(
    traced.graph.as_graph_def(),
    tuple(tensor.op.name for tensor in traced.inputs),
    tuple(tensor.name for tensor in traced.outputs),
    traced,
  )
