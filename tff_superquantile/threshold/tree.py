"""Builds a threshold with distributed differential privacy, the quantile of a private histogram."""

import collections

import numpy as np
import tensorflow as tf

from privacy.noise import tree_mechanism
from tff_superquantile import superquantile
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import private_histogram
from tff_superquantile.threshold import process

# With at most this many bins, their width causes more of the error than the noise.
_MAX_INTERPOLATED_BINS = 16
# A bin with more than this share of the cohort is crowded.
_CROWDED = 0.75


def _interpolate(
  cumulative: hierarchical_histogram.Cumulative, theta: float, edges: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the point at which the interpolated H is (1 - theta) n, and the number beyond it.

  The losses of a crowded bin are not spread over it evenly. Before training they are all the same,
  and a threshold within the bin could be above every one of them: no client would train, and
  nothing would ever change. The threshold is therefore the left edge of a crowded bin.
  """
  counts = tf.concat([cumulative.below, [tf.maximum(cumulative.total, cumulative.below[-1])]], 0)
  target = (1.0 - theta) * cumulative.total
  # This is the last bin that starts below the target, and none of the empty bins before it.
  bin_index = tf.searchsorted(cumulative.below[1:], [target], side="left")[0]
  below, past = counts[bin_index], counts[bin_index + 1]
  fraction = tf.clip_by_value(tf.math.divide_no_nan(target - below, past - below), 0.0, 1.0)
  is_crowded = past - below > _CROWDED * cumulative.total
  fraction = tf.where(is_crowded, tf.zeros_like(fraction), fraction)
  tail_size = tf.where(is_crowded, cumulative.total - below, theta * cumulative.total)
  left, right = edges[bin_index], edges[bin_index + 1]
  return left + tf.cast(fraction, tf.float32) * (right - left), tail_size


def build_tree_quantile(
  theta: float,
  mechanism: tree_mechanism.TreeMechanism,
  max_loss: float,
  *,
  interpolate: bool | None = None,
  noise_key: bytes | None = None,
) -> process.ThresholdProcess:
  """Builds the (1 - theta)-quantile of the losses, by a new private histogram in each round.

  It implements the paper's "Quantile Computation with Distributed Differential Privacy", with the
  estimator of `hierarchical_histogram.decode_least_squares`. For the guarantee see
  `PrivateHistogramFactory`: all that a round releases is computed from one private histogram. If
  more than mechanism.num_shares clients report, there is no histogram, and the last threshold
  stays. The first one is 0, so that all clients train.

  Each client counts once, whatever its weight; a loss that is NaN counts nowhere and is never
  selected. Other losses are clipped to [0, max_loss]: negative losses count as 0; larger and
  infinite ones count as max_loss and are always selected.

  Args:
    theta: The tail fraction, in (0, 1]. For 1 the threshold is 0, whatever the histogram.
    mechanism: Built by `privacy.noise.tree_mechanism.build_tree_mechanism`.
    max_loss: B, the upper end of the histogram, in units of the loss.
    interpolate: Whether to place the threshold within a bin rather than on its left edge, unless
      more than three quarters of the cohort are in that bin; None for up to 16 bins.
    noise_key: Secret key of the server's noise, 16 bytes; None for fresh entropy.

  Returns:
    A `ThresholdProcess`, whose result is the threshold, float32. Measurements: `threshold`;
    `estimated_cohort_size` and `estimated_tail_size`, the latter at least half of the expected tail
    size, theta * expected_clients, so that it can serve as a divisor (in an aborted round both are
    the expected sizes); and `aborted`, 1 or 0.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range.
  """
  theta = superquantile.check_theta(theta)
  factory = private_histogram.PrivateHistogramFactory(mechanism, max_loss, noise_key=noise_key)
  if interpolate is None:
    interpolate = mechanism.num_bins <= _MAX_INTERPOLATED_BINS
  edges = hierarchical_histogram.bin_edges(mechanism.num_bins, max_loss)

  def server_fn(last_threshold, result):
    # A negative total has no quantile: the histogram is noise alone.
    cumulative = hierarchical_histogram.Cumulative(
      result["below"], tf.maximum(result["total"], 0.0)
    )
    if interpolate:
      threshold, tail_size = _interpolate(cumulative, theta, tf.constant(edges))
    else:
      bin_index = hierarchical_histogram.quantile_bin(cumulative, theta)
      threshold = tf.constant(edges)[bin_index]
      tail_size = cumulative.total - cumulative.below[bin_index]
    # Noise may leave the first bins empty and the quantile within them; theta = 1 is all clients.
    if theta == 1.0:
      threshold, tail_size = tf.zeros_like(threshold), cumulative.total
    # The sum of updates is divided by the tail size. A constant lower bound keeps the noise of the
    # quotient within twice that of a cohort of the expected size, for any cohort and any theta.
    expected_tail_size = theta * mechanism.expected_clients
    tail_size = tf.maximum(tail_size, expected_tail_size / 2.0)
    is_valid = result["is_valid"]

    def or_expected(estimate, expected):
      return tf.cast(tf.where(is_valid, tf.cast(estimate, tf.float64), expected), tf.float32)

    threshold = tf.where(is_valid, threshold, last_threshold)
    measurements = collections.OrderedDict(
      threshold=threshold,
      estimated_cohort_size=or_expected(cumulative.total, mechanism.expected_clients),
      estimated_tail_size=or_expected(tail_size, expected_tail_size),
      aborted=tf.cast(tf.logical_not(is_valid), tf.int32),
    )
    return threshold, measurements

  def share_fn(loss, threshold, client):
    del client
    return tf.cast(tf.clip_by_value(loss, 0.0, max_loss) >= threshold, tf.float32)

  return private_histogram.build_histogram_process(factory, server_fn, share_fn, np.float32(0.0))
