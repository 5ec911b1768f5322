"""Weightings relative to a cohort: how its losses are read and measured, and shares of them."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

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
