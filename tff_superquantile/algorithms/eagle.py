"""Builds EAGLE, which makes the clients' gaps to their own models' losses alike."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_eagle(
  model_fn: local_model.Model,
  gap_strength: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds EAGLE, loss-gap parity (Erraji, Perrot and Bellet, 2026).

  A client's loss gap r_i = F_i(w) - F_i* is how much better its own model does, whose loss F_i* is
  a constant that the client computes by itself. The method minimises the mean of the losses and
  lambda times the variance of the gaps: a round averages the clients' updates with weights
  proportional to alpha_i (1 + 2 lambda (r_i - mean))_+, with the mean over the cohort; see
  `threshold.build_variance_share`. The server sees gaps, where other methods' see losses. Clients
  that are hard by nature, whose own models do no better, count no more than others.

  Args:
    model_fn: See `Options`.
    gap_strength: lambda, >= 0, in units of one over the loss; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`; `reference_loss_fn` must be given, from what a client holds to F_i*.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`, of gaps in the place of losses.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If there is no `reference_loss_fn`, `gap_strength` is negative, or a number of the
      options is out of its range.
  """
  if options.get("reference_loss_fn") is None:
    raise ValueError(
      "Found EAGLE without a reference_loss_fn; expected one, from what a client holds to the loss"
      " of its own model."
    )
  share = threshold.build_variance_share(gap_strength)
  weighting = threshold.build_relative_weighting(share)
  return fed_avg.build_weighted_fed_avg(
    model_fn, weighting, client_optimizer_fn, server_optimizer_fn, **options
  )
