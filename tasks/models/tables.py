"""Builds models of rows of numbers: linear ones, or with one hidden layer; classes or numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import classifiers
from tasks.models import networks


def _linear(
  num_features: int, num_scores: int
) -> tuple[list[np.ndarray], Callable[[Sequence[Any], tf.Tensor], tf.Tensor]]:
  """Returns zero weights W and b, and the function x W + b."""
  weights = [np.zeros((num_features, num_scores), np.float32), np.zeros(num_scores, np.float32)]
  return weights, lambda weights, x: tf.matmul(x, weights[0]) + weights[1]


def _mlp(
  seed: int, num_features: int, num_scores: int, hidden_size: int
) -> tuple[list[np.ndarray], Callable[[Sequence[Any], tf.Tensor], tf.Tensor]]:
  """Returns Glorot's uniform weights, zero biases, and the function relu(x V + a) W + b."""
  weights = [
    networks.glorot_uniform(seed, 0, (num_features, hidden_size)),
    np.zeros(hidden_size, np.float32),
    networks.glorot_uniform(seed, 1, (hidden_size, num_scores)),
    np.zeros(num_scores, np.float32),
  ]

  def scores(weights: Sequence[Any], x: tf.Tensor) -> tf.Tensor:
    hidden = tf.nn.relu(tf.matmul(x, weights[0]) + weights[1])
    return tf.matmul(hidden, weights[2]) + weights[3]

  return weights, scores


def _mean_half_square(
  output: tf.Tensor, label: tf.Tensor, sample_weight: tf.Tensor | None = None
) -> tf.Tensor:
  return classifiers.mean(0.5 * tf.square(output - label), sample_weight)


def build_table_model(
  seed: int,
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
  *,
  num_classes: int,
  hidden_size: int = 0,
) -> tff.learning.models.FunctionalModel:
  """Builds a model of rows of numbers.

  Scores s are x W + b from zero weights, or relu(x V + a) W + b with a hidden layer. For two
  classes there is one score, the logit of class 1, and the binary logistic loss; for more, one a
  class and the softmax cross entropy. For numbers y the loss of an example is (s - y)^2 / 2.

  Args:
    seed: That of the initial weights; without a hidden layer they are zero.
    input_spec: Of x, float32 [None, features], and of y [None].
    num_classes: The number of classes; 0 for numbers y.
    hidden_size: The units of the hidden layer; 0 for none.

  Returns:
    The model. Its weights are W [features, scores], b [scores], or V [features, hidden], a
    [hidden], W [hidden, scores], b [scores].

  Raises:
    ValueError: If the number of features is unknown.
  """
  num_features = classifiers.count_features(input_spec[0])
  num_scores = num_classes if num_classes > 2 else 1
  if hidden_size:
    weights, scores = _mlp(seed, num_features, num_scores, hidden_size)
  else:
    weights, scores = _linear(num_features, num_scores)

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    hidden = [tf.keras.layers.Dense(hidden_size, activation="relu")] if hidden_size else []
    return [*hidden, tf.keras.layers.Dense(num_scores)]

  if num_classes > 2:
    return classifiers.build_classifier(
      weights, scores, input_spec, keras_layers, has_linear_gradient=True
    )

  def score(weights: Sequence[Any], x: tf.Tensor) -> tf.Tensor:
    return tf.squeeze(scores(weights, x), axis=1)

  loss_fn = classifiers.mean_binary_cross_entropy if num_classes else _mean_half_square
  return classifiers.build_classifier(
    weights, score, input_spec, keras_layers, loss_fn, has_linear_gradient=True
  )
