"""Client weights that learn over the rounds who is worst off: the inner player of agnostic FL."""

import numbers

import tensorflow as tf

from tff_superquantile import argument_checks
from tff_superquantile.threshold import cohort_losses
from tff_superquantile.threshold import process
from tff_superquantile.threshold import weighting


def build_mirror_ascent(num_clients: int, ascent_rate: float) -> process.ThresholdProcess:
  """Mirror ascent on the client weights lambda of min_w max_lambda sum_i lambda_i F_i(w).

  Entropic mirror ascent (exponentiated gradient) on the simplex over all clients: a round changes
  the weights of its cohort only, log lambda_i <- log lambda_i + ascent_rate * F_i, and averages its
  updates with the new weights, normalised over the cohort. In expectation over uniform cohorts of m
  of n clients that is an ascent step of m / n * ascent_rate.

  The server keeps one number for each client, by the client's index.

  Args:
    num_clients: n, of all clients that ever take part.
    ascent_rate: Step size of the ascent >= 0, in units of one over the loss; with 0 lambda_i stays
      alpha_i.

  Returns:
    A `ThresholdProcess` of clients with a `client_index`; its result is the log-weights of all
    clients, float32 [n], relative to the cohort's largest. Measurements as `weighting.measure`. An
    index outside [0, n) is left out of the ascent and has no share.

  Raises:
    TypeError: If an argument is no number.
    ValueError: If a number is out of its range.
  """
  argument_checks.check_type("num_clients", num_clients, numbers.Integral, "a whole number")
  if not 1 <= num_clients <= cohort_losses.MAX_CLIENTS:
    raise ValueError(
      f"Found num_clients = {num_clients}; expected a whole number from 1 to"
      f" {cohort_losses.MAX_CLIENTS}."
    )
  ascent_rate = argument_checks.check_not_negative("ascent_rate", ascent_rate)

  def initial_state_fn():
    return tf.zeros([num_clients], tf.float32)

  def is_known(index):
    return tf.logical_and(index >= 0, index < num_clients)

  def share_of(log_weights, index):
    position = tf.clip_by_value(index, 0, num_clients - 1)
    share = tf.exp(tf.minimum(tf.gather(log_weights, position), 0.0))
    return tf.where(is_known(index), share, tf.zeros_like(share))

  def server_fn(log_weights, rows):
    index = tf.cast(rows[:, cohort_losses.INDEX], tf.int32)
    counted = tf.logical_and(cohort_losses.counted(rows), is_known(index))
    rows, index = tf.boolean_mask(rows, counted), tf.boolean_mask(index, counted)
    losses, weights = rows[:, cohort_losses.LOSS], rows[:, cohort_losses.WEIGHT]
    log_weights = tf.tensor_scatter_nd_add(log_weights, index[:, tf.newaxis], ascent_rate * losses)
    # Only differences matter; without this the numbers grow until float32 rounds the steps away.
    log_weights -= tf.reduce_max(log_weights)
    largest = tf.cond(
      tf.size(index) > 0,
      lambda: tf.reduce_max(tf.gather(log_weights, index)),
      lambda: tf.constant(0.0),
    )
    relative = log_weights - largest
    measurements = weighting.measure(losses, weights, share_of(relative, index))
    return log_weights, relative, measurements

  def share_fn(loss, log_weights, client):
    del loss
    return share_of(log_weights, client.client_index)

  return cohort_losses.build_process(
    server_fn, share_fn, initial_state_fn=initial_state_fn, reports_indices=True
  )
