"""Tilted empirical risk minimisation: clients count by the exponential of their loss."""

from typing import Optional

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms import options as options_lib
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_tilted_erm(
  model_fn: local_model.Model,
  temperature: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: Optional[optimizers.OptimizerOrKerasFn] = None,
  *,
  moving_average_rate: float = 0.0,
  **options: Unpack[options_lib.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds the federated algorithm of tilted ERM (Li et al. 2021).

  It minimises (1 / t) log(sum_i alpha_i exp(t F_i)), the entropic risk: a round averages the
  clients' models with weights proportional to alpha_i exp(t F_i(w)).

  Args:
    model_fn: See `Options`.
    temperature: t >= 0; 0 is FedAvg, and large ones are the worst client of the cohort.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    moving_average_rate: 0 normalises the weights in each round, which is stable. Li et al.
      normalise by a moving average of the tilted risk instead, with this rate in (0, 1) (0.5 in
      their code): unbiased for small cohorts, but a round's step grows with
      exp(t (R_t - average)), which can diverge for t >= 10.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`.
  """
  threshold = threshold_lib.build_tilting(temperature, moving_average_rate)

  def divisor(measurements):
    return 1.0 / measurements["threshold"]["update_scale"]

  return options_lib.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    threshold=threshold,
    divisor_fn=divisor if moving_average_rate else None,
  )
