"""Builds weightings in which a share follows from a client's loss and the cohort's distribution."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import cohort

_LARGEST = np.finfo(np.float32).max


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

  Args:
    relative: The share. Infinite losses are given to it as the largest float32.

  Returns:
    A `ThresholdProcess` whose result is the summary of the cohort's losses, with the measurements
    of `cohort.measure`.
  """

  def finite(losses):
    return tf.clip_by_value(losses, -_LARGEST, _LARGEST)

  def server_fn(state, rows):
    losses, weights = cohort.split(rows)
    summary = relative.summarize(finite(losses), tf.cast(weights, tf.float64))
    shares = relative.share(finite(losses), summary)
    return state, summary, cohort.measure(losses, weights, shares)

  return process.build_process_of_losses(
    server_fn, lambda loss, summary, client: relative.share(finite(loss), summary)
  )
