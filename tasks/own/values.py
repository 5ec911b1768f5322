"""Says what a value of a table is by itself: a number, a name among others, or of no use.

How a value is read must not follow from other clients' rows, so that they can be kept apart. And a
name must stay one: float64 has one number for 2^53 and 2^53 + 1. So values are texts at first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import decimal
import functools
import math
import re
from typing import Any
import unicodedata

import numpy as np
import pyarrow as pa
from pyarrow import compute

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
# Codes are written so: 01 and 1 are two postcodes, and one number; 3E2 beside 300 are two parts.
# Programs write powers of ten with a point, a sign or a small e: 1.0E3, 1E+06, 1e3.
_EXPONENT = r"^[0-9]+E[0-9]+$"
_DIGITS = r"^[0-9]+(E[0-9]+)?$"
_POWER = r"^[0-9]+e[0-9]+$"
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d", re.ASCII)
# What pyarrow reads exactly, and Python likewise.
_PLAIN = r"^-?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?$"
_EXACT = 2.0**53  # Up to it float64 has each integer.
TRUTH = {"true": 1.0, "false": 0.0}
_LONG = 40  # Characters of a name in a remark.
_UNUSABLE = "\0"  # What is neither number, text nor truth value: this, its type, this, its text.


def unusable(kind: str, text: str = "") -> str:
  """Returns what stands for a value that is neither number, text nor truth value."""
  return f"{_UNUSABLE}{kind}{_UNUSABLE}{text}"


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table: its different values, texts, and each row's place among them, or -1."""

  name: str
  texts: pa.StringArray
  codes: np.ndarray
  marks: Column | None = None  # The texts that `without` has made missing, if it was to keep them.

  @classmethod
  def of(cls, name: str, values: Any) -> Column:
    """Makes a column of an array of texts, or of a sequence of values; None and NaN are missing."""
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
      values = pa.array([None if v is None or v != v else str(v) for v in values], pa.string())
    encoded = pa.chunked_array(values).dictionary_encode().unify_dictionaries().combine_chunks()
    return cls(name, encoded.dictionary, encoded.indices.fill_null(-1).to_numpy())

  def __len__(self) -> int:
    return len(self.codes)

  def __getitem__(self, rows: np.ndarray) -> Column:
    """Returns some rows of the column, with no other values than theirs."""
    if rows.dtype == bool and rows.all():
      return self
    marks = None if self.marks is None else self.marks[rows]
    codes = self.codes[rows]
    used = np.bincount(codes[codes >= 0], minlength=len(self.texts)) > 0
    texts = self.texts.take(pa.array(np.flatnonzero(used)))
    return Column(self.name, texts, np.append(np.cumsum(used) - 1, -1)[codes], marks)

  def without(self, is_missing: np.ndarray, keeps_marks: bool = False) -> Column:
    """Returns the column with some of its texts, bool [texts], missing; it may keep these apart."""
    if not is_missing.any():
      return self
    places, everywhere = np.arange(len(self.texts)), np.arange(len(self.codes))
    left, marked = (
      Column(self.name, self.texts, np.append(np.where(gone, -1, places), -1)[self.codes])
      for gone in (is_missing, ~is_missing)
    )
    marks = marked[everywhere] if keeps_marks else None
    return dataclasses.replace(left[everywhere], marks=marks)

  @functools.cached_property
  def trimmed(self) -> Column:
    """The column without the blanks around its texts, which may then be the same."""
    texts = compute.utf8_trim_whitespace(self.texts)
    if texts.equals(self.texts):
      return self
    merged = texts.dictionary_encode()
    codes = np.append(merged.indices.to_numpy(), -1)[self.codes]
    return Column(self.name, merged.dictionary, codes)

  def spread(self, of_texts: Any) -> np.ndarray:
    """Returns the number of each row's text, float64 [rows], NaN where missing."""
    return np.append(np.asarray(of_texts, np.float64), np.nan)[self.codes]

  @functools.cached_property
  def names(self) -> list[str]:
    """The different values."""
    return self.texts.to_pylist()

  @functools.cached_property
  def counts(self) -> np.ndarray:
    """The number of rows of each different value."""
    return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

  @functools.cached_property
  def plain_numbers(self) -> np.ndarray:
    """The number of each different value, float64, or NaN, in the notation of programs."""
    is_plain = compute.match_substring_regex(self.texts, _PLAIN)
    plain = compute.if_else(is_plain, self.texts, pa.scalar(None, pa.string()))
    return plain.cast(pa.float64()).to_numpy(zero_copy_only=False)

  @property
  def has_codes(self) -> bool:
    """Whether all values are digits, some with an E between them: 300, 3E2, 12E4."""
    are_digits = compute.match_substring_regex(self.texts, _DIGITS)
    has_exponents = compute.any(compute.match_substring_regex(self.texts, _EXPONENT)).as_py()
    return bool(has_exponents and compute.all(are_digits).as_py())

  @property
  def powers(self) -> list[str]:
    """The values that may be codes, and are read as powers of ten: 3e2 beside 300."""
    are_plain = compute.match_substring_regex(self.texts, "^[0-9]+(e[0-9]+)?$")
    if not compute.all(are_plain).as_py():
      return []
    powers: list[str] = self.texts.filter(
      compute.match_substring_regex(self.texts, _POWER)
    ).to_pylist()
    return powers

  @property
  def unusable_type(self) -> str | None:
    """The type of a value that is neither number, text nor truth value; None if there is none."""
    strange = self.texts.filter(compute.starts_with(self.texts, _UNUSABLE))
    return strange[0].as_py().split(_UNUSABLE)[1] if len(strange) else None

  @property
  def truth(self) -> list[float] | None:
    """Truth values as 1.0 and 0.0; None if there is anything else, or nothing."""
    most = 2 ** len("false")  # Ways to write these.
    names = [name.lower() for name in self.texts[: most + 1].to_pylist()]
    return [TRUTH[name] for name in names] if names and set(names) <= set(TRUTH) else None


def listed(names: Iterable[str], most: int = 3) -> str:
  """Returns the first names with quotes, in which blanks are seen, without the end of long ones."""
  names = list(names)
  first = [repr(f"{name[:_LONG]}..." if len(name) > _LONG else name) for name in names[:most]]
  return ", ".join([*first, "..."] if len(names) > most else first)


def alike(names: Iterable[str]) -> list[list[str]]:
  """Returns the groups of names that differ in how they are written alone.

  That is in case, blanks, Unicode's forms of one letter, or as 1 and 1.0 do.
  """
  groups: dict[str, list[str]] = {}
  for name in names:
    plain = " ".join(_one_form(name).split()).casefold()
    key = None if is_code(name.strip()) else canonical(plain)
    groups.setdefault(key or plain, []).append(name)
  return [group for group in groups.values() if len(group) > 1]


def listed_alike(group: Iterable[str]) -> str:
  """Returns two of the names that are `alike`, with code points where they look the same."""
  names = sorted(group)[:2]
  shown = ascii if len(set(map(_one_form, names))) == 1 else repr
  return " and ".join(map(shown, names))


def _one_form(text: str) -> str:
  """Returns a text in the one form that Unicode has for letters that are written in several."""
  return unicodedata.normalize("NFKC", text)


def number(text: str) -> float | None:
  """Returns the number that a text is, perhaps infinite, as programs write it; None for others."""
  if "_" in text or not text.isascii():  # Python's own 1_000, and digits of other scripts.
    return None
  try:
    value = float(text)
  except ValueError:
    return None
  return None if math.isnan(value) else value


def has_leading_zero(text: str) -> bool:
  """Returns whether a text is written as codes are, with a zero before another digit."""
  return _LEADING_ZERO.match(text) is not None


def is_code(text: str) -> bool:
  """Returns whether the name of a class or category, a number's being `canonical`, is a code."""
  return has_leading_zero(text) or re.match(_EXPONENT, text) is not None


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


def places(texts: Iterable[str], names: Sequence[str]) -> np.ndarray:
  """Finds the place of each text among the names, from 0, -1 where it is none: float64 [texts].

  A column's type follows from all of its values: the same numbers may come as 1 or 1.0, or truth
  values as true or True. So a text is looked for as it is, and then as the truth value or the
  number that it is. Where a name is a code, names are no numbers.
  """
  exact = {name: place for place, name in enumerate(names)}
  # The first of several that are alike.
  truth = {name.lower(): exact[name] for name in reversed(names) if name.lower() in TRUTH}
  are_codes = any(map(is_code, names))
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
    return of_numbers.get(canonical(text), -1)

  return np.array([find(text) for text in texts], np.float64)
