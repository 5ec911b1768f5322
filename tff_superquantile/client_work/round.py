"""Builds the clients' half of a round, in the order of the paper's Algorithm 1, Delta-FL.

With w the round's weights, S its cohort, F_i the loss of client i and alpha_i its weight:

    broadcast       every client of S learns w, and the round's local step size gamma
    loss            client i computes F_i(w), the mean over its whole local data set
    threshold       the server learns Q = Q_(1 - theta), the quantile of the F_i(w)
    gate            pi_i = [F_i(w) >= Q]; a client with pi_i = 0 does nothing more
    local training  tau steps w_i <- w_i - gamma (grad F_i(w_i) + lambda w_i), from w_i = w
    report          w - w_i, which enters the average with weight pi_i alpha_i

The aggregator averages afterwards, w <- w - sum_i pi_i alpha_i (w - w_i) / sum_i pi_i alpha_i.
Without a threshold, as in FedAvg, there is no loss pass, and pi_i = 1. Other methods have other
shares pi_i in [0, 1]: see `threshold`.
"""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.client_work import cohort_metrics
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_training
from tff_superquantile.client_work import local_update
from tff_superquantile.client_work import process
from tff_superquantile.threshold import ThresholdProcess


def _model_weights(weights: Any) -> tff.learning.models.ModelWeights:
  return tff.learning.models.ModelWeights(weights.trainable, weights.non_trainable)


def _build_loss_pass(
  local: local_training.LocalTraining, threshold: ThresholdProcess
) -> tff.Computation:
  """Builds (w, the value that a client holds) -> (F_i(w), the client's report of it).

  The loss, float32 [], is NaN, and does not count, if it is not finite or there are no examples.
  With `local.reference_loss_fn` it is the loss gap F_i(w) - F_i*, for all that follows.
  """

  @tff.tensorflow.computation(local.model.weights_type, local.data.type)
  def loss_pass(weights, held):
    model = local_model.build_local_model(local.model_fn)

    @tf.function(autograph=False)
    def evaluate(weights, held):
      weights = _model_weights(weights)
      model.load(weights)
      loss, num_examples = local_update.mean_loss(model, weights, local.data.read(held).batch)
      if local.reference_loss_fn is not None:
        loss -= tf.cast(local.reference_loss_fn(held), tf.float32)
      counted = tf.logical_and(tf.math.is_finite(loss), num_examples > 0)
      loss = tf.where(counted, loss, np.nan)
      client = local.client(held, local_training.THRESHOLD_STREAM)
      return loss, threshold.report_fn(loss, local.weight(num_examples), client)

    return evaluate(weights, held)

  return loss_pass


def _build_training(
  local: local_training.LocalTraining,
  hooks: local_training.ClientHooks,
  threshold: ThresholdProcess | None,
  hparams_type: tff.Type,
) -> tff.Computation:
  """Builds (w, the value that a client holds, hparams[, F_i(w), Q]) -> the client's report."""
  types = (local.model.weights_type, local.data.type, hparams_type)
  if threshold is None:

    @tff.tensorflow.computation(*types)
    def all_train(weights, held, hparams):
      return _train_and_report(local, hooks, weights, held, hparams, tf.constant(1.0))

    return all_train

  share_fn = threshold.share_fn
  threshold_type = threshold.next.type_signature.result.result.member

  @tff.tensorflow.computation(*types, np.float32, threshold_type)
  def tail_trains(weights, held, hparams, loss, threshold_of_round):
    # Gate: clients at or above the threshold train, pi_i = [F_i(w) >= Q].
    share = share_fn(loss, threshold_of_round, local.client(held, local_training.THRESHOLD_STREAM))
    uncounted = tf.math.is_nan(loss)
    share = tf.where(uncounted, 0.0, share)
    result, metrics, counts = _train_and_report(local, hooks, weights, held, hparams, share, loss)
    counts["num_excluded"] += tf.cast(uncounted, tf.int32)
    return result, metrics, counts

  return tail_trains


def _train_and_report(
  local: local_training.LocalTraining,
  hooks: local_training.ClientHooks,
  weights: Any,
  held: Any,
  hparams: Any,
  share: tf.Tensor,
  loss: tf.Tensor | None = None,
) -> tuple[tff.learning.templates.ClientResult, Any, collections.OrderedDict[str, tf.Tensor]]:
  """Trains a client if its share pi_i is positive, and reports its update.

  It is zero, of weight zero, if the client did not train, has no examples, or it is not finite.
  """
  model = local_model.build_local_model(local.model_fn)

  # The assignments of a VariableModel need the ordering of a tf.function.
  @tf.function(autograph=False)
  def gated(weights, held, hparams, share, loss):
    weights = _model_weights(weights)
    model.load(weights)

    def train() -> local_update.TrainingResult:
      return local_update.train(
        model,
        local.optimizer,
        hparams,
        weights,
        local.data.read(held),
        batch_size=local.local_batch_size,
        epochs=local.local_epochs,
        l2=local.l2,
        proximal_strength=hooks.proximal_strength,
      )

    def rest() -> local_update.TrainingResult:
      update = tf.nest.map_structure(tf.zeros_like, weights.trainable)
      return local_update.TrainingResult(update, model.initial_metrics(), tf.constant(0, tf.int64))

    # Local training stands behind a gate, not a mask: aggregators without weights would undo a
    # mask, and training all clients takes 1 / theta times as long.
    update, metrics, num_examples = tf.cond(share > 0, train, rest)
    # The client reports its update.
    damping = tf.constant(1.0)
    if hooks.damping_fn is not None:
      damping = tf.where(share > 0, hooks.damping_fn(loss, update, hparams), 1.0)
      update = tf.nest.map_structure(lambda u: u / tf.cast(damping, u.dtype), update)
    update, finite = local_update.zero_unless_finite(update)
    update_weight = tf.where(finite, share * damping * local.weight(num_examples), 0.0)
    in_tail = update_weight > 0
    excluded = tf.logical_and(share > 0, tf.logical_not(in_tail))
    counts = collections.OrderedDict(
      cohort_size=1, tail_size=tf.cast(in_tail, tf.int32), num_excluded=tf.cast(excluded, tf.int32)
    )
    if hooks.report_fn is not None:
      client = local.client(held, local_training.UPDATE_STREAM)
      update = hooks.report_fn(update, update_weight, client)
    result = tff.learning.templates.ClientResult(update, update_weight)
    return result, model.unfinalized_metrics(metrics, tf.logical_not(finite)), counts

  return gated(weights, held, hparams, share, loss)


def build_client_work(
  local: local_training.LocalTraining,
  threshold: ThresholdProcess | None = None,
  hooks: local_training.ClientHooks | None = None,
  *,
  measure_cohort: bool = True,
) -> process.AnyClientWork:
  """Builds the client work of FedAvg, or with `threshold` that of superquantile aggregation.

  A client whose loss or update is not finite, or that has no examples, is left out of the round and
  counted.

  Measurements: `train`, the model's own training metrics over the clients that trained; `cohort`,
  with `cohort_size`, `tail_size` (clients that entered the average) and `num_excluded` (clients
  left out because a loss or update is not finite, or because they have no examples); `threshold`,
  the measurements of the threshold process.

  Args:
    local: A client's work in every algorithm.
    threshold: Turns losses into the clients' shares; None to let all clients train, without a loss
      pass.
    hooks: The changes that this algorithm makes to it; None for none.
    measure_cohort: Whether to measure `train` and `cohort`, exact sums over the cohort. If false,
      only the threshold's measurements leave the clients.

  Returns:
    A `tff.learning.templates.ClientWorkProcess`, or with `local.examples_fn` a
    `process.ClientWork`.

  Raises:
    ValueError: If the threshold needs the clients' indices and there is no `local.index_fn`.
    TypeError: If `local.examples_fn` does not return what the model takes, or
      `local.client_learning_rate_fn` is given for an optimizer without a learning rate.
  """
  hooks = hooks or local_training.ClientHooks()
  initial_schedule, advance = process.build_schedule(local.optimizer, local.client_learning_rate_fn)
  hparams_type = advance.type_signature.result[1]
  loss_pass = None if threshold is None else _build_loss_pass(local, threshold)
  training = _build_training(local, hooks, threshold, hparams_type)

  @tff.federated_computation
  def init_fn():
    state = collections.OrderedDict(own=tff.federated_eval(initial_schedule, tff.SERVER))
    if threshold is not None:
      state["threshold"] = threshold.initialize()
    return tff.federated_zip(state)

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(local.model.weights_type, tff.CLIENTS),
    tff.FederatedType(local.data.type, tff.CLIENTS),
  )
  def next_fn(state, weights, clients):
    # Broadcast: the distributor has sent w already.
    next_schedule, hparams = tff.federated_map(advance, state["own"])
    new_state = collections.OrderedDict(own=next_schedule)
    arguments: tuple[tff.Value, ...] = (weights, clients, tff.federated_broadcast(hparams))
    measurements = collections.OrderedDict()
    if threshold is not None:
      # Loss: F_i(w) stays at client i, which sends its report of it.
      losses, reports = tff.federated_map(loss_pass, (weights, clients))
      # Threshold: the server learns Q from the reports.
      output = threshold.next_of_reports(state["threshold"], reports)
      new_state["threshold"] = output.state
      measurements["threshold"] = output.measurements
      arguments += (losses, tff.federated_broadcast(output.result))
    # Gate, local training and report are one graph of a client.
    client_result, metrics, counts = tff.federated_map(training, arguments)
    if measure_cohort:
      measurements.update(
        cohort_metrics.aggregate(
          local.model.metric_finalizers, local.metrics_aggregator, metrics, counts
        )
      )
    if measurements:
      measurements = tff.federated_zip(measurements)
    else:
      measurements = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(
      tff.federated_zip(new_state), client_result, measurements
    )

  return process.build_process(init_fn, next_fn)
