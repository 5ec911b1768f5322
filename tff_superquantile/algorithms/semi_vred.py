"""Builds Semi-VRed, which weighs clients by how far their losses are above the mean."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_semi_vred(
  model_fn: local_model.Model,
  beta: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds Semi-VRed (Malekmohammadi and Yu, "Semi-Variance Reduction for Fair FL", 2024).

  It minimises mean + beta sum_i alpha_i (F_i - mean)_+^2, the mean of the losses and their
  semi-variance: a round averages the clients' updates with weights proportional to alpha_i (1 + 2
  beta (F_i - mean)_+), with the mean over the cohort. The mean's own gradient is left out, which
  acts as a smaller beta: see `threshold.build_semi_variance_share`. beta >= 0 is in units of one
  over the loss; 0 is FedAvg. The other arguments are those of `Options`.

  Args:
    model_fn: See `Options`.
    beta: The weight of the semi-variance, >= 0, in units of one over the loss; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `beta` is negative, or a number of the options is out of its range.
  """
  share = threshold.build_semi_variance_share(beta)
  weighting = threshold.build_relative_weighting(share)
  return fed_avg.build_weighted_fed_avg(
    model_fn, weighting, client_optimizer_fn, server_optimizer_fn, **options
  )
