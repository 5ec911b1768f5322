"""Computes the results of ops on constants, in numpy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_FOLDED: dict[str, Callable[..., Any]] = {
  "Add": np.add,
  "AddV2": np.add,
  "Equal": np.equal,
  "FloorDiv": np.floor_divide,
  "Greater": np.greater,
  "GreaterEqual": np.greater_equal,
  "Less": np.less,
  "LessEqual": np.less_equal,
  "LogicalAnd": np.logical_and,
  "LogicalNot": np.logical_not,
  "LogicalOr": np.logical_or,
  "Maximum": np.maximum,
  "Minimum": np.minimum,
  "Mul": np.multiply,
  "NotEqual": np.not_equal,
  "Select": np.where,
  "SelectV2": np.where,
  "Sub": np.subtract,
}


def _slice(node: tf.compat.v1.NodeDef, constants: Sequence[np.ndarray]) -> np.ndarray:
  """Returns StridedSlice of constants, in numpy, as a trace may be inside a graph of TFF's."""
  value, *bounds = constants

  def is_set(name: str, position: int) -> bool:
    return bool(node.attr[name].i >> position & 1)

  index: list[Any] = []
  for position, (begin, end, stride) in enumerate(zip(*bounds)):
    if is_set("ellipsis_mask", position):
      index.append(Ellipsis)
    elif is_set("new_axis_mask", position):
      index.append(np.newaxis)
    elif is_set("shrink_axis_mask", position):
      index.append(int(begin))
    else:
      first = None if is_set("begin_mask", position) else int(begin)
      last = None if is_set("end_mask", position) else int(end)
      index.append(slice(first, last, int(stride)))
  return np.asarray(value)[tuple(index)]


def constant(tensor: Any) -> np.ndarray:
  """Returns a TensorProto as an array; `tf.make_ndarray` fails for some without elements."""
  shape = [dim.size for dim in tensor.tensor_shape.dim]
  if 0 in shape:
    return np.zeros(shape, tf.as_dtype(tensor.dtype).as_numpy_dtype)
  return tf.make_ndarray(tensor)


def fold(node: tf.compat.v1.NodeDef, constants: Sequence[np.ndarray]) -> np.ndarray | None:
  """Returns the result of an op on constants; None for ops that are not computed here."""
  if node.op == "StridedSlice":
    return np.asarray(_slice(node, constants))
  if node.op in _FOLDED:
    return np.asarray(_FOLDED[node.op](*constants))
  return None
