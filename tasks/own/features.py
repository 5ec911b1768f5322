"""Turns the columns of a table into numbers for a model: standardised, or one-hot.

A number x becomes (x - mean) / std. Where some are missing they become the mean, 0, and a column
more says where: 1 for missing, else 0. A text becomes one column a category, missing values being
a category of their own; a category without a column is all zeros. Truth values are the numbers 0
and 1.

Mean, std, categories and the columns of missing values are those of the reference clients alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Optional, Union

import numpy as np
import pandas as pd

MOST_CATEGORIES = 100
_FEWEST_IDS = 20  # Of fewer values each may be there once by chance.
LARGEST = 1e100  # Squares of larger numbers overflow.
# Values of clients that are not the reference's have no bound: float32 must hold them.
LARGEST_INPUT = 1e6
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclasses.dataclass(frozen=True)
class Number:
  """A column of numbers, standardised.

  Attributes:
    name: The column.
    kind: "number", or "boolean" for truth values.
    values: float64 [rows], NaN where missing.
    mean: Of the reference's values.
    std: Population standard deviation of the reference's values; 1 where they are all the same.
    width: Number of the model's inputs that it becomes: one more with missing values.
  """

  name: str
  kind: str
  values: np.ndarray
  mean: float
  std: float
  width: int

  def encode(self, rows: np.ndarray, out: np.ndarray) -> None:
    """Writes the inputs of some rows into `out`, float32 [rows, width], which is all zeros."""
    values = self.values[rows]
    missing = np.isnan(values)
    scaled = np.clip((values - self.mean) / self.std, -LARGEST_INPUT, LARGEST_INPUT)
    out[:, 0] = np.where(missing, 0.0, scaled)
    if self.width == 2:
      out[:, 1] = missing


@dataclasses.dataclass(frozen=True)
class Category:
  """A column of texts, one-hot.

  Attributes:
    name: The column.
    codes: int64 [rows], the column that is 1; -1 where none is.
    categories: The texts, in the order of their columns.
    width: Number of the model's inputs that it becomes: one more if missing is a category.
    kind: "category".
  """

  name: str
  codes: np.ndarray
  categories: tuple[str, ...]
  width: int
  kind: str = "category"

  def encode(self, rows: np.ndarray, out: np.ndarray) -> None:
    """Writes the inputs of some rows into `out`, float32 [rows, width], which is all zeros."""
    codes = self.codes[rows]
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0


Feature = Union[Number, Category]


def parse_numbers(column: pd.Series) -> Optional[np.ndarray]:
  """Returns a column's numbers, float64 with NaN where missing; None if it has anything else."""
  if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
    return column.to_numpy(np.float64, na_value=np.nan)
  if not _is_text(column):
    return None
  try:
    return pd.to_numeric(column).to_numpy(np.float64, na_value=np.nan)
  except (ValueError, TypeError):
    return None


def _is_text(column: pd.Series) -> bool:
  is_text = pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column)
  return is_text or isinstance(column.dtype, pd.CategoricalDtype)


def _parse_truth(column: pd.Series) -> Optional[np.ndarray]:
  """Returns truth values as 1.0, 0.0 and NaN; None if the column has anything else."""
  if not (pd.api.types.is_bool_dtype(column) or _is_text(column)):
    return None
  codes, values = pd.factorize(column)
  truth = [_TRUTH.get(str(value).lower()) for value in values]
  if not truth or None in truth:
    return None
  return np.array([*truth, np.nan], np.float64)[codes]  # The code of a missing value is -1.


def fit(column: pd.Series, reference: np.ndarray) -> tuple[Optional[Feature], str]:
  """Finds out how a column becomes numbers.

  Args:
    column: The values of all rows.
    reference: bool [rows], the rows of the reference clients.

  Returns:
    (the feature, a remark on it, perhaps ""), or (None, the reason why it cannot be one).

  Raises:
    ValueError: If numbers are infinite or too large.
  """
  name = str(column.name)
  truth = _parse_truth(column)
  numbers = parse_numbers(column) if truth is None else truth
  if numbers is not None:
    kind = "number" if truth is None else "boolean"
    return _fit_number(name, kind, numbers, reference)
  if not _is_text(column):
    return None, f"of type {column.dtype}, which is neither number nor text"
  return _fit_category(name, column, reference)


def _fit_number(
  name: str, kind: str, values: np.ndarray, reference: np.ndarray
) -> tuple[Optional[Feature], str]:
  too_large = int(np.sum(np.abs(values) > LARGEST))  # NaN is not.
  if too_large:
    raise ValueError(
      f"Found {too_large} infinite values, or beyond {LARGEST:g}, in column {name!r}; expected"
      " finite ones: mend them, leave them empty, or name other --features."
    )
  seen = values[reference]
  missing = np.isnan(seen)
  known = seen[~missing]
  if not len(known):
    return None, "all values missing"
  is_constant = known.min() == known.max()
  if is_constant and not missing.any():
    return None, f"one value only, {known[0]:g}"
  std = 0.0 if is_constant else float(known.std())
  feature = Number(name, kind, values, float(known.mean()), std or 1.0, 1 + int(missing.any()))
  return feature, _remark_of_ids(known)


def _remark_of_ids(known: np.ndarray) -> str:
  """Returns a remark on whole numbers of which each is there once, as if they were ids."""
  whole = len(known) >= _FEWEST_IDS and np.array_equal(known, np.floor(known))
  return "each value once: an id?" if whole and len(np.unique(known)) == len(known) else ""


def _fit_category(
  name: str, column: pd.Series, reference: np.ndarray
) -> tuple[Optional[Feature], str]:
  texts = column.astype(object).map(str, na_action="ignore")
  seen = texts[reference]
  categories = sorted(seen.dropna().unique())
  if _FEWEST_IDS <= len(categories) == seen.notna().sum():
    return None, f"{len(categories)} categories, each value once: an id"
  if len(categories) > MOST_CATEGORIES:
    return None, f"{len(categories)} categories, more than {MOST_CATEGORIES}"
  has_missing = bool(seen.isna().any())
  if len(categories) + has_missing < 2:
    return None, f"one value only, {categories[0]!r}" if categories else "all values missing"
  codes = pd.Categorical(texts, categories=categories).codes.astype(np.int64)
  if has_missing:
    codes[texts.isna().to_numpy()] = len(categories)
  width = len(categories) + has_missing
  return Category(name, codes, tuple(categories), width), f"{len(categories)} categories"


def encode(features: Sequence[Feature], rows: np.ndarray) -> np.ndarray:
  """Encodes some rows.

  Args:
    features: The features.
    rows: int64 [n], numbers of rows.

  Returns:
    float32 [n, sum of the widths].
  """
  x = np.zeros((len(rows), sum(feature.width for feature in features)), np.float32)
  start = 0
  for feature in features:
    feature.encode(rows, x[:, start : start + feature.width])
    start += feature.width
  return x
