"""Builds agnostic federated averaging, a game between the model and the clients' weights."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_agnostic_fed_avg(
  model_fn: local_model.Model,
  ascent_rate: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  num_clients: int,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds agnostic federated averaging (Mohri et al. 2019; Ro et al. 2021).

  It minimises the worst mixture of the clients' losses, max over lambda in the simplex of sum_i
  lambda_i F_i(w), by descent in w and entropic mirror ascent in lambda: a round multiplies lambda_i
  of its cohort by exp(ascent_rate * F_i(w)) and averages the cohort's models with these weights; a
  rate of 0 is FedAvg. The server keeps a weight for each of `num_clients`, all that ever take part.

  Of the other arguments, which are those of `Options`, `index_fn` must be given, with indices in
  [0, num_clients).

  Args:
    model_fn: See `Options`.
    ascent_rate: The step of the mirror ascent, >= 0, in units of one over the loss; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    num_clients: The number of all clients that ever take part.
    **options: See `Options`; `index_fn` must be given, with indices in [0, num_clients).

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `num_clients` is below 1, `ascent_rate` is negative, or there is no `index_fn`,
      or a number of the options is out of its range.
  """
  weighting = threshold.build_mirror_ascent(num_clients, ascent_rate)
  return fed_avg.build_weighted_fed_avg(
    model_fn, weighting, client_optimizer_fn, server_optimizer_fn, **options
  )
