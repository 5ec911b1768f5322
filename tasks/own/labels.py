"""Turns a column of labels into classes or numbers: `fit` finds out how, `read` does it."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import csv
import dataclasses
from typing import Any, Optional

import numpy as np
import pandas as pd

from tasks.own import features

CLASSES, NUMBER = "classes", "number"
# More different numbers than these are a quantity rather than classes, unless the user says so.
_MOST_NUMBERS_OF_CLASSES = 100
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
  """

  name: str
  classes: tuple[str, ...] = ()
  mean: float = 0.0
  std: float = 1.0

  @property
  def kind(self) -> str:
    """Returns "classes" or "number"."""
    return CLASSES if self.classes else NUMBER


def fit(column: pd.Series, kind: Optional[str], reference: np.ndarray) -> Label:
  """Finds out what labels become.

  Args:
    column: The labels of all rows.
    kind: "classes" or "number"; None for number if they are not whole, or more than 100 different.
    reference: bool [rows], the rows whose mean and standard deviation are taken of numbers.

  Returns:
    Classes, in the order of their names or numbers, or numbers.

  Raises:
    ValueError: If labels are missing, are no numbers or not finite where numbers are wanted, or
      there is one class or more than 1000, or the reference has one number alone.
  """
  name, flag = str(column.name), _flag(column)
  _check_present(column)
  is_truth = pd.api.types.is_bool_dtype(column)
  numbers = None if is_truth else features.parse_numbers(column)
  if kind is None and numbers is not None:
    is_quantity = not np.array_equal(numbers, np.floor(numbers))
    is_quantity = is_quantity or len(np.unique(numbers)) > _MOST_NUMBERS_OF_CLASSES
    kind = NUMBER if is_quantity else CLASSES
  if kind == NUMBER:
    return _fit_number(name, _check_numbers(column, numbers)[reference])
  found = np.unique(column.astype(str) if numbers is None else numbers)
  if len(found) < 2:
    raise ValueError(
      f"Found one class, {_name(found[0])}, in {flag}; expected two or more: name another column."
    )
  if len(found) > _MOST_CLASSES:
    raise ValueError(
      f"Found {len(found)} classes in {flag}; expected at most {_MOST_CLASSES}: name another"
      " column, or pass --label_kind=number if they are numbers."
    )
  return Label(name, tuple(map(_name, found)))


def of_names(name: str, classes: str, kind: Optional[str]) -> Label:
  """Returns classes that the user names, separated by commas, in their order.

  Raises:
    ValueError: If there are fewer than two, or one twice, or numbers are wanted.
  """
  found = tuple(next(csv.reader([classes])))
  if kind == NUMBER or not 2 <= len(set(found)) == len(found) <= _MOST_CLASSES:
    raise ValueError(
      f"Found --classes={classes}; expected two classes or more, each once, and no"
      " --label_kind=number: name all that labels may be, or leave it out."
    )
  return Label(name, found)


def _fit_number(name: str, seen: np.ndarray) -> Label:
  mean, std = float(seen.mean()), float(seen.std())
  if not std:
    raise ValueError(
      f"Found a single number, {mean:g}, among the labels of the clients that standardise them;"
      " expected two or more: get more data, or take another --seed."
    )
  return Label(name, (), mean, std)


def read(label: Label, column: pd.Series) -> np.ndarray:
  """Reads labels as a model is trained on them.

  Args:
    label: What the labels, of this or an earlier table, became.
    column: Their values.

  Returns:
    int32 [rows], numbers of classes; or float32 [rows], (y - mean) / std.

  Raises:
    ValueError: If labels are missing, of a class that is not among the label's, or no numbers or
      not finite where numbers are wanted.
  """
  _check_present(column)
  if not label.classes:
    numbers = _check_numbers(column, features.parse_numbers(column))
    return ((numbers - label.mean) / label.std).astype(np.float32)
  numbers_of = {name: number for number, name in enumerate(label.classes)}
  rows, values = pd.factorize(column.astype(object))
  found = np.array([_find(value, numbers_of) for value in values], np.int32)
  unknown = sorted({str(value) for value, number in zip(values, found) if number < 0})
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
  """Reads a column of texts as `read` does, but each label by itself.

  Args:
    label: What the labels became.
    column: Their values, texts or missing.

  Returns:
    float64 [rows], what `read` returns, within 1e6 for numbers; NaN for what is none of its labels.
  """
  codes, values = pd.factorize(column)
  if label.classes:
    numbers_of = {name: number for number, name in enumerate(label.classes)}
    places = np.array([_find(value, numbers_of) for value in values], np.float64)
    found = np.where(places < 0, np.nan, places)
  else:
    numbers = np.array([features.number_of(value) for value in values], np.float64)
    limit = features.LARGEST_INPUT
    found = np.clip((numbers - label.mean) / label.std, -limit, limit)
  return np.append(found, np.nan)[codes]


def _find(value: Any, numbers_of: Mapping[str, int]) -> int:
  """Returns the number of a value's class; -1 if it has none.

  A column's type follows from all its values, so that those of a later table may be texts of what
  were numbers or truth values, or the other way round.
  """
  text = str(value)
  names = [text, text.capitalize()] if text.lower() in ("true", "false") else [text]
  with contextlib.suppress(ValueError, TypeError):
    names.append(_name(float(value)))
  return next((numbers_of[name] for name in names if name in numbers_of), -1)


def _name(value: Any) -> str:
  """Returns the name of a class, exactly: a whole number has no point."""
  return value if isinstance(value, str) else repr(float(value)).removesuffix(".0")


def _flag(column: pd.Series) -> str:
  return f"--label_column={column.name}"


def _check_present(column: pd.Series) -> None:
  missing = int(column.isna().sum())
  if missing:
    raise ValueError(
      f"Found {missing} of {len(column)} rows without a label ({_flag(column)}); expected one in"
      " each: mend or drop them."
    )


def _check_numbers(column: pd.Series, numbers: Optional[np.ndarray]) -> np.ndarray:
  """Returns labels that are numbers as float64."""
  flag = _flag(column)
  if numbers is None:
    wrong = column[pd.to_numeric(column.astype(str), errors="coerce").isna()]
    example = repr(wrong.iloc[0]) if len(wrong) else "truth values"
    raise ValueError(
      f"Found {len(wrong) or len(column)} of {len(column)} labels that are no numbers ({flag}),"
      f" first {example}; expected numbers: mend them, or pass --label_kind=classes."
    )
  too_large = int(np.sum(np.abs(numbers) > features.LARGEST))
  if too_large:
    raise ValueError(
      f"Found {too_large} labels that are infinite, or beyond {features.LARGEST:g} ({flag});"
      " expected finite numbers: mend or drop them."
    )
  return numbers
