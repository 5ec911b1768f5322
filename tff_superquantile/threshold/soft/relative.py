"""Weightings relative to a cohort: how its losses are read and measured, and shares of them."""

import collections
from collections.abc import Callable
import numbers
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process

_LARGEST = np.finfo(np.float32).max


def measure(
  losses: tf.Tensor, weights: tf.Tensor, shares: tf.Tensor
) -> collections.OrderedDict[str, tf.Tensor]:
  """Measures the losses float32 [k], weights alpha_i and shares of the clients that count.

  They are `loss_mean`, `loss_max`, and `effective_clients`, (sum_i pi_i)^2 / sum_i pi_i^2 with
  pi_i = alpha_i * shares_i, the number of clients of equal weight that would average as well. All
  are zero if no client counts.
  """
  pi = weights * shares
  return collections.OrderedDict(
    loss_mean=tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights)),
    loss_max=largest(losses),
    effective_clients=tf.math.divide_no_nan(tf.reduce_sum(pi) ** 2, tf.reduce_sum(pi**2)),
  )


def largest(values: tf.Tensor) -> tf.Tensor:
  """Returns the largest value, or 0 if there is none."""
  return tf.cond(tf.size(values) > 0, lambda: tf.reduce_max(values), lambda: tf.constant(0.0))


class RelativeShare(NamedTuple):
  """Turns a loss into a share, relative to a distribution of losses.

  Both are TensorFlow functions. `histogram` has the noisy distribution of private runs.

  Attributes:
    summarize: From (losses float32 [k], weights float64 [k], not negative) to what a client needs
      to know of the distribution, any structure. There may be no loss, and weights may all be zero.
    share: From (losses float32 [...], that structure) to shares, float32 [...], in [0, 1] for
      losses of the distribution.
  """

  summarize: Callable[[tf.Tensor, tf.Tensor], Any]
  share: Callable[[tf.Tensor, Any], tf.Tensor]


def build_relative_weighting(relative: RelativeShare) -> process.ThresholdProcess:
  """Builds the weighting pi_i = alpha_i share(F_i), relative to the losses of the cohort.

  Infinite losses are given to the share as the largest float32. The result is the summary of the
  cohort's losses, with the measurements of `measure`.

  Args:
    relative: The summary of a cohort's losses, and the share of a loss given it, in [0, 1].

  Returns:
    A `ThresholdProcess`.
  """

  def finite(losses):
    return tf.clip_by_value(losses, -_LARGEST, _LARGEST)

  def server_fn(state, rows):
    losses, weights, _ = rows.counted()
    summary = relative.summarize(finite(losses), tf.cast(weights, tf.float64))
    shares = relative.share(finite(losses), summary)
    return state, summary, measure(losses, weights, shares)

  return process.build_process_of_losses(
    server_fn, lambda loss, summary, client: relative.share(finite(loss), summary)
  )


# Smaller losses count as this one, so that ratios and powers of a loss of zero are numbers.
MIN_LOSS = 1e-10


def build_power_weighting(q: float) -> process.ThresholdProcess:
  """Builds the weighting with pi_i proportional to alpha_i F_i^q, as in q-FFL, for q >= 0.

  Args:
    q: The exponent, >= 0; 0 gives each client the same share.

  Returns:
    A `ThresholdProcess` whose result is the cohort's largest loss, with the measurements of
    `measure`.

  Raises:
    TypeError: If `q` is no number.
    ValueError: If it is negative.
  """
  q = checks.not_negative("q", q)

  def share(losses, largest):
    ratio = tf.maximum(losses, MIN_LOSS) / tf.maximum(largest, MIN_LOSS)
    return tf.pow(tf.minimum(ratio, 1.0), q)

  return build_relative_weighting(RelativeShare(lambda losses, weights: largest(losses), share))


def build_rank_share(fairness_strength: float) -> RelativeShare:
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

  Args:
    fairness_strength: lambda, in [0, 1]; 0 gives each client the same share.

  Returns:
    A `RelativeShare` for `build_relative_weighting`.

  Raises:
    TypeError: If `fairness_strength` is no number.
    ValueError: If it is outside of [0, 1].
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

  return RelativeShare(summarize, share)


def build_semi_variance_share(beta: float) -> RelativeShare:
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

  Args:
    beta: The weight of the semi-variance, >= 0, in units of one over the loss.

  Returns:
    A `RelativeShare` for `build_relative_weighting`.

  Raises:
    TypeError: If `beta` is no number.
    ValueError: If it is negative.
  """
  beta = checks.not_negative("beta", beta)
  return _build_share_by_deviation(lambda deviation: 1.0 + 2.0 * beta * tf.maximum(deviation, 0.0))


def build_variance_share(gap_strength: float) -> RelativeShare:
  """Builds the share proportional to (1 + 2 lambda (r - mean))_+ of EAGLE, for loss gaps r.

  Reference: Erraji, Perrot and Bellet, "Loss Gap Parity for Fairness in Heterogeneous Federated
  Learning", 2026. With r_i = F_i(w) - F_i*, where F_i* is a constant of client i, and mean = sum_j
  alpha_j r_j, the objective and its gradient are

      sum_i alpha_i F_i + lambda sum_i alpha_i (r_i - mean)^2,
      sum_i alpha_i (1 + 2 lambda (r_i - mean)) grad F_i:

  the gradient of the mean within the square adds sum_i alpha_i (r_i - mean) = 0 times itself. A
  client whose weight were negative, with r_i < mean - 1 / (2 lambda), has the share 0 instead: no
  client's update is walked backwards. The share is over that of the largest gap.

  Args:
    gap_strength: lambda, >= 0, in units of one over the loss; 0 gives each client the same share.

  Returns:
    A `RelativeShare` for `build_relative_weighting`.

  Raises:
    TypeError: If `gap_strength` is no number.
    ValueError: If it is negative.
  """
  strength = checks.not_negative("gap_strength", gap_strength)
  return _build_share_by_deviation(
    lambda deviation: tf.maximum(1.0 + 2.0 * strength * deviation, 0.0)
  )


def _build_share_by_deviation(weight: Callable[[tf.Tensor], tf.Tensor]) -> RelativeShare:
  """Builds the share weight(F - mean), which does not fall in F, over that of the largest loss."""

  def summarize(losses, weights):
    losses = tf.cast(losses, tf.float64)  # Sums of them do not overflow.
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))
    # Without losses, the maximum is minus infinity, and nobody asks for a share.
    return collections.OrderedDict(mean=mean, largest=tf.reduce_max(losses))

  def share(losses, summary):
    mean, losses = summary["mean"], tf.cast(losses, tf.float64)
    return tf.cast(weight(losses - mean) / weight(summary["largest"] - mean), tf.float32)

  return RelativeShare(summarize, share)
