"""Classifiers as pure functions of their weights.

A client's graph holds nothing but `predict_on_batch` and the loss: no Keras objects, variables or
metric state beyond two numbers, which is most of what makes a round fast. All are
`tff.learning.models.FunctionalModel`, so TFF's own algorithms take them too.
"""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_CONV_SIZE = 5
_CONV_CHANNELS = (32, 64)


@tf.function
def _initialize_metrics() -> collections.OrderedDict:
  return collections.OrderedDict(
    loss_sum=tf.constant(0.0, tf.float32), num_examples=tf.constant(0, tf.int64)
  )


@tf.function
def _update_metrics(state, labels, batch_output, sample_weight=None) -> collections.OrderedDict:
  del labels, sample_weight  # The batch's mean loss and its size say it all.
  count = tf.convert_to_tensor(batch_output.num_examples)
  return collections.OrderedDict(
    loss_sum=state["loss_sum"] + batch_output.loss * tf.cast(count, tf.float32),
    num_examples=state["num_examples"] + tf.cast(count, tf.int64),
  )


@tf.function
def _finalize_metrics(state) -> collections.OrderedDict:
  # Sums over clients are finalized just as one client's are.
  return collections.OrderedDict(
    loss=tf.math.divide_no_nan(state["loss_sum"], tf.cast(state["num_examples"], tf.float32)),
    num_examples=state["num_examples"],
  )


def _mean_cross_entropy(output, label, sample_weight=None) -> tf.Tensor:
  """The paper's multinomial logistic loss, mean over a batch of logits [n, classes], labels [n]."""
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
  if sample_weight is None:
    return tf.reduce_mean(losses)
  weights = tf.cast(sample_weight, losses.dtype)
  return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))


def build_classifier(
  initial_weights: Sequence[np.ndarray],
  logits_fn: Callable[[Sequence[Any], Any], tf.Tensor],
  input_spec: tuple[Any, tf.TensorSpec],
) -> tff.learning.models.FunctionalModel:
  """Builds a classifier with mean softmax cross entropy as its loss.

  Its metrics are the mean loss and the number of examples.

  Args:
    initial_weights: The trainable weights, numpy arrays; there are no others.
    logits_fn: Takes (weights, x), returns logits [n, classes]; a pure function of TensorFlow.
    input_spec: `tf.TensorSpec` of x (or a structure of them) and of y, int32 [None].

  Returns:
    A `tff.learning.models.FunctionalModel`.
  """

  @tf.function
  def predict_on_batch(model_weights, x, training=True):
    del training  # The same in training and evaluation.
    trainable, _ = model_weights
    return logits_fn(trainable, x)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(initial_weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=_mean_cross_entropy,
    metrics_fns=(_initialize_metrics, _update_metrics, _finalize_metrics),
    input_spec=input_spec,
  )


def _num_features(x_spec: tf.TensorSpec) -> int:
  if x_spec.shape.rank is None or not x_spec.shape[1:].is_fully_defined():
    raise ValueError(
      f"Found an input of shape {x_spec.shape}; expected all but the first dimension to be known."
    )
  return math.prod(x_spec.shape[1:])


def build_linear_classifier(
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec], num_classes: int, *, intercept: bool
) -> tff.learning.models.FunctionalModel:
  """Builds softmax regression on the flattened x, from zero weights.

  The paper's EMNIST model (W in R^{62 x 784}, no intercept) and its synthetic one (with intercept).

  Args:
    input_spec: `tf.TensorSpec` of x, float32 [None, ...], and of y, int32 [None].
    num_classes: Number of labels.
    intercept: Whether the logits are x W + b or x W.

  Returns:
    A model with weights W [features, classes] and, with an intercept, b [classes].
  """
  num_features = _num_features(input_spec[0])
  weights = (np.zeros((num_features, num_classes), np.float32),)
  if intercept:
    weights += (np.zeros(num_classes, np.float32),)

  def logits(weights, x):
    products = tf.matmul(tf.reshape(x, [-1, num_features]), weights[0])
    return products + weights[1] if intercept else products

  return build_classifier(weights, logits, input_spec)


def _glorot_uniform(seed: int, layer: int, shape: tuple[int, ...]) -> np.ndarray:
  """Glorot's uniform initial weights; the last two dimensions of `shape` are inputs, outputs."""
  receptive_field = math.prod(shape[:-2])
  limit = math.sqrt(6.0 / (receptive_field * (shape[-2] + shape[-1])))
  # One generator a layer, so that a layer more or wider leaves the others' draws as they were.
  return np.random.default_rng([seed, layer]).uniform(-limit, limit, shape).astype(np.float32)


def build_convnet(
  seed: int, input_spec: tuple[tf.TensorSpec, tf.TensorSpec], num_classes: int
) -> tff.learning.models.FunctionalModel:
  """Builds the paper's ConvNet: twice (5 x 5 convolution, relu, 2 x 2 max pooling), then dense.

  For images of 28 x 28: convolutions of 32 and 64 channels without padding leave 4 x 4 x 64 = 1024
  features, and a dense layer scores the classes. Every layer has a bias.

  Args:
    seed: Of the initial weights (Glorot uniform; biases are zero), not negative.
    input_spec: `tf.TensorSpec` of x, float32 [None, height, width], and of y, int32 [None].
    num_classes: Number of labels.

  Returns:
    A model with weights (kernel, bias) of each convolution [5, 5, in, out], [out], then of the
    dense layer [features, classes], [classes].

  Raises:
    ValueError: If the seed is negative or images are too small for two convolutions.
  """
  if seed < 0:
    raise ValueError(f"Found seed = {seed}; expected a number that is not negative.")
  _num_features(input_spec[0])
  height, width = input_spec[0].shape[1:]
  out_height, out_width = height, width
  weights = []
  channels = 1
  for layer, out_channels in enumerate(_CONV_CHANNELS):
    shape = (_CONV_SIZE, _CONV_SIZE, channels, out_channels)
    weights += [_glorot_uniform(seed, layer, shape), np.zeros(out_channels, np.float32)]
    channels = out_channels
    out_height = (out_height - _CONV_SIZE + 1) // 2
    out_width = (out_width - _CONV_SIZE + 1) // 2
  if min(out_height, out_width) < 1:
    raise ValueError(
      f"Found images of {height} x {width}; the ConvNet needs at least 16 x 16 pixels."
    )
  num_features = out_height * out_width * channels
  shape = (num_features, num_classes)
  weights += [_glorot_uniform(seed, len(_CONV_CHANNELS), shape), np.zeros(num_classes, np.float32)]

  def logits(weights, x):
    hidden = tf.reshape(x, [-1, height, width, 1])
    for kernel, bias in (weights[0:2], weights[2:4]):
      hidden = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(hidden, kernel, 1, "VALID"), bias))
      hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    return tf.matmul(tf.reshape(hidden, [-1, num_features]), weights[4]) + weights[5]

  return build_classifier(weights, logits, input_spec)
