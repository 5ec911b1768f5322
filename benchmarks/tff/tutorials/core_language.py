"""custom_federated_algorithms_1: small computations, most of which are called once."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Cell = Callable[[], Any]


def build(num_rounds: int) -> list[Cell]:
  """Returns the cells."""
  floats = tff.FederatedType(np.float32, tff.CLIENTS)
  sequence = tff.SequenceType(np.float32)

  @tff.federated_computation
  def hello() -> Any:
    return "Hello, World!"

  @tff.federated_computation(floats)
  def average(temperatures: Any) -> Any:
    return tff.federated_mean(temperatures)

  @tff.tensorflow.computation(np.float32)
  def add_half(value: tf.Tensor) -> tf.Tensor:
    return tf.add(value, 0.5)

  @tff.federated_computation(floats)
  def add_half_on_clients(value: Any) -> Any:
    return tff.federated_map(add_half, value)

  @tff.tensorflow.computation(sequence)
  def local_average(values: Any) -> tf.Tensor:
    total, count = values.reduce((0.0, 0), lambda x, y: (x[0] + y, x[1] + 1))
    return total / tf.cast(count, tf.float32)

  @tff.tensorflow.computation(tff.SequenceType(np.int32))
  def add_all(values: Any) -> tf.Tensor:
    return values.reduce(0, lambda x, y: x + y)

  @tff.tensorflow.computation(tff.SequenceType(collections.OrderedDict(A=np.int32, B=np.int32)))
  def scalar_product(pairs: Any) -> tf.Tensor:
    return pairs.reduce(0, lambda total, pair: total + pair["A"] * pair["B"])

  @tff.federated_computation(tff.FederatedType(sequence, tff.CLIENTS))
  def global_average(readings: Any) -> Any:
    return tff.federated_mean(tff.federated_map(local_average, readings))

  @tff.tensorflow.computation(np.float32, np.float32)
  def is_over(value: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
    return tf.cast(value > threshold, tf.float32)

  @tff.federated_computation(floats, tff.FederatedType(np.float32, tff.SERVER))
  def share_over(values: Any, threshold: Any) -> Any:
    pairs = (values, tff.federated_broadcast(threshold))
    return tff.federated_mean(tff.federated_map(is_over, pairs))

  return [
    hello,
    lambda: average([68.5, 70.3, 69.8]),
    lambda: add_half(10.0),
    lambda: add_half_on_clients([1.0, 3.0, 2.0]),
    lambda: add_all([1, 2, 3]),
    lambda: local_average([68.5, 70.3, 69.8]),
    lambda: scalar_product([{"A": 2, "B": 3}, {"A": 4, "B": 5}]),
    lambda: global_average([[68.0, 70.0], [71.0], [68.0, 72.0, 70.0]]),
    lambda: share_over([68.5, 70.3, 69.8], 69.0),
    *[lambda: share_over([68.5, 70.3, 69.8], 70.0)] * num_rounds,
  ]
