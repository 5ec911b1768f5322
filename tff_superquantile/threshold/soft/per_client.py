"""Builds weightings whose server keeps numbers for each of all clients, by the clients' index."""

from collections.abc import Callable
import numbers
from typing import Any

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import relative

# From (state, indices int32 [k], losses float32 [k]) to (state, log-weights float32 [n]).
UpdateFn = Callable[[Any, tf.Tensor, tf.Tensor], tuple[Any, tf.Tensor]]


def build_per_client_weighting(
  num_clients: int, initial_state_fn: Callable[[], Any], update_fn: UpdateFn
) -> process.ThresholdProcess:
  """Builds the weighting pi_i = alpha_i exp(log-weight i), by the log-weights of all n clients.

  `update_fn` is a TensorFlow function of (state, the indices and the losses of the k clients of the
  cohort that count) to the next state and all log-weights, which the cohort's average follows.

  The process is of clients with a `client_index`; its result is the log-weights of all clients,
  float32 [n], relative to the cohort's largest, with the measurements of `relative.measure`. An
  index outside [0, n) is left out and has no share.
  """
  checks.of_type("num_clients", num_clients, numbers.Integral, "a whole number")
  if not 1 <= num_clients <= process.MAX_CLIENTS:
    raise ValueError(
      f"Found num_clients = {num_clients}; expected a whole number from 1 to {process.MAX_CLIENTS}."
    )

  def is_known(index):
    return tf.logical_and(index >= 0, index < num_clients)

  def share_of(log_weights, index):
    position = tf.clip_by_value(index, 0, num_clients - 1)
    share = tf.exp(tf.minimum(tf.gather(log_weights, position), 0.0))
    return tf.where(is_known(index), share, tf.zeros_like(share))

  def server_fn(state, rows):
    losses, weights, index = rows.where(is_known(rows.indices)).counted()
    state, log_weights = update_fn(state, index, losses)
    shifted = log_weights - relative.largest(tf.gather(log_weights, index))
    measurements = relative.measure(losses, weights, share_of(shifted, index))
    return state, shifted, measurements

  def share_fn(loss, log_weights, client):
    del loss
    return share_of(log_weights, client.client_index)

  return process.build_process_of_losses(
    server_fn, share_fn, initial_state_fn=initial_state_fn, reports_indices=True
  )
