"""Says what a value of a table is by itself: a number, a name among others, or of no use.

How a value is read must not follow from the others of its column, so that clients can be kept
apart. And a name must stay one: float64 has one number for 2^53 and 2^53 + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import decimal
import math
import re
from typing import Any

import numpy as np
import pandas as pd

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
# Codes are written so: 01 and 1 are two postcodes, and one number.
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d", re.ASCII)
_EXACT = 2.0**53  # Up to it float64 has each integer.
TRUTH = {"true": 1.0, "false": 0.0}


@dataclasses.dataclass(frozen=True)
class Unusable:
  """A value that is neither number, text nor truth value: its type in words, and its name or ""."""

  type: str
  text: str = ""

  def __str__(self) -> str:
    return self.text


def unusable_type(column: pd.Series) -> str | None:
  """Returns the type of the first value of a column that is `Unusable`; None if none is."""
  if not pd.api.types.is_object_dtype(column):
    return None
  return next((value.type for value in column if isinstance(value, Unusable)), None)


def number(text: str) -> float | None:
  """Returns the number that a text is, perhaps infinite, as pandas reads it; None for others."""
  if "_" in text or not text.isascii():  # Python's own 1_000, and digits of other scripts.
    return None
  try:
    value = float(text)
  except ValueError:
    return None
  return None if math.isnan(value) else value


def numbers(texts: Iterable[Any]) -> np.ndarray | None:
  """Returns the numbers of texts, float64 with NaN where missing; None if one is no number."""
  found = []
  for text in texts:
    is_missing = not isinstance(text, str) and pd.isna(text)
    one = np.nan if is_missing else number(str(text))
    if one is None:
      return None
    found.append(one)
  return np.array(found, np.float64)


def parse_numbers(column: pd.Series) -> np.ndarray | None:
  """Returns a column's numbers, float64 with NaN where missing; None if it has anything else."""
  if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
    return column.to_numpy(np.float64, na_value=np.nan)
  if not is_text(column):
    return None
  try:
    return pd.to_numeric(column).to_numpy(np.float64, na_value=np.nan)
  except (ValueError, TypeError):  # Of a number beyond float64, such as 1e400, too.
    return numbers(column.astype(object))


def is_text(column: pd.Series) -> bool:
  """Returns whether a column has texts, perhaps among other objects."""
  is_text = pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column)
  return is_text or isinstance(column.dtype, pd.CategoricalDtype)


def parse_truth(column: pd.Series) -> np.ndarray | None:
  """Returns truth values as 1.0, 0.0 and NaN; None if the column has anything else."""
  if not (pd.api.types.is_bool_dtype(column) or is_text(column)):
    return None
  codes, found = pd.factorize(column)
  truth = [TRUTH.get(str(value).lower()) for value in found]
  if not truth or None in truth:
    return None
  return np.array([*truth, np.nan], np.float64)[codes]  # The code of a missing value is -1.


def has_leading_zero(text: str) -> bool:
  """Returns whether a text is written as codes are, with a zero before another digit."""
  return _LEADING_ZERO.match(text) is not None


def is_integer(text: str) -> bool:
  """Returns whether a text is all digits, but for a sign and spaces around."""
  return _INTEGER.fullmatch(text.strip()) is not None


def canonical(text: str) -> str | None:
  """Returns the one name of the number that a text is, or None if it is no number.

  A whole number is written with all of its digits, whatever their number, and without a point;
  others are the shortest text of their float64, such as 0.1, or inf.
  """
  value = number(text)
  if value is None:
    return None
  text = text.strip()
  if is_integer(text):
    try:
      return str(int(text))
    except ValueError:  # Python has a limit of some thousand digits.
      return None
  if not value.is_integer():  # Nor is inf.
    return repr(value)
  if abs(value) < _EXACT:
    return str(int(value))
  exact = decimal.Decimal(text)
  return str(int(exact if exact == exact.to_integral_value() else value))


def places(found: Iterable[str], names: Sequence[str]) -> np.ndarray:
  """Finds the place of each text among the names, from 0, -1 where it is none: float64 [texts].

  A column's type follows from all of its values: the same numbers may come as 1 or 1.0, or truth
  values as true or True. So a text is looked for as it is, and then as the truth value or the
  number that it is. Where a name has a leading zero, names are no numbers.
  """
  exact = {name: place for place, name in enumerate(names)}
  # The first of several that are alike.
  truth = {name.lower(): exact[name] for name in reversed(names) if name.lower() in TRUTH}
  are_codes = any(map(has_leading_zero, names))
  of_numbers = {} if are_codes else {canonical(name): exact[name] for name in reversed(names)}
  are_numbers = None not in of_numbers
  of_numbers.pop(None, None)

  def find(text: str) -> int:
    if text in exact:
      return exact[text]
    if text.lower() in truth:
      return truth[text.lower()]
    if not of_numbers or (has_leading_zero(text) and not are_numbers):
      return -1
    name = canonical(text)
    if name is None or name in of_numbers:
      return of_numbers.get(name, -1)
    # Versions up to 0.2 wrote whole numbers from 1e16 on as float64, such as 1e+16.
    shortest = repr(float(name))
    return exact.get(shortest, -1) if "e+" in shortest else -1

  return np.array([find(text) for text in found], np.float64)
