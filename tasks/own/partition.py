"""Cuts a central table, whose rows have no owners, into simulated clients.

    dirichlet:ALPHA    for each class, its rows fall to client i with probability p_i, p ~
                       Dirichlet(ALPHA, ..., ALPHA): label shift; small ALPHA for few classes a
                       client (Yurochkin et al., "Bayesian Nonparametric Federated Learning", 2019)
    feature:COLUMN     each value of the column is a client; of numbers with more values than there
                       are to be clients, the rows sorted by it are cut into clients of like size

Nobody owns the rows of such a client, and one person's may be in several: no guarantee for clients
says anything of persons, so that private runs refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math

import numpy as np

from tasks import own_flags
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib
from tasks.own import notation
from tasks.own import values

_NUM_LEVELS = 10  # Of labels that are numbers.
_NO_VALUE = "(none)"


def assign(
  flags: own_flags.TableFlags,
  frame: Mapping[str, values.Column],
  label: str,
  features: Sequence[str],
  seed: int,
) -> list[str]:
  """Returns the name of each row's client.

  What a column is, numbers or names, is what it is to a model (`features.notation_of`, `labels`).

  Args:
    flags: The flags of the table, with a `partition`.
    frame: The columns of the table, among them that of the labels, and of the partition.
    label: The name of the column of labels.
    features: The names of the other columns, which tell what decimals look like.
    seed: Of what is drawn.

  Returns:
    The names, [rows].
  """
  kind, value = own_flags.parse_partition("--partition", str(flags.partition))
  if kind == own_flags.FEATURE:
    elsewhere = notation.one_mark(frame[name] for name in features)
    return by_value(frame[value], flags.num_simulated, elsewhere)
  rng = np.random.default_rng(seed)
  return _numbered(dirichlet(_classes(flags, frame[label]), flags.num_simulated, float(value), rng))


def dirichlet(
  classes: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
  """Draws the client of each row, int64 [rows], whose classes are int [rows]; see above."""
  owners = np.zeros(len(classes), np.int64)
  for of_class in np.unique(classes):
    rows = np.flatnonzero(classes == of_class)
    shares = rng.dirichlet(np.full(num_clients, alpha))
    owners[rows] = rng.choice(num_clients, len(rows), p=shares)
  return owners


def _classes(flags: own_flags.TableFlags, column: values.Column) -> np.ndarray:
  """Returns the class of each row, or the level of its number, int64 [rows]; -1 for none."""
  known = column[column.codes >= 0] if flags.rows_without_label == "drop" else column
  everybody = np.ones(len(known), bool)
  label = labels_lib.of_flags(known, flags.label_kind, flags.classes, everybody)
  numbers = labels_lib.read(label, column)
  if not label.classes:
    return _ranges(numbers, np.ones(len(numbers)), _NUM_LEVELS)
  return np.where(np.isnan(numbers), -1.0, numbers).astype(np.int64)


def by_value(column: values.Column, most: int, elsewhere: str = "") -> list[str]:
  """Returns the name of each row's client: its value, or of more than `most` numbers its range.

  Rows without a value are a client of their own. `elsewhere` is as in `notation.find`.
  """
  names = column.names
  written, _ = features_lib.notation_of(column, elsewhere)
  if written is not None:
    numbers = written.numbers(column)
    ranges = _ranges(numbers, column.counts, most)
    if len(np.unique(numbers[ranges >= 0])) > most:
      names = _numbered(ranges)
    first: dict[int, str] = {-1: _NO_VALUE}  # 1 and 1.0 are one client.
    names = [first.setdefault(own, name) for own, name in zip(ranges.tolist(), names)]
  return [names[code] if code >= 0 else _NO_VALUE for code in column.codes.tolist()]


def _ranges(numbers: np.ndarray, counts: np.ndarray, most: int) -> np.ndarray:
  """Returns the range of each number, int64 of the same shape, -1 for NaN.

  Each number has a range of its own, unless they are more than `most`: then there are at most so
  many, of like size. `counts` says how often each is there; equal ones are in one range.
  """
  ranges = np.full(len(numbers), -1)
  is_known = ~np.isnan(numbers)
  different, places = np.unique(numbers[is_known], return_inverse=True)
  sizes = np.bincount(places, counts[is_known])
  of_numbers = np.arange(len(different))
  if len(different) > most:
    of_numbers = np.floor(most * (np.cumsum(sizes) - sizes / 2) / sizes.sum()).astype(np.int64)
  ranges[is_known] = of_numbers[places]
  return ranges


def _numbered(owners: np.ndarray) -> list[str]:
  """Returns names of clients that have numbers, int64 [rows]."""
  digits = 1 + int(math.log10(max(1, owners.max(initial=0))))
  return [f"simulated {owner:0{digits}d}" for owner in owners.tolist()]
