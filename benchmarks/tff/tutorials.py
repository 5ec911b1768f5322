"""The programs of TFF's tutorials, as people extend them, in cells.

Each function builds the computations of a tutorial anew, and returns its cells in order: functions
without arguments, whose results are compared. Data are drawn, of the tutorials' shapes and formats.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import functools
import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Cell = Callable[[], Any]
_PIXELS, _CLASSES = 784, 10


@functools.cache
def _sql_clients(num_clients: int = 20) -> tff.simulation.datasets.ClientData:
  """Returns handwriting in a file of the format of TFF's own, some 100 images a client."""
  rng = np.random.default_rng(0)

  def images(client_id: str) -> tf.data.Dataset:
    size = int(rng.integers(90, 111))
    pixels = rng.random((size, 28, 28)).astype(np.float32)
    labels = rng.integers(0, _CLASSES, size).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(label=labels, pixels=pixels))

  path = os.path.join(tempfile.mkdtemp(), "images.sqlite")
  spec = collections.OrderedDict(
    label=tf.TensorSpec([], tf.int32), pixels=tf.TensorSpec([28, 28], tf.float32)
  )
  ids = [f"f{i:04d}" for i in range(num_clients)]
  tff.simulation.datasets.save_to_sql_client_data(ids, images, path)
  return tff.simulation.datasets.load_and_parse_sql_client_data(path, spec)


def own_algorithm(num_rounds: int) -> list[Cell]:
  """building_your_own_federated_learning_algorithm: a loop over batches with a tape."""
  images = _sql_clients()

  def flatten(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.reshape(batch["pixels"], [-1, _PIXELS]), tf.reshape(batch["label"], [-1, 1])

  clients = [
    images.create_tf_dataset_for_client(i).batch(20).map(flatten) for i in images.client_ids[:10]
  ]

  def build_model() -> tff.learning.models.VariableModel:
    layers = tf.keras.layers
    start = tf.keras.initializers.GlorotNormal(seed=0)
    keras_model = tf.keras.Sequential(
      [layers.Input([_PIXELS]), layers.Dense(_CLASSES, kernel_initializer=start), layers.Softmax()]
    )
    return tff.learning.models.from_keras_model(
      keras_model,
      loss=tf.keras.losses.SparseCategoricalCrossentropy(),
      input_spec=clients[0].element_spec,
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )

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
  def next_round(weights: Any, data: Any) -> Any:
    updated = tff.federated_map(update, (data, tff.federated_broadcast(weights)))
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


def sequence_algorithm(num_rounds: int) -> list[Cell]:
  """custom_federated_algorithms_2: lists of batches, `tff.sequence_reduce`, `tff.sequence_map`."""
  rng = np.random.default_rng(0)
  clients = [
    [
      {"x": rng.random((100, _PIXELS), np.float32), "y": np.full(100, digit, np.int32)}
      for _ in range(10)
    ]
    for digit in range(_CLASSES)
  ]
  batch_type = tff.types.tensorflow_to_type(
    collections.OrderedDict(
      x=tf.TensorSpec([None, _PIXELS], tf.float32), y=tf.TensorSpec([None], tf.int32)
    )
  )
  model_type = tff.types.tensorflow_to_type(
    collections.OrderedDict(
      weights=tf.TensorSpec([_PIXELS, _CLASSES]), bias=tf.TensorSpec([_CLASSES])
    )
  )
  local_type = tff.SequenceType(batch_type)

  @tf.function
  def loss_of(model: Any, batch: Any) -> tf.Tensor:
    predicted = tf.nn.softmax(tf.matmul(batch["x"], model["weights"]) + model["bias"])
    logs = tf.one_hot(batch["y"], _CLASSES) * tf.math.log(predicted)
    return -tf.reduce_mean(tf.reduce_sum(logs, axis=[1]))

  @tff.tensorflow.computation(model_type, batch_type)
  def batch_loss(model: Any, batch: Any) -> tf.Tensor:
    return loss_of(model, batch)

  @tff.tensorflow.computation(model_type, batch_type, np.float32)
  def batch_train(initial: Any, batch: Any, rate: tf.Tensor) -> Any:
    model = collections.OrderedDict(
      (name, tf.Variable(value, name=name)) for name, value in initial.items()
    )
    optimizer = tf.keras.optimizers.SGD(rate)

    @tf.function
    def train(model: Any, batch: Any) -> Any:
      with tf.GradientTape() as tape:
        loss = loss_of(model, batch)
      gradients = tape.gradient(loss, model)
      optimizer.apply_gradients(zip(tf.nest.flatten(gradients), tf.nest.flatten(model)))
      return model

    return train(model, batch)

  @tff.tensorflow.computation(local_type, np.float32)
  def with_rate(data_set: Any, rate: tf.Tensor) -> Any:
    return data_set.map(lambda batch: (batch, rate))

  @tff.federated_computation(model_type, np.float32, local_type)
  def local_train(initial: Any, rate: Any, batches: Any) -> Any:
    pairs = with_rate(batches, rate)

    @tff.federated_computation(model_type, pairs.type_signature.element)
    def train(model: Any, pair: Any) -> Any:
      return batch_train(model, pair[0], pair[1])

    return tff.sequence_reduce(pairs, initial, train)

  @tff.tensorflow.computation(model_type, local_type)
  def with_model(model: Any, data_set: Any) -> Any:
    return data_set.map(lambda batch: (model, batch))

  @tff.tensorflow.computation(np.float32, np.float32)
  def add(total: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    return total + loss

  @tff.federated_computation(model_type, local_type)
  def local_eval(model: Any, batches: Any) -> Any:
    losses = tff.sequence_map(batch_loss, with_model(model, batches))
    return tff.sequence_reduce(losses, 0.0, add)

  at_server = tff.FederatedType(model_type, tff.SERVER)
  at_clients = tff.FederatedType(local_type, tff.CLIENTS)

  @tff.federated_computation(at_server, at_clients)
  def federated_eval(model: Any, data: Any) -> Any:
    return tff.federated_mean(tff.federated_map(local_eval, [tff.federated_broadcast(model), data]))

  @tff.federated_computation(at_server, tff.FederatedType(np.float32, tff.SERVER), at_clients)
  def federated_train(model: Any, rate: Any, data: Any) -> Any:
    sent = tff.federated_broadcast(model), tff.federated_broadcast(rate)
    return tff.federated_mean(tff.federated_map(local_train, [*sent, data]))

  models = [
    collections.OrderedDict(
      weights=np.zeros([_PIXELS, _CLASSES], np.float32), bias=np.zeros(_CLASSES, np.float32)
    )
  ]
  trained: list[Any] = []
  rate = [0.1]

  def train_batches() -> list[Any]:
    model, losses = models[0], []
    for _ in range(5):
      model = batch_train(model, clients[5][-1], 0.1)
      losses.append(batch_loss(model, clients[5][-1]))
    return losses

  def train_locally() -> Any:
    trained.append(local_train(models[0], 0.1, clients[5]))
    return trained[0]

  def step() -> Any:
    models.append(federated_train(models[-1], rate[0], clients))
    rate[0] *= 0.9
    return federated_eval(models[-1], clients)

  return [
    lambda: batch_loss(models[0], clients[5][-1]),
    train_batches,
    train_locally,
    lambda: [local_eval(model, clients[5]) for model in (models[0], trained[0])],
    lambda: [local_eval(model, clients[0]) for model in (models[0], trained[0])],
    lambda: [federated_eval(model, clients) for model in (models[0], trained[0])],
    *[step] * num_rounds,
    lambda: [federated_eval(model, clients[::-1]) for model in (models[0], models[-1])],
  ]


def core_language(num_rounds: int) -> list[Cell]:
  """custom_federated_algorithms_1: small computations, most of which are called once."""
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


def own_aggregators(num_rounds: int) -> list[Cell]:
  """custom_aggregators: aggregation processes, each called once or twice."""
  float_type = tff.TensorType(np.float32)

  class Scaled(tff.aggregators.UnweightedAggregationFactory):
    """Sums values that clients scale and the server scales back; by an inner factory."""

    def __init__(self, inner: Any, has_state: bool):
      self._inner, self._has_state = inner, has_state

    def create(self, value_type: Any) -> tff.templates.AggregationProcess:
      inner = self._inner.create(value_type)
      has_state = self._has_state

      @tff.tensorflow.computation(value_type, np.float32)
      def scale(value: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda x: x * factor, value)

      @tff.tensorflow.computation(value_type, np.float32)
      def unscale(value: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda x: x / factor, value)

      @tff.tensorflow.computation(np.float32)
      def next_factor(factor: tf.Tensor) -> tf.Tensor:
        return factor + 1.0 if has_state else factor

      @tff.federated_computation
      def initialize() -> Any:
        own = tff.federated_value(2.0, tff.SERVER)
        return tff.federated_zip((own, inner.initialize()))

      @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
      )
      def next_fn(state: Any, value: Any) -> Any:
        factor, inner_state = state
        scaled = tff.federated_map(scale, (value, tff.federated_broadcast(factor)))
        output = inner.next(inner_state, scaled)
        summed = tff.federated_map(unscale, (output.result, factor))
        after = tff.federated_zip((tff.federated_map(next_factor, factor), output.state))
        measured = tff.federated_zip(
          collections.OrderedDict(scaled=output.result, inner=output.measurements)
        )
        return tff.templates.MeasuredProcessOutput(after, summed, measured)

      return tff.templates.AggregationProcess(initialize, next_fn)

  factories = tff.aggregators
  cells: list[Cell] = []
  for inner, has_state in (
    (factories.SumFactory(), False),
    (factories.SumFactory(), True),
    (factories.clipping_factory(3.0, factories.SumFactory()), True),
    (factories.SecureSumFactory(10.0, -10.0), False),
  ):
    process = Scaled(inner, has_state).create(float_type)
    state: list[Any] = []

    def start(process: Any = process, state: list[Any] = state) -> Any:
      state.append(process.initialize())
      return state[-1]

    def step(process: Any = process, state: list[Any] = state) -> Any:
      output = process.next(state[-1], [1.0, 2.0, 5.0])
      state.append(output.state)
      return output.result, output.measurements

    cells += [start, *[step] * max(1, num_rounds // 4)]
  return cells


def private_learning(num_rounds: int) -> list[Cell]:
  """federated_learning_with_differential_privacy: data sets made in each round, without a seed."""
  images = _sql_clients()

  def preprocess(data_set: tf.data.Dataset) -> tf.data.Dataset:
    shaped = data_set.map(
      lambda e: collections.OrderedDict(x=tf.expand_dims(e["pixels"], -1), y=e["label"])
    )
    return shaped.shuffle(418).repeat(1).batch(32)

  clients = images.preprocess(preprocess)
  spec = clients.element_type_structure

  def build_model() -> tff.learning.models.VariableModel:
    layers = tf.keras.layers
    keras_model = tf.keras.Sequential(
      [
        layers.Reshape([_PIXELS], input_shape=(28, 28, 1)),
        layers.Dense(200, "relu"),
        layers.Dense(200, "relu"),
        layers.Dense(_CLASSES),
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


TUTORIALS: Mapping[str, Callable[[int], Sequence[Cell]]] = {
  "building_your_own": own_algorithm,
  "custom_algorithms_1": core_language,
  "custom_algorithms_2": sequence_algorithm,
  "custom_aggregators": own_aggregators,
  "differential_privacy": private_learning,
}
