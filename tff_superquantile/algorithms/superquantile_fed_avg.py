"""Federated averaging of the tail clients: superquantile aggregation (Delta-FL)."""

from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import client_work as client_work_lib
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms import composition
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_superquantile_fed_avg(
  model_fn: local_model.Model,
  theta: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: Optional[optimizers.OptimizerOrKerasFn] = None,
  *,
  threshold: Union[str, threshold_lib.ThresholdFn] = "exact",
  client_weighting: tff.learning.ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES,
  model_distributor: Optional[tff.learning.templates.DistributionProcess] = None,
  model_aggregator: Optional[composition.AggregationFactory] = None,
  metrics_aggregator: Optional[Callable[[Any], tff.Computation]] = None,
  client_learning_rate_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
  local_epochs: int = 1,
  local_batch_size: Optional[int] = None,
  l2: float = 0.0,
  examples_fn: Optional[tf.types.experimental.GenericFunction] = None,
  seed_fn: Optional[Callable[[Any], tf.Tensor]] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds a learning process that minimises the superquantile of the clients' losses.

  In each round, every client of the cohort computes the loss of its local data set at the round's
  weights, the server learns a threshold (the (1 - theta)-quantile of these losses), and only the
  clients at or above it train and are averaged: the paper's Delta-FL algorithm, with the private
  quantile replaced by what `threshold` says. theta = 1 is federated averaging, number for number.

  The `next` computation is, as TFF's own,

      (<S@SERVER, {B*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)

  with S a `tff.learning.templates.LearningAlgorithmState`. The metrics' `client_work` holds `train`
  (the model's training metrics over the tail) and `cohort` (threshold, cohort_size, tail_size,
  num_excluded, and the mean and superquantile of the cohort's losses; see `build_client_work`).

  Args:
    model_fn: A no-argument function that returns a `tff.learning.models.VariableModel`, or a
      `tff.learning.models.FunctionalModel`.
    theta: The tail fraction, in (0, 1].
    client_optimizer_fn: A `tff.learning.optimizers.Optimizer`, or a no-argument function that
      returns a Keras SGD, Adam or Adagrad.
    server_optimizer_fn: The same for the server; None for SGD with learning rate 1, which replaces
      the model by the average of the tail's.
    threshold: "exact", the exact quantile (the server sees the losses), "reweighting", the paper's
      exact reweighting by the dual weights pi*, or a function of theta that returns a
      `tff_superquantile.threshold.ThresholdProcess`, such as
      `functools.partial(threshold.build_tree_quantile, mechanism=..., max_loss=...)`, for which the
      server sees no loss.
    client_weighting: The weight of a client in the average and in the quantile. In a private
      quantile, each client counts once.
    model_distributor: A `tff.learning.templates.DistributionProcess`; None to broadcast.
    model_aggregator: A factory of `tff.aggregators`; None for the weighted mean of the tail. An
      unweighted factory averages over the whole cohort: clients below the threshold count as zero.
    metrics_aggregator: As in TFF; None for `tff.learning.metrics.sum_then_finalize`.
    client_learning_rate_fn: The learning rate of a round, a TensorFlow function of the round's
      number (int32 [], from 0); None for the optimizer's own.
    local_epochs: Passes over the local data set in a round.
    local_batch_size: Examples in a local step, 0 for all of them; None for the data set's own
      batches.
    l2: The coefficient lambda of the paper's lambda / 2 |w|^2, added to the local objective (not to
      the loss that the threshold sees, which it would shift equally for all).
    examples_fn: A `tf.function` with an input_signature of one argument, from what a client holds,
      such as its id, to all its examples in one batch (for example
      `simulation.client_files.build_examples_fn`). Then `next` takes that instead of data sets, and
      a round is faster than with
      `tff.simulation.compose_dataset_computation_with_learning_process`, because the examples are
      read in the graph that uses them, and only by the clients that train.
    seed_fn: A TensorFlow function from what a client holds to the seed of its noise in the round,
      an integer tensor [2], for thresholds built with `seeded=True`. Without seeds each client
      draws its noise from its own source of entropy, and a run can't be repeated exactly.

  Returns:
    A `tff.learning.templates.LearningProcess`.

  Raises:
    TypeError: If an argument is not of its documented type.
    ValueError: If theta or another number is out of its range, or the threshold's name is unknown.
  """
  client_work = client_work_lib.build_client_work(
    model_fn,
    client_work_lib.as_tff_optimizer(client_optimizer_fn),
    client_weighting,
    metrics_aggregator,
    threshold=threshold_lib.build_threshold(threshold, theta),
    client_learning_rate_fn=client_learning_rate_fn,
    local_epochs=local_epochs,
    local_batch_size=local_batch_size,
    l2=l2,
    examples_fn=examples_fn,
    seed_fn=seed_fn,
  )
  return composition.build_learning_process(
    model_fn, client_work, server_optimizer_fn, model_distributor, model_aggregator
  )
