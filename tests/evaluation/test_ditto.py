"""Ditto's own models against numpy by hand, and the two ends of its pull."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tff_superquantile import evaluation
from tff_superquantile import personal
from tff_superquantile.simulation import seeds

_SIZES = (12, 7, 20)
_SPEC = (
  tf.TensorSpec([None, problems.NUM_FEATURES], tf.float32),
  tf.TensorSpec([None], tf.int32),
)
_RATE, _SEED, _BATCH_SIZE = 0.2, 3, 4


@pytest.fixture(scope="module")
def halves():
  datasets = problems.datasets(problems.client_arrays(_SIZES, 0), 8)
  examples = evaluation.examples_of_datasets(datasets, [f"writer {i}" for i in range(len(_SIZES))])
  return evaluation.split_examples(examples, 0.5, _SEED)


def _model():
  return models.build_linear_classifier(_SPEC, problems.NUM_CLASSES, intercept=True)


def _shared(number):
  """The shared model after some rounds."""
  rng = np.random.default_rng([7, number])
  shapes = map(np.shape, _model().initial_weights[0])
  return tff.learning.models.ModelWeights(
    [rng.normal(size=shape).astype(np.float32) for shape in shapes], []
  )


def _ditto(halves, strength, rate=_RATE, l2=0.0):
  return evaluation.DittoTrainer(
    _model(),
    halves,
    strength=strength,
    learning_rate=rate,
    seed=_SEED,
    batch_size=_BATCH_SIZE,
    l2=l2,
  )


def _after(ditto, turns):
  states = ditto.start(_shared(0))
  for number in turns:
    states = ditto.turn(states, _shared(number), number)
  return states


def _by_hand(halves, client, strength, turns, l2=0.0):
  """Each step is an implicit one in the pull: v + eta lambda (v - w) = v_old - eta gradient."""
  x, y = halves.held_in.of_client(client)
  v = [w.astype(np.float64) for w in _shared(0).trainable]
  for number in turns:
    w = _shared(number).trainable
    name = f"turn {number} of the own model of writer {client}"
    order, sizes = personal.batches(seeds.generator(_SEED, name), len(y), _BATCH_SIZE, 1)
    start = 0
    while start < len(order):
      rows = order[start : start + sizes[start]]
      start += sizes[start]
      _, gradient = problems.losses_and_gradient(v, x[rows], y[rows])
      # With l2 the step is that of eta / (1 + eta lambda) on the gradient of it, too.
      v = [
        (own - _RATE * (g + l2 * own) + _RATE * strength * one) / (1.0 + _RATE * strength)
        for own, g, one in zip(v, gradient, w)
      ]
  return v


def _alone(halves, client, turns):
  """SGD of a client alone, from the shared model before the rounds."""
  (x, y), weights = halves.held_in.of_client(client), _shared(0).trainable
  for number in turns:
    name = f"turn {number} of the own model of writer {client}"
    order = seeds.generator(_SEED, name).permutation(len(y))
    weights = problems.local_sgd(
      weights, x[order], y[order], learning_rate=_RATE, batch_size=_BATCH_SIZE
    )
  return weights


@pytest.mark.parametrize("strength, l2", [(0.0, 0.0), (0.7, 0.0), (0.7, 0.01), (30.0, 0.0)])
def test_turns_are_those_by_hand(halves, strength, l2):
  states = _after(_ditto(halves, strength, l2=l2), (10, 20, 30))
  for client in range(len(_SIZES)):
    expected = _by_hand(halves, client, strength, (10, 20, 30), l2)
    for state, values in zip(states, expected):
      np.testing.assert_allclose(state[client], values, rtol=1e-4, atol=1e-5)


def test_without_a_pull_it_is_local_training_and_with_a_strong_one_the_shared_model(halves):
  turns, models_of = (10, 20), {}
  for strength in (0.0, 0.5, 1e6):
    models_of[strength] = _after(_ditto(halves, strength), turns)
  for i, last in enumerate(_shared(turns[-1]).trainable):
    np.testing.assert_allclose(models_of[1e6][i], np.stack([last] * len(_SIZES)), atol=1e-4)
    # Whatever the shared models of the turns are.
    for client in range(len(_SIZES)):
      alone = _alone(halves, client, turns)[i]
      np.testing.assert_allclose(models_of[0.0][i][client], alone, rtol=1e-4, atol=1e-5)
    assert np.abs(models_of[0.5][i] - models_of[0.0][i]).max() > 0.05
    assert np.abs(models_of[0.5][i] - models_of[1e6][i]).max() > 0.05


def test_turns_are_equal_to_the_bit_also_in_another_process(halves):
  whole = _after(_ditto(halves, 0.5), (10, 20, 30))
  first = _after(_ditto(halves, 0.5), (10,))
  kept = tuple(state.copy() for state in first)
  other = _ditto(halves, 0.5)
  for number in (20, 30):
    first = other.turn(first, _shared(number), number)
  for state, expected, before in zip(first, whole, kept):
    np.testing.assert_array_equal(state.view(np.int32), expected.view(np.int32))
    assert not np.array_equal(state, before)


def test_own_models_are_measured_on_what_they_have_not_seen(halves):
  ditto = _ditto(halves, 0.1)
  states = _after(ditto, (10, 20))
  shared, own = ditto.measured(states, _shared(20))
  for client in range(len(_SIZES)):
    x, y = halves.held_out.of_client(client)
    for measured, weights in (
      (shared, _shared(20).trainable),
      (own, [state[client] for state in states]),
    ):
      losses, _ = problems.losses_and_gradient([w.astype(np.float64) for w in weights], x, y)
      assert measured.of_clients.loss[client] == pytest.approx(np.mean(losses), rel=1e-4)
      assert measured.of_clients.num_examples[client] == len(y)


def test_a_turn_that_diverges_leaves_the_client_what_it_had(halves):
  ditto = _ditto(halves, 0.0, rate=1e38)
  states = ditto.start(_shared(0))
  after = ditto.turn(states, _shared(10), 10)
  assert all(np.isfinite(state).all() for state in after)
  for state, before in zip(after, states):
    np.testing.assert_array_equal(state[2], before[2])  # Of several batches.
  with pytest.raises(ValueError, match="strength"):
    _ditto(halves, -1.0)
  with pytest.raises(ValueError, match="learning_rate"):
    _ditto(halves, 0.1, rate=0.0)
