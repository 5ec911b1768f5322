"""Converted Keras optimizers take Keras' own steps, whatever their options; others are refused."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import client_work
from tff_superquantile.client_work import optimizers

_OPTIMIZERS = tf.keras.optimizers
_SCHEDULE = _OPTIMIZERS.schedules.ExponentialDecay(0.1, 2, 0.5)
# Values of each option that its default is not; a function is one of the older optimizers alone.
_VALUES = {
  "learning_rate": (0.3, _SCHEDULE, lambda: 0.1),
  "momentum": (0.7, lambda: 0.7),
  "nesterov": (True,),
  **dict.fromkeys(("beta_1", "beta_2", "rho"), (0.6, lambda: 0.6)),
  **dict.fromkeys(("epsilon", "epsilon_1", "epsilon_2"), (0.1,)),
  **dict.fromkeys(("amsgrad", "centered", "adaptive_epsilon", "use_ema", "jit_compile"), (True,)),
  **dict.fromkeys(("weight_decay", "ema_momentum"), (0.1,)),
  **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"), (0.1, 0.0)),
  "ema_overwrite_frequency": (2,),
  "decay": (1.0,),
  "initial_accumulator_value": (0.3, 0.0),
  "gradient_transformers": ([lambda pairs: [(0.5 * g, v) for g, v in pairs]],),
  "gradient_aggregator": (lambda pairs: [(0.5 * g, v) for g, v in pairs],),
  "name": ("mine",),
  "beta_2_decay": (-0.5,),
  "clip_threshold": (0.1,),
  "relative_step": (False,),
  "learning_rate_power": (-0.3,),
  "beta": (0.1,),
  **{f"{kind}_regularization_strength": (0.1,) for kind in ("l1", "l2", "l2_shrinkage")},
}


def _classes():
  for module in (_OPTIMIZERS, _OPTIMIZERS.legacy):
    for name in dir(module):
      kind = getattr(module, name)
      if isinstance(kind, type) and name != "Optimizer":
        yield pytest.param(kind, id=f"{module.__name__.rpartition('.')[2]}.{name}")


def _options(kind):
  options = {*inspect.signature(kind).parameters} - {"kwargs"}
  if issubclass(kind, _OPTIMIZERS.legacy.Optimizer):
    options |= {"clipnorm", "clipvalue", "global_clipnorm", "decay"}
    options |= {"gradient_transformers", "gradient_aggregator"}
  return sorted(options)


def _distance(build):
  """The largest distance of the converted optimizer's weights from Keras' in six steps."""
  converted = client_work.as_tff_optimizer(build)
  keras_optimizer, variable = build(), tf.Variable([1.0, -2.0, 0.5])
  weights = (tf.constant([1.0, -2.0, 0.5]),)
  state = converted.initialize((tf.TensorSpec([3], tf.float32),))
  rng = np.random.default_rng(0)
  largest = 0.0
  for _ in range(6):
    gradient = tf.constant(rng.normal(scale=0.5, size=3).astype(np.float32))
    state, weights = converted.next(state, weights, (gradient,))
    keras_optimizer.apply_gradients([(gradient, variable)])
    largest = max(largest, float(tf.reduce_max(tf.abs(weights[0] - variable))))
  return largest


@pytest.mark.parametrize("kind", _classes())
def test_every_option_counts_or_is_refused(kind):
  taken = set()
  for options in [{}] + [{o: value} for o in _options(kind) for value in _VALUES[o]]:

    def build(options=options):
      return kind(**{"learning_rate": 0.1, **options})

    try:
      build()
    except (TypeError, ValueError):  # Keras itself takes no such value.
      continue
    try:
      assert _distance(build) < 1e-5, options
      taken |= {*options} or {"plain"}
    except ValueError as error:
      assert "no TFF counterpart" in str(error)
  expected = {
    _OPTIMIZERS.SGD: {"momentum"},
    _OPTIMIZERS.legacy.SGD: {"momentum"},
    _OPTIMIZERS.Adam: {"beta_1", "beta_2", "epsilon"},
    _OPTIMIZERS.legacy.Adam: {"beta_1", "beta_2", "epsilon"},
    _OPTIMIZERS.Adagrad: {"initial_accumulator_value", "epsilon"},
  }
  if kind in expected:
    assert taken >= expected[kind] | {"plain", "learning_rate", "name"}
    assert not taken & {"nesterov", "decay", "weight_decay", "amsgrad", "adaptive_epsilon"}
  else:
    assert not taken


def test_a_subclass_may_take_other_steps():
  class SGD(tf.keras.optimizers.SGD):
    def update_step(self, gradient, variable):
      super().update_step(0.5 * gradient, variable)

  with pytest.raises(ValueError, match="SGD.*no TFF counterpart"):
    client_work.as_tff_optimizer(lambda: SGD(0.1))


def test_a_tff_optimizer_is_itself():
  optimizer = tff.learning.optimizers.build_adam(0.1)
  assert client_work.as_tff_optimizer(optimizer) is optimizer


@pytest.mark.parametrize("optimizer", [None, 0.1, "sgd", lambda: 0.1])
def test_what_is_no_optimizer_is_refused(optimizer):
  with pytest.raises(TypeError, match="expected a tff.learning.optimizers.Optimizer"):
    client_work.as_tff_optimizer(optimizer)


class _HalfSteps(type(tff.learning.optimizers.build_sgdm())):
  def next(self, state, weights, gradients):
    return super().next(state, weights, tuple(0.5 * g for g in gradients))


@pytest.mark.parametrize(
  ("optimizer", "moves"),
  [
    (tff.learning.optimizers.build_sgdm(0.3), True),
    (tff.learning.optimizers.build_sgdm(0.3, momentum=0.9), False),
    (tff.learning.optimizers.build_adagrad(0.3), False),
    (_HalfSteps(0.3), False),
  ],
)
def test_the_rate_of_plain_sgd_moves_to_the_loss(optimizer, moves):
  weights, gradients = (tf.constant([1.0, -2.0]),), (tf.constant([4.0, 5.0]),)
  state = optimizer.initialize((tf.TensorSpec([2], tf.float32),))
  _, expected = optimizer.next(state, weights, gradients)
  state, scale = optimizers.with_rate_in_loss(optimizer, state)
  np.testing.assert_allclose(scale, 0.3 if moves else 1.0)
  _, found = optimizer.next(state, weights, tuple(scale * g for g in gradients))
  np.testing.assert_allclose(found, expected, rtol=1e-6)
