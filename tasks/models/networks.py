"""Builds the paper's network for images, a ConvNet, and draws the initial weights of networks."""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.models import classifiers

_CONV_SIZE = 5
_CONV_CHANNELS = (32, 64)


def glorot_uniform(seed: int, layer: int, shape: tuple[int, ...]) -> np.ndarray:
  """Draws Glorot's uniform initial weights; `shape` ends with inputs, outputs."""
  if min(shape) < 1:
    raise ValueError(f"Found weights of shape {shape}; expected positive sizes.")
  receptive_field = math.prod(shape[:-2])
  limit = math.sqrt(6.0 / (receptive_field * (shape[-2] + shape[-1])))
  # One generator a layer, so that a layer more or wider leaves the others' draws as they were.
  return np.random.default_rng([seed, layer]).uniform(-limit, limit, shape).astype(np.float32)


@tf.custom_gradient
def _maxima_of_pairs(pairs: tf.Tensor) -> Any:
  """Returns the larger of two, of [n, 2, ...]; of equal ones the first has the gradient."""
  first, second = tf.unstack(pairs, axis=1)

  def gradient(upstream: tf.Tensor) -> tf.Tensor:
    of_first = upstream * tf.cast(first >= second, upstream.dtype)
    return tf.stack([of_first, upstream - of_first], axis=1)

  return tf.maximum(first, second), gradient


def _max_pool(images: tf.Tensor) -> tf.Tensor:
  """Returns the maxima of squares of 2 x 2, images [n, height, width, channels] of known sizes.

  A row or column that is left over counts for nothing. The same as `tf.nn.max_pool2d`, and as its
  gradient, whose kernel takes several times the time.
  """
  height, width, channels = images.shape[1:]
  if height % 2 or width % 2:
    images = images[:, : height - height % 2, : width - width % 2]
  of_rows = _maxima_of_pairs(tf.reshape(images, [-1, 2, channels]))
  of_squares = _maxima_of_pairs(tf.reshape(of_rows, [-1, 2, width // 2 * channels]))
  return tf.reshape(of_squares, [-1, height // 2, width // 2, channels])


def build_convnet(
  seed: int, input_spec: tuple[tf.TensorSpec, tf.TensorSpec], num_classes: int
) -> classifiers.Classifier:
  """Builds the paper's ConvNet: twice (5 x 5 convolution, relu, 2 x 2 max pooling), then dense.

  For images of 28 x 28: convolutions of 32 and 64 channels without padding leave 4 x 4 x 64 = 1024
  features, and a dense layer scores the classes. Every layer has a bias.

  Args:
    seed: That of the initial weights.
    input_spec: Of x, float32 [None, height, width], and of y, int32 [None].
    num_classes: The number of classes; labels are below it.

  Returns:
    The model. Its weights are (kernel, bias) of each convolution [5, 5, in, out], [out], then of
    the dense layer [features, classes], [classes]; at first Glorot uniform, and biases zero.

  Raises:
    ValueError: If images are too small for two convolutions, or of unknown size.
  """
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
      # A bias and a ReLU keep the order of numbers: after the maxima they have a quarter to do.
      maxima = _max_pool(tf.nn.conv2d(hidden, kernel, 1, "VALID"))
      hidden = tf.nn.relu(tf.nn.bias_add(maxima, bias))
    return tf.matmul(tf.reshape(hidden, [-1, num_features]), weights[4]) + weights[5]

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    layers: list[tf.keras.layers.Layer] = [tf.keras.layers.Reshape((height, width, 1))]
    for number, channels in enumerate(_CONV_CHANNELS, start=1):
      layers += [
        tf.keras.layers.Conv2D(channels, _CONV_SIZE, activation="relu", name=f"conv_{number}"),
        tf.keras.layers.MaxPooling2D(2),
      ]
    return [*layers, tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes, name="dense")]

  return classifiers.build_classifier(
    weights, logits, input_spec, keras_layers, has_linear_gradient=True
  )
