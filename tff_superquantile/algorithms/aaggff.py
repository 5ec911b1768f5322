"""Builds AAggFF, which chooses the weights of the clients by sequential decisions."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_aaggff(
  model_fn: local_model.Model,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  num_clients: int,
  decision_step: float = 1.0,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds AAggFF-D, the form of AAggFF for many clients.

  Reference: Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential
  Decision Making", ICML 2024. The server keeps a mixing coefficient p_i for each client. In each
  round the losses F_i of the cohort become responses r_i, and p follows the regularized leader on
  the decision losses -log(1 + <p, r>), a softmax of the sums of their gradients; see
  `threshold.build_ftrl` for the equations. The cohort's updates are averaged with weights
  proportional to alpha_i p_i.

  `num_clients` is K, the number of all clients that ever take part, and `decision_step` a factor on
  the paper's step, >= 0; 0 is FedAvg. Of the other arguments, which are those of `Options`,
  `index_fn` must be given, with indices in [0, num_clients).

  Args:
    model_fn: See `Options`.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    num_clients: K, the number of all clients that ever take part.
    decision_step: A factor on the paper's step, >= 0; 0 is FedAvg.
    **options: See `Options`; `index_fn` must be given, with indices in [0, num_clients).

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `num_clients` is below 1, `decision_step` is negative, or there is no `index_fn`,
      or a number of the options is out of its range.
  """
  weighting = threshold.build_ftrl(num_clients, decision_step)
  return fed_avg.build_weighted_fed_avg(
    model_fn, weighting, client_optimizer_fn, server_optimizer_fn, **options
  )
