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

from collections.abc import Mapping
import math

import numpy as np

from tasks import own_flags
from tasks.own import values

_MOST_CLASSES, _NUM_LEVELS = 100, 10  # More labels are numbers, cut into so many levels.


def assign(
  flags: own_flags.TableFlags, frame: Mapping[str, values.Column], label: str, seed: int
) -> np.ndarray:
  """Returns the number of each row's client, int64 [rows]; a number may have no rows.

  Args:
    flags: The flags of the table, with a `partition`.
    frame: The columns of the table, among them that of the labels, and of the partition.
    label: The name of the column of labels.
    seed: Of what is drawn.
  """
  kind, value = own_flags.parse_partition("--partition", str(flags.partition))
  if kind == own_flags.FEATURE:
    return by_value(frame[value], flags.num_simulated)
  column = frame[label]
  is_number = flags.label_kind == "number" or (
    flags.label_kind is None and len(column.texts) > _MOST_CLASSES
  )
  classes = by_value(column, _NUM_LEVELS) if is_number else column.codes
  return dirichlet(classes, flags.num_simulated, float(value), np.random.default_rng(seed))


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


def by_value(column: values.Column, most: int) -> np.ndarray:
  """Returns the number of each row's group, int64 [rows]: its value's, or of numbers a range's.

  There are at most `most` ranges, and rows of one value are in one of them. Rows without a value
  are a group of their own.
  """
  codes = column.codes.astype(np.int64)
  numbers = column.spread(column.plain_numbers)
  is_known = codes >= 0
  if len(column.texts) > most and not np.isnan(numbers[is_known]).any():
    _, places, counts = np.unique(numbers[is_known], return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - counts / 2
    codes[is_known] = np.floor(most * middles / counts.sum()).astype(np.int64)[places]
  return np.where(is_known, codes, codes.max(initial=-1) + 1)


def names(flags: own_flags.TableFlags, owners: np.ndarray, column: values.Column | None) -> list:
  """Returns the name of each row's client: its value of a column, where each has one, or a number.

  Args:
    flags: The flags of the table.
    owners: What `assign` returns.
    column: The column by which the rows are cut; None for none.
  """
  digits = 1 + int(math.log10(max(1, owners.max(initial=0))))
  if column is not None and len(np.unique(owners)) >= len(column.texts):
    return [column.names[code] if code >= 0 else "(none)" for code in column.codes]
  return [f"simulated {owner:0{digits}d}" for owner in owners]
