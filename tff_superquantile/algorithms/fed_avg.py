"""Builds federated averaging, the baseline, and with clients that weigh by their losses."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from privacy import checks
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import ThresholdProcess


def build_fed_avg(
  model_fn: local_model.Model,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging (McMahan et al. 2017), the paper's FedAvg.

  Its weights equal those of `tff.learning.algorithms.build_weighted_fed_avg`, round by round. It is
  several times faster, because no data set is iterated in a client's graph. On a random fraction
  theta of each cohort it is the paper's FedAvg-Sub. The arguments are those of `Options`; with
  `private` it is DP-FedAvg.

  Args:
    model_fn: See `Options`.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`; with `private` it is DP-FedAvg.

  Returns:
    A `tff.learning.templates.LearningProcess`, with the state and metrics of
    `build_superquantile_fed_avg` but for `threshold`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If a number of the options is out of its range.
  """
  return learning_process.build(model_fn, client_optimizer_fn, server_optimizer_fn, options)


def build_weighted_fed_avg(
  model_fn: local_model.Model,
  weighting: ThresholdProcess,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging in which a client's weight is multiplied by a share of its loss.

  `weighting` makes the clients' shares of a cohort's losses, such as
  `threshold.build_own_loss_weighting`, `threshold.build_relative_weighting` and, for all else that
  a server makes of losses, `threshold.build_process_of_losses` return. The other arguments are
  those of `Options`.

  Args:
    model_fn: See `Options`.
    weighting: The `ThresholdProcess` that makes the clients' shares, in [0, 1], of their losses.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose state and metrics are those of
    `build_superquantile_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If a number of the options is out of its range.
  """
  checks.of_type("weighting", weighting, ThresholdProcess, "a ThresholdProcess")
  return learning_process.build(
    model_fn, client_optimizer_fn, server_optimizer_fn, options, threshold=weighting
  )
