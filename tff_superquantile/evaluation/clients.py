"""Loss and error of every client by one batched forward pass over all their examples."""

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.client_work import local_model

# Examples in one forward pass: large enough to keep the cores busy, small enough for their caches.
BATCH_SIZE = 2048


class ClientExamples(NamedTuple):
  """The examples of many clients, one client after the other.

  Attributes:
    client_ids: One id a client, k of them.
    x: Inputs [n, ...], as the model takes them or as `decode` does.
    y: Labels [n, ...].
    offsets: int64 [k + 1]; client i owns rows offsets[i]:offsets[i + 1].
    decode: A TensorFlow function from rows of x to what the model takes; None for the identity.
  """

  client_ids: Sequence[str]
  x: np.ndarray
  y: np.ndarray
  offsets: np.ndarray
  decode: Optional[Callable[[tf.Tensor], tf.Tensor]] = None


class ClientMetrics(NamedTuple):
  """Results a client.

  Attributes:
    client_ids: One id a client, k of them.
    num_examples: int64 [k].
    loss: float64 [k], the mean loss over the client's examples; NaN without examples.
    error: float64 [k], the fraction of misclassified examples; NaN without examples.
  """

  client_ids: Sequence[str]
  num_examples: np.ndarray
  loss: np.ndarray
  error: np.ndarray


def examples_of_datasets(datasets: Sequence[tf.data.Dataset]) -> ClientExamples:
  """Stacks data sets of batches (x, y), as TFF's tutorials make them, one a client."""
  xs, ys, sizes = [], [], []
  for dataset in datasets:
    size = 0
    for batch in dataset.as_numpy_iterator():
      x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
      xs.append(x)
      ys.append(y)
      size += len(y)
    sizes.append(size)
  client_ids = [str(i) for i in range(len(sizes))]
  return ClientExamples(client_ids, np.concatenate(xs), np.concatenate(ys), np.cumsum([0, *sizes]))


def misclassified(output: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """1.0 where the prediction is wrong: the largest of several scores, or the sign of a single one.

  Args:
    output: Scores (logits), [n, classes], or [n, 1] or [n] for two classes.
    labels: [n] or [n, 1] class numbers.

  Returns:
    float32 [n].
  """
  labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)
  if _is_single_score(output):
    predicted = tf.cast(tf.reshape(output, [-1]) > 0, tf.int64)
  else:
    predicted = tf.argmax(output, axis=1)
  return tf.cast(tf.not_equal(predicted, labels), tf.float32)


def _weights_spec(model: tff.learning.models.FunctionalModel) -> Any:
  return tf.nest.map_structure(
    lambda w: tf.TensorSpec(w.shape, w.dtype), tuple(map(tuple, model.initial_weights))
  )


def num_classes(model: tff.learning.models.FunctionalModel) -> int:
  """How many classes a model tells apart: as many as it has scores, two by a single one."""
  spec = model.input_spec
  x_spec = spec["x"] if isinstance(spec, Mapping) else spec[0]
  with tf.Graph().as_default():
    predict = tf.function(
      lambda weights, x: model.predict_on_batch(weights, x, training=False), autograph=False
    ).get_concrete_function(_weights_spec(model), x_spec)
  output = predict.structured_outputs
  return 2 if _is_single_score(output) else output.shape[1]


def _is_single_score(output: tf.Tensor) -> bool:
  return output.shape.rank != 2 or output.shape[1] == 1


def build_evaluator(
  model: tff.learning.models.FunctionalModel, examples: ClientExamples
) -> Callable[[Any], ClientMetrics]:
  """Returns a function from model weights to the loss and error of every client, all of them.

  Exact: no sampling, and a batch that holds parts of several clients is taken apart by segment
  sums. The loss of an example is the model's loss of a batch of that example alone.

  Args:
    model: The model; of a Keras model, `tff.learning.models.functional_model_from_keras`.
    examples: Everybody's examples.

  Returns:
    A function of `tff.learning.models.ModelWeights`.

  Raises:
    TypeError: If the model is no `FunctionalModel`.
  """
  if not isinstance(model, tff.learning.models.FunctionalModel):
    raise TypeError(
      f"Found a {type(model).__name__} to evaluate; expected a tff.learning.models.FunctionalModel,"
      " which functional_model_from_keras makes of a Keras model."
    )
  num_clients = len(examples.client_ids)
  num_examples = np.diff(examples.offsets)
  owner = np.repeat(np.arange(num_clients), num_examples)

  loss = local_model.with_autograph(model.loss)

  def example_loss(output_and_label: Any) -> tf.Tensor:
    output, label = tf.nest.map_structure(lambda t: t[tf.newaxis], output_and_label)
    return tf.cast(loss(output=output, label=label), tf.float32)

  def rows_spec(rows: np.ndarray) -> tf.TensorSpec:
    return tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)

  signature = [_weights_spec(model), *map(rows_spec, (examples.x, examples.y, owner))]

  @tf.function(input_signature=signature, autograph=False)
  def batch_sums(weights: Any, x: tf.Tensor, y: tf.Tensor, owner: tf.Tensor) -> tf.Tensor:
    x = x if examples.decode is None else examples.decode(x)
    output = model.predict_on_batch(weights, x, training=False)
    losses = tf.vectorized_map(example_loss, (output, y))
    # float64, as many small numbers are added up.
    values = tf.cast(tf.stack([losses, misclassified(output, y)], axis=1), tf.float64)
    return tf.math.unsorted_segment_sum(values, owner, num_clients)

  # In a graph: TFF's functional models of Keras models refuse to be used elsewhere.
  with tf.Graph().as_default():
    traced_batch_sums = batch_sums.get_concrete_function()

  def evaluate(weights: Any) -> ClientMetrics:
    weights = (
      tuple(tf.convert_to_tensor(w) for w in weights.trainable),
      tuple(tf.convert_to_tensor(w) for w in weights.non_trainable),
    )
    sums = np.zeros([num_clients, 2])
    for start in range(0, len(owner), BATCH_SIZE):
      rows = slice(start, start + BATCH_SIZE)
      batch = (tf.constant(part[rows]) for part in (examples.x, examples.y, owner))
      sums += traced_batch_sums(weights, *batch).numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
      means = sums / num_examples[:, np.newaxis]
    return ClientMetrics(examples.client_ids, num_examples, means[:, 0], means[:, 1])

  return evaluate
