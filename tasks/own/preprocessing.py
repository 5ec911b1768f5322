"""The way from a row of a user's table to the input of its model, in TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Sequence
import functools

import numpy as np
import tensorflow as tf

from tasks import preprocessing
from tasks.own import features as features_lib

# In standard deviations from the mean.
_STEPS = np.array([-3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0])


def build(features: Sequence[features_lib.Feature]) -> preprocessing.Preprocessing:
  """Builds the preprocessing of a table's features, as `features.encode` does it.

  A raw example is a row of numbers, float64 [columns], NaN where a value is missing. Truth values
  are 0 and 1; a category is its number, from 0 in the order of its column's categories, and any
  other number is a category that the model does not know. `apply` takes float32, too, of numbers
  that it holds.

  Args:
    features: The features, in the order of their columns.

  Returns:
    The preprocessing.
  """
  is_category = np.array([feature.kind == features_lib.CATEGORY for feature in features])
  numeric, textual = (np.flatnonzero(one).tolist() for one in (~is_category, is_category))
  numbers = [features[i] for i in numeric]
  means, stds = (np.array([getattr(f, n) for f in numbers], np.float64) for n in ("mean", "std"))
  has_missing = np.array([feature.has_missing for feature in numbers], bool)

  def apply(raw: tf.Tensor) -> tf.Tensor:
    parts = []
    if len(numeric):
      values = tf.gather(raw, numeric, axis=1)
      missing = tf.math.is_nan(values)
      limit = features_lib.LARGEST_INPUT
      # A mean that float32 does not hold is subtracted in two steps.
      with np.errstate(over="ignore"):
        high = means.astype(raw.dtype.as_numpy_dtype)
        low, scales = (a.astype(high.dtype) for a in (means - high, stds))
      scaled = tf.clip_by_value((values - high - low) / scales, -limit, limit)
      parts.append(tf.cast(tf.where(missing, tf.zeros_like(values), scaled), tf.float32))
      if has_missing.any():
        flags = tf.gather(missing, np.flatnonzero(has_missing), axis=1)
        parts.append(tf.cast(flags, tf.float32))
    for i in textual:
      values, categories = tf.cast(raw[:, i], tf.float32), float(len(features[i].categories))
      known = tf.where(tf.logical_and(values >= 0.0, values < categories), values, -1.0)
      # A missing value is the category after the others if there is one. Else it is none.
      number = tf.where(tf.math.is_nan(values), categories, known)
      parts.append(tf.one_hot(tf.cast(number, tf.int32), features[i].width))
    return tf.gather(tf.concat(parts, axis=1), _order(features, numeric, textual), axis=1)

  num_inputs = sum(feature.width for feature in features)
  return preprocessing.Preprocessing(
    tf.TensorSpec([None, len(features)], tf.float64, "features"),
    _describe(features),
    apply,
    tf.TensorSpec([None, num_inputs], tf.float32),
    probe=functools.partial(_probe, features),
  )


def _probe(features: Sequence[features_lib.Feature]) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows with every category and numbers far and near, and what the run makes of them."""
  rows = np.arange(max(len(_STEPS), *(feature.width + 2 for feature in features)) + 1)
  raw = np.empty([len(rows), len(features)])
  for i, feature in enumerate(features):
    if feature.kind == features_lib.CATEGORY:
      raw[:, i] = rows % (len(feature.categories) + 2) - 1  # And two that are none.
    elif feature.kind == "boolean":
      raw[:, i] = rows % 2
    else:
      raw[:, i] = feature.mean + feature.std * _STEPS[(rows + i) % len(_STEPS)]
  raw[-1] = np.nan
  places = np.where(raw < [max(len(f.categories), 1) for f in features], raw, -1.0)
  are_categories = [feature.kind == features_lib.CATEGORY for feature in features]
  known = np.where(are_categories & ~np.isnan(raw), places, raw)
  return raw, features_lib.encode(features, known)


def _order(
  features: Sequence[features_lib.Feature], numeric: Sequence[int], textual: Sequence[int]
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
    "a row of numbers, float64 (float32 for TensorFlow Lite), NaN where a value is missing, truth"
    f" values as 0 and 1, categories by their numbers: {'; '.join(said)}"
  )
