"""Turns a column of labels into classes or numbers."""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np
import pandas as pd

from tasks.own import features

CLASSES, NUMBER = "classes", "number"
# More different numbers than these are a quantity rather than classes, unless the user says so.
_MOST_NUMBERS_OF_CLASSES = 100
_MOST_CLASSES = 1000


@dataclasses.dataclass
class Labels:
  """The labels of a table.

  Attributes:
    values: [rows], int32 numbers of classes, or float64 numbers, float32 once standardised.
    class_names: The classes in the order of their numbers; empty for numbers.
  """

  values: np.ndarray
  class_names: tuple[str, ...] = ()

  def standardise(self, reference: np.ndarray) -> tuple[float, float]:
    """Turns numbers y into (y - mean) / std, float32; leaves classes as they are.

    Args:
      reference: bool [rows], the rows whose mean and standard deviation are taken.

    Returns:
      (mean, std) in the unit of the labels; (0, 1) for classes.

    Raises:
      ValueError: If the reference's numbers are all the same.
    """
    if self.class_names:
      return 0.0, 1.0
    mean, std = float(self.values[reference].mean()), float(self.values[reference].std())
    if not std:
      raise ValueError(
        f"Found a single number, {mean:g}, among the labels of the clients that standardise them;"
        " expected two or more: get more data, or take another --seed."
      )
    self.values = ((self.values - mean) / std).astype(np.float32)
    return mean, std


def parse(column: pd.Series, kind: Optional[str]) -> Labels:
  """Parses labels.

  Args:
    column: The labels of all rows.
    kind: "classes" or "number"; None for number if they are not whole, or more than 100 different.

  Returns:
    Classes, in the order of their names or numbers, or numbers.

  Raises:
    ValueError: If labels are missing, are no numbers or not finite where numbers are wanted, or
      there is one class or more than 1000.
  """
  flag = f"--label_column={column.name}"
  missing = int(column.isna().sum())
  if missing:
    raise ValueError(
      f"Found {missing} of {len(column)} rows without a label ({flag}); expected one in each: mend"
      " or drop them."
    )
  is_truth = pd.api.types.is_bool_dtype(column)
  numbers = None if is_truth else features.parse_numbers(column)
  if kind is None and numbers is not None:
    is_quantity = not np.array_equal(numbers, np.floor(numbers))
    is_quantity = is_quantity or len(np.unique(numbers)) > _MOST_NUMBERS_OF_CLASSES
    kind = NUMBER if is_quantity else CLASSES
  if kind == NUMBER:
    return Labels(_check_numbers(column, numbers, flag))
  values, names = pd.factorize(column.astype(str) if numbers is None else numbers, sort=True)
  if len(names) < 2:
    raise ValueError(
      f"Found one class, {names[0]!r}, in {flag}; expected two or more: name another column."
    )
  if len(names) > _MOST_CLASSES:
    raise ValueError(
      f"Found {len(names)} classes in {flag}; expected at most {_MOST_CLASSES}: name another"
      " column, or pass --label_kind=number if they are numbers."
    )
  texts = tuple(name if isinstance(name, str) else f"{name:g}" for name in names)
  return Labels(values.astype(np.int32), texts)


def _check_numbers(column: pd.Series, numbers: Optional[np.ndarray], flag: str) -> np.ndarray:
  """Returns labels that are numbers as float64."""
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
