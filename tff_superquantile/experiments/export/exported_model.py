"""The exported model: from raw examples to probabilities, as a TensorFlow module and in Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import own_flags
from tasks import preprocessing as preprocessing_lib
from tff_superquantile import evaluation
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder


@dataclasses.dataclass(frozen=True)
class ExportedModel:
  """A trained model with all that it takes to use it.

  Attributes:
    model: The task's model.
    weights: The run's weights of it.
    preprocessing: The way from raw examples to the model's input.
    labels: The names of the classes, in the order of the probabilities; empty for numbers.
    label_scale: Mean and standard deviation of labels that are numbers; None for classes.
    columns: What the columns of a table became, a task's `columns`; "" without a table.
  """

  model: tff.learning.models.FunctionalModel
  weights: run_files.Weights
  preprocessing: preprocessing_lib.Preprocessing
  labels: Sequence[str]
  label_scale: tuple[float, float] | None = None
  columns: str = ""

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the weights by name, those of Keras where the model has Keras layers."""
    names: list[str] = []
    if self._has_keras_layers:
      names = [v.name.partition(":")[0] for v in self.to_keras().trainable_variables]
    names = names or [f"trainable_{i}" for i in range(len(self.weights.trainable))]
    names += [f"non_trainable_{i}" for i in range(len(self.weights.non_trainable))]
    arrays = (*self.weights.trainable, *self.weights.non_trainable)
    return dict(zip(names, map(np.asarray, arrays)))

  def outputs(self, x: np.ndarray) -> Mapping[str, np.ndarray]:
    """Returns `_outputs_of` a batch of the model's own input, as the run computes them."""
    weights = self.weights.trainable, self.weights.non_trainable
    scores = evaluation.build_predict(self.model)(weights, tf.constant(x))
    outputs = self._outputs_of(scores, self.preprocessing.raw_spec.dtype)
    return {name: output.numpy() for name, output in outputs.items()}

  def to_module(self, raw_spec: tf.TensorSpec | None = None) -> tf.Module:
    """Returns a module with the function `serve`, from raw examples to `_outputs_of` them."""
    raw_spec = raw_spec or self.preprocessing.raw_spec
    predict = evaluation.build_predict(self.model)
    module = tf.Module()
    module.layers = list(self.preprocessing.layers)
    variables = [
      tf.Variable(value, trainable=False, name=name) for name, value in self.to_arrays().items()
    ]
    module.weights = variables
    num_trainable = len(self.weights.trainable)

    @tf.function(input_signature=[raw_spec], autograph=False)
    def serve(raw: tf.Tensor) -> dict[str, tf.Tensor]:
      values = tuple(variable.value() for variable in variables)
      weights = values[:num_trainable], values[num_trainable:]
      num_examples = tf.shape(raw)[0]
      inputs = _with_an_example(self.preprocessing.apply(raw))
      outputs = self._outputs_of(predict(weights, inputs), raw.dtype)
      return {name: output[:num_examples] for name, output in outputs.items()}

    module.serve = serve
    return module

  @property
  def _has_keras_layers(self) -> bool:
    return getattr(self.model, "keras_layers", None) is not None

  def to_keras(self) -> tf.keras.Model:
    """Returns a Keras model from raw examples to `_outputs_of` them, of Keras' own layers alone."""
    if not self._has_keras_layers:
      raise ValueError(
        "Found a model without Keras layers; expected one of `tasks.models`: choose another"
        " --format, or give build_classifier its keras_layers."
      )
    spec = self.preprocessing.raw_spec
    raw = tf.keras.Input(spec.shape[1:], dtype=spec.dtype, name=spec.name)
    scores = _with_an_example(self.preprocessing.apply(raw))
    for layer in self.model.keras_layers():
      scores = layer(scores)
    outputs = self._outputs_of(scores, spec.dtype)
    num_examples = tf.shape(raw)[0]
    model = tf.keras.Model(raw, {name: out[:num_examples] for name, out in outputs.items()})
    for variable, value in zip(model.trainable_variables, self.weights.trainable):
      variable.assign(np.reshape(value, variable.shape))
    return model

  def _outputs_of(self, scores: Any, raw_dtype: tf.DType) -> dict[str, Any]:
    """Returns what an exported model says of a batch, from scores [n, classes], [n] or [n, 1].

    These are "logits", the scores, and "probabilities", float32 [n, classes] with rows that sum to
    one; for numbers "prediction", [n], in the unit of the labels and the type of raw numbers.
    """
    if self.label_scale is not None:
      mean, std = self.label_scale
      return {"prediction": tf.cast(tf.reshape(scores, [-1]), raw_dtype) * std + mean}
    if evaluation.is_single_score(scores):
      flat = tf.reshape(scores, [-1])
      # Not 1 - p, which is zero where p is nearly one.
      probabilities = tf.stack([tf.sigmoid(-flat), tf.sigmoid(flat)], axis=1)
    else:
      probabilities = tf.nn.softmax(scores)
    return {"logits": tf.identity(scores), "probabilities": probabilities}


def _with_an_example(inputs: tf.Tensor) -> tf.Tensor:
  """Returns a batch, or a blank example for an empty one, which oneDNN's convolutions refuse."""
  shape = tf.shape(inputs)
  missing = tf.concat([tf.maximum(1 - shape[:1], 0), shape[1:]], 0)
  padded = tf.concat([inputs, tf.zeros(missing, inputs.dtype)], 0)
  return tf.reshape(padded, [-1, *inputs.shape[1:]])  # Whose shape but for the batch is known.


def load(run: run_folder.Run, config: run_config.RunConfig) -> ExportedModel:
  """Returns the model of a finished run; no client's data are read.

  Args:
    run: The finished run.
    config: Its config.

  Returns:
    The model with its weights, preprocessing and labels.

  Raises:
    ValueError: If the run's weights do not fit the model, or the labels are not as many as the
      classes.
  """
  if run.columns:
    config = run_config.with_values(config, data_dir="")  # The table need not be there.
  task = finished_run.get_task(run, config)
  if task.preprocessing is None:
    model = task.build_model(config.seed)
    preprocessing = preprocessing_lib.none(_x_spec(model, config.task.name))
  else:
    preprocessing = task.preprocessing(config.request())
    model = task.build_model_for(preprocessing, config.seed)
  num_classes = 0 if task.label_scale is not None else evaluation.num_classes(model)
  labels = tuple(task.labels) or tuple(map(str, range(num_classes)))
  if len(labels) != num_classes:
    raise ValueError(
      f"Found {len(labels)} labels of the task {config.task.name} for {num_classes} classes;"
      " expected a name for each."
    )
  weights = run.weights_for(model)
  return ExportedModel(model, weights, preprocessing, labels, task.label_scale, task.columns)


def tuning(model: ExportedModel, config: run_config.RunConfig) -> formats.Tuning:
  """Returns how clients tune a run's model: as the run did, or as they choose.

  Args:
    model: The run's model.
    config: The run's config.

  Returns:
    The settings that stand beside the model.
  """
  own = config.task.own
  of_table = own if isinstance(own, own_flags.TableFlags) else own_flags.TableFlags()
  asked = config.personalization or personal.Personalization(epochs=personal.CHOSEN)
  return formats.Tuning(
    tuple(asked.choices),
    asked.learning_rate or config.final_learning_rate,
    asked.proximal_weight,
    config.local.batch_size,
    config.local.l2,
    model.label_scale,
    len(model.labels),
    len(model.weights.trainable),
    of_table.missing,
    of_table.rows_without_label,
  )


def _x_spec(model: tff.learning.models.FunctionalModel, task: str) -> tf.TensorSpec:
  spec = model.input_spec
  x_spec = spec["x"] if isinstance(spec, Mapping) else spec[0]
  if not isinstance(x_spec, tf.TensorSpec):
    raise ValueError(
      f"Found a model of {task} with the input {x_spec}; expected a single tensor: give the task a"
      " preprocessing."
    )
  return x_spec
