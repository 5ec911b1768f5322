"""Computes the loss and error of every client by batched forward passes over all its examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import types
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import distribution
from tff_superquantile import measures as measures_lib
from tff_superquantile.client_work import local_model
from tff_superquantile.evaluation import errors
from tff_superquantile.evaluation import examples as examples_lib
from tff_superquantile.evaluation import prediction
from tff_superquantile.measures import measure as measure_lib
from tff_superquantile.simulation import client_files

# Examples in one forward pass: large enough to keep the cores busy, small enough for their caches.
BATCH_SIZE = 2048


class ClientMetrics(NamedTuple):
  """Holds the loss and error of each client.

  Attributes:
    client_ids: The ids of the k clients.
    num_examples: int64 [k].
    loss: float64 [k], the mean loss over the client's examples; NaN without examples.
    error: float64 [k], the fraction of misclassified examples, or the root mean squared error of
      labels that are numbers; NaN without examples.
    measures: Of `tff_superquantile.measures.MEASURES` float64 [k] each, by name; NaN where a client
      has none. Empty unless they were asked for.
  """

  client_ids: Sequence[str]
  num_examples: np.ndarray
  loss: np.ndarray
  error: np.ndarray
  measures: Mapping[str, np.ndarray] = types.MappingProxyType({})

  def columns(self) -> dict[str, Any]:
    """Returns the values of the clients by the names that they have in files."""
    columns = self._asdict()
    of_measures = columns.pop("measures")
    return {"client_id": columns.pop("client_ids"), **columns, **of_measures}

  def to_frame(self, confidence: float | None = None) -> Any:
    """Returns a `pandas.DataFrame` with a row for each client: `columns`, by the clients' ids.

    With a `confidence`, in [0.5, 1), `share_up_to_loss` and `share_up_to_error` are columns, too:
    the share of new clients that, at least, has none above this client's (`upper_band`).
    """
    import pandas as pd

    columns = self.columns()
    if confidence is not None:
      for name in ("loss", "error"):
        band = distribution.upper_band(columns[name], confidence)
        columns[f"share_up_to_{name}"] = band.share(columns[name])
    return pd.DataFrame(columns).set_index("client_id")


def _build_of_output(
  model: tff.learning.models.FunctionalModel, error: str
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Builds a TensorFlow function from a model's output and labels to losses and errors.

  They are float64 [n, 2], which keeps sums over many examples precise: the loss of a batch of each
  example alone, and the `of_examples` of `error`, a key of `errors.ERRORS`.
  """
  loss_fn = local_model.with_autograph(model.loss)
  error_fn = errors.ERRORS[error].of_examples

  def example_loss(output_and_label: Any) -> tf.Tensor:
    output, label = tf.nest.map_structure(lambda t: t[tf.newaxis], output_and_label)
    return tf.cast(loss_fn(output=output, label=label), tf.float32)

  def losses_and_errors(output: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    losses = tf.vectorized_map(example_loss, (output, y))
    return tf.cast(tf.stack([losses, error_fn(output, y)], axis=1), tf.float64)

  return losses_and_errors


class Measured(NamedTuple):
  """Holds all measures of clients.

  Attributes:
    of_clients: Those of each client.
    pooled: Those of all their examples together, by name, with "num_examples" and, for classes, by
      the class's number, "recall", the share of its examples that are found, and "share", that of
      all examples that have it. They make sense where clients hold few examples of a rare class.
  """

  of_clients: ClientMetrics
  pooled: Mapping[str, Any]


def measured(
  of_clients: ClientMetrics,
  predictions: measure_lib.Predictions,
  error: str,
  names: Collection[str] | None = None,
) -> Measured:
  """Computes measures of clients, and of their examples together.

  Args:
    of_clients: Their losses and errors.
    predictions: Those of their examples, one client after the other.
    error: A key of `errors.ERRORS`.
    names: Which measures beside loss and error; None for all that the error has.

  Returns:
    The measures.
  """
  offsets = np.cumsum([0, *of_clients.num_examples])
  own = [
    measure_lib.Predictions(predictions.values[start:end], predictions.labels[start:end])
    for start, end in zip(offsets, offsets[1:])
  ]
  measures = {
    name: np.array([measures_lib.MEASURES[name].of(of_client) for of_client in own])
    for name in _names(error, names)
  }
  of_all = pooled(of_clients, predictions, error, names)
  return Measured(of_clients._replace(measures=measures), of_all)


def joined(
  client_ids: Sequence[str],
  of_clients: Sequence[tuple[ClientMetrics, measure_lib.Predictions]],
  error: str,
) -> Measured:
  """Computes all measures of clients from the `Evaluator.predict_for` of each, at least one."""
  metrics, predictions = zip(*of_clients)
  sizes, losses, errors_of_clients = (
    np.concatenate([getattr(of_client, name) for of_client in metrics])
    for name in ("num_examples", "loss", "error")
  )
  return measured(
    ClientMetrics(client_ids, sizes, losses, errors_of_clients),
    measure_lib.Predictions(*map(np.concatenate, zip(*predictions))),
    error,
  )


def _names(error: str, names: Collection[str] | None) -> list[str]:
  """Returns those of the measures beside loss and error that are asked for."""
  of_kind = measures_lib.of_kind(error)[len(measures_lib.OF_EVALUATIONS) :]
  return [name for name in of_kind if names is None or name in names]


def pooled(
  of_clients: ClientMetrics,
  predictions: measure_lib.Predictions,
  error: str,
  names: Collection[str] | None = None,
) -> dict[str, Any]:
  """Returns `Measured.pooled` of clients; arguments as of `measured`.

  Args:
    of_clients: Losses and errors of n clients, float64 [n].
    predictions: Those of their examples, one client after the other.
    error: A key of `errors.ERRORS`.
    names: Which measures beside loss and error; None for all that the error has.

  Returns:
    The measures of all examples together, by name: `loss` in nats, `error` as a fraction or an
    RMSE,
    NaN where no client has examples.
  """
  sizes, are_numbers = of_clients.num_examples, error == measure_lib.NUMBERS
  is_any = sizes > 0
  of_examples = of_clients.error**2 if are_numbers else of_clients.error
  means = {
    name: float(np.average(values[is_any], weights=sizes[is_any])) if is_any.any() else np.nan
    for name, values in (("loss", of_clients.loss), ("error", of_examples))
  }
  if are_numbers:
    means["error"] **= 0.5
  of_classes = {}
  if not are_numbers and len(predictions.labels):
    recalls, counts = measure_lib.recalls(predictions), np.bincount(predictions.labels)
    of_classes = {
      "recall": {str(c): recall for c, recall in recalls.items()},
      "share": {str(c): float(counts[c] / counts.sum()) for c in recalls},
    }
  return {
    "num_examples": int(sizes.sum()),
    **means,
    **{name: measures_lib.MEASURES[name].of(predictions) for name in _names(error, names)},
    **of_classes,
  }


class Evaluator:
  """Computes the loss and error of every client from `tff.learning.models.ModelWeights`."""

  def __init__(
    self,
    examples: examples_lib.ClientExamples,
    of_batch: Callable[..., tuple[tf.Tensor, tf.Tensor]],
    error: str,
  ):
    """Initializes an evaluator, whose error is a key of `errors.ERRORS`.

    `of_batch` is a TensorFlow function from (weights, x, y, the clients of the rows, the number of
    clients) to sums of losses and errors, float64 [clients, 2], and the model's outputs.
    """
    self._examples = examples
    self.of_batch = of_batch
    self.error = error
    self._num_examples = np.diff(examples.offsets)
    self._owner = np.repeat(np.arange(len(self._num_examples)), self._num_examples)

  def __call__(self, weights: tff.learning.models.ModelWeights) -> ClientMetrics:
    """Returns the loss and error of every client."""
    return self._evaluate(weights, None)

  def predict(
    self, weights: tff.learning.models.ModelWeights
  ) -> tuple[ClientMetrics, measure_lib.Predictions]:
    """Returns the loss and error of every client, and the predictions for all their examples."""
    outputs: list[np.ndarray] = []
    of_clients = self._evaluate(weights, outputs)
    of_examples = np.concatenate(outputs or [np.empty([0, 1])])
    return of_clients, measure_lib.of_outputs(of_examples, self._examples.y, self.error)

  def predict_for(
    self, weights: tff.learning.models.ModelWeights, x: np.ndarray, y: np.ndarray
  ) -> tuple[ClientMetrics, measure_lib.Predictions]:
    """Returns what `predict` does, for one client with these examples in place of its own."""
    examples = self._examples._replace(client_ids=[""], x=x, y=y, offsets=np.array([0, len(y)]))
    return Evaluator(examples, self.of_batch, self.error).predict(weights)

  def measure(
    self, weights: tff.learning.models.ModelWeights, names: Collection[str] | None = None
  ) -> Measured:
    """Returns measures of the clients, and of their examples together, as `measured` does."""
    return measured(*self.predict(weights), self.error, names)

  def _evaluate(
    self, weights: tff.learning.models.ModelWeights, outputs: list[np.ndarray] | None
  ) -> ClientMetrics:
    """Evaluates all clients; adds the outputs of batches to `outputs` unless it is None."""
    tensors = prediction.as_tensors(weights)
    sums = np.zeros([len(self._num_examples), 2])
    for start in range(0, len(self._owner), BATCH_SIZE):
      rows = slice(start, start + BATCH_SIZE)
      parts = self._examples.x, self._examples.y, self._owner
      batch = (tf.constant(part[rows]) for part in parts)
      of_rows, output = self.of_batch(tensors, *batch, tf.constant(len(sums)))
      sums += of_rows.numpy()
      if outputs is not None:
        outputs.append(output.numpy())
    with np.errstate(invalid="ignore", divide="ignore"):
      means = sums / self._num_examples[:, np.newaxis]
    error = errors.ERRORS[self.error].of_means(means[:, 1])
    return ClientMetrics(self._examples.client_ids, self._num_examples, means[:, 0], error)


def _build_of_variables(
  model_fn: Callable[[], tff.learning.models.VariableModel], error: str
) -> tuple[Any, Callable[..., tuple[tf.Tensor, tf.Tensor]]]:
  """Builds, for a `VariableModel`, whose batches are clients, its weights' types and `of_rows`."""
  model = local_model.construct(model_fn)
  forward_pass = local_model.with_autograph(model.forward_pass)
  of_model = tff.learning.models.ModelWeights.from_model(model)
  variables = tuple(of_model.trainable), tuple(of_model.non_trainable)

  def evaluate(x: tf.Tensor, y: tf.Tensor) -> tff.learning.models.BatchOutput:
    spec, parts = model.input_spec, {"x": x, "y": y}
    is_named = isinstance(spec, Mapping)
    batch = type(spec)((name, parts[name]) for name in spec) if is_named else (x, y)
    return forward_pass(batch, training=False)

  def of_rows(
    weights: Any, x: tf.Tensor, y: tf.Tensor, owner: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, weights)
    _, _, counts = tf.unique_with_counts(owner)
    ends = tf.cumsum(counts)

    def loss(bounds: tf.Tensor) -> tf.Tensor:
      rows = slice(bounds[0], bounds[1])
      return tf.cast(evaluate(x[rows], y[rows]).loss, tf.float32)

    bounds = tf.stack([ends - counts, ends], axis=1)
    losses = tf.map_fn(loss, bounds, fn_output_signature=tf.float32)
    output = evaluate(x, y).predictions
    rows = tf.stack([tf.repeat(losses, counts), errors.ERRORS[error].of_examples(output, y)], 1)
    return tf.cast(rows, tf.float64), output

  return tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), variables), of_rows


def build_evaluator(
  model: local_model.Model,
  examples: examples_lib.ClientExamples,
  like: Evaluator | None = None,
  error: str = "misclassification",
) -> Evaluator:
  """Builds a function from model weights to the loss and error of every client.

  It is exact: nothing is sampled, and segment sums take apart a batch that holds parts of several
  clients. The loss of an example is the model's loss of a batch of that example alone; of a
  `model_fn`, whose models tell the loss of batches, that of a batch of the client's examples.

  Args:
    model: What a learning process takes for `model_fn`: a `tff.learning.models.FunctionalModel`, or
      a no-argument function that returns a `tff.learning.models.VariableModel`, such as a Keras
      model's. It is called once.
    examples: The examples of all clients.
    like: An evaluator of the same model on other clients, whose examples have the same types and
      are decoded alike: its trace and its error are used again. None to trace.
    error: "misclassification", or "rmse" for labels that are numbers.

  Returns:
    A function of `tff.learning.models.ModelWeights`.

  Raises:
    TypeError: If the model is neither.
  """
  if like is not None:
    return Evaluator(examples, like.of_batch, like.error)
  if isinstance(model, tff.learning.models.FunctionalModel):
    of_output = _build_of_output(model, error)
    spec, graph = (
      prediction.weights_spec(model),
      tf.Graph().as_default(),
    )  # As in `prediction`.

    def of_rows(
      weights: Any, x: tf.Tensor, y: tf.Tensor, owner: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
      del owner
      output = model.predict_on_batch(weights, x, training=False)
      return of_output(output, y), output

  else:
    spec, of_rows = _build_of_variables(model, error)
    graph = contextlib.nullcontext()
  owner_spec, number_spec = tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int32)
  signature = [spec, *examples.specs(), owner_spec, number_spec]

  @tf.function(input_signature=signature, autograph=False)
  def of_batch(
    weights: Any, x: tf.Tensor, y: tf.Tensor, owner: tf.Tensor, num_clients: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    rows, output = of_rows(weights, examples.decoded(x), y, owner)
    return tf.math.unsorted_segment_sum(rows, owner, num_clients), output

  with graph:
    return Evaluator(examples, of_batch.get_concrete_function(), error)


def build_evaluators(
  model: tff.learning.models.FunctionalModel,
  splits: Mapping[str, client_files.ClientFiles],
  error: str = "misclassification",
) -> dict[str, Evaluator]:
  """Builds an evaluator of each split's clients, whose examples are read into memory.

  Args:
    model: The model.
    splits: The clients by the names of splits; those whose files are alike share a trace.
    error: As in `build_evaluator`.

  Returns:
    The evaluators by the names of splits.
  """
  evaluators: dict[str, Evaluator] = {}
  by_kind: dict[tuple, Evaluator] = {}
  for split, files in splits.items():
    kind = (files.x_shape, files.x_dtype, files.x_scale)
    examples = examples_lib.examples_of_files(files)
    evaluators[split] = build_evaluator(model, examples, by_kind.get(kind), error)
    by_kind.setdefault(kind, evaluators[split])
  return evaluators
