"""Encodes values as binary hierarchical histograms, and decodes noisy ones.

A histogram of b bins (b a power of two) over [0, B] has the nodes of a binary tree without its
root, d = 2 b - 2 of them: first the b bins, then the b / 2 pairs of bins, ..., last the two
halves. One value is a one in each of the L = log2 b levels (the paper's hierarchical histogram).
Bins are closed on the left, and the last one on both sides, so that they match the gate
`loss >= threshold`.

Every function here works on any number of histograms at once, along leading dimensions, in a
TensorFlow graph, in time linear in b.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from privacy.noise import tree_mechanism


class Cumulative(NamedTuple):
  """Holds an estimated distribution of values over the bins.

  Attributes:
    below: float64 [..., b], the number of values below the left edge of each bin, from H(0) = 0.
    total: float64 [...], the number of values.
  """

  below: tf.Tensor
  total: tf.Tensor


def bin_edges(num_bins: int, max_value: float) -> np.ndarray:
  """Returns the edges l_0 = 0 < l_1 < ... < l_b = max_value, float32 [b + 1]."""
  return (np.arange(num_bins + 1) * (max_value / num_bins)).astype(np.float32)


def _levels(num_bins: int) -> list[int]:
  """Returns the numbers of nodes on the levels, bins first: b, b / 2, ..., 2."""
  return [num_bins >> level for level in range(num_bins.bit_length() - 1)]


def bin_index(values: tf.Tensor, num_bins: int, max_value: float) -> tf.Tensor:
  """Returns the bin of each value, int64 [...] in 0..b - 1, as `encode` counts it."""
  # The thresholds are these very numbers: a loss is in bin j or above if and only if `loss >= l_j`.
  # (Flooring loss * b / B would disagree in the last digit.)
  inner_edges = tf.constant(bin_edges(num_bins, max_value)[1:-1])
  index = tf.searchsorted(inner_edges, tf.reshape(values, [-1]), side="right", out_type=tf.int64)
  return tf.reshape(index, tf.shape(values))


def encode(values: tf.Tensor, num_bins: int, max_value: float) -> tf.Tensor:
  """Encodes values as hierarchical histograms, int64 [..., d]: log2 b ones, or none for NaN.

  The values are float32 [...]; those outside [0, max_value], also infinite ones, count as the
  nearest end. `num_bins` is b.
  """
  index = bin_index(values, num_bins, max_value)[..., tf.newaxis]
  firsts = np.concatenate([np.arange(n) * (num_bins // n) for n in _levels(num_bins)])
  widths = np.concatenate([np.full(n, num_bins // n) for n in _levels(num_bins)])
  contains = tf.logical_and(index >= firsts, index < firsts + widths)
  counted = tf.logical_not(tf.math.is_nan(values))[..., tf.newaxis]
  return tf.cast(tf.logical_and(contains, counted), tf.int64)


def _interleave(even: tf.Tensor, odd: tf.Tensor) -> tf.Tensor:
  """Interleaves [..., n] and [..., n] to [..., 2 n]: even[0], odd[0], even[1], ..."""
  pairs = tf.stack([even, odd], axis=-1)
  return tf.reshape(pairs, tf.concat([tf.shape(even)[:-1], [2 * even.shape[-1]]], axis=0))


def _least_squares_bins(histogram: tf.Tensor, num_bins: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the consistent tree nearest to a noisy one: (bins [..., b], total [...]).

  It takes two passes (Hay et al., 2010) with the root unknown. Upwards, each node's own count and
  the sum over its children are averaged by their variances; downwards, the children share equally
  the difference to their parent.
  """
  levels = tf.split(histogram, _levels(num_bins), axis=-1)
  estimates = [levels[0]]
  for height, nodes in enumerate(levels[1:], start=2):
    children = estimates[-1][..., ::2] + estimates[-1][..., 1::2]
    own_weight = 2 ** (height - 1) / (2**height - 1)
    estimates.append(own_weight * nodes + (1.0 - own_weight) * children)
  parents = tf.reduce_sum(estimates[-1], axis=-1, keepdims=True)
  total = parents[..., 0]
  for nodes in reversed(estimates):
    half_lack = (parents - nodes[..., ::2] - nodes[..., 1::2]) / 2.0
    parents = _interleave(nodes[..., ::2] + half_lack, nodes[..., 1::2] + half_lack)
  return parents, total


def linear_variances(weights: tf.Tensor, num_bins: int) -> tf.Tensor:
  """Returns the variances, float64 [...], of weighted sums, w [..., b], of least squares' bins.

  With the tree's matrix A [d, b], which says the bins of each node, the estimate of the bins is
  (A^T A)^-1 A^T y, so that noise of variance 1 on each node of y gives the weighted sum w of bins
  the variance w^T (A^T A)^-1 w. Least squares solve (A^T A) x = w if y is w on the bins and zero on
  all other nodes.
  """
  others = tf.zeros_like(weights)[..., : num_bins - 2]
  solved, _ = _least_squares_bins(tf.concat([weights, others], axis=-1), num_bins)
  return tf.reduce_sum(weights * solved, axis=-1)


def isotonic_regression(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Returns the argmin over non-decreasing x [..., n] of sum_i weights_i (x_i - values_i)^2.

  Pools adjacent violators: neighbouring blocks that are out of order have equal values in the
  solution, so they are merged into their weighted mean until none are left. Each pass here merges
  all of them at once, in time linear in n; noise needs a few passes. All are float64; weights are
  positive and broadcastable to the values.
  """
  shape = tf.shape(values)
  weights = tf.reshape(tf.broadcast_to(weights, shape), [-1])
  weighted = tf.reshape(values, [-1]) * weights
  # All sequences lie end to end; no block crosses the start of a sequence.
  starts_sequence = tf.equal(tf.range(tf.size(values)) % shape[-1], 0)

  def pool(starts_block, *_):
    block = tf.cumsum(tf.cast(starts_block, tf.int32)) - 1
    num_blocks = block[-1] + 1
    block_weights = tf.math.unsorted_segment_sum(weights, block, num_blocks)
    means = tf.math.unsorted_segment_sum(weighted, block, num_blocks) / block_weights
    means = tf.gather(means, block)
    previous = tf.concat([means[:1], means[:-1]], axis=0)
    # Within a block neighbours are equal, so only the first of a block can be in order.
    in_order = tf.logical_and(starts_block, means > previous)
    starts_next = tf.logical_or(starts_sequence, in_order)
    return starts_next, tf.reduce_any(tf.not_equal(starts_next, starts_block)), means

  everywhere = tf.fill(tf.shape(weights), True)
  *_, means = tf.while_loop(
    lambda starts_block, changed, means: changed,
    pool,
    (everywhere, tf.constant(True), tf.zeros_like(weighted)),
  )
  return tf.reshape(means, shape)


def decode_least_squares(histogram: tf.Tensor, num_bins: int) -> Cumulative:
  """Decodes by least squares on the tree, then isotonic regression on `below`.

  It post-processes the same release as the paper's decoder, with less than half of its error. Least
  squares use that nodes, float64 [..., d] of equal variance, add up, isotonic regression that H
  neither decreases nor is negative.
  """
  bins, total = _least_squares_bins(histogram, num_bins)
  below = tf.cumsum(bins, axis=-1)[..., :-1]
  below = isotonic_regression(below, 1.0 / tree_mechanism.cumulative_variances(num_bins))
  below = tf.maximum(below, 0.0)
  return Cumulative(tf.concat([tf.zeros_like(bins[..., :1]), below], axis=-1), total)


def quantile_bin(cumulative: Cumulative, theta: float | tf.Tensor) -> tf.Tensor:
  """Returns the bin, int64 [...], whose left edge has nearest to (1 - theta) of the values below.

  It implements the paper's equation "quantile", with the estimated total in place of a public one;
  theta is broadcastable to the totals. Of several bins that are equally near, as after isotonic
  regression, it takes the middle one.
  """
  target = (1.0 - theta) * cumulative.total
  distance = tf.abs(cumulative.below - target[..., tf.newaxis])
  nearest = tf.equal(distance, tf.reduce_min(distance, axis=-1, keepdims=True))
  nearest = tf.cast(nearest, tf.int32)
  first = tf.argmax(nearest, axis=-1)
  last = tf.cast(tf.shape(distance)[-1], tf.int64) - 1 - tf.argmax(nearest[..., ::-1], axis=-1)
  return (first + last) // 2
