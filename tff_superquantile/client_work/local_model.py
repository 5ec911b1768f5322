"""Views TFF's two kinds of model as functions of the weights, inside a client's graph."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

Model: TypeAlias = (
  Callable[[], tff.learning.models.VariableModel] | tff.learning.models.FunctionalModel
)
ModelWeights: TypeAlias = tff.learning.models.ModelWeights


def leading_dimension(batch: Any) -> tf.Tensor:
  """Returns the number of examples in a batch, int32 []: its first tensor's first dimension."""
  return tf.shape(tf.nest.flatten(batch)[0])[0]


def with_autograph(method: Callable[..., Any]) -> Callable[..., Any]:
  """Converts a model's function by autograph, so that Python's `if` may stand on tensors.

  The code around it needs no conversion, which would take seconds to trace; nor does one that says
  so by the attribute `needs_autograph`.
  """
  is_traced = isinstance(method, tf.types.experimental.GenericFunction)
  if is_traced or not getattr(method, "needs_autograph", True):
    return method

  @tf.function
  def converted(*args: Any, **kwargs: Any) -> Any:
    return method(*args, **kwargs)

  return converted


def _scaled_gradients(tape: tf.GradientTape, loss: tf.Tensor, sources: Any, scale: Any) -> Any:
  """Returns gradients of scale times the loss: a number is multiplied, and no gradient."""
  return tape.gradient(loss, sources, output_gradients=tf.cast(scale, loss.dtype))


class LocalModel(abc.ABC):
  """Computes losses and gradients in a client's graph, of `ModelWeights` of tensors.

  Attributes:
    has_linear_gradient: Whether gradients of a multiple of the loss are known to be that multiple.
  """

  has_linear_gradient = False

  @abc.abstractmethod
  def load(self, weights: ModelWeights) -> None:
    """Sets the model's weights, before any other method is called."""

  @abc.abstractmethod
  def loss(self, weights: ModelWeights, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (mean loss float32 [], number of examples int64 []), as in evaluation."""

  @abc.abstractmethod
  def gradients(
    self, weights: ModelWeights, metrics: Any, batch: Any, scale: tf.Tensor
  ) -> tuple[Any, Any, tf.Tensor]:
    """Returns (gradients of `scale` times the loss, metrics, number of examples int64 []).

    The gradients are structured as weights.trainable; `scale` is float32 [].
    """

  @abc.abstractmethod
  def initial_metrics(self) -> Any:
    """Returns the initial state of the training metrics, which `gradients` updates."""

  @abc.abstractmethod
  def unfinalized_metrics(self, metrics: Any, discard: tf.Tensor) -> Any:
    """Returns the metrics to be summed over clients, the initial ones if `discard`."""


class _FunctionalLocalModel(LocalModel):
  """Views a `tff.learning.models.FunctionalModel`, which keeps no state."""

  def __init__(self, model: tff.learning.models.FunctionalModel):
    self._model = model
    self.has_linear_gradient = getattr(model, "has_linear_gradient", False)
    self._loss = with_autograph(model.loss)
    self._update_metrics_state = with_autograph(model.update_metrics_state)

  def load(self, weights: ModelWeights) -> None:
    del weights  # They are passed to every call.

  def _predict(
    self, weights: ModelWeights, batch: Any, training: bool
  ) -> tuple[tff.learning.models.BatchOutput, Any]:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, Mapping) else batch
    output = self._model.predict_on_batch(
      (weights.trainable, weights.non_trainable), x, training=training
    )
    loss = self._loss(output=output, label=y)
    num_examples = tf.shape(tf.nest.flatten(output)[0])[0]
    return tff.learning.models.BatchOutput(loss, output, num_examples), y

  def loss(self, weights: ModelWeights, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
    output, _ = self._predict(weights, batch, training=False)
    return output.loss, tf.cast(output.num_examples, tf.int64)

  def gradients(
    self, weights: ModelWeights, metrics: Any, batch: Any, scale: tf.Tensor
  ) -> tuple[Any, Any, tf.Tensor]:
    with tf.GradientTape() as tape:
      tape.watch(weights.trainable)
      output, labels = self._predict(weights, batch, training=True)
    gradients = _scaled_gradients(tape, output.loss, weights.trainable, scale)
    metrics = self._update_metrics_state(metrics, batch_output=output, labels=labels)
    return gradients, metrics, tf.cast(output.num_examples, tf.int64)

  def initial_metrics(self) -> Any:
    return self._model.initialize_metrics_state()

  def unfinalized_metrics(self, metrics: Any, discard: tf.Tensor) -> Any:
    initial = self.initial_metrics()
    return tf.nest.map_structure(lambda new, old: tf.where(discard, old, new), metrics, initial)


class _VariableLocalModel(LocalModel):
  """Views a `tff.learning.models.VariableModel`, whose variables are assigned before each use."""

  def __init__(self, model: tff.learning.models.VariableModel):
    self._model = model
    self._forward_pass = with_autograph(model.forward_pass)
    self._variables = tff.learning.models.ModelWeights.from_model(model)

  def load(self, weights: ModelWeights) -> None:
    tf.nest.map_structure(lambda v, w: v.assign(w), self._variables, weights)

  def _assign_trainable(self, weights: ModelWeights) -> None:
    for variable, value in zip(
      tf.nest.flatten(self._variables.trainable), tf.nest.flatten(weights.trainable)
    ):
      variable.assign(value)

  def _num_examples(self, output: tff.learning.models.BatchOutput) -> tf.Tensor:
    if output.num_examples is None:
      return tf.shape(output.predictions, out_type=tf.int64)[0]
    return tf.cast(output.num_examples, tf.int64)

  def loss(self, weights: ModelWeights, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
    self._assign_trainable(weights)
    output = self._forward_pass(batch, training=False)
    return output.loss, self._num_examples(output)

  def gradients(
    self, weights: ModelWeights, metrics: Any, batch: Any, scale: tf.Tensor
  ) -> tuple[Any, Any, tf.Tensor]:
    self._assign_trainable(weights)
    with tf.GradientTape() as tape:
      output = self._forward_pass(batch, training=True)
    gradients = _scaled_gradients(tape, output.loss, self._variables.trainable, scale)
    return tuple(tf.nest.flatten(gradients)), metrics, self._num_examples(output)

  def initial_metrics(self) -> Any:
    return ()  # The model's variables hold them.

  def unfinalized_metrics(self, metrics: Any, discard: tf.Tensor) -> Any:
    del metrics
    tf.cond(discard, lambda: (self._model.reset_metrics(), 0)[1], lambda: 0)
    return self._model.report_local_unfinalized_metrics()


def construct(
  model_fn: Callable[[], tff.learning.models.VariableModel],
) -> tff.learning.models.VariableModel:
  """Returns the model that `model_fn` returns; refuses all else by a sentence."""
  if not callable(model_fn):
    raise TypeError(
      f"Found a {type(model_fn).__name__} for model_fn, which is not a callable; expected a"
      " tff.learning.models.FunctionalModel or a no-argument function that returns a"
      " tff.learning.models.VariableModel."
    )
  model = model_fn()
  if not isinstance(model, tff.learning.models.VariableModel):
    raise TypeError(
      f"Found for model_fn a callable, but the callable returned type: {type(model).__name__};"
      " expected a tff.learning.models.VariableModel."
    )
  return model


def build_local_model(model_fn: Model) -> LocalModel:
  """Builds the model's view in the current graph; a `VariableModel` gets its variables there."""
  if isinstance(model_fn, tff.learning.models.FunctionalModel):
    return _FunctionalLocalModel(model_fn)
  return _VariableLocalModel(construct(model_fn))


class ModelDescription(NamedTuple):
  """Describes a model before a client's graph is built: types of its `ModelWeights` and a batch."""

  weights_type: tff.Type
  input_spec: Any
  metric_finalizers: Any


def describe(model_fn: Model) -> ModelDescription:
  """Describes a model (as in `algorithms.Options`) by constructing it once, which may take long."""
  if isinstance(model_fn, tff.learning.models.FunctionalModel):
    weights_type = build_initial_weights_fn(model_fn).type_signature.result
    return ModelDescription(weights_type, model_fn.input_spec, model_fn.finalize_metrics)
  with tf.Graph().as_default():
    model = construct(model_fn)
    weights_type = tff.learning.models.weights_type_from_model(model)
    return ModelDescription(weights_type, model.input_spec, model.metric_finalizers())


def build_initial_weights_fn(model_fn: Model) -> tff.Computation:
  """Builds the computation ( -> ModelWeights) of the model's initial weights."""
  if isinstance(model_fn, tff.learning.models.FunctionalModel):

    @tff.tensorflow.computation
    def initial_weights():
      trainable, non_trainable = model_fn.initial_weights
      return ModelWeights(
        tuple(tf.convert_to_tensor(w) for w in trainable),
        tuple(tf.convert_to_tensor(w) for w in non_trainable),
      )

  else:

    @tff.tensorflow.computation
    def initial_weights():
      return ModelWeights.from_model(construct(model_fn))

  return initial_weights
