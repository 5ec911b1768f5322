"""Builds the share of Semi-VRed, by how far a loss is above the mean."""

import collections

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold.soft import relative


def build_semi_variance_share(beta: float) -> relative.RelativeShare:
  """Builds the share proportional to 1 + 2 beta (F - mean)_+ of Semi-VRed.

  Reference: Malekmohammadi and Yu, "Semi-Variance Reduction for Fair Federated Learning", 2024. Its
  objective is, with mean = sum_j alpha_j F_j,

      mean + beta sum_i alpha_i (F_i - mean)_+^2,

  whose gradient is sum_i alpha_i (1 + 2 beta ((F_i - mean)_+ - s)) grad F_i, where s = sum_j
  alpha_j (F_j - mean)_+ comes from the gradient of the mean within the square. Here this mean is
  held fixed, which leaves s out: that weight may be negative. While 2 beta s < 1 the two are the
  same family of directions, as

      1 + 2 beta (d_i - s) = (1 - 2 beta s) (1 + 2 beta' d_i),    beta' = beta / (1 - 2 beta s),

  so that the full gradient is that of a larger beta, which follows the losses. beta >= 0 is in
  units of one over the loss; 0 gives each client the same share. The share is over that of the
  largest loss.
  """
  beta = checks.not_negative("beta", beta)

  def summarize(losses, weights):
    losses = tf.cast(losses, tf.float64)  # Sums of them do not overflow.
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))
    # Without losses, the maximum is minus infinity, so that no loss is above the mean.
    return collections.OrderedDict(mean=mean, largest=tf.reduce_max(losses))

  def share(losses, summary):
    def weight(loss):
      return 1.0 + 2.0 * beta * tf.maximum(loss - summary["mean"], 0.0)

    return tf.cast(weight(tf.cast(losses, tf.float64)) / weight(summary["largest"]), tf.float32)

  return relative.RelativeShare(summarize, share)
