"""Builds the weighting of agnostic federated averaging, by entropic mirror ascent."""

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import per_client


def build_mirror_ascent(num_clients: int, ascent_rate: float) -> process.ThresholdProcess:
  """Builds mirror ascent on the weights lambda of min_w max_lambda sum_i lambda_i F_i(w).

  It is entropic mirror ascent (exponentiated gradient) on the simplex over all n clients, with the
  rate >= 0 in units of one over the loss; for 0 lambda_i stays alpha_i. A round changes the weights
  of its cohort only, log lambda_i <- log lambda_i + ascent_rate * F_i, and averages its updates
  with the new weights, normalised over the cohort. In expectation over uniform cohorts of m of n
  clients that is an ascent step of m / n * ascent_rate.

  The server keeps one number for each client, by the client's index: see
  `per_client.build_per_client_weighting`.
  """
  ascent_rate = checks.not_negative("ascent_rate", ascent_rate)

  def update_fn(log_weights, index, losses):
    log_weights = tf.tensor_scatter_nd_add(log_weights, index[:, tf.newaxis], ascent_rate * losses)
    # Only differences matter. Without the shift, the numbers would grow until float32
    # rounds the steps away.
    log_weights -= tf.reduce_max(log_weights)
    return log_weights, log_weights

  return per_client.build_per_client_weighting(
    num_clients, lambda: tf.zeros([num_clients], tf.float32), update_fn
  )
