"""Computes losses and local training from (weights, examples), without iterating a data set.

Iterating a `tf.data.Dataset` inside a client's graph takes longer than training a small model, so
that a client's examples become tensors once, and batches are slices of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers

# Examples in one forward pass of the loss, to bound the memory of a client with very many.
_LOSS_BATCH_SIZE = 1024


class Examples(NamedTuple):
  """Holds all examples of one client.

  Attributes:
    batch: A structure of tensors [n, ...] that matches the model's input_spec.
    batch_sizes: int32 [n]; the batch of example i has batch_sizes[i] examples. None if unknown.
  """

  batch: Any
  batch_sizes: tf.Tensor | None


def examples_of_dataset(dataset: tf.data.Dataset) -> Examples:
  """Reads a data set of batches [b, ...], also an empty one, as tensors, in one pass."""

  def attach_size(*batch):
    batch = batch if len(batch) > 1 else batch[0]
    size = local_model.leading_dimension(batch)
    return batch, tf.fill([size], size)

  batches = dataset.map(attach_size)
  nothing = tf.nest.map_structure(
    lambda spec: tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype),
    batches.element_spec,
  )
  whole = batches.unbatch().batch(tf.int32.max)
  padded = whole.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)
  return Examples(*padded.get_single_element())


def mean_loss(
  model: local_model.LocalModel, weights: local_model.ModelWeights, batch: Any
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes F_i(w) of a client's whole local data set of tensors [n, ...], NaN without examples.

  It is (mean loss float32 [], number of examples as the model counts them, int64 []).
  """
  total = local_model.leading_dimension(batch)

  def body(offset, loss_sum, num_examples):
    part = tf.nest.map_structure(lambda t: t[offset : offset + _LOSS_BATCH_SIZE], batch)
    loss, count = model.loss(weights, part)
    loss_sum += tf.cast(loss, tf.float32) * tf.cast(count, tf.float32)
    return offset + _LOSS_BATCH_SIZE, loss_sum, num_examples + count

  _, loss_sum, num_examples = tf.while_loop(
    lambda offset, *_: offset < total,
    body,
    (0, 0.0, tf.constant(0, tf.int64)),
    parallel_iterations=1,
  )
  return loss_sum / tf.cast(num_examples, tf.float32), num_examples


class TrainingResult(NamedTuple):
  """Holds the result of local training.

  Attributes:
    update: Initial minus final trainable weights, structured as the trainable weights.
    metrics: The state of the model's training metrics.
    num_examples: int64 [], examples trained on, over all epochs, as the model counts them.
  """

  update: Any
  metrics: Any
  num_examples: tf.Tensor


def _add(
  gradients: Sequence[tf.Tensor | None], penalty_gradients: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, ...]:
  """Adds gradients; a gradient is None if the loss does not depend on that weight."""
  return tuple(p if g is None else g + p for g, p in zip(gradients, penalty_gradients))


def train(
  model: local_model.LocalModel,
  optimizer: tff.learning.optimizers.Optimizer,
  hparams: Any,
  weights: local_model.ModelWeights,
  examples: Examples,
  *,
  batch_size: int | None,
  epochs: int,
  l2: float,
  proximal_strength: float = 0.0,
  anchor: Sequence[tf.Tensor] | None = None,
) -> TrainingResult:
  """Takes tau steps of the optimizer on the local objective, the paper's inner loop.

  The objective is F_i(w) + l2 / 2 |w|^2 + proximal_strength / 2 |w - w0|^2 over the trainable
  weights, with w0 the `anchor`, or the initial ones without. Batches are consecutive slices of the
  examples, an epoch's last one may be smaller; a `batch_size` of 0 takes all examples, None follows
  `examples.batch_sizes`.
  """
  initial = tuple(tf.nest.flatten(weights.trainable))
  pulled_to = initial if anchor is None else tuple(anchor)
  nothing = tf.constant(0, tf.int64)
  total = tf.cast(local_model.leading_dimension(examples.batch), tf.int64)
  last = total if epochs == 1 else epochs * total
  optimizer_state = optimizer.initialize(tuple(tf.TensorSpec(w.shape, w.dtype) for w in initial))
  optimizer_state = optimizer.set_hparams(optimizer_state, hparams)
  scale = tf.constant(1.0)
  if model.has_linear_gradient:
    optimizer_state, scale = optimizers.with_rate_in_loss(optimizer, optimizer_state)

  def body(taken, trainable, optimizer_state, metrics, num_examples):
    # `taken` tells epoch and offset. Each value that steps hand on, and each op, takes its time: in
    # those of a small model as much as its products.
    offset = taken if epochs == 1 else taken % total
    if batch_size is None:
      assert examples.batch_sizes is not None
      size = tf.cast(examples.batch_sizes[offset], tf.int64)
    else:
      size = batch_size or total
    end = tf.minimum(offset + size, total)
    batch = tf.nest.map_structure(lambda t: t[offset:end], examples.batch)
    current = local_model.ModelWeights(trainable, weights.non_trainable)
    gradients, metrics, count = model.gradients(current, metrics, batch, scale)
    if l2:
      gradients = _add(gradients, [tf.cast(scale * l2, w.dtype) * w for w in trainable])
    if proximal_strength:
      pull = scale * proximal_strength
      distances = [w - w0 for w, w0 in zip(trainable, pulled_to)]
      gradients = _add(gradients, [tf.cast(pull, d.dtype) * d for d in distances])
    optimizer_state, trainable = optimizer.next(optimizer_state, trainable, gradients)
    taken = end if epochs == 1 else taken - offset + end
    return taken, trainable, optimizer_state, metrics, num_examples + count

  _, final, _, metrics, num_examples = tf.while_loop(
    lambda taken, *_: taken < last,
    body,
    (nothing, initial, optimizer_state, model.initial_metrics(), nothing),
    parallel_iterations=1,
  )
  update = tf.nest.pack_sequence_as(
    weights.trainable, [old - new for old, new in zip(initial, final)]
  )
  return TrainingResult(update, metrics, num_examples)


def zero_unless_finite(update: Any) -> tuple[Any, tf.Tensor]:
  """Replaces an update by zeros unless it is finite, and tells whether it is, bool [].

  Its norm decides, because a look at each number takes as long as a step of training. An update
  that overflows the norm would overflow the average.
  """
  norm = tf.add_n([tf.norm(tf.cast(u, tf.float32), 1) for u in tf.nest.flatten(update)])
  finite = tf.math.is_finite(norm)
  return tf.nest.map_structure(lambda u: tf.where(finite, u, tf.zeros_like(u)), update), finite
