"""custom_federated_algorithms_2: lists of batches, `tff.sequence_reduce`, `tff.sequence_map`.

The tutorial pairs each batch with the rate, and with the model, in a data set's `map`; TFF 0.87's
worker does not take the data sets that this makes. Here a fold hands both on.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.tff.tutorials import images

Cell = Callable[[], Any]
_BATCH = tff.types.tensorflow_to_type(
  collections.OrderedDict(
    x=tf.TensorSpec([None, images.PIXELS], tf.float32), y=tf.TensorSpec([None], tf.int32)
  )
)
_MODEL = tff.types.tensorflow_to_type(
  collections.OrderedDict(
    weights=tf.TensorSpec([images.PIXELS, images.CLASSES]), bias=tf.TensorSpec([images.CLASSES])
  )
)
_LOCAL = tff.SequenceType(_BATCH)


@tf.function
def _loss(model: Any, batch: Any) -> tf.Tensor:
  predicted = tf.nn.softmax(tf.matmul(batch["x"], model["weights"]) + model["bias"])
  logs = tf.one_hot(batch["y"], images.CLASSES) * tf.math.log(predicted)
  return -tf.reduce_mean(tf.reduce_sum(logs, axis=[1]))


def _on_a_batch() -> tuple[Any, Any]:
  """Returns a model's loss, and what it becomes by one step, on a batch."""

  @tff.tensorflow.computation(_MODEL, _BATCH)
  def loss(model: Any, batch: Any) -> tf.Tensor:
    return _loss(model, batch)

  @tff.tensorflow.computation(_MODEL, _BATCH, np.float32)
  def train(initial: Any, batch: Any, rate: tf.Tensor) -> Any:
    model = collections.OrderedDict(
      (name, tf.Variable(value, name=name)) for name, value in initial.items()
    )
    optimizer = tf.keras.optimizers.SGD(rate)

    @tf.function
    def step(model: Any, batch: Any) -> Any:
      with tf.GradientTape() as tape:
        loss = _loss(model, batch)
      gradients = tape.gradient(loss, model)
      optimizer.apply_gradients(zip(tf.nest.flatten(gradients), tf.nest.flatten(model)))
      return model

    return step(model, batch)

  return loss, train


def _on_batches(batch_loss: Any, batch_train: Any) -> tuple[Any, Any]:
  """Returns a model's loss, and what it becomes by a pass, on the batches of one client."""

  @tff.federated_computation(tff.StructType([_MODEL, np.float32]), _BATCH)
  def step(state: Any, batch: Any) -> Any:
    return batch_train(state[0], batch, state[1]), state[1]

  @tff.federated_computation(_MODEL, np.float32, _LOCAL)
  def train(initial: Any, rate: Any, batches: Any) -> Any:
    return tff.sequence_reduce(batches, [initial, rate], step)[0]

  @tff.tensorflow.computation(np.float32, np.float32)
  def add(total: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    return total + loss

  @tff.federated_computation(tff.StructType([_MODEL, np.float32]), _BATCH)
  def count(state: Any, batch: Any) -> Any:
    return state[0], add(state[1], batch_loss(state[0], batch))

  @tff.federated_computation(_MODEL, _LOCAL)
  def evaluate(model: Any, batches: Any) -> Any:
    return tff.sequence_reduce(batches, [model, 0.0], count)[1]

  return evaluate, train


def _at_clients(local_loss: Any, local_train: Any) -> tuple[Any, Any]:
  """Returns a model's mean loss, and the mean of what clients make of it."""
  model_type = tff.FederatedType(_MODEL, tff.SERVER)
  data_type = tff.FederatedType(_LOCAL, tff.CLIENTS)

  @tff.federated_computation(model_type, data_type)
  def evaluate(model: Any, data: Any) -> Any:
    return tff.federated_mean(tff.federated_map(local_loss, [tff.federated_broadcast(model), data]))

  @tff.federated_computation(model_type, tff.FederatedType(np.float32, tff.SERVER), data_type)
  def train(model: Any, rate: Any, data: Any) -> Any:
    sent = tff.federated_broadcast(model), tff.federated_broadcast(rate)
    return tff.federated_mean(tff.federated_map(local_train, [*sent, data]))

  return evaluate, train


def build(num_rounds: int) -> list[Cell]:
  """Returns the cells."""
  rng = np.random.default_rng(0)
  clients = [
    [
      {"x": rng.random((100, images.PIXELS), np.float32), "y": np.full(100, digit, np.int32)}
      for _ in range(10)
    ]
    for digit in range(images.CLASSES)
  ]
  batch_loss, batch_train = _on_a_batch()
  local_loss, local_train = _on_batches(batch_loss, batch_train)
  mean_loss, mean_train = _at_clients(local_loss, local_train)
  zeros = collections.OrderedDict(
    weights=np.zeros([images.PIXELS, images.CLASSES], np.float32),
    bias=np.zeros(images.CLASSES, np.float32),
  )
  models, rates = [zeros], [0.1]

  def train_on_one_batch() -> Any:
    model = zeros
    for _ in range(5):
      model = batch_train(model, clients[5][-1], 0.1)
    return batch_loss(model, clients[5][-1])

  def step() -> Any:
    models.append(mean_train(models[-1], rates[-1], clients))
    rates.append(rates[-1] * 0.9)
    return mean_loss(models[-1], clients)

  return [
    lambda: batch_loss(zeros, clients[5][-1]),
    train_on_one_batch,
    lambda: local_train(zeros, 0.1, clients[5]),
    lambda: [local_loss(zeros, clients[digit]) for digit in (5, 5, 0, 0)],
    lambda: [mean_loss(zeros, clients) for _ in range(2)],
    *[step] * num_rounds,
  ]
