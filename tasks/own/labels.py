"""Turns a column of labels into classes or numbers: `fit` finds out how, `read` does it."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import decimal

import numpy as np
import pandas as pd

from tasks.own import columns
from tasks.own import features
from tasks.own import values

CLASSES, NUMBER = "classes", "number"
# More different numbers than these are a quantity rather than classes, unless the user says so.
_MOST_NUMBERS_OF_CLASSES = 100
_MOST_OF_A_SCALE = 10  # Classes that are numbers; more may be a quantity, and have a hint.
_MOST_CLASSES = 1000
_MOST_SAID = 5  # Classes in a message.


@dataclasses.dataclass(frozen=True)
class Label:
  """What a column of labels became; all are values of JSON.

  Attributes:
    name: The column.
    classes: The classes in the order of their numbers; empty for labels that are numbers.
    mean: Mean of labels that are numbers, over the reference clients; 0 for classes.
    std: Population standard deviation of these; 1 for classes.
    shares: The fraction of the reference's rows that has each class; empty for numbers, and where
      an earlier version has made the label.
  """

  name: str
  classes: tuple[str, ...] = ()
  mean: float = 0.0
  std: float = 1.0
  shares: tuple[float, ...] = ()

  @property
  def kind(self) -> str:
    """Returns "classes" or "number"."""
    return CLASSES if self.classes else NUMBER


def fit(column: pd.Series, kind: str | None, reference: np.ndarray) -> Label:
  """Finds out what labels become: classes, in the order of their names or numbers, or numbers.

  `kind` is "classes" or "number"; None for number if they are not whole, or more than 100
  different. `reference`, bool [rows], are the rows whose mean and standard deviation are taken of
  numbers. Classes that are numbers have the names of `values.canonical`, unless one has a leading
  zero, as codes have. Missing labels, one class, more than 1000, and one number alone are refused.
  """
  name, flag = str(column.name), _flag(column)
  texts = _texts(column)
  if kind == NUMBER:
    return _fit_number(name, _numbers(texts)[reference])
  found = sorted(texts.unique())
  numbers = None if any(map(values.has_leading_zero, found)) else values.numbers(found)
  if numbers is not None:
    beyond = [text for text, number in zip(found, numbers) if np.isinf(number)]
    infinite = int(texts.isin([text for text in beyond if not values.is_integer(text)]).sum())
    if infinite:
      raise ValueError(
        f"Found {infinite} of {len(texts)} labels that are infinite ({flag}); expected finite"
        " numbers, or classes with names: mend or drop them."
      )
    is_whole = np.array_equal(numbers, np.floor(numbers))
    if kind is None and (not is_whole or len(np.unique(numbers)) > _MOST_NUMBERS_OF_CLASSES):
      return _fit_number(name, _numbers(texts)[reference])
    names = {values.canonical(text) or text for text in found}
    if kind is None and len(names) > _MOST_NUMBERS_OF_CLASSES:
      return _fit_number(name, _numbers(texts)[reference])
    found = sorted(names, key=decimal.Decimal)
  elif all(text.lower() in values.TRUTH for text in found):
    found = sorted({text.capitalize() for text in found})
  if len(found) < 2:
    raise ValueError(
      f"Found one class, {found[0]}, in {flag}; expected two or more: name another column."
    )
  if len(found) > _MOST_CLASSES:
    raise ValueError(
      f"Found {len(found)} classes in {flag}; expected at most {_MOST_CLASSES}: name another"
      " column, or pass --label_kind=number if they are numbers."
    )
  return Label(name, tuple(found))


def hint(classes: Sequence[str]) -> str:
  """Returns a sentence for classes that may be a quantity; "" for others."""
  if len(classes) <= _MOST_OF_A_SCALE or any(
    not values.is_integer(text) or values.canonical(text) != text for text in classes
  ):
    return ""
  return (
    f"The labels are {len(classes)} whole numbers, each a class; if they are a quantity, pass"
    " --label_kind=number."
  )


def with_shares(label: Label, reference: pd.Series) -> Label:
  """Returns a label with the shares of its classes among the reference's rows."""
  if not label.classes:
    return label
  found = read_apart(label, reference)
  counts = np.bincount(found[~np.isnan(found)].astype(np.int64), minlength=len(label.classes))
  return dataclasses.replace(label, shares=tuple((counts / max(1, len(found))).tolist()))


def of_names(name: str, classes: str, kind: str | None) -> Label:
  """Returns classes that the user names, separated by commas, in their order."""
  found = columns.parse_names("classes", classes)
  if kind == NUMBER or not 2 <= len(set(found)) == len(found) <= _MOST_CLASSES:
    raise ValueError(
      f"Found --classes={' '.join(classes.split())}; expected two classes or more, each once, and"
      " no --label_kind=number: name all that labels may be, or leave it out."
    )
  return Label(name, found)


def _fit_number(name: str, seen: np.ndarray) -> Label:
  mean, std = float(seen.mean()), features.std_of(seen)
  if not std:
    raise ValueError(
      f"Found a single number, {mean:g}, among the labels of the clients that standardise them;"
      " expected two or more: get more data, or take another --seed."
    )
  return Label(name, (), mean, std)


def read(label: Label, column: pd.Series) -> np.ndarray:
  """Reads labels as a model is trained on them.

  They are int32 [rows], numbers of classes, or float32 [rows], (y - mean) / std. Labels that are
  missing, or none of the label's classes, are refused.
  """
  texts = _texts(column)
  if not label.classes:
    return ((_numbers(texts) - label.mean) / label.std).astype(np.float32)
  rows, names = pd.factorize(texts)
  found = values.places(names, label.classes).astype(np.int32)
  unknown = sorted(name for name, number in zip(names, found) if number < 0)
  if unknown:
    expected = " or ".join(label.classes[:_MOST_SAID])
    expected += " or others" * (len(label.classes) > _MOST_SAID)
    raise ValueError(
      f"Found {int(np.sum(found[rows] < 0))} of {len(column)} labels ({_flag(column)}) of classes"
      f" that the model does not know, first {unknown[0]!r}; expected {expected}: drop these rows,"
      " or train on a table that has these classes."
    )
  return found[rows]


def read_apart(label: Label, column: pd.Series) -> np.ndarray:
  """Reads labels that are texts as `read` does, but each by itself, as float64 [rows].

  Numbers are within 1e6; NaN is what is none of its labels.
  """
  codes, texts = pd.factorize(column.astype(object).map(str, na_action="ignore"))
  if label.classes:
    places = values.places(texts, label.classes)
    found = np.where(places < 0, np.nan, places)
  else:
    numbers = np.array([features.number_of(text) for text in texts], np.float64)
    limit = features.LARGEST_INPUT
    found = np.clip((numbers - label.mean) / label.std, -limit, limit)
  return np.append(found, np.nan)[codes]


def _flag(column: pd.Series) -> str:
  return f"--label_column={column.name}"


def _texts(column: pd.Series) -> pd.Series:
  """Returns labels as texts; a `ValueError` if one is missing, or can be none."""
  missing = int(column.isna().sum())
  if missing:
    raise ValueError(
      f"Found {missing} of {len(column)} rows without a label ({_flag(column)}); expected one in"
      " each: mend or drop them."
    )
  unusable = values.unusable_type(column)
  if unusable is not None:
    raise ValueError(
      f"Found labels of type {unusable} ({_flag(column)}); expected texts, numbers or truth values:"
      " write them as one of these, or name another column."
    )
  return column.astype(object).map(str)


def _numbers(texts: pd.Series) -> np.ndarray:
  """Returns labels that are numbers as float64."""
  codes, found = pd.factorize(texts)
  parsed = [values.number(text) for text in found]
  wrong = np.array([number is None for number in parsed], bool)[codes]
  if wrong.any():
    raise ValueError(
      f"Found {int(wrong.sum())} of {len(texts)} labels that are no numbers ({_flag(texts)}), first"
      f" {texts[wrong].iloc[0]!r}; expected numbers: mend them, or pass --label_kind=classes."
    )
  numbers = np.array(parsed, np.float64)[codes]
  too_large = int(np.sum(np.abs(numbers) > features.LARGEST))
  if too_large:
    raise ValueError(
      f"Found {too_large} labels that are infinite, or beyond {features.LARGEST:g}"
      f" ({_flag(texts)}); expected finite numbers: mend or drop them."
    )
  return numbers
