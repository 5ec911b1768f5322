"""Builds the weighting of q-FFL, by a power of the loss."""

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import relative

# Smaller losses count as this one, so that ratios and powers of a loss of zero are numbers.
MIN_LOSS = 1e-10


def build_power_weighting(q: float) -> process.ThresholdProcess:
  """Builds the weighting with pi_i proportional to alpha_i F_i^q, as in q-FFL, for q >= 0.

  Its result is the cohort's largest loss, with the measurements of `relative.measure`.
  """
  q = checks.not_negative("q", q)

  def share(losses, largest):
    ratio = tf.maximum(losses, MIN_LOSS) / tf.maximum(largest, MIN_LOSS)
    return tf.pow(tf.minimum(ratio, 1.0), q)

  return relative.build_relative_weighting(
    relative.RelativeShare(lambda losses, weights: relative.largest(losses), share)
  )
