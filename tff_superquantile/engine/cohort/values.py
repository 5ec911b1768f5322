"""Converts values of TFF's types from Python to tensors and back.

Each leaf of a federated value at the clients is one tensor, its clients stacked along a new first
dimension. All other values stay as they are.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions


class Leaf(NamedTuple):
  """Holds a tensor of a value in a computation that is being traced.

  Attributes:
    tensor: The tensor.
    stacked: Whether its first dimension is the clients. If not, all clients have the same tensor.
    origin: The position of the leaf in the argument of the computation, if it comes from there.
    made: How a data set that clients make of others, or a value in a step of a fold, is made: these
      have no tensor.
    maps: What `tff.sequence_map` does with the elements of a sequence: functions of the language,
      and the types of their arguments.
  """

  tensor: tf.Tensor
  stacked: bool
  origin: int | None = None
  made: "Made | None" = None
  maps: tuple[tuple[Any, tff.Type], ...] = ()


class LeafType(NamedTuple):
  """Describes one tensor of a type, as `Leaf` holds one of a value.

  A data set is a variant, and in the argument of a computation a string (`data_sets.begin`).
  """

  dtype: Any
  shape: tuple | None
  stacked: bool

  @property
  def spec(self) -> tf.TensorSpec:
    shape = tf.TensorShape(self.shape)
    if self.stacked:
      shape = tf.TensorShape([None]).concatenate(shape)
    return tf.TensorSpec(shape, tf.as_dtype(self.dtype))

  @property
  def argument_dtype(self) -> tf.DType:
    """Returns the type in a computation's own argument."""
    return tf.string if self.is_data_set else tf.as_dtype(self.dtype)

  @property
  def argument_spec(self) -> tf.TensorSpec:
    """Returns the spec of a computation's own argument."""
    return tf.TensorSpec(self.spec.shape, self.argument_dtype)

  @property
  def is_data_set(self) -> bool:
    """Tells whether it is a data set."""
    return tf.as_dtype(self.dtype) == tf.variant

  @property
  def array_dtype(self) -> np.dtype:
    """Returns the type of the values in an array; data sets are objects."""
    if self.is_data_set:
      return np.dtype(np.object_)
    return np.dtype(tf.as_dtype(self.dtype).as_numpy_dtype)


class Input(NamedTuple):
  """What a component computes from: its root in expressions, its value and its type."""

  root: expressions.Ref
  leaf: Leaf
  type: LeafType


class Made(NamedTuple):
  """What clients make, such as data sets: computed as a part of each component that uses it."""

  ref: expressions.Ref
  inputs: tuple[Input, ...]
  effects: tuple[expressions.Expression, ...] = ()


def leaf_types(type_spec: tff.Type, stacked: bool = False) -> list[LeafType]:
  """Lists the tensors of a type, in TFF's order; another part is an `UnsupportedError`."""
  if isinstance(type_spec, tff.FederatedType):
    return leaf_types(type_spec.member, not type_spec.all_equal)
  if isinstance(type_spec, tff.StructType):
    return [
      leaf
      for _, element in tff.structure.to_elements(type_spec)
      for leaf in leaf_types(element, stacked)
    ]
  if isinstance(type_spec, tff.TensorType):
    return [LeafType(type_spec.dtype, type_spec.shape, stacked)]
  if isinstance(type_spec, tff.SequenceType):
    return [LeafType(tf.variant, (), stacked)]
  raise errors.UnsupportedError(f"values of type {type_spec}")


def in_data_sets(element_type: tff.Type, leaves: Iterator[Any]) -> Any:
  """Packs leaves to an element of a data set, as TFF's runtime does.

  Data sets sort dictionaries by names. Other structures with names are an `UnsupportedError`.
  """
  if not isinstance(element_type, tff.StructType):
    return next(leaves)
  elements = [
    (name, in_data_sets(part, leaves)) for name, part in tff.structure.to_elements(element_type)
  ]
  container = getattr(element_type, "python_container", None)
  if all(name is None for name, _ in elements):
    return tuple(element for _, element in elements)
  if container is not None and not issubclass(container, dict):
    raise errors.UnsupportedError(f"elements of type {container.__name__}")
  return collections.OrderedDict(elements)


class Origin(NamedTuple):
  """What says from where clients read: its root's name; tf.string, or tf.variant for data sets."""

  name: str
  dtype: tf.DType


def origins(parameters: Sequence[LeafType]) -> dict[int, Origin]:
  """Returns what clients hold that says from where they read, by its position in the argument."""
  by_position: dict[int, Origin] = {}
  for i, leaf in enumerate(parameters):
    dtype = tf.as_dtype(leaf.dtype)
    if leaf.stacked and leaf.shape == () and dtype in (tf.string, tf.variant):
      kind = "data set" if leaf.is_data_set else "string"
      count = sum(origin.dtype == dtype for origin in by_position.values())
      by_position[i] = Origin(f"{kind} {count}", dtype)
  return by_position


def flatten(value: Any) -> Iterator[Leaf]:
  """Yields the leaves of a value in a trace, depth first."""
  if isinstance(value, tff.structure.Struct):
    for _, element in tff.structure.to_elements(value):
      yield from flatten(element)
  else:
    yield value


def map_leaves(fn: Callable[..., Any], *operands: Any) -> Any:
  """Applies `fn` to the leaves of values of the same structure."""
  if not isinstance(operands[0], tff.structure.Struct):
    return fn(*operands)
  elements = zip(*(tff.structure.to_elements(operand) for operand in operands))
  return tff.structure.Struct(
    [(of_all[0][0], map_leaves(fn, *(value for _, value in of_all))) for of_all in elements]
  )


def pack(type_spec: tff.Type, leaves: Iterator[Any]) -> Any:
  """Packs leaves to a value of the type, the inverse of `flatten`."""
  if isinstance(type_spec, tff.FederatedType):
    return pack(type_spec.member, leaves)
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      [(name, pack(element, leaves)) for name, element in tff.structure.to_elements(type_spec)]
    )
  return next(leaves)


# What Python's values may become, by numpy's kinds of types. `bool` is an `int`, so it comes first.
_KINDS_OF_PYTHON = {bool: "b", int: "iu", float: "fV", complex: "c", str: "O", bytes: "O"}
_SAME_KINDS = ("b", "iu", "f", "c", "SUO", "V")


def _holds(dtype: np.dtype, value: Any) -> bool:
  """Tells whether a type holds a value of its kind without loss, as TFF's runtime asks for."""
  if isinstance(value, (np.ndarray, np.generic)):
    are_strings = dtype.kind == "O"
    is_kind = any({value.dtype.kind, dtype.kind} <= set(kinds) for kinds in _SAME_KINDS)
    return is_kind and (are_strings or np.can_cast(value.dtype, dtype, "safe"))
  kinds = next((kinds for t, kinds in _KINDS_OF_PYTHON.items() if isinstance(value, t)), "")
  if dtype.kind not in kinds:
    return False
  if dtype.kind in "iu":
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
  if isinstance(value, float):
    with np.errstate(over="ignore"):
      return not math.isfinite(value) or bool(np.isfinite(np.asarray(value, dtype)))
  return True


def _as_array(value: Any, dtype: np.dtype, shape: tuple | None) -> np.ndarray:
  """Returns one tensor as an array, checked as TFF's runtime does."""
  if isinstance(value, (tf.Tensor, tf.Variable)):
    value = value.numpy()
  if isinstance(value, np.ndarray) and value.dtype == dtype:
    array = value
  else:
    wrong = [part for part in tf.nest.flatten(value) if not _holds(dtype, part)]
    if wrong:
      kind = getattr(wrong[0], "dtype", type(wrong[0]).__name__)
      raise TypeError(f"Found {wrong[0]!r:.60} of type {kind}; expected what {dtype} can hold.")
    array = np.asarray(value, dtype)
  if array.shape != shape and not tf.TensorShape(shape).is_compatible_with(array.shape):
    raise TypeError(f"Found a value of shape {array.shape}; expected {shape}.")
  return array


def _as_column(of_clients: Sequence[Any], dtype: np.dtype) -> np.ndarray | None:
  """Returns one tensor of all clients, or None if their values need a check or a conversion."""
  kinds = {type(value) for value in of_clients}
  if kinds <= {str, bytes} and dtype == np.object_:
    return np.array(of_clients, dtype)
  if kinds == {dtype.type}:
    return np.array(of_clients, dtype)
  if kinds == {int} and dtype.kind in "iu":
    if all(_holds(dtype, extreme) for extreme in (min(of_clients), max(of_clients))):
      return np.array(of_clients, dtype)
  if kinds == {np.ndarray} and {(v.dtype, v.shape) for v in of_clients} == {
    (dtype, of_clients[0].shape)
  }:
    return np.stack(of_clients)
  return None


class Converter:
  """Turns Python values of one type into arrays, and examines the type only once."""

  def __init__(self, type_spec: tff.Type):
    """Initializes a converter of a parameter, whose tensors are `leaf_types(type_spec)`."""
    self._type = type_spec
    self._is_stacked = isinstance(type_spec, tff.FederatedType) and not type_spec.all_equal
    # The type of a tensor has no elements.
    self._elements: list[tuple[str | None, Converter]] | None = None
    if isinstance(type_spec, tff.FederatedType):
      self._elements = [(None, Converter(type_spec.member))]
    elif isinstance(type_spec, tff.StructType):
      self._elements = [
        (name, Converter(element)) for name, element in tff.structure.to_elements(type_spec)
      ]
    else:
      (leaf,) = leaf_types(type_spec)
      self._dtype = leaf.array_dtype
      self._shape = None if leaf.shape is None else tuple(leaf.shape)
    self._names = [name for name, _ in self._elements or ()]
    self._are_named = all(name is not None for name in self._names)

  def arrays(self, value: Any) -> list[np.ndarray]:
    """Returns the arrays of a value, stacked if they are at the clients.

    Another type is a `TypeError`; shapes that differ between clients are an `UnsupportedError`.
    """
    if isinstance(self._type, tff.SequenceType):
      return [np.array(self._source(value), np.object_)]
    if self._elements is None:
      return [_as_array(value, self._dtype, self._shape)]
    if self._is_stacked:
      return self._stacked(self._elements[0][1], value)
    if isinstance(self._type, tff.FederatedType):
      return self._elements[0][1].arrays(value)
    if isinstance(value, dict) and self._are_named:
      if value.keys() != set(self._names):
        raise TypeError(f"Found the names {list(value)}; expected {self._names}.")
      parts = [value[name] for name in self._names]
    else:
      struct = tff.structure.from_container(value)
      names = tff.structure.name_list_with_nones(struct)
      if names != self._names and not (len(names) == len(self._names) and not any(names)):
        raise TypeError(f"Found the names {names}; expected {self._names}.")
      parts = list(struct)
    return [
      array for part, (_, element) in zip(parts, self._elements) for array in element.arrays(part)
    ]

  def _source(self, value: Any) -> data_sets.Source:
    """Returns a data set, or a list as one."""
    if isinstance(value, list):
      element_type = self._type.element
      converter = Converter(element_type)
      pack = functools.partial(in_data_sets, element_type)
      empty = [
        np.zeros([size or 0 for size in t.shape or ()], t.array_dtype)
        for t in leaf_types(element_type)
      ]
      value = data_sets.of_list([converter.arrays(element) for element in value], empty, pack)
    return data_sets.source(value, self._type)

  def _stacked(self, member: "Converter", value: Any) -> list[np.ndarray]:
    if not isinstance(value, (list, tuple)):
      raise TypeError(f"Found a {type(value).__name__}; expected a list, one value a client.")
    if not value:
      return [
        np.zeros([0, *(size or 0 for size in leaf.shape or ())], leaf.array_dtype)
        for leaf in leaf_types(self._type.member)
      ]
    columns = member._columns(value)
    if columns is not None:
      return columns
    stacked = []
    for arrays in zip(*map(member.arrays, value)):
      if any(array.shape != arrays[0].shape for array in arrays):
        raise errors.UnsupportedError(f"tensors of several shapes, of type {self._type}")
      stacked.append(np.stack(arrays))
    return stacked

  def _columns(self, clients: Sequence[Any]) -> list[np.ndarray] | None:
    """Stacks clients that are dictionaries of plain values, much faster; None for others."""
    if isinstance(self._type, tff.SequenceType):
      return [np.array([self._source(client) for client in clients], np.object_)]
    if self._elements is None:
      column = _as_column(clients, self._dtype)
      if column is None or column.shape[1:] != self._shape:
        return None
      return [column]
    keys = set(self._names)
    if not self._are_named or not all(isinstance(c, dict) and c.keys() == keys for c in clients):
      return None
    arrays: list[np.ndarray] = []
    for name, element in self._elements:
      columns = element._columns([client[name] for client in clients])
      if columns is None:
        return None
      arrays.extend(columns)
    return arrays


def _split_clients(type_spec: tff.Type, value: Any) -> Any:
  """Splits the federated values that are not all equal into lists of clients."""
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.all_equal:
      return value
    leaves = list(flatten(value))
    if not leaves:
      raise errors.UnsupportedError("a result at the clients without tensors")
    return [
      pack(type_spec.member, iter([leaf[i] for leaf in leaves])) for i in range(len(leaves[0]))
    ]
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      [
        (name, _split_clients(element, value[index]))
        for index, (name, element) in enumerate(tff.structure.to_elements(type_spec))
      ]
    )
  return value


def _constructor(type_spec: tff.Type) -> Callable[[Iterator[Any]], Any]:
  """Builds a function from an iterator of leaves to a value; at clients only all-equal ones."""
  if isinstance(type_spec, tff.FederatedType):
    return _constructor(type_spec.member)
  if not isinstance(type_spec, tff.StructType):
    return next
  names: list[Any] = [name for name, _ in tff.structure.to_elements(type_spec)]
  constructors = [_constructor(element) for _, element in tff.structure.to_elements(type_spec)]
  # TFF's rules choose the container once instead of in each round.
  numbers = iter(range(len(leaf_types(type_spec))))
  container = type(tff.types.type_to_py_container(pack(type_spec, numbers), type_spec))
  if issubclass(container, (dict, tff.structure.Struct)):
    return lambda leaves: container([(n, c(leaves)) for n, c in zip(names, constructors)])
  if all(names):
    return lambda leaves: container(**{n: c(leaves) for n, c in zip(names, constructors)})
  return lambda leaves: container([c(leaves) for c in constructors])


def build_to_python(type_spec: tff.Type) -> Callable[[list], Any]:
  """Builds a function from `leaf_types`' arrays to a result's Python value, in TFF's own form."""
  if not tff.types.contains(
    type_spec, lambda t: isinstance(t, tff.FederatedType) and not t.all_equal
  ):
    construct = _constructor(type_spec)
    return lambda arrays: construct(iter(arrays))

  def to_python(arrays: list) -> Any:
    packed = _split_clients(type_spec, pack(type_spec, iter(arrays)))
    return tff.types.type_to_py_container(packed, type_spec)

  return to_python
