"""The balanced error: the mean over classes of the share of a class's examples that are missed."""

import numpy as np

from tff_superquantile.measures import measure


def of(predictions: measure.Predictions) -> float:
  """Returns the mean over the classes that examples have of 1 - recall.

  Always answering the most frequent of k classes has the balanced error 1 - 1/k, however frequent
  it is. Of a client that has one class alone it is the error.
  """
  recalls = measure.recalls(predictions)
  return 1.0 - float(np.mean(list(recalls.values()))) if recalls else float("nan")


MEASURE = measure.Measure("balanced_error", "Balanced error", measure.CLASSES, of)
