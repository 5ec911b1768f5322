"""Builds the paper's networks: a ConvNet for images, an LSTM for sequences of vectors."""

from collections.abc import Sequence
import math

import numpy as np
import tensorflow as tf

from tasks.models import classifiers

_CONV_SIZE = 5
_CONV_CHANNELS = (32, 64)


def check_seed(seed: int) -> None:
  """Raises a `ValueError` for a negative seed."""
  if seed < 0:
    raise ValueError(f"Found seed = {seed}; expected a number that is not negative.")


def glorot_uniform(seed: int, layer: int, shape: tuple[int, ...]) -> np.ndarray:
  """Draws Glorot's uniform initial weights; `shape` ends with inputs, outputs."""
  receptive_field = math.prod(shape[:-2])
  limit = math.sqrt(6.0 / (receptive_field * (shape[-2] + shape[-1])))
  # One generator a layer, so that a layer more or wider leaves the others' draws as they were.
  return np.random.default_rng([seed, layer]).uniform(-limit, limit, shape).astype(np.float32)


def _orthogonal(seed: int, layer: int, shape: tuple[int, int]) -> np.ndarray:
  """Draws initial weights [rows, columns] with orthonormal rows, uniformly; rows <= columns."""
  normal = np.random.default_rng([seed, layer]).standard_normal(shape[::-1])
  q, r = np.linalg.qr(normal)
  # Signs as those of R: else the distribution would depend on the algorithm (Mezzadri 2007).
  return (q * np.sign(np.diag(r))).T.astype(np.float32)


def build_convnet(
  seed: int, input_spec: tuple[tf.TensorSpec, tf.TensorSpec], num_classes: int
) -> classifiers.Classifier:
  """Builds the paper's ConvNet: twice (5 x 5 convolution, relu, 2 x 2 max pooling), then dense.

  For images of 28 x 28: convolutions of 32 and 64 channels without padding leave 4 x 4 x 64 = 1024
  features, and a dense layer scores the classes. Every layer has a bias.

  Args:
    seed: Seed of the initial weights (Glorot uniform; biases are zero), not negative.
    input_spec: `tf.TensorSpec` of x, float32 [None, height, width], and of y, int32 [None].
    num_classes: Number of labels.

  Returns:
    A model with weights (kernel, bias) of each convolution [5, 5, in, out], [out], then of the
    dense layer [features, classes], [classes].

  Raises:
    ValueError: If the seed is negative or images are too small for two convolutions.
  """
  check_seed(seed)
  classifiers.count_features(input_spec[0])
  height, width = input_spec[0].shape[1:]
  out_height, out_width = height, width
  weights = []
  channels = 1
  for layer, out_channels in enumerate(_CONV_CHANNELS):
    shape = (_CONV_SIZE, _CONV_SIZE, channels, out_channels)
    weights += [glorot_uniform(seed, layer, shape), np.zeros(out_channels, np.float32)]
    channels = out_channels
    out_height = (out_height - _CONV_SIZE + 1) // 2
    out_width = (out_width - _CONV_SIZE + 1) // 2
  if min(out_height, out_width) < 1:
    raise ValueError(
      f"Found images of {height} x {width}; the ConvNet needs at least 16 x 16 pixels."
    )
  num_features = out_height * out_width * channels
  dense = glorot_uniform(seed, len(_CONV_CHANNELS), (num_features, num_classes))
  weights += [dense, np.zeros(num_classes, np.float32)]

  def logits(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    hidden = tf.reshape(x, [-1, height, width, 1])
    for kernel, bias in (weights[0:2], weights[2:4]):
      hidden = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(hidden, kernel, 1, "VALID"), bias))
      hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    return tf.matmul(tf.reshape(hidden, [-1, num_features]), weights[4]) + weights[5]

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    layers: list[tf.keras.layers.Layer] = [tf.keras.layers.Reshape((height, width, 1))]
    for number, channels in enumerate(_CONV_CHANNELS, start=1):
      layers += [
        tf.keras.layers.Conv2D(channels, _CONV_SIZE, activation="relu", name=f"conv_{number}"),
        tf.keras.layers.MaxPooling2D(2),
      ]
    return [*layers, tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes, name="dense")]

  return classifiers.build_classifier(weights, logits, input_spec, keras_layers)


def build_lstm(
  seed: int, input_spec: tuple[tf.TensorSpec, tf.TensorSpec], *, hidden_size: int
) -> classifiers.Classifier:
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
  check_seed(seed)
  if hidden_size < 1:
    raise ValueError(f"Found hidden_size = {hidden_size}; expected a positive number.")
  classifiers.count_features(input_spec[0])
  if input_spec[0].shape.rank != 3 or input_spec[0].shape[1] < 1:
    raise ValueError(
      f"Found an input of shape {input_spec[0].shape}; the LSTM needs [None, steps, features]."
    )
  num_steps, num_features = input_spec[0].shape[1:]
  gates_bias = np.zeros(4 * hidden_size, np.float32)
  gates_bias[hidden_size : 2 * hidden_size] = 1.0
  weights = (
    glorot_uniform(seed, 0, (num_features, 4 * hidden_size)),
    _orthogonal(seed, 1, (hidden_size, 4 * hidden_size)),
    gates_bias,
    glorot_uniform(seed, 2, (hidden_size, 1)),
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

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    return [
      tf.keras.layers.LSTM(hidden_size, name="lstm"),
      tf.keras.layers.Dense(1, name="dense"),
      tf.keras.layers.Reshape(()),
    ]

  return classifiers.build_binary_classifier(weights, logit, input_spec, keras_layers)
