"""Isotonic regression against its minimax formula and scikit-learn's."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from sklearn import isotonic as sklearn_isotonic
import tensorflow as tf

from tff_superquantile.threshold import hierarchical_histogram


def _regression(values, weights):
  return hierarchical_histogram.isotonic_regression(
    tf.constant(values, tf.float64), tf.constant(weights, tf.float64)
  ).numpy()


def _minimax(values, weights):
  """x_i = max over a <= i of the min over b >= i of the mean of values a..b."""
  n = len(values)
  mean = np.full([n, n], np.inf)
  for a in range(n):
    mean[a, a:] = np.cumsum((values * weights)[a:]) / np.cumsum(weights[a:])
  return np.array([max(mean[a, i:].min() for a in range(i + 1)) for i in range(n)])


def _sklearn(values, weights):
  return sklearn_isotonic.IsotonicRegression().fit_transform(
    np.arange(len(values)), values, sample_weight=np.broadcast_to(weights, np.shape(values))
  )


@hypothesis.given(st.data(), st.integers(1, 12))
def test_against_the_minimax_formula(data, size):
  values = data.draw(st.lists(st.floats(-1e3, 1e3), min_size=size, max_size=size).map(np.array))
  weights = data.draw(st.lists(st.floats(0.01, 100), min_size=size, max_size=size).map(np.array))
  result = _regression(values, weights)
  np.testing.assert_allclose(result, _minimax(values, weights), rtol=1e-9, atol=1e-8)
  assert np.all(np.diff(result) >= 0)
  np.testing.assert_allclose(_regression(values, [1.0]), _minimax(values, np.ones(size)), atol=1e-8)


_UP = np.arange(1.0, 301)
_CASES = {
  "sorted": _UP,
  "constant": np.full(50, -2.5),
  "reversed": -_UP,
  "one": np.array([3.0]),
  "two": np.array([3.0, 1.0]),
  "drop at the end": np.append(_UP, -1000.0),
  "drops": np.append(_UP, [-1000.0, 200.0, -2000.0]),
  "high start": np.append(1e5, _UP),
  "saw": np.tile([3.0, 1.0, 2.0], 100),
  "noisy": np.linspace(0, 10, 1000) + np.random.default_rng(0).normal(size=1000),
}


@pytest.mark.parametrize("case", _CASES)
def test_hard_cases(case):
  values = _CASES[case]
  for weights in (np.ones(1), np.random.default_rng(1).uniform(0.1, 9, len(values))):
    result = _regression(values, weights)
    np.testing.assert_allclose(result, _sklearn(values, weights), rtol=1e-9, atol=1e-9)
    assert np.all(np.diff(result) >= 0)
  if case in ("sorted", "constant", "one"):
    np.testing.assert_array_equal(_regression(values, [1.0]), values)


def test_batches_do_not_touch_each_other():
  rng = np.random.default_rng(2)
  # Each sequence starts far below where the one before it ends.
  values = rng.normal(size=[3, 4, 25]) - 100.0 * np.arange(12).reshape(3, 4, 1)
  weights = rng.uniform(0.1, 5, size=25)
  result = _regression(values, weights)
  assert result.shape == values.shape
  for index in np.ndindex(3, 4):
    np.testing.assert_allclose(result[index], _sklearn(values[index], weights), atol=1e-9)
  each = rng.uniform(0.1, 5, size=values.shape)
  result = _regression(values, each)
  for index in np.ndindex(3, 4):
    np.testing.assert_allclose(result[index], _sklearn(values[index], each[index]), atol=1e-9)
  single = rng.normal(size=[5, 1])
  np.testing.assert_array_equal(_regression(single, [2.0]), single)


def test_in_a_graph_of_unknown_shape():
  @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64)])
  def regress(values):
    return hierarchical_histogram.isotonic_regression(values, tf.constant(1.0, tf.float64))

  for shape in ((2, 7), (5, 1), (1, 30)):
    values = np.random.default_rng(3).normal(size=shape)
    expected = [_sklearn(row, np.ones(1)) for row in values]
    np.testing.assert_allclose(regress(values), expected, atol=1e-12)
