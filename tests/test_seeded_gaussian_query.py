"""The seeded Gaussian query against its law and against TensorFlow Privacy's own."""

import dp_accounting
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_superquantile import seeded_gaussian_query

_Query = seeded_gaussian_query.SeededGaussianSumQuery
_ZEROS = {"a": tf.zeros([50, 200]), "b": (tf.zeros([10_000]), tf.zeros([], tf.float64))}


def _noise(query, structure, num_queries=1):
  """The noise of some queries in a row, each as a list of arrays."""
  state = query.initial_global_state()
  all_noise = []
  for _ in range(num_queries):
    noised, state, _ = query.get_noised_result(structure, state)
    all_noise.append([leaf.numpy() for leaf in tf.nest.flatten(noised)])
  return all_noise


def test_the_law_of_the_noise():
  shifted = tf.nest.map_structure(lambda t: t + 100, _ZEROS)
  query = _Query(1.0, 2.5, 7)
  noised, _, _ = query.get_noised_result(shifted, query.initial_global_state())
  tf.nest.assert_same_structure(noised, _ZEROS)
  for before, after in zip(tf.nest.flatten(_ZEROS), tf.nest.flatten(noised)):
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
  for leaf in (noised["a"], noised["b"][0]):
    assert stats.kstest(leaf.numpy().ravel(), "norm", (100, 2.5)).pvalue > 1e-3
    assert np.mean(leaf) == pytest.approx(100, abs=0.1)
    assert np.std(leaf) == pytest.approx(2.5, rel=0.03)


def test_each_leaf_and_each_query_has_its_own_noise():
  draws = _noise(_Query(1.0, 1.0, 7), _ZEROS, 3) + _noise(_Query(1.0, 1.0, 8), _ZEROS, 2)
  long = [leaf.ravel() for leaves in draws for leaf in leaves if leaf.size > 1]
  correlations = np.corrcoef(long) - np.eye(len(long))
  assert np.abs(correlations).max() < 0.05
  assert len({float(leaves[2]) for leaves in draws}) == len(draws)
  # Twins of the same shape in one record, too.
  (twins,) = _noise(_Query(1.0, 1.0, 7), [tf.zeros([100])] * 2)
  assert abs(np.corrcoef(twins)[0, 1]) < 0.3


def test_the_noise_is_a_function_of_the_seed_and_the_number_of_the_query():
  first = _noise(_Query(1.0, 1.0, 2**62 + 1), _ZEROS, 3)
  again = _noise(_Query(1.0, 1.0, 2**62 + 1), _ZEROS, 3)
  tf.nest.map_structure(np.testing.assert_array_equal, first, again)
  # Scaled by the deviation, added to whatever there is.
  scaled = _noise(_Query(9.0, 3.0, 2**62 + 1), tf.nest.map_structure(tf.ones_like, _ZEROS), 3)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(1 + 3 * a, b, atol=1e-5), first, scaled
  )
  state = _Query(1.0, 1.0, 2**62 + 1).initial_global_state()
  resumed, new_state, _ = _Query(1.0, 1.0, 0).get_noised_result(
    _ZEROS, state._replace(num_queries=tf.constant(2, tf.int64))
  )
  np.testing.assert_array_equal(resumed["a"], first[2][0])
  assert (int(new_state.num_queries), int(new_state.seed)) == (3, 2**62 + 1)


def test_the_event_and_clipping_are_those_of_tensorflow_privacy():
  ours, theirs = _Query(2.0, 3.0, 0), tfp.GaussianSumQuery(2.0, 3.0)
  state = ours.initial_global_state()
  *_, event = ours.get_noised_result(tf.constant(0.0), state)
  assert isinstance(event, dp_accounting.GaussianDpEvent)
  assert float(event.noise_multiplier) == 1.5
  for record in ([tf.ones([4]), tf.constant(-9.0)], [tf.ones([2]), tf.constant(0.5)]):
    clipped = ours.preprocess_record(ours.derive_sample_params(state), record)
    expected = theirs.preprocess_record(
      theirs.derive_sample_params(theirs.initial_global_state()), record
    )
    tf.nest.map_structure(np.testing.assert_array_equal, clipped, expected)
    assert tf.linalg.global_norm(clipped) <= 2.0 * (1 + 1e-6)


def test_within_a_normalized_query():
  query = tfp.NormalizedQuery(_Query(1.0, 1.0, 3), 4.0)
  (expected,), (next_expected,) = _noise(_Query(1.0, 1.0, 3), tf.zeros([5]), 2)
  (first,), (second,) = _noise(query, tf.zeros([5]), 2)
  np.testing.assert_allclose(first, expected / 4)
  np.testing.assert_allclose(second, next_expected / 4)
