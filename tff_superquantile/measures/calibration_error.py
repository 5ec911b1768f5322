"""The expected calibration error: how far a model's confidence is from how often it is right."""

import numpy as np

from tff_superquantile.measures import measure

NUM_BINS = 15


def of(predictions: measure.Predictions) -> float:
  """Returns the expected calibration error with 15 bins of equal width (Guo et al., ICML 2017).

      ECE = sum over bins b of n_b / n |accuracy of b - mean confidence of b|

  The confidence of an example is the probability of the predicted class, and bin b holds those in
  (b / 15, (b + 1) / 15]. Of few examples it is large by chance alone, about 1 / sqrt(n): then
  that of all clients' examples together tells more. Without examples, or where a confidence is not
  a number, as of a model that has diverged, neither is the error.
  """
  confidence = predictions.values.max(axis=1)
  if not (len(confidence) and np.all(np.isfinite(confidence))):
    return float("nan")
  right = measure.predicted(predictions) == predictions.labels
  bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
  gaps = np.bincount(bins, right - confidence, NUM_BINS)
  return float(np.abs(gaps).sum() / len(right))


MEASURE = measure.Measure("calibration_error", "Calibration error", measure.CLASSES, of)
