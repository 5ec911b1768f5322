"""Encoding and decoding of the tree against plain Python and dense linear algebra."""

import math

import numpy as np
import pytest
from sklearn import isotonic as sklearn_isotonic
import tensorflow as tf
from tensorflow_federated.python.analytics.hierarchical_histogram import (
  hierarchical_histogram_decoder as tff_decoder,
)

from privacy.noise import tree_mechanism
from tff_superquantile.threshold import hierarchical_histogram

_MAX_VALUES = (1.0, math.log(62), 7.3)


def _widths(num_bins):
  """Bins in a node of each level: 1, 2, ..., b / 2."""
  return [2**level for level in range(num_bins.bit_length() - 1)]


def _matrix(num_bins):
  """[d, b]: which bins are in a node."""
  return np.concatenate(
    [np.kron(np.eye(num_bins // width), np.ones(width)) for width in _widths(num_bins)]
  )


def _encode(values, num_bins, max_value):
  values = tf.constant(values, tf.float32)
  return hierarchical_histogram.encode(values, num_bins, max_value).numpy()


def _edge_cases(num_bins, max_value):
  """Float32 numbers on, next to and between all edges, and beyond the ends."""
  edges = np.array([np.float32(j * (max_value / num_bins)) for j in range(num_bins + 1)])
  up, down = np.float32(np.inf), np.float32(-np.inf)
  near = [edges, np.nextafter(edges, up), np.nextafter(edges, down)]
  near += [np.nextafter(near[1], up), np.nextafter(near[2], down)]
  between = np.random.default_rng(0).uniform(-0.1, 1.1, 300).astype(np.float32) * edges[-1]
  others = np.array([0.0, -0.0, -3.0, 1e30, -1e30, np.inf, -np.inf, 1e-45], np.float32)
  return np.concatenate([*near, between, others]), edges


@pytest.mark.parametrize("max_value", _MAX_VALUES)
@pytest.mark.parametrize("num_bins", [2, 8, 64])
def test_encode_against_the_definition(num_bins, max_value):
  values, edges = _edge_cases(num_bins, max_value)
  np.testing.assert_array_equal(hierarchical_histogram.bin_edges(num_bins, max_value), edges)
  encoded = _encode(values, num_bins, max_value)
  assert encoded.dtype == np.int64 and encoded.shape == (len(values), 2 * num_bins - 2)
  for value, nodes in zip(values, encoded):
    expected = []
    for width in _widths(num_bins):
      for first in range(0, num_bins, width):
        above = first == 0 or value >= edges[first]
        below = first + width == num_bins or value < edges[first + width]
        expected.append(int(above and below))
    assert nodes.tolist() == expected, value
  # One node a level.
  levels = np.split(encoded, np.cumsum([num_bins // width for width in _widths(num_bins)])[:-1], 1)
  assert all(np.all(level.sum(axis=1) == 1) for level in levels)


def test_encode_nan_and_shapes():
  encoded = _encode([[np.nan, 0.3, np.nan], [1.0, np.nan, -1.0]], 8, 1.0)
  assert encoded.shape == (2, 3, 14)
  np.testing.assert_array_equal(encoded.sum(axis=-1), [[0, 3, 0], [3, 0, 3]])
  np.testing.assert_array_equal(encoded[0, 1], _encode(0.3, 8, 1.0))
  assert not _encode(np.nan, 8, 1.0).any()


@pytest.mark.parametrize("max_value", _MAX_VALUES)
@pytest.mark.parametrize("num_bins", [2, 16, 1024])
def test_bins_match_the_gate(num_bins, max_value):
  values, _ = _edge_cases(num_bins, max_value)
  values = values[values >= 0]
  index = np.argmax(_encode(values, num_bins, max_value)[:, :num_bins], axis=1)
  thresholds = tf.constant(hierarchical_histogram.bin_edges(num_bins, max_value))[:-1]
  selected = (tf.constant(values)[:, tf.newaxis] >= thresholds).numpy()
  np.testing.assert_array_equal(selected, index[:, np.newaxis] >= np.arange(num_bins))


@pytest.mark.parametrize("num_bins", [2, 4, 8])
def test_sensitivities(num_bins):
  middles = (np.arange(num_bins) + 0.5) / num_bins
  nodes = _encode(np.append(middles, np.nan), num_bins, 1.0).astype(float)
  distances = np.linalg.norm(nodes[:, np.newaxis] - nodes, axis=-1)
  levels = num_bins.bit_length() - 1
  # To leave out a client is to report no value at all.
  np.testing.assert_allclose(distances[-1, :-1], math.sqrt(levels))
  replace_one = distances[:-1, :-1]
  assert replace_one.max() == pytest.approx(math.sqrt(2 * levels))
  mechanism = tree_mechanism.build_tree_mechanism(0.8, num_bins, 10)
  sensitivity = mechanism.scale * distances[-1, :-1].max()
  # All shares together, of which a variance of 2 is what rounding to integers takes.
  noise = math.sqrt(mechanism.num_shares * mechanism.local_stddev**2 - 2.0)
  assert noise / sensitivity == pytest.approx(mechanism.noise_multiplier)


@pytest.mark.parametrize("num_bins", [2, 32, 1024, 4096])
def test_decoder_is_exact_without_noise(num_bins):
  rng = np.random.default_rng(2)
  values = rng.uniform(0, 5, size=[2, 400]).astype(np.float32)
  histogram = tf.reduce_sum(hierarchical_histogram.encode(values, num_bins, 5.0), axis=1)
  counts = tf.cast(histogram, tf.float64)
  decoded = hierarchical_histogram.decode_least_squares(counts, num_bins)
  edges = hierarchical_histogram.bin_edges(num_bins, 5.0)[:-1]
  below = np.sum(values[:, np.newaxis] < edges[:, np.newaxis], axis=-1)
  np.testing.assert_allclose(decoded.below, below, atol=1e-9)
  np.testing.assert_allclose(decoded.total, [400, 400])
  # With noise: as many bins, in order.
  noise = 3 * rng.normal(size=histogram.shape)
  noisy = hierarchical_histogram.decode_least_squares(counts + noise, num_bins)
  assert np.all(np.diff(noisy.below) >= 0) and np.all(noisy.below[:, 0] == 0)
  assert np.abs(noisy.below - below).max() < 60


def _least_squares(histogram, num_bins):
  return np.linalg.pinv(_matrix(num_bins)) @ histogram


def _cumulative_variances(num_bins):
  sums = np.tri(num_bins)[:-1] @ np.linalg.pinv(_matrix(num_bins))
  return np.sum(sums**2, axis=1)


@pytest.mark.parametrize("num_bins", [2, 4, 8, 32])
def test_least_squares_against_dense_and_tffs(num_bins):
  rng = np.random.default_rng(3)
  # Bins so full that isotonic regression has nothing to do.
  histogram = _matrix(num_bins) @ rng.uniform(50, 90, num_bins) + rng.normal(size=2 * num_bins - 2)
  decoded = hierarchical_histogram.decode_least_squares(tf.constant(histogram), num_bins)
  bins = np.diff(np.append(decoded.below, decoded.total))
  np.testing.assert_allclose(bins, _least_squares(histogram, num_bins), rtol=1e-9)
  # TFF's tree has a root, which is one more observation of the total. If it observes the very total
  # of the optimum without it, it adds nothing to the squares there, and the optimum stays.
  levels = np.split(histogram, np.cumsum([num_bins // width for width in _widths(num_bins)])[:-1])
  levels = [[float(decoded.total)]] + [level.tolist() for level in reversed(levels)]
  tffs = tff_decoder.HierarchicalHistogramDecoder(tf.ragged.constant(levels, tf.float64), 0.0, 1.0)
  tffs.enforce_consistency()
  for j in range(num_bins):
    assert bins[j] == pytest.approx(tffs.range_query(j, j), rel=1e-6)
    assert float(decoded.below[j]) == pytest.approx(tffs.range_query(0, j - 1) if j else 0.0)


@pytest.mark.parametrize("num_bins", [2, 4, 8, 16, 32, 64])
def test_cumulative_variances(num_bins):
  variances = tree_mechanism.cumulative_variances(num_bins)
  np.testing.assert_allclose(variances, _cumulative_variances(num_bins), rtol=1e-9)


@pytest.mark.parametrize("num_bins", [2, 4, 32])
def test_variances_of_weighted_sums_against_linear_algebra(num_bins):
  tree = _matrix(num_bins)
  covariance = np.linalg.inv(tree.T @ tree)
  weights = np.random.default_rng(num_bins).normal(size=[7, num_bins])
  found = hierarchical_histogram.linear_variances(tf.constant(weights), num_bins).numpy()
  np.testing.assert_allclose(found, np.einsum("kb,bc,kc->k", weights, covariance, weights))


@pytest.mark.parametrize("num_bins", [2, 16, 64])
def test_least_squares_then_isotonic(num_bins):
  rng = np.random.default_rng(5)
  noisy = rng.normal(size=[2, 3, 2 * num_bins - 2]) * 4 + 0.3
  decoded = hierarchical_histogram.decode_least_squares(tf.constant(noisy), num_bins)
  for index in np.ndindex(2, 3):
    bins = _least_squares(noisy[index], num_bins)
    fitted = sklearn_isotonic.IsotonicRegression().fit_transform(
      np.arange(num_bins - 1),
      np.cumsum(bins)[:-1],
      sample_weight=1 / _cumulative_variances(num_bins),
    )
    expected = np.append(0.0, np.maximum(fitted, 0.0))
    np.testing.assert_allclose(decoded.below[index], expected, atol=1e-9)
    assert float(decoded.total[index]) == pytest.approx(bins.sum())


def _quantile_bin(below, total, theta):
  below = tf.constant(below, tf.float64)
  cumulative = hierarchical_histogram.Cumulative(below, tf.constant(total, tf.float64))
  return hierarchical_histogram.quantile_bin(cumulative, theta).numpy()


def test_quantile_bin_takes_the_middle_of_ties():
  below = [0.0, 2.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0]
  for theta, expected in (
    (1.0, 0),  # H = 0
    (0.75, 2),  # H = 2 at 1..3
    (0.7, 2),
    (0.5, 4),  # H = 4 at 4..5
    (0.4, 4),
    (0.2, 6),  # 6.4, H = 8 at 6..7
    (0.01, 6),
    (0.25, 5),  # 6 is as far from H = 4 as from H = 8: 4..7
  ):
    assert _quantile_bin(below, 8.0, theta) == expected, theta
  assert _quantile_bin([0.0, 0.0], 0.0, 0.5) == 0
  assert _quantile_bin([0.0] * 64, 0.0, 0.5) == 31


def test_quantile_bin_of_batches():
  rng = np.random.default_rng(6)
  below, total = rng.normal(size=[4, 5, 16]), rng.normal(size=[4, 5]) + 1
  for theta in (0.3, rng.uniform(size=[4, 5])):
    bins = _quantile_bin(below, total, theta)
    assert bins.dtype == np.int64
    distances = np.abs(below - ((1 - theta) * total)[..., np.newaxis])
    np.testing.assert_array_equal(bins, np.argmin(distances, axis=-1))
