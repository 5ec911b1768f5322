"""The ranking error, 1 - AUC: how often one of a class scores below one that is not of it."""

import numpy as np

from tff_superquantile.measures import measure


def of(predictions: measure.Predictions) -> float:
  """Returns 1 - AUC in [0, 1], of more than two classes the mean over one-vs-rest.

  AUC is the probability that of two examples, one of the class and one of the others, the former
  has the larger probability of the class; equal ones count half. So it is

      AUC = (sum of the ranks of the class's n_1 examples - n_1 (n_1 + 1) / 2) / (n_1 n_0).

  A class that no example has, or all have, has no AUC and is left out. Chance has 0.5; where all
  examples have one class, it is NaN.
  """
  num_classes = predictions.values.shape[1]
  counts = np.bincount(predictions.labels, minlength=num_classes)[:num_classes]
  total = len(predictions.labels)
  defined = np.flatnonzero((counts > 0) & (counts < total))
  if not defined.size:
    return float("nan")
  if num_classes == 2:  # Both have the same.
    defined = defined[-1:]
  size = counts[defined].astype(np.float64)
  sums = _sums_of_ranks(predictions.values[:, defined], predictions.labels, defined)
  areas = (sums - size * (size + 1) / 2) / (size * (total - size))
  return 1.0 - float(areas.mean())


def _sums_of_ranks(values: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
  """Returns the sums of mean ranks of each class's examples in its column; NaN where a value is."""
  order = np.argsort(values, axis=0)
  ordered = np.take_along_axis(values, order, axis=0)
  is_first = np.concatenate([np.ones_like(ordered[:1], bool), ordered[1:] != ordered[:-1]])
  # Runs of equal values, in one column after the other.
  starts = np.flatnonzero(is_first.T)
  ends = np.append(starts[1:], values.size)
  ranks = np.repeat((starts + ends + 1) / 2, ends - starts).reshape(values.shape[::-1])
  sums = np.sum(ranks, axis=1, where=(labels[order] == classes).T)
  sums -= np.arange(len(classes)) * len(labels) * np.bincount(labels)[classes]
  return np.where(np.isnan(ordered[-1]), np.nan, sums)


MEASURE = measure.Measure("ranking_error", "Ranking error (1 − AUC)", measure.CLASSES, of)
