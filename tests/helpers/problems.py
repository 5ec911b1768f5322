"""Small federated problems for the tests of algorithms, with independent numpy oracles."""

import collections
import dataclasses
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import noise_source
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.secure_sums import discrete_gaussian

NUM_FEATURES, NUM_CLASSES = 5, 3
_SPEC = (
  tf.TensorSpec([None, NUM_FEATURES], tf.float32),
  tf.TensorSpec([None], tf.int32),
)


def client_arrays(sizes=(12, 7, 20, 3, 9, 16), seed=0):
  """Examples of clients that differ: [(x float32 [n, 5], y int32 [n])]."""
  rng = np.random.default_rng(seed)
  return [
    (
      (rng.normal(size=[n, NUM_FEATURES]) + rng.normal(size=NUM_FEATURES)).astype(np.float32),
      rng.integers(0, NUM_CLASSES, n).astype(np.int32),
    )
    for n in sizes
  ]


def clients(num_clients, seed=0):
  """The clients of a round by themselves, for a threshold without a model."""
  return [
    threshold_lib.Client(np.array([seed, index], np.int64), np.int32(index))
    for index in range(num_clients)
  ]


_HANDLE_SPEC = collections.OrderedDict(
  index=tf.TensorSpec([], tf.int32), seed=tf.TensorSpec([2], tf.int64)
)


def linear_loss_model(num_features=3):
  """A loss label - x w: an update is the learning rate times -x, whatever the weights."""

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.linalg.matvec(x, weights[0][0])

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(num_features, np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(label - output),
    input_spec=(
      tf.TensorSpec([None, num_features], tf.float32),
      tf.TensorSpec([None], tf.float32),
    ),
  )


def reading_handles(arrays):
  """Options of an algorithm whose clients hold an index of arrays, and a seed."""
  offsets = np.cumsum([0] + [len(y) for _, y in arrays])
  x, y = (np.concatenate(parts) for parts in zip(*arrays))

  @tf.function(input_signature=[_HANDLE_SPEC])
  def examples(handle):
    rows = tf.range(tf.gather(offsets, handle["index"]), tf.gather(offsets, handle["index"] + 1))
    return tf.gather(x, rows), tf.gather(y, rows)

  return dict(examples_fn=examples, seed_fn=lambda handle: handle["seed"])


def handles(indices, round_num=0):
  return [
    collections.OrderedDict(index=np.int32(index), seed=np.array([round_num, position], np.int64))
    for position, index in enumerate(indices)
  ]


def vector(weights):
  """Weights as one vector, float64."""
  return np.concatenate([np.ravel(w).astype(np.float64) for w in weights])


def datasets(arrays, batch_size=4):
  return [tf.data.Dataset.from_tensor_slices(a).batch(batch_size) for a in arrays]


def mean_cross_entropy(output, label, sample_weight=None):
  del sample_weight
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, output))


def linear_model(accuracy=True):
  """A linear classifier; what does not look at its metrics is faster without any."""

  @tf.function
  def predict(weights, x, training):
    del training
    (w, b), _ = weights
    return tf.matmul(x, w) + b

  def metrics():
    measured = [("accuracy", tf.keras.metrics.SparseCategoricalAccuracy())] if accuracy else []
    return collections.OrderedDict(measured)

  rng = np.random.default_rng(7)
  initial = (
    rng.normal(size=[NUM_FEATURES, NUM_CLASSES]).astype(np.float32),
    np.zeros(NUM_CLASSES, np.float32),
  )
  model = tff.learning.models.FunctionalModel(
    initial_weights=(initial, ()),
    predict_on_batch_fn=predict,
    loss_fn=mean_cross_entropy,
    metrics_fns=tff.learning.metrics.create_functional_metric_fns(metrics),
    input_spec=_SPEC,
  )
  model.has_linear_gradient = True  # As the tasks' models; all other ones here say nothing of it.
  return model


def linear_model_fn():
  """The same as a `VariableModel`."""
  return tff.learning.models.model_from_functional(
    linear_model(), [tf.keras.metrics.SparseCategoricalAccuracy]
  )


def keras_model():
  """A Keras model with non-trainable weights (batch normalisation)."""
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(NUM_FEATURES),
      tf.keras.layers.Dense(4, "relu", kernel_initializer=tf.keras.initializers.GlorotUniform(1)),
      tf.keras.layers.BatchNormalization(),
      tf.keras.layers.Dense(NUM_CLASSES, kernel_initializer=tf.keras.initializers.GlorotUniform(2)),
    ]
  )


def keras_model_fn():
  return tff.learning.models.from_keras_model(
    keras_model(),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=_SPEC,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def losses_and_gradient(weights, x, y):
  """Mean cross entropy and its gradient, by hand, in float64."""
  w, b = weights
  logits = x.astype(np.float64) @ w + b
  logits -= logits.max(axis=1, keepdims=True)
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  rows = np.arange(len(y))
  loss = -np.mean(np.log(p[rows, y]))
  p[rows, y] -= 1
  return loss, (x.T.astype(np.float64) @ p / len(y), p.mean(axis=0))


def local_sgd(weights, x, y, *, learning_rate, batch_size, epochs=1, l2=0.0):
  for _ in range(epochs):
    for start in range(0, len(y), batch_size):
      rows = slice(start, start + batch_size)
      _, gradient = losses_and_gradient(weights, x[rows], y[rows])
      weights = [w - learning_rate * (g + l2 * w) for w, g in zip(weights, gradient)]
  return weights


def update(weights, x, y, rate):
  """What one step of a client adds to the weights, as one vector."""
  trained = local_sgd(weights, x, y, learning_rate=rate, batch_size=len(y))
  return vector(trained) - vector(weights)


def clipped(update_of_client, norm):
  return update_of_client * min(1.0, norm / max(np.linalg.norm(update_of_client), 1e-300))


def noise_of_rounds(of_key, shapes, num_rounds):
  """The noise that a `GaussianSum` adds in rounds in a row, each as one vector."""
  zeros = [tf.zeros(shape, tf.float64) for shape in shapes]
  state, noise_of_all = of_key.initial_state(zeros), []
  for _ in range(num_rounds):
    state, noise = of_key.add_noise(state, zeros, zeros)
    noise_of_all.append(vector(n.numpy() for n in noise))
  return noise_of_all


def noise_of_the_server(mechanism, size, key, purpose, num_clients, round_num=1):
  """The shares that are missing, as the server draws them in that round."""
  source = noise_source.NoiseSource(key, purpose)
  state = source.initial_state()
  for _ in range(round_num):
    seed, state = source.draw(state)
  missing = mechanism.num_shares - num_clients
  if not missing:
    return np.zeros(size, np.int64)
  stddev = tf.constant(mechanism.local_stddev * np.sqrt(missing))
  return discrete_gaussian.sample([size], stddev, seed).numpy()


def midpoints(losses, max_loss, num_bins):
  """The middles of the losses' bins."""
  width = max_loss / num_bins
  return (np.clip(np.floor(np.array(losses) / width), 0, num_bins - 1) + 0.5) * width


def semi_variance_shares(values, weights, beta):
  mean = weights @ values / weights.sum()
  factors = 1.0 + 2.0 * beta * np.maximum(values - mean, 0.0)
  return factors / factors.max()


def rank_shares(values, weights, strength):
  signs = np.sign(values[:, np.newaxis] - values[np.newaxis])
  return (1.0 + strength * signs @ weights / weights.sum()) / (1.0 + strength)


def shares_by_histogram(shares_of, losses, max_loss, num_bins):
  """Shares of (values, weights) by bins: the largest loss that there is has the largest share."""
  values = midpoints([*losses, max_loss], max_loss, num_bins)
  return shares_of(values, np.append(np.ones(len(losses)), 0.0))[:-1]


def sums(computation):
  """(open sums, secure sums, all else) by which something leaves the clients."""
  text = computation.to_building_block().compact_representation()
  kinds = (("sum", "aggregate"), ("secure_sum", "secure_modular_sum"), ("mean", "collect"))
  return tuple(sum(text.count(f"federated_{name}(") for name in names) for names in kinds)


def initial_weights():
  return [w.astype(np.float64) for w in linear_model().initial_weights[0]]


_cdf = np.vectorize(lambda x: 0.5 * (1.0 + math.erf((x - 1.0) / math.sqrt(2.0))))


def mixing_coefficients(rounds, num_clients, decision_step):
  """p of AAggFF-D in each round by its equations, with whole vectors, of (cohort, losses)."""
  p, gradients, found = np.full(num_clients, 1.0 / num_clients), np.zeros(num_clients), []
  for t, (cohort, losses) in enumerate(rounds, start=1):
    cohort, losses = np.array(cohort, int), np.maximum(np.array(losses, float), 0.0)
    part = len(cohort) / num_clients
    responses = part * _cdf(losses / (losses.mean() or 1.0))
    mean = responses.mean()
    robust = np.full(num_clients, mean)
    robust[cohort] += (responses - mean) / part
    around = mean * np.ones(num_clients)
    scale = 1.0 + p @ around
    gradients += -robust / scale + around * (p @ (robust - around)) / scale**2
    step = decision_step * np.sqrt(np.log(num_clients)) / ((2.0 + part) * np.sqrt(t + 1.0))
    p = np.exp(-step * gradients)
    p /= p.sum()
    found.append(p)
  return found


def with_private(**options):
  """A builder's options, of which those that are fields of `Private` are one."""
  fields = {field.name for field in dataclasses.fields(algorithms.Private)} & set(options)
  private = algorithms.Private(**{name: options.pop(name) for name in fields})
  return {**options, "private": private}
