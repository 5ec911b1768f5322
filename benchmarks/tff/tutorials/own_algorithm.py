"""building_your_own_federated_learning_algorithm: a loop over batches with a tape."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.tff.tutorials import images

Cell = Callable[[], Any]


def _flatten(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
  return tf.reshape(batch["pixels"], [-1, images.PIXELS]), tf.reshape(batch["label"], [-1, 1])


def _build_model(batch_spec: Any) -> tff.learning.models.VariableModel:
  layers = tf.keras.layers
  start = tf.keras.initializers.GlorotNormal(seed=0)
  keras_model = tf.keras.Sequential(
    [
      layers.Input([images.PIXELS]),
      layers.Dense(images.CLASSES, kernel_initializer=start),
      layers.Softmax(),
    ]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(),
    input_spec=batch_spec,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def build(num_rounds: int) -> list[Cell]:
  """Returns the cells."""
  data = images.clients()

  clients = [
    data.create_tf_dataset_for_client(i).batch(20).map(_flatten) for i in data.client_ids[:10]
  ]

  build_model = functools.partial(_build_model, clients[0].element_spec)

  @tf.function
  def train(model: Any, data_set: Any, weights: Any, optimizer: Any) -> Any:
    own = model.trainable_variables
    tf.nest.map_structure(lambda variable, value: variable.assign(value), own, weights)
    for batch in data_set:
      with tf.GradientTape() as tape:
        output = model.forward_pass(batch)
      optimizer.apply_gradients(zip(tape.gradient(output.loss, own), own))
    return own

  @tff.tensorflow.computation
  def begin() -> Any:
    return build_model().trainable_variables

  weights_type = begin.type_signature.result
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(clients[0].element_spec))

  @tff.tensorflow.computation(data_type, weights_type)
  def update(data_set: Any, weights: Any) -> Any:
    return train(build_model(), data_set, weights, tf.keras.optimizers.SGD(0.01))

  @tff.tensorflow.computation(weights_type)
  def finish(mean: Any) -> Any:
    own = build_model().trainable_variables
    tf.nest.map_structure(lambda variable, value: variable.assign(value), own, mean)
    return own

  @tff.federated_computation
  def initialize() -> Any:
    return tff.federated_eval(begin, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(data_type, tff.CLIENTS)
  )
  def next_round(weights: Any, held: Any) -> Any:
    updated = tff.federated_map(update, (held, tff.federated_broadcast(weights)))
    return tff.federated_map(finish, tff.federated_mean(updated))

  process = tff.templates.IterativeProcess(initialize, next_round)
  state = []

  def start() -> Any:
    state.append(process.initialize())
    return state[-1]

  def step() -> Any:
    state.append(process.next(state[-1], clients))
    return state[-1]

  return [start, *[step] * num_rounds]
