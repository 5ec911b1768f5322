"""Builds tilted empirical risk minimisation, which weighs clients by exp(t loss)."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_tilted_erm(
  model_fn: local_model.Model,
  temperature: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  moving_average_rate: float = 0.0,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds the federated algorithm of tilted ERM (Li et al. 2021).

  It minimises (1 / t) log(sum_i alpha_i exp(t F_i)), the entropic risk: a round averages the
  clients' models with weights proportional to alpha_i exp(t F_i(w)), for a temperature t >= 0; 0 is
  FedAvg, and with a large one the cohort's worst client alone counts.

  A `moving_average_rate` of 0 normalises the weights in each round, which is stable. Li et al.
  normalise by a moving average of the tilted risk instead, with this rate in (0, 1) (0.5 in their
  code). That is unbiased for small cohorts, but a round's step grows with exp(t (R_t - average))
  and can diverge for t >= 10. The other arguments are those of `Options`.

  Args:
    model_fn: See `Options`.
    temperature: t, >= 0, in units of one over the loss; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    moving_average_rate: The rate of the moving average, in [0, 1); 0 for none.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `temperature` is negative, or `moving_average_rate` is outside of [0, 1), or a
      number of the options is out of its range.
  """

  def divisor(measurements):
    return 1.0 / measurements["threshold"]["update_scale"]

  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    threshold=threshold.build_tilting(temperature, moving_average_rate),
    divisor_fn=divisor if moving_average_rate else None,
  )
