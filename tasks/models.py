"""Classifiers as pure functions of their weights.

A client's graph holds nothing but `predict_on_batch` and the loss: no Keras objects, variables or
metric state beyond two numbers, which is most of what makes a round fast. All are
`tff.learning.models.FunctionalModel`, so TFF's own algorithms take them too.
"""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_CONV_SIZE = 5
_CONV_CHANNELS = (32, 64)


@tf.function(autograph=False)
def _initialize_metrics() -> collections.OrderedDict:
  return collections.OrderedDict(
    loss_sum=tf.constant(0.0, tf.float32), num_examples=tf.constant(0, tf.int64)
  )


@tf.function(autograph=False)
def _update_metrics(
  state: collections.OrderedDict,
  labels: tf.Tensor,
  batch_output: tff.learning.models.BatchOutput,
  sample_weight: Optional[tf.Tensor] = None,
) -> collections.OrderedDict:
  del labels, sample_weight  # The batch's mean loss and its size say it all.
  count = tf.convert_to_tensor(batch_output.num_examples)
  return collections.OrderedDict(
    loss_sum=state["loss_sum"] + batch_output.loss * tf.cast(count, tf.float32),
    num_examples=state["num_examples"] + tf.cast(count, tf.int64),
  )


@tf.function(autograph=False)
def _finalize_metrics(state: collections.OrderedDict) -> collections.OrderedDict:
  # Sums over clients are finalized just as one client's are.
  return collections.OrderedDict(
    loss=tf.math.divide_no_nan(state["loss_sum"], tf.cast(state["num_examples"], tf.float32)),
    num_examples=state["num_examples"],
  )


def _mean(losses: tf.Tensor, sample_weight: Optional[tf.Tensor]) -> tf.Tensor:
  """The mean of losses [n], weighted if there are weights [n]."""
  if sample_weight is None:
    return tf.reduce_mean(losses)
  weights = tf.cast(sample_weight, losses.dtype)
  return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))


def _mean_cross_entropy(
  output: tf.Tensor, label: tf.Tensor, sample_weight: Optional[tf.Tensor] = None
) -> tf.Tensor:
  """The paper's multinomial logistic loss, mean over a batch of logits [n, classes], labels [n]."""
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
  return _mean(losses, sample_weight)


def _mean_binary_cross_entropy(
  output: tf.Tensor, label: tf.Tensor, sample_weight: Optional[tf.Tensor] = None
) -> tf.Tensor:
  """The paper's binary logistic loss, mean over a batch of logits [n], labels [n] of 0 and 1."""
  labels = tf.cast(label, output.dtype)
  return _mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, output), sample_weight)


def _build_model(
  initial_weights: Sequence[np.ndarray],
  output_fn: Callable[[Sequence[Any], Any], tf.Tensor],
  loss_fn: Callable[..., tf.Tensor],
  input_spec: tuple[Any, tf.TensorSpec],
) -> tff.learning.models.FunctionalModel:
  """A model without non-trainable weights; its metrics are mean loss and number of examples."""

  @tf.function(autograph=False)
  def predict_on_batch(model_weights: tuple, x: Any, training: bool = True) -> tf.Tensor:
    del training  # The same in training and evaluation.
    trainable, _ = model_weights
    return output_fn(trainable, x)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(initial_weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss_fn,
    metrics_fns=(_initialize_metrics, _update_metrics, _finalize_metrics),
    input_spec=input_spec,
  )


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
  return _build_model(initial_weights, logits_fn, _mean_cross_entropy, input_spec)


def build_binary_classifier(
  initial_weights: Sequence[np.ndarray],
  logit_fn: Callable[[Sequence[Any], Any], tf.Tensor],
  input_spec: tuple[Any, tf.TensorSpec],
) -> tff.learning.models.FunctionalModel:
  """Builds a classifier of two classes with the mean binary logistic loss.

  Its metrics are the mean loss and the number of examples.

  Args:
    initial_weights: The trainable weights, numpy arrays; there are no others.
    logit_fn: Takes (weights, x), returns one logit an example, [n], positive for class 1; a pure
      function of TensorFlow.
    input_spec: `tf.TensorSpec` of x (or a structure of them) and of y, int32 [None], 0 or 1.

  Returns:
    A `tff.learning.models.FunctionalModel`.
  """
  return _build_model(initial_weights, logit_fn, _mean_binary_cross_entropy, input_spec)


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
  initial_weights = [np.zeros((num_features, num_classes), np.float32)]
  if intercept:
    initial_weights.append(np.zeros(num_classes, np.float32))

  def logits(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    products = tf.matmul(tf.reshape(x, [-1, num_features]), weights[0])
    return products + weights[1] if intercept else products

  return build_classifier(initial_weights, logits, input_spec)


def build_logistic_regression(
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec], *, intercept: bool
) -> tff.learning.models.FunctionalModel:
  """Builds binary logistic regression on the flattened x, from zero weights.

  The paper's linear Sent140 model (w in R^50, no intercept).

  Args:
    input_spec: `tf.TensorSpec` of x, float32 [None, ...], and of y, int32 [None], 0 or 1.
    intercept: Whether the logit is <x, w> + b or <x, w>.

  Returns:
    A model with weights w [features] and, with an intercept, b [].
  """
  num_features = _num_features(input_spec[0])
  initial_weights = [np.zeros(num_features, np.float32)]
  if intercept:
    initial_weights.append(np.zeros([], np.float32))

  def logit(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    products = tf.linalg.matvec(tf.reshape(x, [-1, num_features]), weights[0])
    return products + weights[1] if intercept else products

  return build_binary_classifier(initial_weights, logit, input_spec)


def _check_seed(seed: int) -> None:
  if seed < 0:
    raise ValueError(f"Found seed = {seed}; expected a number that is not negative.")


def _glorot_uniform(seed: int, layer: int, shape: tuple[int, ...]) -> np.ndarray:
  """Glorot's uniform initial weights; the last two dimensions of `shape` are inputs, outputs."""
  receptive_field = math.prod(shape[:-2])
  limit = math.sqrt(6.0 / (receptive_field * (shape[-2] + shape[-1])))
  # One generator a layer, so that a layer more or wider leaves the others' draws as they were.
  return np.random.default_rng([seed, layer]).uniform(-limit, limit, shape).astype(np.float32)


def _orthogonal(seed: int, layer: int, shape: tuple[int, int]) -> np.ndarray:
  """Initial weights [rows, columns] with orthonormal rows, drawn uniformly; rows <= columns."""
  normal = np.random.default_rng([seed, layer]).standard_normal(shape[::-1])
  q, r = np.linalg.qr(normal)
  # Signs as those of R: else the distribution would depend on the algorithm (Mezzadri 2007).
  return (q * np.sign(np.diag(r))).T.astype(np.float32)


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
  _check_seed(seed)
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
  dense = _glorot_uniform(seed, len(_CONV_CHANNELS), (num_features, num_classes))
  weights += [dense, np.zeros(num_classes, np.float32)]

  def logits(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    hidden = tf.reshape(x, [-1, height, width, 1])
    for kernel, bias in (weights[0:2], weights[2:4]):
      hidden = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(hidden, kernel, 1, "VALID"), bias))
      hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    return tf.matmul(tf.reshape(hidden, [-1, num_features]), weights[4]) + weights[5]

  return build_classifier(weights, logits, input_spec)


def build_lstm(
  seed: int, input_spec: tuple[tf.TensorSpec, tf.TensorSpec], *, hidden_size: int
) -> tff.learning.models.FunctionalModel:
  """Builds the paper's RNN: an LSTM on sequences of vectors, whose last output is classified.

  With gates i, f, g, o of [x_t, h_{t-1}], c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g) and
  h_t = sigmoid(o) tanh(c_t) from zero states (Hochreiter and Schmidhuber 1997); the logit is
  <h_T, w> + b. All T steps are taken, also those of padding. They are unrolled in the graph: for a
  batch of 10 sequences of 20 vectors of dimension 50, a gradient takes 0.9 ms on one core, and
  2.0 ms with `tf.while_loop`.

  Args:
    seed: Of the initial weights, not negative: Glorot uniform for x and for the logit, orthogonal
      for h; biases are zero, but one in the forget gates.
    input_spec: `tf.TensorSpec` of x, float32 [None, steps, features], and of y, int32 [None], 0
      or 1.
    hidden_size: Units of h and c.

  Returns:
    A model with weights of the gates in the order i, f, g, o, as Keras has them: of x
    [features, 4 hidden_size], of h [hidden_size, 4 hidden_size], biases [4 hidden_size]; then w
    [hidden_size, 1] and b [1].

  Raises:
    ValueError: If the seed is negative, the hidden size is not positive, or x is not of that shape.
  """
  _check_seed(seed)
  if hidden_size < 1:
    raise ValueError(f"Found hidden_size = {hidden_size}; expected a positive number.")
  _num_features(input_spec[0])
  if input_spec[0].shape.rank != 3 or input_spec[0].shape[1] < 1:
    raise ValueError(
      f"Found an input of shape {input_spec[0].shape}; the LSTM needs [None, steps, features]."
    )
  num_steps, num_features = input_spec[0].shape[1:]
  gates_bias = np.zeros(4 * hidden_size, np.float32)
  gates_bias[hidden_size : 2 * hidden_size] = 1.0
  weights = (
    _glorot_uniform(seed, 0, (num_features, 4 * hidden_size)),
    _orthogonal(seed, 1, (hidden_size, 4 * hidden_size)),
    gates_bias,
    _glorot_uniform(seed, 2, (hidden_size, 1)),
    np.zeros(1, np.float32),
  )

  def logit(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    x_weights, h_weights, bias, logit_weights, logit_bias = weights
    num_sequences = tf.shape(x)[0]
    # One product for all steps; steps come first, so that each one's rows lie together.
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, num_features])
    of_x = tf.reshape(tf.matmul(rows, x_weights) + bias, [num_steps, -1, 4 * hidden_size])
    h = c = tf.zeros([num_sequences, hidden_size])
    for of_x_t in tf.unstack(of_x):
      i, f, g, o = tf.split(of_x_t + tf.matmul(h, h_weights), 4, axis=1)
      c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
      h = tf.sigmoid(o) * tf.tanh(c)
    return tf.squeeze(tf.matmul(h, logit_weights) + logit_bias, axis=1)

  return build_binary_classifier(weights, logit, input_spec)
