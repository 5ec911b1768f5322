"""Evaluates the clients of a task's splits, in memory or where TFF's context computes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import rows
from tff_superquantile.client_work import local_model
from tff_superquantile.evaluation import clients
from tff_superquantile.evaluation import errors
from tff_superquantile.evaluation import examples as examples_lib
from tff_superquantile.simulation import client_files


def build_federated_evaluator(
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  error: str = "misclassification",
) -> Callable[[Any], clients.ClientMetrics]:
  """Builds what `build_evaluator` builds, as a federated computation over client files.

  Args:
    model: The model.
    files: The examples of all clients.
    error: As in `build_evaluator`.

  Returns:
    A function of `tff.learning.models.ModelWeights`.
  """
  read = client_files.build_examples_fn(files, shuffle=False)
  losses_and_errors = clients.build_losses_and_errors(model, error)
  weights_type = local_model.describe(model).weights_type
  num_clients = len(files.client_ids)

  @tff.tensorflow.computation(weights_type, client_files.HANDLE_TYPE)
  def sums(weights, handle):
    """Returns the client's index, and the sums of its losses and errors; float64 [3]."""
    x, y = read(handle)

    def add(start, total):
      batch = slice(start, start + clients.BATCH_SIZE)
      values = losses_and_errors((weights.trainable, weights.non_trainable), x[batch], y[batch])
      return start + clients.BATCH_SIZE, total + tf.reduce_sum(values, axis=0)

    _, total = tf.while_loop(
      lambda start, _: start < tf.shape(y)[0], add, (0, tf.zeros([2], tf.float64))
    )
    return tf.concat([[tf.cast(handle["index"], tf.float64)], total], axis=0)

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(client_files.HANDLE_TYPE, tff.CLIENTS),
  )
  def evaluate_clients(weights, handles):
    own = tff.federated_map(sums, (tff.federated_broadcast(weights), handles))
    return rows.collect(own, 3, np.float64)

  handles = [files.handle(client_id, (0, 0)) for client_id in files.client_ids]

  def evaluate(weights: Any) -> clients.ClientMetrics:
    found = evaluate_clients(weights, handles)
    means = np.full([num_clients, 2], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
      index = found[:, 0].astype(np.int64)
      means[index] = found[:, 1:] / files.num_examples[index, np.newaxis]
    error_of_clients = errors.ERRORS[error].of_means(means[:, 1])
    return clients.ClientMetrics(
      files.client_ids, files.num_examples, means[:, 0], error_of_clients
    )

  return evaluate


def build_evaluators(
  model: tff.learning.models.FunctionalModel,
  splits: Mapping[str, client_files.ClientFiles],
  *,
  federated: bool = False,
  error: str = "misclassification",
) -> dict[str, Callable[[Any], clients.ClientMetrics]]:
  """Builds an evaluator of each split's clients.

  Args:
    model: The model.
    splits: The clients by the names of splits.
    federated: Whether TFF's context computes the clients, see `build_federated_evaluator`. If not,
      their examples are read into memory, and splits whose files are alike share a trace.
    error: As in `build_evaluator`.

  Returns:
    Functions of `tff.learning.models.ModelWeights`, by the names of splits.
  """
  if federated:
    return {
      split: build_federated_evaluator(model, files, error) for split, files in splits.items()
    }
  evaluators: dict[str, Any] = {}
  by_kind: dict[tuple, Any] = {}
  for split, files in splits.items():
    x, y, offsets = files.load()
    examples = examples_lib.ClientExamples(files.client_ids, x, y, offsets, files.decode)
    kind = (files.x_shape, files.x_dtype, files.x_scale)
    evaluators[split] = clients.build_evaluator(model, examples, by_kind.get(kind), error)
    by_kind.setdefault(kind, evaluators[split])
  return evaluators
