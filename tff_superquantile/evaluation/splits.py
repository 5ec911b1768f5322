"""Builds the evaluators of all splits of a task."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from tff_superquantile.evaluation import clients
from tff_superquantile.evaluation import federated as federated_lib
from tff_superquantile.simulation import client_files


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
      split: federated_lib.build_federated_evaluator(model, files, error)
      for split, files in splits.items()
    }
  evaluators: dict[str, Any] = {}
  by_kind: dict[tuple, Any] = {}
  for split, files in splits.items():
    x, y, offsets = files.load()
    examples = clients.ClientExamples(files.client_ids, x, y, offsets, files.decode)
    kind = (files.x_shape, files.x_dtype, files.x_scale)
    evaluators[split] = clients.build_evaluator(model, examples, by_kind.get(kind), error)
    by_kind.setdefault(kind, evaluators[split])
  return evaluators
