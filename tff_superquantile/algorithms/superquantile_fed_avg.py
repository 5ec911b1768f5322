"""Builds superquantile aggregation (Delta-FL), federated averaging of the tail clients."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import ThresholdFn
from tff_superquantile.threshold import exact


def build_superquantile_fed_avg(
  model_fn: local_model.Model,
  theta: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  threshold: str | ThresholdFn | None = "exact",
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds a learning process that minimises the superquantile of the clients' losses.

  In each round, every client of the cohort computes the loss of its local data set at the round's
  weights, the server learns a threshold (the (1 - theta)-quantile of these losses), and only the
  clients at or above it train and are averaged: the paper's Algorithm 1, Delta-FL, with the
  quantile that `threshold` names in the place of the private one. theta = 1 is federated averaging,
  number for number.

  The steps of Algorithm 1 are in these places:

      sample S                          `simulation.cohorts`, or a sampler of the caller's
      Q = Q_(1 - theta)(F_i(w))         `threshold.exact`, or another threshold
      pi_i = [F_i(w) >= Q]              `client_work.round`, "gate"
      w_i after tau local steps         `client_work.local_update.train`
      sum_i pi_i w_i / sum_i pi_i       `MeanFactory`, then the server's optimizer

  The `next` computation is, as TFF's own,

      (<S@SERVER, {B*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)

  with S a `tff.learning.templates.LearningAlgorithmState`. The metrics' `client_work` holds `train`
  (the model's training metrics over the tail), `threshold` (the measurements of the threshold
  process; the exact one measures the threshold, and mean and superquantile of the cohort's losses)
  and `cohort` (cohort_size, tail_size, num_excluded).

  Args:
    model_fn: See `Options`.
    theta: The tail fraction, in (0, 1].
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    threshold: "exact", the exact quantile (the server sees the losses), "reweighting", the paper's
      exact reweighting by the dual weights pi*, or a function of theta that returns a
      `tff_superquantile.threshold.ThresholdProcess`, such as
      `functools.partial(threshold.build_tree_quantile, mechanism=..., max_loss=...)`, for which the
      server sees no loss; None for none, with theta = 1.
    **options: See `Options`. With `private`, the threshold must be a private one, or None, which is
      DP-FedAvg. The divisor then is the threshold's estimate of the tail size, at least
      theta * expected_clients / 2.

  Returns:
    The `tff.learning.templates.LearningProcess` above.

  Raises:
    ValueError: If the threshold's name is unknown, or there is none for a theta below 1.
  """
  if threshold is None and theta != 1.0:
    raise ValueError(f"Found theta = {theta} without a threshold; expected one, or theta = 1.")
  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    threshold=None if threshold is None else exact.build_threshold(threshold, theta),
    theta=theta,
  )
