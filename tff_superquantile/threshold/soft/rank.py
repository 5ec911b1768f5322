"""Builds the share of GIFAIR, by the rank of a loss."""

import collections
import numbers

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold.soft import relative


def build_rank_share(fairness_strength: float) -> relative.RelativeShare:
  """Builds the share proportional to 1 + lambda r_i of GIFAIR, by the rank r_i of the loss.

  Reference: Yue, Nouiehed and Al Kontar, "GIFAIR-FL: A Framework for Group and Individual Fairness
  in Federated Learning", INFORMS Journal on Data Science 2023, with each client a group of its own
  (individual fairness). The objective and its gradient are

      sum_i alpha_i F_i + lambda sum_(i < j) alpha_i alpha_j |F_i - F_j|,
      sum_i alpha_i (1 + lambda r_i) grad F_i,    r_i = sum_j alpha_j sign(F_i - F_j),

  so that r_i is the weight of the clients below minus that of the clients above. The clients that
  count are the cohort, their alpha_j sum to one, and ties count as equal. For n clients of equal
  weight n r_i is one of -(n - 1), -(n - 3), ..., n - 1, as in the paper, whose coefficient of the
  sum over all pairs is lambda / n^2; the paper has no alpha_i alpha_j there. |r_i| < 1, so that
  lambda <= 1 keeps each weight positive; the paper's bound is lambda < n / (n - 1). The share is (1
  + lambda r) / (1 + lambda), lambda = `fairness_strength` in [0, 1]; 0 gives each client the same.
  """
  checks.of_type("fairness_strength", fairness_strength, numbers.Real, "a number")
  if not 0.0 <= fairness_strength <= 1.0:  # This refuses NaN, too.
    raise ValueError(
      f"Found fairness_strength = {fairness_strength}; expected a number from 0 to 1, or weights"
      " could be negative."
    )
  strength = float(fairness_strength)

  def summarize(losses, weights):
    order = tf.argsort(losses)
    below = tf.cumsum(tf.gather(weights, order))
    below = tf.math.divide_no_nan(below, tf.reduce_sum(weights))
    return collections.OrderedDict(
      losses=tf.gather(losses, order), below=tf.concat([tf.zeros([1], tf.float64), below], 0)
    )

  def share(losses, summary):
    def weight_below(side):
      position = tf.searchsorted(summary["losses"], tf.reshape(losses, [-1]), side=side)
      return tf.reshape(tf.gather(summary["below"], position), tf.shape(losses))

    above = summary["below"][-1] - weight_below("right")
    rank = weight_below("left") - above
    return tf.cast((1.0 + strength * rank) / (1.0 + strength), tf.float32)

  return relative.RelativeShare(summarize, share)
