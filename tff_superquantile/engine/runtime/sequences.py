"""Sequences as values: a serialized data set, a list of elements, or both."""

from collections.abc import Sequence as AnySequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets


def element_types(type_spec: tff.Type | None) -> list[tff.Type]:
  """Lists the types of the elements of a type's sequences, in the order of its leaves."""
  if isinstance(type_spec, tff.StructType):
    return [
      kind for _, part in tff.structure.to_elements(type_spec) for kind in element_types(part)
    ]
  return [type_spec.element] if isinstance(type_spec, tff.SequenceType) else []


def begin(serialized: tf.Tensor, element_type: tff.Type) -> tf.Tensor:
  """Returns a serialized data set (string [], a GraphDef) as a variant, read without autotuning.

  That would take 20 ms to end after each reading, and may crash TensorFlow 2.21.
  """
  variant = tf.raw_ops.DatasetFromGraph(graph_def=serialized)
  options = tf.data.Options()
  options.autotune.enabled = False
  leaves = iter([leaf.spec for leaf in values.leaf_types(element_type)])
  specs = values.in_data_sets(element_type, leaves)
  data_set = tf.data.experimental.from_variant(variant, specs)
  return tf.data.experimental.to_variant(data_set.with_options(options))


def _to_container(value: Any) -> Any:
  """Returns an element as TFF makes data sets of them."""
  is_struct = isinstance(value, tff.structure.Struct)
  return tff.structure.to_odict_or_tuple(value) if is_struct else value


def _from_container(value: Any, type_spec: tff.Type) -> Any:
  if isinstance(type_spec, tff.StructType):
    parts = tff.structure.from_container(value)
    return tff.structure.Struct(
      [
        (name, _from_container(part, kind))
        for (name, kind), part in zip(tff.structure.to_elements(type_spec), parts)
      ]
    )
  return value.numpy() if hasattr(value, "numpy") else value


class Sequence:
  """A sequence of values of one type; `is_made` tells whether a component has made it."""

  def __init__(
    self,
    element_type: tff.Type,
    serialized: bytes | None = None,
    elements: AnySequence[Any] | None = None,
    is_made: bool = False,
  ):
    """Initializes a sequence from a data set's serialized GraphDef or from its elements."""
    self.element_type = element_type
    self.is_made = is_made
    # What came from a caller is handed back as it is, and goes on there with what it has there.
    self._of_caller = None if is_made else serialized
    self._serialized: bytes | None = None
    if serialized is not None:
      graph_def = tf.compat.v1.GraphDef.FromString(serialized)
      self._serialized = data_sets.as_another_process(graph_def).SerializeToString()
    self._elements = elements

  def to_proto(self) -> executor_pb2.Value:
    """Returns the sequence as TFF's contexts send it."""
    return self._proto(self._of_caller or self.graph_def())

  def _proto(self, serialized: bytes) -> executor_pb2.Value:
    proto = executor_pb2.Value()
    proto.sequence.serialized_graph_def = serialized
    proto.sequence.element_type.CopyFrom(tff.types.serialize_type(self.element_type))
    return proto

  def graph_def(self) -> bytes:
    """Returns the sequence as a serialized GraphDef of a data set."""
    if self._serialized is None:
      value, _ = tff.framework.serialize_value(
        [_to_container(element) for element in self._elements or ()],
        tff.SequenceType(self.element_type),
      )
      self._serialized = value.sequence.serialized_graph_def
    return self._serialized

  @property
  def is_made_shuffled(self) -> bool:
    """Tells whether a component has shuffled it, or made it of something shuffled."""
    return self.is_made and b"Shuffle" in self.graph_def()

  def elements(self) -> AnySequence[Any]:
    """Returns the elements."""
    if self._elements is None:
      data_set, _ = tff.framework.deserialize_value(self._proto(self.graph_def()))
      self._elements = [_from_container(element, self.element_type) for element in data_set]
    return self._elements
