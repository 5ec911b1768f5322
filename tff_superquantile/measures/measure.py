"""A measure, and the predictions of which it is a function."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy import typing as npt
from scipy import special

# Errors of tasks, keys of `tff_superquantile.evaluation.errors.ERRORS`.
CLASSES, NUMBERS = "misclassification", "rmse"


class Predictions(NamedTuple):
  """Predictions for n examples, probabilities of classes or numbers.

  Attributes:
    values: float64 [n, classes] or [n].
    labels: int64 [n], numbers of classes; or float64 [n].
  """

  values: np.ndarray
  labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Measure:
  """A measure, of which less is better.

  Attributes:
    name: Its name in files.
    title: Its name for people, to begin a sentence.
    error: The error of the tasks that have it, `CLASSES` or `NUMBERS`.
    of: Its value for the predictions of one client or of all, NaN where it is undefined.
  """

  name: str
  title: str
  error: str
  of: Callable[[Predictions], float]


def of_outputs(outputs: npt.ArrayLike, labels: npt.ArrayLike, error: str) -> Predictions:
  """Turns a model's outputs into predictions: softmax (or sigmoid) of scores, or the numbers."""
  scores = np.asarray(outputs, np.float64)
  flat: np.ndarray[Any, Any] = np.reshape(np.asarray(labels), -1)
  if error == NUMBERS:
    return Predictions(scores.reshape(-1), flat.astype(np.float64))
  if scores.ndim != 2 or scores.shape[1] == 1:
    score = scores.reshape(-1)
    probabilities = np.stack([special.expit(-score), special.expit(score)], axis=1)
  else:
    probabilities = special.softmax(scores, axis=1)
  return Predictions(probabilities, flat.astype(np.int64))


def predicted(predictions: Predictions) -> np.ndarray:
  """Returns the most probable class of each example, int64 [n]; the first of equals."""
  return np.argmax(predictions.values, axis=1)


def recalls(predictions: Predictions) -> dict[int, float]:
  """Returns, for each class that examples have, the share of them that are predicted to have it."""
  labels, hits = predictions.labels, predicted(predictions) == predictions.labels
  counts, right = np.bincount(labels), np.bincount(labels, hits)
  return {int(c): float(right[c] / counts[c]) for c in np.flatnonzero(counts)}
