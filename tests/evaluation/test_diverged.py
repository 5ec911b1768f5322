"""Measures of a model that has diverged are no numbers, and nobody is warned of arithmetic."""

import warnings

import numpy as np
import pytest

from tff_superquantile import measures
from tff_superquantile.measures import measure


@pytest.mark.parametrize("where", [(0, 0), (2, slice(None)), (slice(None), slice(None)), None])
def test_the_calibration_error_is_no_number(where):
  values = np.full((3, 4), 0.25)
  if where is None:
    values = values[:0]
  else:
    values[where] = np.nan
  predictions = measure.Predictions(values, np.zeros(len(values), np.int64))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert np.isnan(measures.MEASURES["calibration_error"].of(predictions))
