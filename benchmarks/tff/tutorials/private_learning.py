"""federated_learning_with_differential_privacy: data sets made anew, shuffled without a seed."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.tff.tutorials import images

Cell = Callable[[], Any]


def build(num_rounds: int) -> list[Cell]:
  """Returns the cells."""
  data = images.clients()

  def preprocess(data_set: tf.data.Dataset) -> tf.data.Dataset:
    shaped = data_set.map(
      lambda e: collections.OrderedDict(x=tf.expand_dims(e["pixels"], -1), y=e["label"])
    )
    return shaped.shuffle(418).repeat(1).batch(32)

  clients = data.preprocess(preprocess)
  spec = clients.element_type_structure

  def build_model() -> tff.learning.models.VariableModel:
    layers = tf.keras.layers
    keras_model = tf.keras.Sequential(
      [
        layers.Reshape([images.PIXELS], input_shape=(28, 28, 1)),
        layers.Dense(200, "relu"),
        layers.Dense(200, "relu"),
        layers.Dense(images.CLASSES),
      ]
    )
    return tff.learning.models.from_keras_model(
      keras_model,
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=spec,
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )

  process = tff.learning.algorithms.build_unweighted_fed_avg(
    build_model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.9),
    model_aggregator=tff.learning.dp_aggregator(0.5, 20),
  )
  state: list[Any] = []

  def start() -> None:  # The weights are drawn.
    state.append(process.initialize())

  def step() -> None:  # So is the noise.
    cohort = [clients.create_tf_dataset_for_client(i) for i in clients.client_ids]
    state.append(process.next(state[-1], cohort).state)

  return [start, *[step] * num_rounds]
