"""Converted Keras optimizers take Keras' own steps."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import client_work

_KERAS = {
  "sgd": lambda: tf.keras.optimizers.SGD(0.3),
  "momentum": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
  "adam": lambda: tf.keras.optimizers.Adam(0.05, beta_1=0.8, beta_2=0.95, epsilon=1e-5),
  "adagrad": lambda: tf.keras.optimizers.Adagrad(0.2, initial_accumulator_value=0.3),
  "legacy": lambda: tf.keras.optimizers.legacy.SGD(0.3, momentum=0.5),
}


@pytest.mark.parametrize("name", sorted(_KERAS))
def test_same_steps_as_keras(name):
  converted = client_work.as_tff_optimizer(_KERAS[name])
  keras_optimizer, variable = _KERAS[name](), tf.Variable([1.0, -2.0, 0.5])
  weights = (tf.constant([1.0, -2.0, 0.5]),)
  state = converted.initialize((tf.TensorSpec([3], tf.float32),))
  rng = np.random.default_rng(0)
  for _ in range(6):
    gradient = tf.constant(rng.normal(size=3).astype(np.float32))
    state, weights = converted.next(state, weights, (gradient,))
    keras_optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(weights[0], variable, rtol=1e-5, atol=1e-6)


def test_a_tff_optimizer_is_itself():
  optimizer = tff.learning.optimizers.build_adam(0.1)
  assert client_work.as_tff_optimizer(optimizer) is optimizer


@pytest.mark.parametrize(
  "build,message",
  [
    (lambda: tf.keras.optimizers.RMSprop(0.1), "RMSprop"),
    (lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), "nesterov=True"),
    (lambda: tf.keras.optimizers.Adam(0.1, clipnorm=1.0), "clipnorm=1.0"),
    (
      lambda: tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)),
      "constant learning rate",
    ),
  ],
)
def test_what_has_no_counterpart_is_refused(build, message):
  with pytest.raises(ValueError, match=message):
    client_work.as_tff_optimizer(build)


@pytest.mark.parametrize("optimizer", [None, 0.1, "sgd", lambda: 0.1])
def test_what_is_no_optimizer_is_refused(optimizer):
  with pytest.raises(TypeError, match="expected a tff.learning.optimizers.Optimizer"):
    client_work.as_tff_optimizer(optimizer)
