"""Defines the error of a client: of classes misclassification, of numbers the root mean square."""

from collections.abc import Callable, Mapping
import types
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Error(NamedTuple):
  """An error of a client, g(mean of f over its examples).

  Attributes:
    of_examples: f, a TensorFlow function from (output, labels) to float32 [n].
    of_means: g, a function of float64 arrays.
  """

  of_examples: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  of_means: Callable[[np.ndarray], np.ndarray]


def is_single_score(output: tf.Tensor) -> bool:
  """Returns whether a model has a single score for two classes, [n] or [n, 1].

  Args:
    output: Scores [n, classes], [n, 1] or [n].

  Returns:
    Whether they are one score an example.
  """
  return output.shape.rank != 2 or output.shape[1] == 1


def misclassified(output: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Returns float32 [n], 1.0 where the largest score, or the sign of a single one, is wrong.

  Scores (logits) are [n, classes], or [n, 1] or [n] for two classes; class numbers [n] or [n, 1].
  """
  labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)
  if is_single_score(output):
    predicted = tf.cast(tf.reshape(output, [-1]) > 0, tf.int64)
  else:
    predicted = tf.argmax(output, axis=1)
  return tf.cast(tf.not_equal(predicted, labels), tf.float32)


def squared(output: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Returns (output - label)^2, float32 [n], of numbers [n] or [n, 1]."""
  output, labels = (tf.cast(tf.reshape(t, [-1]), tf.float32) for t in (output, labels))
  return tf.square(output - labels)


# By the names that tasks have for them (`tasks.task.ERRORS`).
ERRORS: Mapping[str, Error] = types.MappingProxyType(
  {
    "misclassification": Error(misclassified, lambda means: means),
    "rmse": Error(squared, np.sqrt),
  }
)
