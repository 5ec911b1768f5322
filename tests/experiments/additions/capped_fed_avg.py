"""A method as somebody adds it: each client weighs by its loss, up to a cap. One file."""

import tensorflow as tf

from tff_superquantile import threshold
from tff_superquantile.algorithms import learning_process


def build_capped_fed_avg(model_fn, cap, client_optimizer_fn, server_optimizer_fn=None, **options):
  """Builds federated averaging with the share min(F_i, cap) / cap."""

  def share_fn(loss, nothing, client):
    del nothing, client
    return tf.minimum(loss, cap) / cap

  weighting = threshold.build_process_of_losses(
    lambda state, rows: (state, tf.constant(0.0), {"num_losses": tf.shape(rows)[0]}), share_fn
  )
  return learning_process.build(
    model_fn, client_optimizer_fn, server_optimizer_fn, options, threshold=weighting
  )
