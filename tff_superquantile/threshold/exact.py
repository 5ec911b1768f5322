"""Builds thresholds from the exact losses of the cohort, and thresholds by their names.

Equality is `tf.equal` here, because `==` compares tensors as objects in the graphs that TFF builds.
"""

import collections
import collections.abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from privacy import checks
from tff_superquantile import superquantile
from tff_superquantile.threshold import process


def sorted_tail(rows: process.Rows, theta: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Sorts the losses that count in descending order, and finds the threshold among them.

  Rows of loss NaN or weight 0 are left out; theta is in (0, 1]. The result is (losses float64 [k],
  weights float64 [k] with sum 1, index int32 [] of the upper quantile). If no row counts, the only
  loss is +inf, so that no client is selected.

  Args:
    rows: The losses and weights of the cohort, [n].
    theta: The tail fraction, in (0, 1].

  Returns:
    (losses float64 [k] descending, weights float64 [k] with sum 1, index int32 [] of the
    threshold).
  """
  counted = [tf.cast(column, tf.float64) for column in rows.counted()[:2]]
  nothing = [tf.constant([value], tf.float64) for value in (np.inf, 1.0)]
  losses, weights = tf.cond(tf.size(counted[0]) > 0, lambda: counted, lambda: nothing)
  order = tf.argsort(losses, direction="DESCENDING", stable=True)
  losses, weights = tf.gather(losses, order), tf.gather(weights, order)
  weights = weights / tf.reduce_sum(weights)
  reached = tf.cumsum(weights) >= theta * (1.0 - superquantile.TAIL_MASS_TOLERANCE)
  # The last loss always reaches the tail mass, except for rounding.
  reached = tf.concat([reached[:-1], [True]], axis=0)
  return losses, weights, tf.cast(tf.argmax(reached), tf.int32)


def _dual_share_at_threshold(
  losses: tf.Tensor, weights: tf.Tensor, index: tf.Tensor, theta: float
) -> tf.Tensor:
  """Returns the share in pi*, in [0, 1], that the cap leaves to the clients at the threshold."""
  threshold = losses[index]
  zeros = tf.zeros_like(weights)
  above = tf.reduce_sum(tf.where(losses > threshold, weights, zeros))
  at = tf.reduce_sum(tf.where(tf.equal(losses, threshold), weights, zeros))
  return tf.clip_by_value((theta - above) / at, 0.0, 1.0)


def _measure(
  losses: tf.Tensor, weights: tf.Tensor, index: tf.Tensor, theta: float
) -> collections.OrderedDict[str, tf.Tensor]:
  """Measures the threshold, the mean and the superquantile of a cohort's losses."""
  threshold = losses[index]
  share = _dual_share_at_threshold(losses, weights, index, theta)
  zeros = tf.zeros_like(losses)
  # A product would be NaN for an empty cohort, whose placeholder loss is infinite.
  at_threshold = tf.where(tf.equal(losses, threshold), share * losses, zeros)
  tail = tf.where(losses > threshold, losses, at_threshold)
  return collections.OrderedDict(
    threshold=tf.cast(threshold, tf.float32),
    loss_mean=tf.cast(tf.reduce_sum(weights * losses), tf.float32),
    loss_superquantile=tf.cast(tf.reduce_sum(weights * tail) / theta, tf.float32),
  )


def _build(
  server_fn: Callable[[process.Rows], tuple[Any, collections.OrderedDict]],
  share_fn: process.ShareFn,
) -> process.ThresholdProcess:
  """Builds a stateless process whose server maps rows to (result, measurements)."""
  return process.build_process_of_losses(lambda state, rows: (state, *server_fn(rows)), share_fn)


def build_exact_quantile(theta: float) -> process.ThresholdProcess:
  """Builds the exact upper (1 - theta)-quantile of the cohort's losses (Algorithm 1's Q).

  Exactly ceil(theta * n) clients are at or above it when no losses tie and weights are equal. With
  unequal weights these are the fewest worst clients that hold at least a theta fraction of the
  weight.

  Args:
    theta: The tail fraction, in (0, 1].

  Returns:
    A `ThresholdProcess` whose result is the threshold, float32, in units of the loss (+inf when no
    loss counts). Measurements: `threshold`, `loss_mean`, `loss_superquantile`, weighted as the
    quantile is.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range.
  """
  theta = superquantile.check_theta(theta)

  def server_fn(rows):
    losses, weights, index = sorted_tail(rows, theta)
    return tf.cast(losses[index], tf.float32), _measure(losses, weights, index, theta)

  return _build(server_fn, process.share_at_or_above)


def build_exact_reweighting(theta: float, smoothing: float = 0.0) -> process.ThresholdProcess:
  """Builds the paper's exact reweighting: clients enter the average with the weights pi*.

  Implements the line "reweigh" of the algorithm with exact reweighting, pi* = argmax over the
  capped simplex of sum_i pi_i F_i. For a smoothing nu > 0, in units of the loss, the objective is
  that of F_theta^nu, with - nu * KL(pi || alpha) added. A client computes its pi_i from its own
  loss and two numbers of the server. theta and the measurements are those of
  `build_exact_quantile`.

  Args:
    theta: The tail fraction, in (0, 1].
    smoothing: nu, >= 0, in units of the loss; 0 for none.

  Returns:
    A `ThresholdProcess` whose result are two float32 [], and whose measurements are those of
    `build_exact_quantile`.

  Raises:
    TypeError: If an argument is no number.
    ValueError: If it is out of its range.
  """
  theta = superquantile.check_theta(theta)
  if smoothing == 0.0:

    def server_fn(rows):
      losses, weights, index = sorted_tail(rows, theta)
      result = collections.OrderedDict(
        threshold=tf.cast(losses[index], tf.float32),
        share_at_threshold=tf.cast(
          _dual_share_at_threshold(losses, weights, index, theta), tf.float32
        ),
      )
      return result, _measure(losses, weights, index, theta)

    def share_fn(loss, result, client):
      del client
      at_threshold = tf.equal(loss, result["threshold"])
      at_threshold = tf.where(at_threshold, result["share_at_threshold"], 0.0)
      return tf.where(loss > result["threshold"], 1.0, at_threshold)

    return _build(server_fn, share_fn)

  smoothing = checks.scale("smoothing", smoothing)

  def smoothed_server_fn(rows):
    # See `paper.smoothed`; here the clients need mu / nu.
    losses, weights, index = sorted_tail(rows, theta)
    largest = losses[0]
    log_theta = np.log(theta)
    # If no row counts, the placeholder is infinite, and inf - inf is not a number.
    scores = tf.where(tf.math.is_finite(losses), losses - largest, 0.0) / smoothing
    used = tf.cumsum(weights, exclusive=True) / theta
    free = tf.math.log(tf.maximum(1.0 - used, 0.0))
    log_sum = tf.math.cumulative_logsumexp(tf.math.log(weights) + scores, reverse=True)
    feasible = scores + free - log_sum <= -log_theta + superquantile.TAIL_MASS_TOLERANCE
    feasible = tf.concat([feasible[:-1], [True]], axis=0)
    first = tf.argmax(feasible)
    result = collections.OrderedDict(
      largest_loss=tf.cast(largest, tf.float32),
      log_scale=tf.cast((free - log_sum)[first] + log_theta, tf.float32),
    )
    return result, _measure(losses, weights, index, theta)

  def smoothed_share_fn(loss, result, client):
    del client
    score = (loss - result["largest_loss"]) / tf.constant(smoothing, tf.float32)
    return tf.exp(tf.minimum(score + result["log_scale"], 0.0))

  return _build(smoothed_server_fn, smoothed_share_fn)


_BUILDERS: dict[str, process.ThresholdFn] = {
  "exact": build_exact_quantile,
  "reweighting": build_exact_reweighting,
}


def build_threshold(threshold: str | process.ThresholdFn, theta: float) -> process.ThresholdProcess:
  """Builds the threshold process that `threshold` names, for a tail fraction.

  It is "exact" (the server sees the losses and takes their quantile), "reweighting" (the paper's
  exact reweighting), or a function of theta that returns a `ThresholdProcess`, such as a
  `functools.partial` of `build_tree_quantile` or `build_geometric_quantile`.

  Args:
    threshold: "exact", "reweighting", or a function of theta.
    theta: The tail fraction, in (0, 1].

  Returns:
    The `ThresholdProcess`.

  Raises:
    TypeError: If `threshold` is neither a text nor a function, or returns something else.
    ValueError: If it is another text, or theta is out of its range.
  """
  if not isinstance(threshold, str):
    checks.of_type(
      "threshold",
      threshold,
      collections.abc.Callable,
      f"one of {sorted(_BUILDERS)} or a function of theta that returns a ThresholdProcess",
    )
    build = threshold
  elif threshold in _BUILDERS:
    build = _BUILDERS[threshold]
  else:
    raise ValueError(
      f"Found threshold = {threshold!r}; expected one of {sorted(_BUILDERS)} or a function of"
      " theta that returns a ThresholdProcess."
    )
  built = build(theta)
  if not isinstance(built, process.ThresholdProcess):
    raise TypeError(f"Found a {type(built).__name__} for a threshold; expected ThresholdProcess.")
  return built
