"""Builds the weighting of tilted ERM, by the exponential of the loss."""

import collections
import numbers

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import relative


def build_tilting(temperature: float, moving_average_rate: float = 0.0) -> process.ThresholdProcess:
  """Builds the weighting with pi_i proportional to alpha_i exp(t F_i), as in tilted ERM.

  The gradient of the tilted risk R_t(w) = (1 / t) log(sum_i alpha_i exp(t F_i(w))) is sum_i alpha_i
  exp(t (F_i - R_t)) grad F_i, whose weights sum to one; t >= 0, and a large one favours the worst
  client. With a moving average of rate r in [0, 1), 0 for none, R~ <- (1 / t) log((1 - r) exp(t R~)
  + r exp(t R_t)) replaces R_t of the cohort, so that weights sum to one over rounds only. The
  measurement `update_scale` is their sum in the round, exp(t (R_t - R~)), by which the average is
  to be multiplied.

  The result is the cohort's largest loss, with the measurements of `relative.measure`, too.

  Args:
    temperature: t, >= 0, in units of one over the loss.
    moving_average_rate: r, in [0, 1); 0 for none.

  Returns:
    A `ThresholdProcess`. With a moving average its state has the logarithm of it, float32 [].

  Raises:
    TypeError: If an argument is no number.
    ValueError: If `temperature` is negative, or `moving_average_rate` is outside of [0, 1).
  """
  temperature = checks.not_negative("temperature", temperature)
  checks.of_type("moving_average_rate", moving_average_rate, numbers.Real, "a number")
  if not 0.0 <= moving_average_rate < 1.0:
    raise ValueError(
      f"Found moving_average_rate = {moving_average_rate}; expected a number in [0, 1), 0 for none."
    )
  averages = moving_average_rate > 0.0 and temperature > 0.0

  def share_of(loss, largest):
    return tf.exp(temperature * tf.minimum(loss - largest, 0.0))

  def initial_state_fn():
    # The first cohort sets the average.
    return collections.OrderedDict(log_average=tf.constant(0.0), is_set=tf.constant(False))

  def update_average(state, losses, weights):
    """Returns the new state and the round's sum over the average, exp(t (R_t - R~))."""
    log_weights = tf.math.log(weights / tf.reduce_sum(weights))
    log_round = tf.reduce_logsumexp(log_weights + temperature * losses)
    mixed = tf.reduce_logsumexp(
      tf.stack(
        [
          tf.math.log(1.0 - moving_average_rate) + state["log_average"],
          tf.math.log(moving_average_rate) + log_round,
        ]
      )
    )
    log_average = tf.where(state["is_set"], mixed, log_round)
    new_state = collections.OrderedDict(log_average=log_average, is_set=tf.constant(True))
    return new_state, tf.exp(log_round - log_average)

  def server_fn(state, rows):
    losses, weights, _ = rows.counted()
    largest = relative.largest(losses)
    measurements = relative.measure(losses, weights, share_of(losses, largest))
    measurements["update_scale"] = tf.constant(1.0)
    if averages:
      state, measurements["update_scale"] = tf.cond(
        tf.size(losses) > 0,
        lambda: update_average(state, losses, weights),
        lambda: (state, tf.constant(1.0)),
      )
    return state, largest, measurements

  return process.build_process_of_losses(
    server_fn,
    lambda loss, largest, client: share_of(loss, largest),
    initial_state_fn=initial_state_fn if averages else None,
  )
