"""Collects one row of numbers of each client at the server."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def collect(rows: tff.Value, num_columns: int, dtype: Any = np.float32) -> tff.Value:
  """Collects {dtype[c]}@CLIENTS as dtype[n, c]@SERVER; the order of the rows does not matter."""
  row_type = tff.TensorType(dtype, [num_columns])
  rows_type = tff.TensorType(dtype, [None, num_columns])

  @tff.tensorflow.computation
  def zero():
    # The static shape of the accumulator must allow it to grow.
    none = tf.zeros([0, num_columns], dtype)
    return tf.compat.v1.placeholder_with_default(none, [None, num_columns])

  @tff.tensorflow.computation(rows_type, row_type)
  def accumulate(rows, row):
    return tf.concat([rows, [row]], axis=0)

  @tff.tensorflow.computation(rows_type, rows_type)
  def merge(first, second):
    return tf.concat([first, second], axis=0)

  @tff.tensorflow.computation(rows_type)
  def report(rows):
    return rows

  return tff.federated_aggregate(rows, zero(), accumulate, merge, report)
