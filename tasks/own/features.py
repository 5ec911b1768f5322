"""Turns the columns of a table into numbers for a model: standardised, or one-hot.

`fit` finds out what a column becomes. `read` and `encoding.Encoding.encode` carry that out, on the
same table or on a later one.

A number x becomes (x - mean) / std. Where some are missing they become the mean, 0, and a column
more says where: 1 for missing, else 0. A text becomes one column a category, missing values being
a category of their own; a category without a column is all zeros. Truth values are the numbers 0
and 1.

Mean, std, categories and the columns of missing values are those of the reference clients alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from tasks.own import values as values_lib

MOST_CATEGORIES = 100
_FEWEST_IDS = 20  # Fewer values may all differ by chance.
LARGEST = 1e100  # Squares of larger numbers overflow.
# Inputs are clipped to it: float32 must hold the values of clients outside the reference, too.
LARGEST_INPUT = 1e6
CATEGORY = "category"
OF_TYPE = "of type"  # The reason why a column is dropped begins so.
_ONE_VALUE = "one value only"


@dataclasses.dataclass(frozen=True)
class Feature:
  """What a column became; all are values of JSON.

  Attributes:
    name: The column.
    kind: "number", "boolean" for truth values, or "category".
    has_missing: Whether the reference has missing values, so that they have an input of their own.
    mean: Of the reference's numbers; 0 for categories.
    std: Population standard deviation of the reference's numbers; 1 where they are all the same.
    categories: The texts, in the order of their inputs; empty for numbers.
    shares: The fraction of the reference's rows that has each category; empty for numbers, and
      where an earlier version has made the feature.
  """

  name: str
  kind: str
  has_missing: bool
  mean: float = 0.0
  std: float = 1.0
  categories: tuple[str, ...] = ()
  shares: tuple[float, ...] = ()

  @property
  def width(self) -> int:
    """Returns the number of the model's inputs."""
    return (len(self.categories) if self.kind == CATEGORY else 1) + self.has_missing


def fit(column: pd.Series, reference: np.ndarray) -> tuple[Feature | None, str]:
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
  unusable = values_lib.unusable_type(column)
  if unusable is not None:
    return None, f"{OF_TYPE} {unusable}, neither number nor text"
  truth = values_lib.parse_truth(column)
  numbers = values_lib.parse_numbers(column) if truth is None else truth
  if numbers is not None:
    _check_size(name, numbers)
    kind = "number" if truth is None else "boolean"
    feature, remark = _fit_number(name, kind, numbers[reference])
    if remark.startswith(_ONE_VALUE) and kind == "number":
      different = {values_lib.canonical(str(v)) for v in column[reference].dropna().unique()}
      if len(different) > 1:
        remark = f"{len(different)} numbers that are one in 64-bit floating point"
    return feature, remark
  if not values_lib.is_text(column):
    return None, f"{OF_TYPE} {column.dtype}, neither number nor text"
  return _fit_category(name, _texts(column)[reference])


def _check_size(name: str, values: np.ndarray) -> None:
  """Raises a `ValueError` for numbers that are infinite or too large."""
  too_large = int(np.sum(np.abs(values) > LARGEST))  # NaN is not.
  if too_large:
    raise ValueError(
      f"Found {too_large} infinite values, or beyond {LARGEST:g}, in column {name!r}; expected"
      " finite ones: mend them, leave them empty, or name other --features."
    )


def _fit_number(name: str, kind: str, seen: np.ndarray) -> tuple[Feature | None, str]:
  """Returns what `fit` does, for the reference's numbers."""
  missing = np.isnan(seen)
  known = seen[~missing]
  if not len(known):
    return None, "all values missing"
  is_constant = known.min() == known.max()
  if is_constant and not missing.any():
    return None, f"{_ONE_VALUE}, {known[0]:g}"
  std = std_of(known) or 1.0
  feature = Feature(name, kind, bool(missing.any()), float(known.mean()), std)
  return feature, _remark_of_ids(known)


def std_of(known: np.ndarray) -> float:
  """Returns the population standard deviation of numbers; 0 only where they are all the same."""
  if known.min() == known.max():
    return 0.0
  std = float(known.std())
  if std:
    return std
  # The squares of deviations below 1e-162 are 0.
  deviations = known - known.mean()
  scale = float(np.abs(deviations).max())
  return scale * float(np.sqrt(np.mean((deviations / scale) ** 2))) or scale


def _remark_of_ids(known: np.ndarray) -> str:
  """Returns a remark on whole numbers of which each is there once, as if they were ids."""
  whole = len(known) >= _FEWEST_IDS and np.array_equal(known, np.floor(known))
  return "each value once: an id?" if whole and len(np.unique(known)) == len(known) else ""


def _texts(column: pd.Series) -> pd.Series:
  """Returns a column's values as texts, but for those that are missing."""
  return column.astype(object).map(str, na_action="ignore")


def _fit_category(name: str, seen: pd.Series) -> tuple[Feature | None, str]:
  """Returns what `fit` does, for the reference's texts."""
  categories = sorted(seen.dropna().unique())
  if _FEWEST_IDS <= len(categories) == seen.notna().sum():
    return None, f"{len(categories)} categories, each value once: an id"
  if len(categories) > MOST_CATEGORIES:
    return None, f"{len(categories)} categories, more than {MOST_CATEGORIES}"
  has_missing = bool(seen.isna().any())
  if len(categories) + has_missing < 2:
    return None, f"{_ONE_VALUE}, {categories[0]!r}" if categories else "all values missing"
  counts = seen.value_counts()
  shares = tuple(float(counts[text] / len(seen)) for text in categories)
  feature = Feature(name, CATEGORY, has_missing, categories=tuple(categories), shares=shares)
  return feature, f"{len(categories)} categories"


def read(feature: Feature, column: pd.Series) -> np.ndarray:
  """Reads a column as the numbers that `Encoding.encode` and an exported model take.

  Args:
    feature: What the column, of this or an earlier table, became.
    column: Its values.

  Returns:
    float64 [rows], NaN where missing: numbers, 1 and 0 for truth values, and a category's place
    among the feature's, from 0, or -1 for one that is not among them.

  Raises:
    ValueError: If numbers are wanted, and others are there, or they are infinite or too large.
  """
  if feature.kind == CATEGORY:
    codes, texts = pd.factorize(_texts(column))
    places = values_lib.places(texts, feature.categories)
    return np.append(places, np.nan)[codes]  # The code of a missing value is -1.
  truth = values_lib.parse_truth(column) if feature.kind == "boolean" else None
  numbers = values_lib.parse_numbers(column) if truth is None else truth
  if numbers is None:
    raise ValueError(
      f"Found values of another kind in column {feature.name!r}; expected {feature.kind}s alone, as"
      " the model was trained on: mend them, or leave them empty."
    )
  _check_size(feature.name, numbers)
  return numbers


def read_apart(feature: Feature, column: pd.Series) -> np.ndarray:
  """Reads a column of texts as `read` does, but each value by itself.

  Args:
    feature: What the column became.
    column: Its values, texts or missing.

  Returns:
    float64 [rows]; NaN also for numbers that are none, infinite or too large.
  """
  if feature.kind == CATEGORY:
    return read(feature, column)
  codes, values = pd.factorize(column)
  truth = values_lib.TRUTH if feature.kind == "boolean" else {}
  found = [truth.get(str(value).lower(), number_of(value)) for value in values]
  return np.array([*found, np.nan], np.float64)[codes]


def number_of(value: Any) -> float:
  """Returns the number of a text; NaN if it is none, infinite or too large."""
  number = values_lib.number(str(value))
  return number if number is not None and abs(number) <= LARGEST else np.nan
