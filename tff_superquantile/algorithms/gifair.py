"""Builds GIFAIR, which weighs clients by the ranks of their losses."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_gifair(
  model_fn: local_model.Model,
  fairness_strength: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds GIFAIR for individual fairness (Yue, Nouiehed and Al Kontar, 2023).

  It minimises sum_i alpha_i F_i + lambda sum_(i < j) alpha_i alpha_j |F_i - F_j|, the mean of the
  losses and their spread: a round averages the clients' updates with the weights alpha_i (1 +
  lambda r_i), r_i = sum_j alpha_j sign(F_i - F_j), which sum to one. The ranks are those within the
  cohort. See `threshold.build_rank_share` for the paper's notation.

  Clients look up their rank in the sorted losses of the cohort, which the server sends without
  names. lambda, `fairness_strength`, is in [0, 1]; 0 is FedAvg, and with 1 the best client hardly
  counts, and the worst counts twice. The other arguments are those of `Options`.

  Args:
    model_fn: See `Options`.
    fairness_strength: lambda, in [0, 1]; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `fairness_strength` is outside of [0, 1], or a number of the options is out of
      its range.
  """
  share = threshold.build_rank_share(fairness_strength)
  weighting = threshold.build_relative_weighting(share)
  return fed_avg.build_weighted_fed_avg(
    model_fn, weighting, client_optimizer_fn, server_optimizer_fn, **options
  )
