"""The computations that run at one client: the loss of its data, and training behind the gate."""

import collections
import dataclasses
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import noise_source
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update

# What a client draws comes from streams of its own, so that its seed may serve other ends, too.
_THRESHOLD_STREAM, _UPDATE_STREAM, _NUM_STREAMS = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class LocalWork:
  """What the computations of a client have in common.

  Attributes:
    model_fn: The model, as in `build_superquantile_fed_avg`.
    weights_type: The type of its weights.
    optimizer: Takes the local steps.
    client_weighting: The weight of a client in the average and in the quantile.
    epochs: Passes over the local data set.
    batch_size: Examples in a local step; 0 for all, None for the data set's own batches.
    l2: The l2 coefficient of the local objective.
    data_type: What a client holds.
    read: From a value of that type to the client's `local_update.Examples`, in TensorFlow.
    seed_fn: From a value of that type to the seed of the client's draws in the round, an integer
      tensor [2]; None if there is none.
    index_fn: From a value of that type to which of all clients it is, an integer tensor []; None if
      that is not known.
    proximal_strength: mu of FedProx.
    damping_fn: From (loss, update, hparams) to the factor by which the update is divided and its
      weight multiplied; None for 1.
    update_report_fn: From (update, seed or None) to what the client reports in place of its update;
      None for the update.
  """

  model_fn: local_model.Model
  weights_type: tff.Type
  optimizer: tff.learning.optimizers.Optimizer
  client_weighting: tff.learning.ClientWeighting
  epochs: int
  batch_size: Optional[int]
  l2: float
  data_type: tff.Type
  read: Callable[[Any], local_update.Examples]
  seed_fn: Optional[Callable[[Any], tf.Tensor]] = None
  index_fn: Optional[Callable[[Any], tf.Tensor]] = None
  proximal_strength: float = 0.0
  damping_fn: Optional[Callable[[tf.Tensor, Any, Any], tf.Tensor]] = None
  update_report_fn: Optional[Callable[[Any, Optional[tf.Tensor]], Any]] = None

  def client_weight(self, num_examples: tf.Tensor) -> tf.Tensor:
    """The weight of a client, float32 []; zero without examples."""
    if self.client_weighting == tff.learning.ClientWeighting.UNIFORM:
      return tf.where(num_examples > 0, 1.0, 0.0)
    return tf.cast(num_examples, tf.float32)

  def seed(self, client: Any, stream: int) -> Optional[tf.Tensor]:
    """The seed of one of the client's streams, int64 [2]; None without a `seed_fn`."""
    if self.seed_fn is None:
      return None
    return noise_source.split(self.seed_fn(client), _NUM_STREAMS)[stream]

  def index_arguments(
    self, client: Any, threshold: threshold_lib.ThresholdProcess
  ) -> tuple[tf.Tensor, ...]:
    """The client's index, int32 [], as the threshold's last argument; empty if it takes none."""
    if not threshold.takes_indices:
      return ()
    assert self.index_fn is not None  # `build_client_work` has seen to it.
    return (tf.cast(self.index_fn(client), tf.int32),)


def _model_weights(weights: Any) -> tff.learning.models.ModelWeights:
  return tff.learning.models.ModelWeights(weights.trainable, weights.non_trainable)


def build_loss_computation(
  work: LocalWork, threshold: threshold_lib.ThresholdProcess
) -> tff.Computation:
  """Builds (weights, client data) -> (loss, report).

  The loss, float32 [], is F_i(w), the mean over the client's whole local data set; NaN if it is not
  finite or there are no examples. The report is what the threshold asks of the client.
  """

  @tff.tensorflow.computation(work.weights_type, work.data_type)
  def loss_computation(weights, client):
    model = local_model.build_local_model(work.model_fn)

    @tf.function(autograph=False)
    def evaluate(weights, client):
      weights = _model_weights(weights)
      model.load(weights)
      loss, num_examples = local_update.mean_loss(model, weights, work.read(client).batch)
      counted = tf.logical_and(tf.math.is_finite(loss), num_examples > 0)
      loss = tf.where(counted, loss, np.nan)
      seed = work.seed(client, _THRESHOLD_STREAM) if threshold.takes_seeds else None
      index = work.index_arguments(client, threshold)
      return loss, threshold.report_fn(loss, work.client_weight(num_examples), seed, *index)

    return evaluate(weights, client)

  return loss_computation


def _train_if(
  work: LocalWork,
  weights: Any,
  client: Any,
  hparams: Any,
  share: tf.Tensor,
  loss: Optional[tf.Tensor] = None,
) -> tuple[tff.learning.templates.ClientResult, Any, collections.OrderedDict[str, tf.Tensor]]:
  """Trains if share > 0 and does nothing otherwise.

  Returns:
    (ClientResult, unfinalized training metrics, counts). The result is a zero update of weight zero
    if the client did not train, has no examples, or its update is not finite.
  """
  model = local_model.build_local_model(work.model_fn)

  # A tf.function, as a VariableModel's assignments need its ordering.
  @tf.function(autograph=False)
  def gated(weights, client, hparams, share, loss):
    weights = _model_weights(weights)
    model.load(weights)

    def train() -> local_update.TrainingResult:
      return local_update.train(
        model,
        work.optimizer,
        hparams,
        weights,
        work.read(client),
        batch_size=work.batch_size,
        epochs=work.epochs,
        l2=work.l2,
        proximal_strength=work.proximal_strength,
      )

    def rest() -> local_update.TrainingResult:
      update = tf.nest.map_structure(tf.zeros_like, weights.trainable)
      return local_update.TrainingResult(update, model.initial_metrics(), tf.constant(0, tf.int64))

    update, metrics, num_examples = tf.cond(share > 0, train, rest)
    damping = tf.constant(1.0)
    if work.damping_fn is not None:
      damping = tf.where(share > 0, work.damping_fn(loss, update, hparams), 1.0)
      update = tf.nest.map_structure(lambda u: u / tf.cast(damping, u.dtype), update)
    # By its norm: asking each number takes as long as a step of training. What overflows the norm
    # would overflow the average.
    norm = tf.add_n([tf.norm(tf.cast(u, tf.float32), 1) for u in tf.nest.flatten(update)])
    finite = tf.math.is_finite(norm)
    update = tf.nest.map_structure(lambda u: tf.where(finite, u, tf.zeros_like(u)), update)
    update_weight = tf.where(finite, share * damping * work.client_weight(num_examples), 0.0)
    in_tail = update_weight > 0
    excluded = tf.logical_and(share > 0, tf.logical_not(in_tail))
    counts = collections.OrderedDict(
      cohort_size=1, tail_size=tf.cast(in_tail, tf.int32), num_excluded=tf.cast(excluded, tf.int32)
    )
    if work.update_report_fn is not None:
      update = work.update_report_fn(update, work.seed(client, _UPDATE_STREAM))
    result = tff.learning.templates.ClientResult(update, update_weight)
    return result, model.unfinalized_metrics(metrics, tf.logical_not(finite)), counts

  return gated(weights, client, hparams, share, loss)


def build_train_computation(work: LocalWork, hparams_type: tff.Type) -> tff.Computation:
  """Builds (weights, client data, hparams) -> (ClientResult, metrics, counts): everybody trains."""

  @tff.tensorflow.computation(work.weights_type, work.data_type, hparams_type)
  def train_computation(weights, client, hparams):
    return _train_if(work, weights, client, hparams, tf.constant(1.0))

  return train_computation


def build_gated_train_computation(
  work: LocalWork, hparams_type: tff.Type, threshold: threshold_lib.ThresholdProcess
) -> tff.Computation:
  """Builds (weights, client data, hparams, loss, tail) -> (ClientResult, metrics, counts).

  A gate, not a mask: a client whose share of the tail is zero does not train. Aggregators without
  weights would undo a mask, and training for nothing costs 1 / theta of the time.

  Args:
    work: What the client does.
    hparams_type: The type of the optimizer's hyperparameters.
    threshold: Tells the share of a client from its loss and the threshold's result.

  Returns:
    A `tff.Computation`; the loss is that of `build_loss_computation`.
  """
  tail_type = threshold.next.type_signature.result.result.member

  @tff.tensorflow.computation(
    work.weights_type, work.data_type, hparams_type, np.float32, tail_type
  )
  def gated_train_computation(weights, client, hparams, loss, tail):
    uncounted = tf.math.is_nan(loss)
    share = threshold.share_fn(loss, tail, *work.index_arguments(client, threshold))
    share = tf.where(uncounted, 0.0, share)
    result, metrics, counts = _train_if(work, weights, client, hparams, share, loss)
    counts["num_excluded"] += tf.cast(uncounted, tf.int32)
    return result, metrics, counts

  return gated_train_computation
