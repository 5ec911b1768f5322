"""The mean absolute error of labels that are numbers."""

import numpy as np

from tff_superquantile.measures import measure


def of(predictions: measure.Predictions) -> float:
  """Returns the mean of |prediction - label|, in standard deviations of the labels."""
  if not len(predictions.labels):
    return float("nan")
  return float(np.mean(np.abs(predictions.values - predictions.labels)))


MEASURE = measure.Measure("mae", "Mean absolute error", measure.NUMBERS, of)
