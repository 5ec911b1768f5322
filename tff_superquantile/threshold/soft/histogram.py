"""Builds weightings relative to the cohort's losses with differential privacy, by a histogram."""

import collections

import numpy as np
import tensorflow as tf

from privacy.noise import tree_mechanism
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import private_histogram
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import relative


def build_histogram_weighting(
  relative_share: relative.RelativeShare,
  mechanism: tree_mechanism.TreeMechanism,
  max_loss: float,
  *,
  noise_key: bytes | None = None,
) -> process.ThresholdProcess:
  """Builds the weighting by a share that is relative to a private histogram of the losses.

  A round releases a noisy histogram of the cohort's losses, as `build_tree_quantile` does. With the
  midpoint m_j of bin j and its noisy count n_j >= 0, the distribution of the losses is n_j at m_j;
  the share of a client is share(m_j) relative to it, for the bin j of its loss. It follows from the
  client's own loss and from what is released.

  Guarantee: that of `PrivateHistogramFactory`, of which shares and measurements are
  post-processing. A sum of vectors of norm <= C, each multiplied by its client's share s_i, has
  sensitivity C given the histogram, under zero-out adjacency and under addition or removal of a
  client: the table of shares is fixed by the histogram, so that no client changes another's share,
  and s_i is in [0, 1], so that |s_i v_i| <= C. Under replacement it is 2 C.

  The measurement `estimated_share_sum`, for the average, is free, too:

      s n,    s = sum_j n_j share(m_j) / sum_j n_j,    n = max(sum_j n_j, expected_clients / 2).

  The lower bound keeps the noise of the quotient within twice that of a cohort of the expected size
  with these losses.

  Each client counts once, whatever its weight. Losses are clipped to [0, max_loss]; a loss that is
  NaN counts nowhere and has no share. If more than mechanism.num_shares clients report, there is no
  histogram, and the last shares stay. The first ones are 1.

  Args:
    relative_share: The share.
    mechanism: Built by `privacy.noise.tree_mechanism.build_tree_mechanism`.
    max_loss: B, the upper end of the histogram, in units of the loss.
    noise_key: Secret key of the server's noise, 16 bytes; None for fresh entropy.

  Returns:
    A `ThresholdProcess`, whose result is the share of each bin, float32 [b]. Measurements:
    `estimated_cohort_size` and `estimated_share_sum`, both expected_clients in an aborted round;
    `aborted`, 1 or 0.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range.
  """
  num_bins, expected_clients = mechanism.num_bins, float(mechanism.expected_clients)
  factory = private_histogram.PrivateHistogramFactory(mechanism, max_loss, noise_key=noise_key)
  edges = hierarchical_histogram.bin_edges(num_bins, max_loss)
  midpoints = (edges[:-1] + edges[1:]) / np.float32(2.0)

  def server_fn(last_shares, decoded):
    is_valid = decoded["is_valid"]
    up_to = tf.concat([decoded["below"][1:], decoded["total"][tf.newaxis]], axis=0)
    counts = tf.maximum(up_to - decoded["below"], 0.0)
    summary = relative_share.summarize(tf.constant(midpoints), counts)
    shares = tf.clip_by_value(relative_share.share(tf.constant(midpoints), summary), 0.0, 1.0)
    num_clients = tf.reduce_sum(counts)
    share_sum = tf.reduce_sum(counts * tf.cast(shares, tf.float64))
    # Without clients, bins count equally.
    plain_mean = tf.reduce_mean(tf.cast(shares, tf.float64))
    mean_share = tf.where(num_clients > 0.0, share_sum / num_clients, plain_mean)
    share_sum = mean_share * tf.maximum(num_clients, expected_clients / 2.0)

    def or_expected(estimate):
      return tf.cast(tf.where(is_valid, estimate, expected_clients), tf.float32)

    measurements = collections.OrderedDict(
      estimated_cohort_size=or_expected(num_clients),
      estimated_share_sum=or_expected(share_sum),
      aborted=tf.cast(tf.logical_not(is_valid), tf.int32),
    )
    return tf.where(is_valid, shares, last_shares), measurements

  def share_fn(loss, shares, client):
    del client
    share = tf.gather(shares, hierarchical_histogram.bin_index(loss, num_bins, max_loss))
    return tf.where(tf.math.is_nan(loss), 0.0, share)

  return private_histogram.build_histogram_process(
    factory, server_fn, share_fn, np.ones([num_bins], np.float32)
  )
