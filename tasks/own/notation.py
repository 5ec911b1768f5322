"""Reads numbers as people write them: 6,630.86 or 5,83, $12 or 12 mg, (3.50) for -3.50.

A text such as 6,500 is two numbers. Which one, and which unit goes without saying, follows from the
other values of the column: from those alone that one may look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import re
from typing import NamedTuple

import numpy as np
from pyarrow import compute

from tasks.own import values

# Texts that stand for a missing number, in small letters.
_MARKS = frozenset(
  "? ?? - -- --- – — . .. ... * ** # na n/a n.a. n.a nan nil null none <na> nd n/d missing unknown"
  " unavailable undefined undetermined inconnu unbekannt desconocido k.a. s/d"
  " #div/0! #n/a #name? #null! #num! #ref! #value!".split()
) | {"", "not available", "not applicable", "not known", "not recorded", "no data", "keine angabe"}
# Other texts among numbers are so, too, if they are few, and the numbers are not.
_MOST_MARKS, _MOST_MARKED, _FEWEST_NUMBERS = 5, 0.05, 20
_NAMED = 3
_CURRENCY = (
  r"(?:[A-Z]{0,3}[$€£¥₹₩₽₺฿]|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|AUD|CAD|NZD|BRL|ZAR"
  r"|MXN|KRW|SGD|HKD|TRY|Rs\.?|kr\.?|Fr\.)"
)
_UNIT = r"(?:[^\W\d_][\w/²³%·*^]{0,15}|[%‰°$€£¥₹₩₽₺][\w/]{0,11})(?: [^\W\d_]{1,12})?\.?"
_SIGN = "[+\u2212\u2013-]"
_BLANKS = "'\u2019 \u00a0\u2009\u202f"
_SHAPE = re.compile(
  rf"\s*(?P<open>\()?\s*(?P<sign>{_SIGN}?)\s*(?P<before>{_CURRENCY})?\s*(?P<inner>{_SIGN}?)\s*"
  rf"(?P<digits>[0-9.,](?:[0-9.,{_BLANKS}]*[0-9.,])?)(?P<exponent>[eE][+-]?[0-9]{{1,3}})?"
  rf"\s*(?P<after>{_UNIT})?(?P<trailing>-?)\s*(?P<close>\))?\s*"
)
# Digits by the mark of decimals; others part groups of three, or in India of two.
_DIGITS = {
  mark: re.compile(
    rf"(?:[0-9]+|[1-9][0-9]{{0,2}}(?P<part>[{other}{_BLANKS}])(?:[0-9]{{2,3}}(?P=part))*[0-9]{{3}})"
    rf"(?:[{mark}][0-9]*)?|[{mark}][0-9]+"
  )
  for mark, other in (".,", ",.")
}
_GROUPED = "^-?[1-9][0-9]{{0,2}}[{}][0-9]{{3}}$"


class _Reading(NamedTuple):
  """The numbers that a text is if a point, or a comma, is before its decimals; and its unit."""

  point: float | None
  comma: float | None
  unit: str

  @property
  def is_unsure(self) -> bool:
    return None not in (self.point, self.comma) and self.point != self.comma


def _read(text: str) -> _Reading | None:
  """Returns what a text is as a number; None if it is none."""
  shape = _SHAPE.fullmatch(text)
  if shape is None or bool(shape["open"]) != bool(shape["close"]):
    return None
  signs = [shape["sign"], shape["inner"], shape["trailing"], "-" * bool(shape["open"])]
  if sum(map(bool, signs)) > 1 or shape["before"] and shape["after"]:
    return None
  start = "-" if any(sign not in ("", "+") for sign in signs) else ""
  numbers: list[float | None] = []
  for mark, pattern in _DIGITS.items():
    number = None
    if pattern.fullmatch(shape["digits"]):
      digits = re.sub(f"[^0-9{mark}]", "", shape["digits"]).replace(mark, ".")
      number = float(start + digits + (shape["exponent"] or ""))
    numbers.append(number)
  if numbers == [None, None]:
    return None
  return _Reading(numbers[0], numbers[1], (shape["before"] or shape["after"] or "").strip())


@dataclasses.dataclass(frozen=True)
class Notation:
  """How the numbers of a column are written, besides as programs write them."""

  # "." or ",", the mark of decimals where a value alone does not tell; "" for neither.
  decimal: str = ""
  unit: str = ""  # What numbers may have before or after them; "" for nothing.

  def number(self, text: str) -> float | None:
    """Returns the number that a text is, perhaps infinite; None if it is none, or two."""
    plain = values.number(text)
    reading = _read(text) if plain is None or self.decimal == "," else None
    if reading is None:
      return plain
    if reading.unit not in ("", self.unit) or (reading.is_unsure and not self.decimal):
      return None
    first, second = reading[:2] if self.decimal != "," else reading[1::-1]
    return second if first is None else first

  def numbers(self, column: values.Column) -> np.ndarray:
    """Returns the number of each of a column's texts, float64 [texts], NaN where it is none."""
    numbers = column.plain_numbers.copy()
    is_other = np.isnan(numbers)
    if self.decimal == ",":
      points = compute.match_substring(column.texts, ".")
      is_other |= points.to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(is_other):
      number = self.number(column.texts[place].as_py())
      numbers[place] = np.nan if number is None else number
    return numbers


def has_decimals(column: values.Column, mark: str) -> bool:
  """Returns whether a column has numbers in which a mark can be before nothing but decimals."""
  if not compute.any(compute.match_substring(column.texts, mark)).as_py():
    return False
  is_sure = compute.and_not(
    compute.match_substring_regex(column.texts, rf"^-?[0-9]*[{mark}][0-9]+$"),
    compute.match_substring_regex(column.texts, _GROUPED.format(mark)),
  )
  return bool(compute.any(is_sure).as_py())


def one_mark(columns: Iterable[values.Column]) -> str:
  """Returns the mark that is before decimals in some columns; "" if none is, or both are."""
  columns = list(columns)
  marks = [mark for mark in ".," if any(has_decimals(column, mark) for column in columns)]
  return marks[0] if len(marks) == 1 else ""


def find(column: values.Column, elsewhere: str = "") -> tuple[Notation | None, str]:
  """Returns how the numbers of a column are written, or None if they are none for sure; a remark.

  The column has the rows that may be looked at. `elsewhere` is the `one_mark` of all columns:
  it says what 6,500 and 6.500 are where nothing else does.
  """
  plain = ~np.isnan(column.plain_numbers)
  others = [(column.names[i], int(column.counts[i])) for i in np.flatnonzero(~plain)]
  others = [(text, rows) for text, rows in others if values.number(text) is None]
  if not others and elsewhere == "," and _decimal(column, {}, elsewhere)[0] == ",":
    return Notation(","), "points between thousands"
  if not others:
    return Notation(), ""
  known, rows_unknown = int(column.counts.sum()), 0
  readings: dict[str, _Reading] = {}
  marks, unknown = [], []
  for text, rows in others:
    reading = _read(text)
    if reading is not None:
      readings[text] = reading
      continue
    marks.append((text, rows))
    if text.strip().casefold() not in _MARKS:
      unknown.append(text)
      rows_unknown += rows
      if 2 * rows_unknown > known:
        return None, ""
  rows = known - sum(rows for _, rows in marks)
  if not rows:
    return None, ""
  why = _doubt_of_units(readings, [column.names[i] for i in np.flatnonzero(plain)])
  decimal, doubt = _decimal(column, readings, elsewhere)
  if unknown and not (
    len(unknown) <= _MOST_MARKS
    and rows_unknown <= _MOST_MARKED * known
    and len(column.texts) - len(marks) >= _FEWEST_NUMBERS
  ):
    why = f"others are not, first {values.listed(unknown[:1])} (--missing)"
  why = why or doubt
  if why:
    looks = f"{rows} of {known} values look like numbers, but {why}" if 2 * rows >= known else ""
    return None, looks
  unit = next((reading.unit for reading in readings.values() if reading.unit), "")
  remarks = [f"in {unit}"] if unit else []
  if any("," in text for text in readings):
    of_mark = {"": "decimal points and commas", ",": "decimal commas"}
    remarks.append(of_mark.get(decimal, "commas between thousands"))
  if marks:
    marks.sort(key=lambda mark: -mark[1])
    listed = ", ".join(f"{n} {values.listed([text])}" for text, n in marks[:_NAMED])
    remarks.append(f"read as missing: {listed}" + ", ..." * (len(marks) > _NAMED))
  return Notation(decimal, unit), "; ".join(remarks)


def _doubt_of_units(readings: dict[str, _Reading], plain: Sequence[str]) -> str:
  """Says why the numbers may have several units; "" if they have one, or none."""
  units = sorted({reading.unit for reading in readings.values()} - {""})
  if len(units) > 1:
    return f"their units are {units[0]!r}, {units[1]!r}"
  # 12A among 12 is another house, and 0.45 among 45 % may be the same.
  lacking = bool(plain) or any(not reading.unit for reading in readings.values())
  if units and lacking and (units[0] == "%" or len(units[0]) == 1 and units[0].isalpha()):
    return f"some have {units[0]!r} and some have not"
  return ""


def _decimal(
  column: values.Column, readings: dict[str, _Reading], elsewhere: str
) -> tuple[str, str]:
  """Returns the mark of decimals where a value does not tell, and why that is in doubt, or ""."""
  point = has_decimals(column, ".") or any(r.comma is None for r in readings.values())
  comma = any(r.point is None for r in readings.values())
  grouped = compute.match_substring_regex(column.texts, _GROUPED.format("."))
  points = column.texts.filter(grouped)[:1].to_pylist()
  unsure = [text for text, reading in readings.items() if reading.is_unsure]
  if point and comma:
    unsure += points
    return "", f"{unsure[0]!r} is one of two" if unsure else ""
  if comma or (elsewhere == "," and not point and (unsure or points)):
    return ",", ""
  if point or elsewhere == "." or not any("," in text for text in unsure):
    return ".", ""
  return "", f"{unsure[0]!r} is one of two"
