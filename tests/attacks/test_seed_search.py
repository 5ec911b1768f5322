"""Finding a round's noise by trying seeds: possible if they are few, and never otherwise.

Version 0.1.0 drew the noise of a round from 2^32 seeds, which takes three minutes to try. The
attacker here has what was published, the weights after one round, knows everything about the code,
and keeps the seed whose noise correlates with the change of the weights.
"""

import secrets

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import noise_source
from tff_superquantile.secure_sums import gaussian_sum

pytestmark = pytest.mark.usefixtures("simulation_context")

_NUM_WEIGHTS = 600
_CLIP_NORM, _NOISE_MULTIPLIER = 0.1, 1.0
# By chance one correlation in 10^15 is as large.
_FOUND = 0.33
_NUM_SEEDS = 2**11


def _published_change(key):
  """What a round of DP-FedAvg does to the weights."""
  process = algorithms.build_fed_avg(
    problems.linear_loss_model(_NUM_WEIGHTS),
    tff.learning.optimizers.build_sgdm(0.1),
    private=algorithms.Private(
      clip_norm=_CLIP_NORM,
      noise_multiplier=_NOISE_MULTIPLIER,
      expected_clients=4,
      noise_key=key,
    ),
    local_batch_size=0,
  )
  rng = np.random.default_rng(0)
  clients = [
    tf.data.Dataset.from_tensors(
      (rng.normal(size=[3, _NUM_WEIGHTS]).astype(np.float32), np.ones(3, np.float32))
    )
    for _ in range(4)
  ]
  state = process.next(process.initialize(), clients).state
  return np.asarray(state.global_model_weights.trainable[0], np.float64)


@tf.function
def _noise_of_states(states):
  """The first noise of each state of a source: float64 [n, _NUM_WEIGHTS]."""

  def noise(state):
    (seed,) = noise_source.split(noise_source.split(state, 2)[0], 1)
    return gaussian_sum.standard_normal(tf.constant([_NUM_WEIGHTS]), seed)

  return tf.map_fn(noise, states, fn_output_signature=tf.float64)


def _noise_of_keys(keys):
  states = [np.frombuffer(noise_source.derive_key(key, "updates"), np.int64) for key in keys]
  return _noise_of_states(tf.constant(np.array(states))).numpy()


def _noise_of_version_0_1(num_seeds):
  """The noise of its first tensor: of seeds [i, 0] of 32 bits, whatever the run's own seed."""

  @tf.function
  def draw(seed):
    return tf.random.stateless_normal([_NUM_WEIGHTS], tf.stack([seed, 0]))

  return np.stack([draw(tf.constant(seed)).numpy() for seed in range(num_seeds)])


def _best(change, noises):
  """(place, correlation) of the noise that fits best, whichever sign an update has."""
  correlations = noises @ change / np.linalg.norm(noises, axis=1) / np.linalg.norm(change)
  correlations = np.abs(correlations)
  return int(np.argmax(correlations)), float(correlations.max())


def test_a_key_of_few_bits_is_found():
  # So that the search is known to work: only 11 bits of the key are unknown.
  keys = [number.to_bytes(noise_source.KEY_BYTES, "big") for number in range(_NUM_SEEDS)]
  truth = 1234
  place, correlation = _best(_published_change(keys[truth]), _noise_of_keys(keys))
  assert place == truth and correlation > 0.9


@pytest.mark.parametrize("is_given", [False, True])
def test_a_key_of_the_operating_systems_is_not_found(is_given):
  key = secrets.token_bytes(noise_source.KEY_BYTES) if is_given else None
  change = _published_change(key)
  keys = [number.to_bytes(noise_source.KEY_BYTES, "big") for number in range(_NUM_SEEDS)]
  assert _best(change, _noise_of_keys(keys))[1] < _FOUND
  assert _best(change, _noise_of_version_0_1(_NUM_SEEDS))[1] < _FOUND
  # Nor by states of few bits, of whichever word.
  small = np.zeros([2 * _NUM_SEEDS, 2], np.int64)
  small[:_NUM_SEEDS, 0] = small[_NUM_SEEDS:, 1] = np.arange(_NUM_SEEDS)
  assert _best(change, _noise_of_states(tf.constant(small)).numpy())[1] < _FOUND


def test_the_search_finds_the_noise_of_version_0_1():
  noises = _noise_of_version_0_1(_NUM_SEEDS)
  rng = np.random.default_rng(1)
  sum_of_updates = rng.normal(size=_NUM_WEIGHTS)
  sum_of_updates *= 4 * _CLIP_NORM / np.linalg.norm(sum_of_updates)
  change = sum_of_updates + _NOISE_MULTIPLIER * _CLIP_NORM * noises[777]
  place, correlation = _best(change, noises)
  assert place == 777 and correlation > 0.9
