"""Models against independent implementations: numpy for the linear ones, Keras for the others."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tasks.models import networks

_IMAGES = (tf.TensorSpec([None, 28, 28], tf.float32), tf.TensorSpec([None], tf.int32))
_VECTORS = (tf.TensorSpec([None, 20], tf.float32), tf.TensorSpec([None], tf.int32))
_SEQUENCES = (tf.TensorSpec([None, 6, 5], tf.float32), tf.TensorSpec([None], tf.int32))


def loss_and_gradients(model, weights, x, y):
  """The gradients by way of a multiple of the loss, as a step's rate makes it."""
  weights = [tf.constant(w) for w in weights]
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = model.loss(model.predict_on_batch((tuple(weights), ()), x), y)
    multiple = 4.0 * loss
  return loss.numpy(), [g.numpy() / 4.0 for g in tape.gradient(multiple, weights)]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_linear_models_are_softmax_and_logistic_regression(num_classes, intercept):
  rng = np.random.default_rng(0)
  if num_classes == 2:
    model = models.build_logistic_regression(_VECTORS, intercept=intercept)
    shapes = [(20,), ()][: 1 + intercept]
  else:
    model = models.build_linear_classifier(_VECTORS, 10, intercept=intercept)
    shapes = [(20, 10), (10,)][: 1 + intercept]
  assert [w.shape for w in model.initial_weights[0]] == shapes
  assert not any(w.any() for w in model.initial_weights[0])
  weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
  x = rng.normal(size=(7, 20)).astype(np.float32)
  y = rng.integers(0, num_classes, 7).astype(np.int32)
  scores = x.astype(np.float64) @ weights[0] + (weights[1] if intercept else 0.0)
  assert model.predict_on_batch((tuple(weights), ()), x).shape == scores.shape
  if num_classes == 2:  # The one score is that of the second class, against 0.
    scores = np.stack([0.0 * scores, scores], axis=1)
  p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
  loss, gradients = loss_and_gradients(model, weights, x, y)
  np.testing.assert_allclose(loss, -np.log(p[np.arange(7), y]).mean(), rtol=1e-5)
  residuals = (p - np.eye(num_classes)[y]) / 7
  residuals = residuals[:, 1] if num_classes == 2 else residuals
  for got, want in zip(gradients, [x.T @ residuals, residuals.sum(axis=0)]):
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
  "logits, y, losses",
  [
    (np.array([1e30, -1e30, 2.0]), [1, 0, 0], [0.0, 0.0, np.log1p(np.exp(2.0))]),  # All finite.
    (np.diag([1.0, 2.0, 3.0]), [1, 2, 0], np.log(2 + np.exp([1.0, 2.0, 3.0]))),
  ],
)
def test_losses_are_means_by_sample_weights(logits, y, losses):
  if logits.ndim == 1:
    model = models.build_logistic_regression(_VECTORS, intercept=False)
  else:
    model = models.build_linear_classifier(_VECTORS, 3, intercept=True)
  logits, y = logits.astype(np.float32), np.array(y, np.int32)
  np.testing.assert_allclose(model.loss(logits, y), np.mean(losses), rtol=1e-5)
  weighted = model.loss(logits, y, np.array([1.0, 0.0, 3.0], np.float32))
  np.testing.assert_allclose(weighted, (losses[0] + 3 * losses[2]) / 4, rtol=1e-5)


def test_images_are_flattened():
  model = models.build_linear_classifier(_IMAGES, 62, intercept=False)
  x = np.random.default_rng(0).random((3, 28, 28), np.float32)
  w = np.random.default_rng(1).normal(size=(784, 62)).astype(np.float32)
  got = model.predict_on_batch(((w,), ()), x)
  np.testing.assert_allclose(got, x.reshape(3, 784) @ w, rtol=1e-3, atol=1e-3)


def _assert_equals_keras(model, layers, x, y, noise):
  """Compares scores, loss and gradients at weights that are noise away from the initial ones."""
  keras_model = tf.keras.Sequential([tf.keras.Input(x.shape[1:]), *layers])
  weights = model.initial_weights[0]
  assert [w.shape for w in weights] == [tuple(v.shape) for v in keras_model.trainable_variables]
  rng = np.random.default_rng(0)
  weights = [w + noise * rng.normal(size=w.shape).astype(np.float32) for w in weights]
  keras_model.set_weights(weights)
  with tf.GradientTape() as tape:
    scores = keras_model(x)
    if scores.shape[1] == 1:
      scores, labels = scores[:, 0], tf.cast(y, tf.float32)
      losses = tf.keras.losses.binary_crossentropy(labels[:, None], scores[:, None], True)
    else:
      losses = tf.keras.losses.sparse_categorical_crossentropy(y, scores, from_logits=True)
    expected = tf.reduce_mean(losses)
  found = model.predict_on_batch((tuple(weights), ()), x)
  np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-5)
  loss, gradients = loss_and_gradients(model, weights, x, y)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  for got, want in zip(gradients, tape.gradient(expected, keras_model.trainable_variables)):
    np.testing.assert_allclose(got, tf.convert_to_tensor(want), atol=1e-5)


def test_convnet_equals_keras():
  rng = np.random.default_rng(0)
  layers = [
    tf.keras.layers.Reshape((28, 28, 1)),
    tf.keras.layers.Conv2D(32, 5, activation="relu"),
    tf.keras.layers.MaxPooling2D(2),
    tf.keras.layers.Conv2D(64, 5, activation="relu"),
    tf.keras.layers.MaxPooling2D(2),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(62),
  ]
  x, y = rng.random((5, 28, 28)).astype(np.float32), rng.integers(0, 62, 5).astype(np.int32)
  model = models.build_convnet(3, _IMAGES, 62)
  assert sum(w.size for w in model.initial_weights[0]) == 115_646
  _assert_equals_keras(model, layers, x, y, 0.01)


@pytest.mark.parametrize("shape", [(3, 4, 6, 2), (2, 5, 7, 3), (2, 2, 3, 1), (0, 4, 4, 2)])
def test_max_pooling_and_its_gradient_are_tensorflows(shape):
  rng = np.random.default_rng(0)
  images = tf.constant(rng.integers(0, 3, shape).astype(np.float32))  # Most squares have ties.
  found, expected = [], []
  for pool, values in (
    (networks._max_pool, found),
    (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), expected),
  ):
    with tf.GradientTape() as tape:
      tape.watch(images)
      maxima = pool(images)
      total = tf.reduce_sum(maxima * np.random.default_rng(1).normal(size=maxima.shape))
    values += [maxima, tape.gradient(total, images)]
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("num_steps", [1, 6])
def test_lstm_equals_keras(num_steps):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(7, num_steps, 5)).astype(np.float32)
  y = rng.integers(0, 2, 7).astype(np.int32)
  x[3, 4:] = 0.0  # Padding is no mask: the LSTM takes those steps, too.
  spec = (tf.TensorSpec([None, num_steps, 5], tf.float32), tf.TensorSpec([None], tf.int32))
  layers = [tf.keras.layers.LSTM(4), tf.keras.layers.Dense(1)]
  _assert_equals_keras(models.build_lstm(3, spec, hidden_size=4), layers, x, y, 1.0)


def test_character_lstm_equals_keras():
  spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32))
  model = models.build_character_lstm(3, spec, num_characters=9, embedding_size=3, hidden_size=4)
  weights = model.initial_weights[0]
  for layer in (1, 4):  # Forget gates begin open.
    np.testing.assert_array_equal(weights[layer + 2], np.repeat(np.float32([0, 1, 0, 0]), 4))
  rng = np.random.default_rng(0)
  x, y = rng.integers(0, 9, (7, 6)).astype(np.float32), rng.integers(0, 9, 7).astype(np.int32)
  _assert_equals_keras(model, model.keras_layers(), x, y, 0.3)
  assert model.predict_on_batch((weights, ()), x[:0]).shape == (0, 9)


def test_lstm_weights_follow_from_the_seed():
  first, again, other = (
    models.build_lstm(seed, _SEQUENCES, hidden_size=30).initial_weights[0] for seed in (0, 0, 1)
  )
  for a, b in zip(first, again):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == np.float32
  of_x, of_h, bias, of_logit, logit_bias = first
  for i in (0, 1, 3):
    assert not np.array_equal(first[i], other[i])
  for weights, limit in ((of_x, np.sqrt(6 / 125)), (of_logit, np.sqrt(6 / 31))):
    assert np.abs(weights).max() <= limit
    np.testing.assert_allclose(weights.std(), limit / np.sqrt(3), rtol=0.2)
  np.testing.assert_allclose(of_h @ of_h.T, np.eye(30), atol=1e-5)
  np.testing.assert_array_equal(bias, np.repeat(np.float32([0, 1, 0, 0]), 30))
  assert not logit_bias.any()


def test_convnet_weights_follow_from_the_seed():
  first, again, other = (models.build_convnet(s, _IMAGES, 62).initial_weights[0] for s in (0, 0, 1))
  for i, (a, b, c) in enumerate(zip(first, again, other)):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == np.float32
    if i % 2:
      assert not a.any()  # A bias.
    else:
      assert not np.array_equal(a, c)
      fan = np.prod(a.shape[:-2]) * (a.shape[-2] + a.shape[-1])
      limit = np.sqrt(6 / fan)
      assert np.abs(a).max() <= limit
      np.testing.assert_allclose(a.std(), limit / np.sqrt(3), rtol=0.1)


def test_wrong_shapes_are_named():
  small = (tf.TensorSpec([None, 12, 12], tf.float32), tf.TensorSpec([None], tf.int32))
  with pytest.raises(ValueError, match="12 x 12"):
    models.build_convnet(0, small, 62)
  unknown = (tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int32))
  with pytest.raises(ValueError, match="first dimension"):
    models.build_linear_classifier(unknown, 62, intercept=True)
  with pytest.raises(ValueError, match="non-negative"):
    models.build_lstm(-1, _SEQUENCES, hidden_size=4)
  with pytest.raises(ValueError, match="positive sizes"):
    models.build_lstm(0, _SEQUENCES, hidden_size=0)
  with pytest.raises(ValueError, match="steps, features"):
    models.build_lstm(0, _VECTORS, hidden_size=4)
  ragged = (tf.TensorSpec([None, None, 5], tf.float32), tf.TensorSpec([None], tf.int32))
  with pytest.raises(ValueError, match="first dimension"):
    models.build_lstm(0, ragged, hidden_size=4)
  sizes = dict(num_characters=9, embedding_size=3, hidden_size=4)
  for name in sizes:
    with pytest.raises(ValueError, match="positive sizes"):
      models.build_character_lstm(0, (tf.TensorSpec([None, 6]), ragged[1]), **{**sizes, name: 0})
  with pytest.raises(ValueError, match="None, steps"):
    models.build_character_lstm(0, _SEQUENCES, **sizes)


def test_metrics_are_sums_over_batches():
  model = models.build_linear_classifier(_VECTORS, 10, intercept=True)
  state = model.initialize_metrics_state()
  empty = model.finalize_metrics(state)
  assert float(empty["loss"]) == 0.0 and int(empty["num_examples"]) == 0
  for loss, n in ((1.0, 3), (4.0, 1)):
    output = tff.learning.models.BatchOutput(loss=loss, predictions=None, num_examples=n)
    state = model.update_metrics_state(state, labels=None, batch_output=output)
  metrics = model.finalize_metrics(state)
  assert isinstance(metrics, collections.OrderedDict)
  assert float(metrics["loss"]) == 7.0 / 4 and int(metrics["num_examples"]) == 4
