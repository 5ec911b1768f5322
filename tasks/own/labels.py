"""Turns a column of labels into classes or numbers: `fit` finds out how, `read` does it."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import decimal

import numpy as np

from privacy.settings import command_line
from tasks.own import columns
from tasks.own import features
from tasks.own import notation
from tasks.own import values

CLASSES, NUMBER = "classes", "number"
# More different numbers than these are a quantity rather than classes, unless the user says so.
_MOST_NUMBERS_OF_CLASSES = 100
_MOST_OF_A_SCALE = 10  # Classes that are numbers; more may be a quantity, and have a hint.
_MOST_CLASSES = 1000
_MOST_SAID = 5  # Classes in a message.
_FEWEST_NUMBERS = 20  # Different ones, from which on labels of which some are none are no classes.


@dataclasses.dataclass(frozen=True)
class Label:
  """What a column of labels became; all are values of JSON."""

  name: str  # The column.
  # The classes in the order of their numbers; empty for labels that are numbers.
  classes: tuple[str, ...] = ()
  mean: float = 0.0  # Mean of labels that are numbers, over the reference clients; 0 for classes.
  std: float = 1.0  # Population standard deviation of these; 1 for classes.
  # The fraction of the reference's rows that has each class; empty for numbers.
  shares: tuple[float, ...] = ()
  decimal: str = ""  # How numbers are written, as in `notation.Notation`.
  unit: str = ""  # Likewise.

  @property
  def kind(self) -> str:
    """Returns "classes" or "number"."""
    return CLASSES if self.classes else NUMBER


def of_flags(
  column: values.Column, kind: str | None, classes: str | None, reference: np.ndarray
) -> Label:
  """Returns what labels become by --label_kind and --classes: those that are named, or by `fit`."""
  if classes:
    return of_names(column.name, classes, kind)
  return fit(column, kind, reference)


def fit(column: values.Column, kind: str | None, reference: np.ndarray) -> Label:
  """Finds out what labels become: classes, in the order of their names or numbers, or numbers.

  `kind` is "classes" or "number"; None for number if they are not whole, or more than 100
  different. `reference`, bool [rows], are the rows whose mean and standard deviation are taken of
  numbers. Classes that are numbers have the names of `values.canonical`, unless one has a leading
  zero, as codes have. Missing labels, one class, more than 1000, and one number alone are refused.
  """
  check_usable(column)
  texts = column.names
  numbers = notation.Notation().numbers(column)
  are_plain = all(values.number(text) is not None for text in texts)
  are_codes = column.has_codes or any(map(values.has_leading_zero, texts))
  written = notation.Notation()
  if not are_plain:
    written = notation.find(column)[0] or written
    numbers = written.numbers(column)
  if kind == NUMBER or kind is None and not are_codes and _is_quantity(column, numbers, are_plain):
    return _fit_number(column, written, reference)
  names = sorted(texts)
  if are_plain and not are_codes:
    _check_finite(column, numbers)
    numerals = {values.canonical(text) or text for text in names}
    if kind is None and len(numerals) > _MOST_NUMBERS_OF_CLASSES:
      return _fit_number(column, written, reference)
    names = sorted(numerals, key=decimal.Decimal)
  elif column.truth is not None:
    names = sorted({text.capitalize() for text in names})
  if len(names) < 2:
    raise ValueError(
      f"Found {f'one class, {names[0]}' if names else 'no class'}, in {_place(column)}; expected"
      " two or more: name another column."
    )
  if len(names) > _MOST_CLASSES:
    raise ValueError(
      f"Found {len(names)} classes in {_place(column)}; expected at most {_MOST_CLASSES}: name"
      " another column, or pass --label_kind=number if they are numbers."
    )
  # A letter may be another one than its capital.
  groups = [group for group in values.alike(names) if max(map(len, group)) > 1]
  if groups:
    fewer = len(names) - sum(len(group) - 1 for group in groups)
    raise ValueError(
      f"Found {len(names)} classes in {_place(column)} that are {fewer} but for how they are"
      f" written, such as {values.listed_alike(groups[0])}; expected each in one way: write them"
      " alike, or name them all in --classes."
    )
  return Label(column.name, tuple(names))


def _is_quantity(column: values.Column, numbers: np.ndarray, are_plain: bool) -> bool:
  """Returns whether labels are a quantity, perhaps but for a few that are no numbers."""
  is_number = ~np.isnan(numbers)
  different = np.unique(numbers[is_number])
  if are_plain:
    _check_finite(column, numbers)
  elif len(different) < _FEWEST_NUMBERS or 2 * column.counts[is_number].sum() < len(column):
    return False
  is_whole = np.array_equal(different, np.floor(different))
  return not is_whole or len(different) > _MOST_NUMBERS_OF_CLASSES


def _check_finite(column: values.Column, numbers: np.ndarray) -> None:
  """Raises a `ValueError` for labels that are infinite; whole ones beyond float64 are names."""
  infinite = [not values.is_integer(column.names[i]) for i in np.flatnonzero(np.isinf(numbers))]
  rows = int(column.counts[np.isinf(numbers)][infinite].sum())
  if rows:
    raise ValueError(
      f"Found {rows} of {len(column)} labels that are infinite ({_place(column)}); expected finite"
      " numbers, or classes with names: mend or drop them."
    )


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


def with_shares(label: Label, reference: values.Column) -> Label:
  """Returns a label with the shares of its classes among the reference's rows."""
  if not label.classes:
    return label
  codes = read(label, reference)
  counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(label.classes))
  return dataclasses.replace(label, shares=tuple((counts / max(1, len(codes))).tolist()))


def of_names(name: str, classes: str, kind: str | None) -> Label:
  """Returns classes that the user names, separated by commas, in their order."""
  names = columns.parse_names("classes", classes)
  if kind == NUMBER or not 2 <= len(set(names)) == len(names) <= _MOST_CLASSES:
    raise ValueError(
      f"Found --classes={' '.join(classes.split())}; expected two classes or more, each once, and"
      " no --label_kind=number: name all that labels may be, or leave it out."
    )
  return Label(name, names)


def _fit_number(column: values.Column, written: notation.Notation, reference: np.ndarray) -> Label:
  label = Label(column.name, **dataclasses.asdict(written))
  seen = read(label, column)
  check(label, column, seen)
  seen = seen[reference]
  mean, std = float(seen.mean()), features.std_of(seen)
  if not std:
    raise ValueError(
      f"Found a single number, {mean:g}, among the labels of the clients that standardise them;"
      " expected two or more: get more data, or take another --seed."
    )
  return dataclasses.replace(label, mean=mean, std=std)


def read(label: Label, column: values.Column) -> np.ndarray:
  """Reads labels as a model is trained on them, each by itself.

  They are float64 [rows], numbers of classes, or (y - mean) / std; NaN is what is missing, or none
  of the label's.
  """
  if label.classes:
    places = values.places(column.names, label.classes)
    return column.spread(np.where(places < 0, np.nan, places))
  numbers = notation.Notation(label.decimal, label.unit).numbers(column)
  numbers = np.where(np.abs(numbers) <= features.LARGEST, numbers, np.nan)
  return column.spread((numbers - label.mean) / label.std)


def check(label: Label, column: values.Column, labels: np.ndarray) -> None:
  """Raises a `ValueError` if one of the labels that `read` has found, float64 [rows], is none."""
  check_usable(column)
  wrong = column.codes[np.isnan(labels)]
  if not len(wrong):
    return
  names = sorted({column.names[code] for code in set(wrong.tolist())})
  start = f"Found {len(wrong)} of {len(column)} labels"
  if label.classes:
    expected = " or ".join(label.classes[:_MOST_SAID])
    expected += " or others" * (len(label.classes) > _MOST_SAID)
    raise ValueError(
      f"{start} ({_place(column)}) of classes that the model does not know, first {names[0]!r};"
      f" expected {expected}: drop these rows, or train on a table that has these classes."
    )
  texts = [name for name in names if values.number(name) is None]
  if texts:
    raise command_line.Mistake(
      f"{start} that are no numbers ({_place(column)}), first {texts[0]!r}; expected numbers",
      "mend them",
      "name what stands for missing in --missing and pass --rows_without_label=drop",
      "pass --label_kind=classes",
    )
  raise ValueError(
    f"{start} that are infinite, or beyond {features.LARGEST:g} ({_place(column)}); expected finite"
    " numbers: mend or drop them."
  )


def check_usable(column: values.Column) -> None:
  """Raises a `ValueError` if a label is missing, or can be none."""
  missing = int(np.sum(column.codes < 0))
  if missing:
    marks = [] if column.marks is None else [name for name in column.marks.names if name]
    read = f", as {values.listed(marks)} is read as missing" if marks else ""
    raise command_line.Mistake(
      f"Found {missing} of {len(column)} rows without a label ({_place(column)}){read}; expected"
      " one in each",
      "mend them",
      "leave them out by --rows_without_label=drop",
      *["name it among all --classes if it is one"] * bool(marks),
    )
  unusable = column.unusable_type
  if unusable is not None:
    raise command_line.Mistake(
      f"Found labels of type {unusable} ({_place(column)}); expected texts, numbers or truth"
      " values",
      "write them as one of these",
      "name another --label_column",
    )


def _place(column: values.Column) -> str:
  return f"column {column.name!r}"
