"""Loss gaps in the place of losses: EAGLE and the tail of gaps against numpy."""

import functools

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_RATE = 0.2
_MODEL = problems.linear_model(accuracy=False)
# The order of the gaps is not that of the losses, and one gap is far below their mean.
_OWN = np.float32([0.2, 1.0, 0.4, 9.0, 1.2, 0.1])


def _sgd():
  return tff.learning.optimizers.build_sgdm(_RATE)


def _options(arrays):
  rows = problems.reading_handles(arrays)
  return dict(
    examples_fn=rows["examples_fn"],
    local_batch_size=4,
    reference_loss_fn=lambda handle: tf.gather(_OWN, handle["index"]),
  )


def _gaps(weights, arrays):
  return np.array([problems.losses_and_gradient(weights, x, y)[0] for x, y in arrays]) - _OWN


def _step(weights, arrays, shares):
  sizes = np.array([len(y) for _, y in arrays])
  pi = sizes * shares / np.sum(sizes * shares)
  trained = [
    problems.local_sgd(weights, x, y, learning_rate=_RATE, batch_size=4) for x, y in arrays
  ]
  return [sum(p * model[k] for p, model in zip(pi, trained)) for k in range(len(weights))]


@pytest.mark.parametrize(
  "build, shares",
  [
    (
      functools.partial(algorithms.build_eagle, _MODEL, 0.7),
      lambda gaps, alpha: np.maximum(0.0, 1 + 2 * 0.7 * (gaps - alpha @ gaps)),
    ),
    (
      functools.partial(algorithms.build_superquantile_fed_avg, _MODEL, 0.5),
      lambda gaps, alpha: gaps >= _upper_quantile(gaps, alpha, 0.5),
    ),
  ],
)
def test_rounds_against_numpy(build, shares):
  arrays = problems.client_arrays()
  alpha = np.array([len(y) for _, y in arrays]) / sum(len(y) for _, y in arrays)
  process = build(_sgd(), **_options(arrays))
  state, weights = process.initialize(), problems.initial_weights()
  for _ in range(3):
    of_round = shares(_gaps(weights, arrays), alpha)
    losses_alone = shares(_gaps(weights, arrays) + _OWN, alpha)
    assert not np.allclose(of_round, losses_alone) and of_round[3] == 0.0
    weights = _step(weights, arrays, of_round)
    state, metrics = process.next(state, problems.handles(range(len(arrays))))
  for got, want in zip(state.global_model_weights.trainable, weights):
    np.testing.assert_allclose(got, want, atol=3e-6)
  assert metrics["client_work"]["cohort"]["tail_size"] == np.sum(of_round > 0)


def _upper_quantile(values, alpha, theta):
  order = np.argsort(-values)
  return values[order][np.argmax(np.cumsum(alpha[order]) >= theta)]


def test_the_weights_are_the_gradient_of_the_objective():
  """Of mean loss and lambda times the variance of gaps, by finite differences, uncut."""
  rng, strength = np.random.default_rng(3), 0.1
  alpha = rng.dirichlet(np.ones(5))
  losses, slopes, own = rng.normal(size=5), rng.normal(size=5), rng.normal(size=5) * 0.3

  def objective(w):
    f = losses + slopes * w + 0.5 * w**2
    return alpha @ f + strength * alpha @ (f - own - alpha @ (f - own)) ** 2

  relative = threshold_lib.build_variance_share(strength)
  gaps = tf.constant(losses - own, tf.float32)
  summary = relative.summarize(gaps, tf.constant(alpha))
  shares = relative.share(gaps, summary).numpy()
  assert np.max(shares) == pytest.approx(1.0) and np.min(shares) > 0.0
  weights = alpha * shares / (alpha @ shares)
  slope = (objective(1e-5) - objective(-1e-5)) / 2e-5
  assert weights @ slopes == pytest.approx(slope, rel=1e-4)


def test_a_strength_of_zero_is_fed_avg():
  arrays = problems.client_arrays()
  options = _options(arrays)
  eagle = algorithms.build_eagle(_MODEL, 0.0, _sgd(), **options)
  fed_avg = algorithms.build_fed_avg(_MODEL, _sgd(), **options)
  cohort = problems.handles(range(len(arrays)))
  states = [process.next(process.initialize(), cohort).state for process in (eagle, fed_avg)]
  for a, b in zip(*(state.global_model_weights.trainable for state in states)):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_client_whose_own_loss_is_no_number_does_not_count():
  arrays = problems.client_arrays()
  options = {**_options(arrays), "reference_loss_fn": lambda handle: tf.constant(np.nan)}
  process = algorithms.build_eagle(_MODEL, 1.0, _sgd(), **options)
  _, metrics = process.next(process.initialize(), problems.handles([0, 1]))
  assert metrics["client_work"]["cohort"]["num_excluded"] == 2


def test_refusals():
  with pytest.raises(ValueError, match="Found EAGLE without a reference_loss_fn; expected one"):
    algorithms.build_eagle(_MODEL, 1.0, _sgd())
  with pytest.raises(ValueError, match="gap_strength = -1"):
    algorithms.build_eagle(_MODEL, -1.0, _sgd(), reference_loss_fn=lambda handle: 0.0)
