"""The way from a row of a user's table to the input of its model, in TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tasks import preprocessing
from tasks.own import features as features_lib


def build(features: Sequence[features_lib.Feature]) -> preprocessing.Preprocessing:
  """Builds the preprocessing of a table's features, as `features.encode` does it.

  A raw example is a row of numbers, float32 [columns], NaN where a value is missing. Truth values
  are 0 and 1; a category is its number, from 0 in the order of its column's categories, and any
  other number is a category that the model does not know.

  Args:
    features: The features, in the order of their columns.

  Returns:
    The preprocessing.
  """
  is_category = np.array([feature.kind == features_lib.CATEGORY for feature in features])
  numeric, textual = np.flatnonzero(~is_category), np.flatnonzero(is_category)
  numbers = [features[i] for i in numeric]
  means, stds = (np.array([getattr(f, n) for f in numbers], np.float32) for n in ("mean", "std"))
  has_missing = np.array([feature.has_missing for feature in numbers], bool)

  def apply(raw: tf.Tensor) -> tf.Tensor:
    parts = []
    if len(numeric):
      values = tf.gather(raw, numeric, axis=1)
      missing = tf.math.is_nan(values)
      limit = features_lib.LARGEST_INPUT
      scaled = tf.clip_by_value((values - means) / stds, -limit, limit)
      parts.append(tf.where(missing, tf.zeros_like(values), scaled))
      if has_missing.any():
        flags = tf.gather(missing, np.flatnonzero(has_missing), axis=1)
        parts.append(tf.cast(flags, tf.float32))
    for i in textual:
      values, categories = raw[:, i], float(len(features[i].categories))
      known = tf.where(tf.logical_and(values >= 0.0, values < categories), values, -1.0)
      # A missing value is the category after the others if there is one. Else it is none.
      number = tf.where(tf.math.is_nan(values), categories, known)
      parts.append(tf.one_hot(tf.cast(number, tf.int32), features[i].width))
    return tf.gather(tf.concat(parts, axis=1), _order(features, numeric, textual), axis=1)

  num_inputs = sum(feature.width for feature in features)
  return preprocessing.Preprocessing(
    tf.TensorSpec([None, len(features)], tf.float32, "features"),
    _describe(features),
    apply,
    tf.TensorSpec([None, num_inputs], tf.float32),
  )


def _order(
  features: Sequence[features_lib.Feature], numeric: np.ndarray, textual: np.ndarray
) -> np.ndarray:
  """Returns where the inputs are: first numbers, then where these are missing, then texts."""
  places: dict[int, list[int]] = {}
  place = len(numeric)
  for rank, i in enumerate(numeric):
    places[i] = [rank]
    if features[i].has_missing:
      places[i].append(place)
      place += 1
  for i in textual:
    places[i] = list(range(place, place + features[i].width))
    place += features[i].width
  return np.array([p for i in range(len(features)) for p in places[i]], np.int32)


def _describe(features: Sequence[features_lib.Feature]) -> str:
  """Says what a raw example is."""
  said = []
  for feature in features:
    listed = ", ".join(f"{i} {name}" for i, name in enumerate(feature.categories))
    said.append(f"{feature.name} ({listed})" if listed else feature.name)
  return (
    "a row of numbers, float32, NaN where a value is missing, truth values as 0 and 1, categories"
    f" by their numbers: {'; '.join(said)}"
  )
