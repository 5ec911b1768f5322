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

from privacy.settings import command_line
from tasks.own import notation
from tasks.own import values

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
  """What a column became; all are values of JSON."""

  name: str  # The column.
  kind: str  # "number", "boolean" for truth values, or "category".
  # Whether the reference has missing values, so that they have an input of their own.
  has_missing: bool
  mean: float = 0.0  # Of the reference's numbers; 0 for categories.
  # Population standard deviation of the reference's numbers; 1 where they are all the same.
  std: float = 1.0
  categories: tuple[str, ...] = ()  # The texts, in the order of their inputs; empty for numbers.
  # The fraction of the reference's rows that has each category; empty for numbers.
  shares: tuple[float, ...] = ()
  decimal: str = ""  # How numbers are written, as in `notation.Notation`.
  unit: str = ""  # Likewise.

  @property
  def width(self) -> int:
    """Returns the number of the model's inputs."""
    return (len(self.categories) if self.kind == CATEGORY else 1) + self.has_missing


def fit(
  column: values.Column, reference: np.ndarray, elsewhere: str = ""
) -> tuple[Feature | None, str]:
  """Returns how a column becomes numbers, and a remark, perhaps ""; or None, and why it cannot.

  The column has the rows that may be looked at; statistics are of the `reference`, bool [rows].
  `elsewhere` is as in `notation.find`. Numbers that are infinite or too large are refused.
  """
  unusable = column.unusable_type
  if unusable is not None:
    return None, f"{OF_TYPE} {unusable}, neither number nor text"
  if column.truth is not None:
    return _fit_number(Feature(column.name, "boolean", False), column, reference)
  written, remark = notation_of(column, elsewhere)
  if written is None:
    feature, reason = _fit_category(column[reference])
  else:
    feature = Feature(column.name, "number", False, **dataclasses.asdict(written))
    feature, reason = _fit_number(feature, column, reference)
  return feature, "; ".join(filter(None, (reason, remark)))


def notation_of(column: values.Column, elsewhere: str = "") -> tuple[notation.Notation | None, str]:
  """Returns how a column's numbers are written, None if its values are names; and a remark.

  The column has no truth values alone. `elsewhere` is as in `notation.find`.
  """
  if column.has_codes:
    return None, "codes such as 3E2, which are no numbers"
  return notation.find(column, elsewhere)


def _fit_number(
  feature: Feature, column: values.Column, reference: np.ndarray
) -> tuple[Feature | None, str]:
  """Returns what `fit` does, for a feature that lacks the reference's statistics."""
  seen = read_usable(feature, column)[reference]
  missing = np.isnan(seen)
  known = seen[~missing]
  if not len(known):
    return None, "all values missing"
  if known.min() == known.max() and not missing.any():
    different = {values.canonical(name) for name in column[reference].names}
    if len(different - {None}) > 1:
      return None, f"{len(different)} numbers that are one in 64-bit floating point"
    return None, f"{_ONE_VALUE}, {known[0]:g}"
  is_whole = len(known) >= _FEWEST_IDS and np.array_equal(known, np.floor(known))
  is_id = feature.kind == "number" and is_whole and len(np.unique(known)) == len(known)
  mean, std = float(known.mean()), std_of(known) or 1.0
  feature = dataclasses.replace(feature, has_missing=bool(missing.any()), mean=mean, std=std)
  return feature, "each value once: an id?" * is_id


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


def _fit_category(seen: values.Column) -> tuple[Feature | None, str]:
  """Returns what `fit` does, for the reference's texts."""
  counts = dict(zip(seen.names, seen.counts.tolist()))
  known = sum(counts.values())
  if _FEWEST_IDS <= len(counts) == known:
    return None, f"{len(counts)} categories, each value once: an id"
  if len(counts) > MOST_CATEGORIES:
    return None, f"{len(counts)} categories, more than {MOST_CATEGORIES}"
  has_missing = known < len(seen)
  categories = tuple(sorted(counts))
  if len(categories) + has_missing < 2:
    return None, f"{_ONE_VALUE}, {categories[0]!r}" if categories else "all values missing"
  shares = tuple(counts[name] / len(seen) for name in categories)
  feature = Feature(seen.name, CATEGORY, has_missing, categories=categories, shares=shares)
  return feature, f"{len(categories)} categories"


def read(feature: Feature, column: values.Column) -> np.ndarray:
  """Reads a column as the numbers that `Encoding.encode` and an exported model take.

  They are float64 [rows], NaN where missing or not to be read: numbers, perhaps infinite, 1 and 0
  for truth values, and a category's place among the feature's, from 0, or -1 for one that is not
  among them. Each follows from the feature and the value alone.
  """
  if feature.kind == CATEGORY:
    return column.spread(values.places(column.names, feature.categories))
  numbers = notation.Notation(feature.decimal, feature.unit).numbers(column)
  if feature.kind == "boolean":
    truth = [values.TRUTH.get(name.lower(), np.nan) for name in column.names]
    numbers = np.where(np.isnan(truth), numbers, truth)
  return column.spread(numbers)


def read_usable(feature: Feature, column: values.Column, seen: Any = slice(None)) -> np.ndarray:
  """Returns what `read` does, NaN for numbers that no model can take.

  They are refused in the rows `seen`, and so is a column in which these have values, but no number.
  """
  raw = read(feature, column)
  if feature.kind == CATEGORY:
    return raw
  is_known = column.codes[seen] >= 0
  if is_known.any() and np.isnan(raw[seen]).all():
    raise ValueError(
      f"Found values of another kind in column {feature.name!r}; expected {feature.kind}s alone, as"
      " the model was trained on: mend them, or leave them empty."
    )
  too_large = int(np.sum(np.abs(raw[seen]) > LARGEST))  # NaN is not.
  if too_large:
    raise command_line.Mistake(
      f"Found {too_large} infinite values, or beyond {LARGEST:g}, in column {feature.name!r};"
      " expected finite ones",
      "mend them",
      "name them in --missing",
      "leave the column out by --drop_columns",
    )
  return np.where(np.abs(raw) <= LARGEST, raw, np.nan)
