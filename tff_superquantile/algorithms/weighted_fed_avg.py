"""Builds federated averaging of clients that weigh by a function of their losses."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import ThresholdProcess


def build_weighted_fed_avg(
  weighting: ThresholdProcess,
  model_fn: local_model.Model,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg in which a client's weight is its usual one times a share that its loss gives.

  In each round the clients compute their losses at the round's weights, `weighting` turns these
  into shares, and the clients whose share is positive train and are averaged.

  Args:
    weighting: For example `threshold.build_own_loss_weighting(share_fn)`, of a client's own loss,
      `threshold.build_relative_weighting(share)`, relative to the cohort's losses, or
      `threshold.build_process_of_losses(server_fn, share_fn)`, by what the server makes of them.
    model_fn: See `Options`.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.
  """
  return learning_process.build(
    model_fn, client_optimizer_fn, server_optimizer_fn, options, threshold=weighting
  )
