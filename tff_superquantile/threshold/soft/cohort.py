"""Reads and measures the losses of a cohort, for all weightings that are relative to it."""

import collections

import tensorflow as tf

from tff_superquantile.threshold import process


def measure(
  losses: tf.Tensor, weights: tf.Tensor, shares: tf.Tensor
) -> collections.OrderedDict[str, tf.Tensor]:
  """Measures the losses and the shares of a cohort.

  Args:
    losses: float32 [k], losses of the clients that count.
    weights: float32 [k], their weights alpha_i.
    shares: float32 [k]; client i has the weight alpha_i * shares_i in the average.

  Returns:
    `loss_mean` and `loss_max`, and `effective_clients`, (sum_i pi_i)^2 / sum_i pi_i^2, the number
    of clients of equal weight that would average as well. All are zero if no client counts.
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


def split(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns losses and weights, float32 [k], of the rows that count."""
  rows = tf.boolean_mask(rows, process.counted(rows))
  return rows[:, process.LOSS], rows[:, process.WEIGHT]
