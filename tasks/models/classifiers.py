"""Builds classifiers with softmax or logistic loss, of any function that scores."""

import collections
from collections.abc import Callable, Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def _initialize_metrics() -> collections.OrderedDict:
  return collections.OrderedDict(
    loss_sum=tf.constant(0.0, tf.float32), num_examples=tf.constant(0, tf.int64)
  )


def _update_metrics(
  state: collections.OrderedDict,
  labels: tf.Tensor,
  batch_output: tff.learning.models.BatchOutput,
  sample_weight: tf.Tensor | None = None,
) -> collections.OrderedDict:
  del labels, sample_weight  # The batch's mean loss and its size say it all.
  count = tf.convert_to_tensor(batch_output.num_examples)
  return collections.OrderedDict(
    loss_sum=state["loss_sum"] + batch_output.loss * tf.cast(count, tf.float32),
    num_examples=state["num_examples"] + tf.cast(count, tf.int64),
  )


def _finalize_metrics(state: collections.OrderedDict) -> collections.OrderedDict:
  # Sums over clients are finalized just as one client's are.
  return collections.OrderedDict(
    loss=tf.math.divide_no_nan(state["loss_sum"], tf.cast(state["num_examples"], tf.float32)),
    num_examples=state["num_examples"],
  )


def mean(losses: tf.Tensor, sample_weight: tf.Tensor | None) -> tf.Tensor:
  """Returns the mean of losses [n], weighted if there are weights [n]."""
  if sample_weight is None:
    return tf.reduce_mean(losses)
  weights = tf.cast(sample_weight, losses.dtype)
  return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))


@tf.custom_gradient
def _mean_of_all(logits: tf.Tensor, labels: tf.Tensor) -> Any:
  """Computes the mean multinomial logistic loss; its gradient is a product, and not nine ops."""
  losses, slopes = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
  count = tf.cast(tf.shape(logits)[0], losses.dtype)
  return tf.reduce_sum(losses) / count, lambda upstream: (slopes * (upstream / count), None)


def mean_cross_entropy(
  output: tf.Tensor, label: tf.Tensor, sample_weight: tf.Tensor | None = None
) -> tf.Tensor:
  """Returns the multinomial logistic loss, mean over a batch: logits [n, classes], labels [n]."""
  if sample_weight is None:
    return _mean_of_all(output, label)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
  return mean(losses, sample_weight)


def mean_binary_cross_entropy(
  output: tf.Tensor, label: tf.Tensor, sample_weight: tf.Tensor | None = None
) -> tf.Tensor:
  """Returns the binary logistic loss, mean over a batch: logits [n], labels [n] of 0 and 1."""
  labels = tf.cast(label, output.dtype)
  return mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, output), sample_weight)


KerasLayers = Callable[[], Sequence[tf.keras.layers.Layer]]


def _as_it_is(method: Any) -> Any:
  return tf.function(method.python_function, autograph=False)


class Classifier(tff.learning.models.FunctionalModel):
  """A functional model that can also be written down as Keras layers.

  Attributes:
    keras_layers: Builds new layers of Keras, one after the other, which compute the same scores.
      Their trainable variables have the model's weights in their order, up to dimensions of size
      one. None if nobody has written them down.
    has_linear_gradient: Whether the gradient of c times the loss, as TensorFlow finds it, is known
      to be c times that of the loss. A step may then multiply the loss by its rate. One that a
      `tf.custom_gradient` clips is not.
  """

  # Autograph has nothing to convert in these.
  predict_on_batch = _as_it_is(tff.learning.models.FunctionalModel.predict_on_batch)
  initialize_metrics_state = _as_it_is(tff.learning.models.FunctionalModel.initialize_metrics_state)
  update_metrics_state = _as_it_is(tff.learning.models.FunctionalModel.update_metrics_state)
  finalize_metrics = _as_it_is(tff.learning.models.FunctionalModel.finalize_metrics)

  def __init__(
    self,
    *,
    keras_layers: KerasLayers | None = None,
    has_linear_gradient: bool = False,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.keras_layers = keras_layers
    self.has_linear_gradient = has_linear_gradient

  def loss(self, output: Any, label: Any, sample_weight: Any = None) -> tf.Tensor:
    return super().loss(output, label, sample_weight)

  loss.needs_autograph = False  # type: ignore[attr-defined]


def build_classifier(
  initial_weights: Sequence[np.ndarray],
  output_fn: Callable[[Sequence[Any], Any], tf.Tensor],
  input_spec: tuple[Any, tf.TensorSpec],
  keras_layers: KerasLayers | None = None,
  loss_fn: Callable[..., tf.Tensor] = mean_cross_entropy,
  *,
  has_linear_gradient: bool = False,
) -> Classifier:
  """Builds a model without non-trainable weights, with mean loss and number of examples as metrics.

  Args:
    initial_weights: The trainable weights, in the order in which `output_fn` takes them.
    output_fn: A pure TensorFlow function of (weights, x), the model's output, [n] or [n, ...].
    input_spec: Of x (or a structure of them) and of y.
    keras_layers: As in `Classifier`; None for none.
    loss_fn: Takes (output, label) and perhaps `sample_weight` [n], and returns the batch's mean
      loss.
    has_linear_gradient: As in `Classifier`, of `output_fn` and `loss_fn`.

  Returns:
    The model.
  """

  @tf.function(autograph=False)
  def predict_on_batch(model_weights: tuple, x: Any, training: bool = True) -> tf.Tensor:
    del training  # The same in training and evaluation.
    trainable, _ = model_weights
    return output_fn(trainable, x)

  # Its own functions, as each keeps the graphs in which it is called.
  metrics = (_initialize_metrics, _update_metrics, _finalize_metrics)
  return Classifier(
    keras_layers=keras_layers,
    has_linear_gradient=has_linear_gradient,
    initial_weights=(tuple(initial_weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss_fn,
    metrics_fns=tuple(tf.function(fn, autograph=False) for fn in metrics),
    input_spec=input_spec,
  )


def count_features(x_spec: tf.TensorSpec) -> int:
  """Returns the size of an example of x [None, ...]; a `ValueError` if that is not known."""
  if x_spec.shape.rank is None or not x_spec.shape[1:].is_fully_defined():
    raise ValueError(
      f"Found an input of shape {x_spec.shape}; expected all but the first dimension to be known."
    )
  return math.prod(x_spec.shape[1:])


def build_linear_classifier(
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec], num_classes: int, *, intercept: bool
) -> Classifier:
  """Builds softmax regression on the flattened x from zero weights.

  The paper's EMNIST model (W in R^{62 x 784}, no intercept) and its synthetic one (with intercept).

  Args:
    input_spec: Of x, float32 [None, ...], and of y, int32 [None].
    num_classes: The number of classes; labels are below it.
    intercept: Whether there is a bias.

  Returns:
    The model, whose weights are W [features, classes] and, with an intercept, b [classes].

  Raises:
    ValueError: If a dimension of x but the first is unknown.
  """
  num_features = count_features(input_spec[0])
  initial_weights: list[np.ndarray] = [np.zeros((num_features, num_classes), np.float32)]
  if intercept:
    initial_weights.append(np.zeros(num_classes, np.float32))

  def logits(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    products = tf.matmul(tf.reshape(x, [-1, num_features]), weights[0])
    return products + weights[1] if intercept else products

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    dense = tf.keras.layers.Dense(num_classes, use_bias=intercept, name="dense")
    return [tf.keras.layers.Flatten(), dense]

  return build_classifier(
    initial_weights, logits, input_spec, keras_layers, has_linear_gradient=True
  )


def build_logistic_regression(
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec], *, intercept: bool
) -> Classifier:
  """Builds binary logistic regression on the flattened x from zero weights.

  The paper's linear Sent140 model (w in R^50, no intercept).

  Args:
    input_spec: Of x, float32 [None, ...], and of y, whose labels are 0 or 1.
    intercept: Whether there is a bias.

  Returns:
    The model, whose weights are w [features] and, with an intercept, b [].

  Raises:
    ValueError: If a dimension of x but the first is unknown.
  """
  num_features = count_features(input_spec[0])
  initial_weights: list[np.ndarray] = [np.zeros(num_features, np.float32)]
  if intercept:
    initial_weights.append(np.zeros([], np.float32))

  def logit(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    products = tf.linalg.matvec(tf.reshape(x, [-1, num_features]), weights[0])
    return products + weights[1] if intercept else products

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    dense = tf.keras.layers.Dense(1, use_bias=intercept, name="dense")
    return [tf.keras.layers.Flatten(), dense, tf.keras.layers.Reshape(())]

  return build_classifier(
    initial_weights,
    logit,
    input_spec,
    keras_layers,
    mean_binary_cross_entropy,
    has_linear_gradient=True,
  )
