"""Federated averaging of the tail clients: superquantile aggregation (Delta-FL)."""

from typing import Optional, Union

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms import options as options_lib
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_superquantile_fed_avg(
  model_fn: local_model.Model,
  theta: threshold_lib.Theta,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: Optional[optimizers.OptimizerOrKerasFn] = None,
  *,
  threshold: Union[str, threshold_lib.ThresholdFn] = "exact",
  **options: Unpack[options_lib.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds a learning process that minimises the superquantile of the clients' losses.

  In each round, every client of the cohort computes the loss of its local data set at the round's
  weights, the server learns a threshold (the (1 - theta)-quantile of these losses), and only the
  clients at or above it train and are averaged: the paper's Algorithm 1, Delta-FL, with the private
  quantile replaced by what `threshold` says. theta = 1 is federated averaging, number for number.

  The steps of Algorithm 1 are in these places:

      sample S                          `simulation`, or whatever makes cohorts
      Q = Q_(1 - theta)(F_i(w))         `threshold.exact`, or what `threshold` says
      pi_i = [F_i(w) >= Q]              `client_work.round`, "gate"
      w_i after tau local steps         `client_work.local_update.train`
      sum_i pi_i w_i / sum_i pi_i       `algorithms.mean`, then the server's optimizer

  The `next` computation is, as TFF's own,

      (<S@SERVER, {B*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)

  with S a `tff.learning.templates.LearningAlgorithmState`. The metrics' `client_work` holds `train`
  (the model's training metrics over the tail), `threshold` (what the threshold process measures: of
  the exact one the threshold, and mean and superquantile of the cohort's losses) and `cohort`
  (cohort_size, tail_size, num_excluded).

  Args:
    model_fn: See `Options`.
    theta: The tail fraction, in (0, 1], or a `tff_superquantile.threshold.AdaptiveTheta`, which
      chooses it in each round by how many clients turned up; the metrics then hold it, too.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    threshold: "exact", the exact quantile (the server sees the losses), "reweighting", the paper's
      exact reweighting by the dual weights pi*, or a function of theta that returns a
      `tff_superquantile.threshold.ThresholdProcess`, such as
      `functools.partial(threshold.build_tree_quantile, mechanism=..., max_loss=...)`, for which the
      server sees no loss.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`.

  Raises:
    ValueError: If the threshold's name is unknown.
  """
  return options_lib.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    threshold=threshold_lib.build_threshold(threshold, theta),
  )
