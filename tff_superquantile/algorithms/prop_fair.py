"""Builds PropFair, which weighs clients by one over their utility."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_prop_fair(
  model_fn: local_model.Model,
  utility_bound: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  max_loss: float,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds PropFair (Zhang et al., "Proportional Fairness in Federated Learning", TMLR 2023).

  It minimises -sum_i alpha_i log(M - F_i), so that a client's loss counts by the relative change of
  its utility M - F_i. The gradient is sum_i alpha_i grad F_i / (M - F_i): a round averages the
  clients' updates with weights proportional to alpha_i / (M - min(F_i(w), B)). Zhang et al. put the
  logarithm into the local objective instead; with one full-batch step the two differ by the
  normalisation of the weights alone, a factor on the step.

  The server sees no loss: a client's weight follows from its own loss and from constants. M,
  `utility_bound`, and B < M, `max_loss`, are in units of the loss; a large M is FedAvg. Larger
  losses than B weigh as B does; M - B is the epsilon of Zhang et al., 0.2 in their experiments. The
  other arguments are those of `Options`.

  Args:
    model_fn: See `Options`.
    utility_bound: M, above `max_loss`, in units of the loss.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    max_loss: B, positive, in units of the loss; larger losses weigh as B does.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `utility_bound` is not above `max_loss`, or one of them is not positive, or a
      number of the options is out of its range.
  """
  share_fn = threshold.build_proportional_share(utility_bound, max_loss)
  weighting = threshold.build_own_loss_weighting(share_fn)
  return fed_avg.build_weighted_fed_avg(
    model_fn, weighting, client_optimizer_fn, server_optimizer_fn, **options
  )
