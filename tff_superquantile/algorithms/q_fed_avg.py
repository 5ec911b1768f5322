"""Builds q-FedAvg, the algorithm of q-FFL, which weighs clients by a power of their loss."""

import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import client_work
from tff_superquantile import threshold
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold.soft import relative


def build_q_fed_avg(
  model_fn: local_model.Model,
  q: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds q-FedAvg (Li et al. 2020, "Fair resource allocation in federated learning").

  It minimises sum_i alpha_i F_i^(q + 1) / (q + 1), q >= 0; 0 is FedAvg. With u_i the update of
  client i (initial minus final weights) and L = 1 / learning rate for the Lipschitz constant of its
  gradient, a round is

      w <- w - sum_i alpha_i F_i^q L u_i / sum_i alpha_i (q F_i^(q - 1) |L u_i|^2 + L F_i^q),

  which is computed as the mean of u_i / d_i with weights alpha_i (F_i / max_j F_j)^q d_i, where d_i
  = 1 + q L |u_i|^2 / F_i: the same numbers, without powers that overflow. A large q (10 in the
  paper) stands for AFL, the worst client's loss. The other arguments are those of `Options`; the
  client's optimizer must have a learning rate.

  Args:
    model_fn: See `Options`.
    q: The exponent, >= 0; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `q` is negative, or a number of the options is out of its range.
  """

  def damping(loss, update, hparams):
    lipschitz = 1.0 / hparams[tff.learning.optimizers.LEARNING_RATE_KEY]
    squared_norm = tf.add_n([tf.reduce_sum(u**2) for u in tf.nest.flatten(update)])
    return 1.0 + q * lipschitz * squared_norm / tf.maximum(loss, relative.MIN_LOSS)

  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    threshold=threshold.build_power_weighting(q),
    hooks=client_work.ClientHooks(damping_fn=damping if q > 0 else None),
  )
