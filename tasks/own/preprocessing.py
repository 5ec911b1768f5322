"""The way from a row of a user's table to the input of its model, in TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tasks import preprocessing
from tasks.own import features
from tasks.own import summary


def build(columns: Sequence[summary.Column]) -> preprocessing.Preprocessing:
  """Builds the preprocessing of a table's features, as `features.encode` does it.

  A raw example is a row of numbers, float32 [columns], NaN where a value is missing. Truth values
  are 0 and 1; a category is its number, from 0 in the order of its column's categories, and any
  other number is a category that the model does not know.

  Args:
    columns: The columns that are features, in their order.

  Returns:
    The preprocessing.
  """
  is_category = np.array([column.kind == "category" for column in columns])
  numeric, textual = np.flatnonzero(~is_category), np.flatnonzero(is_category)
  numbers = [columns[i] for i in numeric]
  means, stds = (np.array([getattr(c, n) for c in numbers], np.float32) for n in ("mean", "std"))
  has_missing = np.array([c.width == 2 for c in numbers], bool)

  def apply(raw: tf.Tensor) -> tf.Tensor:
    parts = []
    if len(numeric):
      values = tf.gather(raw, numeric, axis=1)
      missing = tf.math.is_nan(values)
      limit = features.LARGEST_INPUT
      scaled = tf.clip_by_value((values - means) / stds, -limit, limit)
      parts.append(tf.where(missing, tf.zeros_like(values), scaled))
      if has_missing.any():
        flags = tf.gather(missing, np.flatnonzero(has_missing), axis=1)
        parts.append(tf.cast(flags, tf.float32))
    for i in textual:
      values, categories = raw[:, i], float(len(columns[i].categories))
      known = tf.where(tf.logical_and(values >= 0.0, values < categories), values, -1.0)
      # A missing value is the category after the others if there is one. Else it is none.
      number = tf.where(tf.math.is_nan(values), categories, known)
      parts.append(tf.one_hot(tf.cast(number, tf.int32), columns[i].width))
    return tf.gather(tf.concat(parts, axis=1), _order(columns, numeric, textual), axis=1)

  num_inputs = sum(column.width for column in columns)
  return preprocessing.Preprocessing(
    tf.TensorSpec([None, len(columns)], tf.float32, "features"),
    _describe(columns),
    apply,
    tf.TensorSpec([None, num_inputs], tf.float32),
  )


def _order(
  columns: Sequence[summary.Column], numeric: np.ndarray, textual: np.ndarray
) -> np.ndarray:
  """Returns where the inputs are: first numbers, then where these are missing, then texts."""
  places: dict[int, list[int]] = {}
  place = len(numeric)
  for rank, i in enumerate(numeric):
    places[i] = [rank]
    if columns[i].width == 2:
      places[i].append(place)
      place += 1
  for i in textual:
    places[i] = list(range(place, place + columns[i].width))
    place += columns[i].width
  return np.array([p for i in range(len(columns)) for p in places[i]], np.int32)


def _describe(columns: Sequence[summary.Column]) -> str:
  """Says what a raw example is."""
  said = []
  for column in columns:
    listed = ", ".join(f"{i} {name}" for i, name in enumerate(column.categories))
    said.append(f"{column.name} ({listed})" if listed else column.name)
  return (
    "a row of numbers, float32, NaN where a value is missing, truth values as 0 and 1, categories"
    f" by their numbers: {'; '.join(said)}"
  )
