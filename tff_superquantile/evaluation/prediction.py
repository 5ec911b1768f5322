"""Traces the predictions of a model from its weights and examples."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.evaluation import errors


def weights_spec(model: tff.learning.models.FunctionalModel) -> Any:
  """Returns the specification of a model's weights, as `as_tensors` structures them."""
  return tf.nest.map_structure(
    lambda w: tf.TensorSpec(w.shape, w.dtype), tuple(map(tuple, model.initial_weights))
  )


def as_tensors(weights: tff.learning.models.ModelWeights) -> tuple[tuple, tuple]:
  """Returns weights as tuples of tensors (trainable, non-trainable), as models take them."""
  trainable, non_trainable = (
    tuple(map(tf.convert_to_tensor, part)) for part in (weights.trainable, weights.non_trainable)
  )
  return trainable, non_trainable


def build_predict(model: tff.learning.models.FunctionalModel) -> Any:
  """Traces a model's evaluation, as a `ConcreteFunction` from (weights, x) to scores.

  Args:
    model: The model; its `input_spec` has x of shape [None, ...].

  Returns:
    A `ConcreteFunction` from (weights, x [n, ...]) to scores: [n, classes], or [n, 1] or [n].
  """
  spec = model.input_spec
  x_spec = spec["x"] if isinstance(spec, Mapping) else spec[0]
  # TFF's functional models of Keras models refuse to be traced outside of a graph.
  with tf.Graph().as_default():
    return tf.function(
      lambda weights, x: model.predict_on_batch(weights, x, training=False), autograph=False
    ).get_concrete_function(weights_spec(model), x_spec)


def num_classes(model: tff.learning.models.FunctionalModel) -> int:
  """Returns the number of classes of a model: that of its scores, or two for a single score.

  Args:
    model: The model, of scores [n, classes], [n, 1] or [n].

  Returns:
    The number of classes.
  """
  output = build_predict(model).structured_outputs
  return 2 if errors.is_single_score(output) else output.shape[1]
