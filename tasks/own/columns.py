"""Finds the columns of a table that a request names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
import contextlib
import csv
import dataclasses
import difflib
import os

from privacy.settings import command_line
from tasks import own_flags
from tasks.own import reading
from tasks.own import values

_MOST_NAMES = 20  # In a message.
# What a column is for, by the flag that names it.
_PURPOSES = dict(
  client_column="of clients", label_column="of labels", partition="by which to cut the rows"
)


@dataclasses.dataclass(frozen=True)
class Columns:
  """The columns that the user wants, who has named the features if `are_named`.

  Where `client` is None, the files' names are the clients.
  """

  client: str | None
  label: str
  features: tuple[str, ...]
  are_named: bool


def open_table(
  flags: own_flags.TableFlags, known: Sequence[str], classes: Sequence[str] = ()
) -> tuple[reading.TableFile, Columns]:
  """Opens the table of some flags, and finds the columns that it names.

  `known` are the columns that the model of an earlier table reads, and `classes` its classes; where
  there are such, the table needs these columns, and those of `--features` only if they are among
  them.
  """
  named, left_out = (
    parse_names(flag, text) if (text := getattr(flags, flag)) else ()
    for flag in ("features", "drop_columns")
  )
  client, label = (
    None if name is None else name.strip() for name in (flags.client_column, flags.label_column)
  )
  special = [("drop_columns", name) for name in left_out]  # Of flags besides --features.
  special += [("label_column", label)] if label is not None else []
  special += [("client_column", client)] if client is not None else []
  if flags.partition_column is not None:
    special.append(("partition", flags.partition_column))
  others = [name for _, name in special]
  if flags.classes:
    classes = parse_names("classes", flags.classes)
  table = _open(flags, {*known, *named, *others}, classes)
  names = table.names
  if label is None:
    raise ValueError(
      f"Found no --label_column; name the column of {flags.data_dir} that is to be predicted,"
      f" one of {values.listed(names, _MOST_NAMES)}."
    )
  if client is None and flags.partition is None and not os.path.isdir(flags.data_dir):
    raise command_line.Mistake(
      f"Found nothing that says whose the rows of {flags.data_dir} are; expected clients",
      "name the column whose values are the clients by --client_column",
      "give a folder with a file for each client",
      "simulate clients by --partition",
    )
  _check_known(flags, known, names)
  of_inputs = [("features", name) for name in named]
  for flag, name in [*of_inputs, *special]:
    # What a known model does not read may be absent.
    if not (known and flag in ("features", "drop_columns")):
      check_column(flag, name, names)
  if len({*named, *others}) < len(named) + len(others):
    raise ValueError(
      "Found a column in two places among --client_column, --label_column, --features and"
      " --drop_columns; expected each once: leave one out."
    )
  chosen = named or [name for name in names if name not in others]
  return table, Columns(client, label, tuple(chosen), bool(named))


def read_of_one(
  flags: own_flags.TableFlags, known: Sequence[str], classes: Sequence[str]
) -> tuple[dict[str, values.Column], list[str]]:
  """Reads the columns `known` and that of the labels from a table of one client's rows.

  It reads them as `open_table` does, and says what was put right.
  """
  label = str(flags.label_column)
  table = _open(flags, {*known, label}, classes)
  _check_known(flags, known, table.names)
  check_column("label_column", label, table.names)
  return table.read(None, label, known)


def _open(
  flags: own_flags.TableFlags, names: Collection[str], classes: Sequence[str]
) -> reading.TableFile:
  """Opens the table of some flags by their --separator and --missing."""
  separator = {"tab": "\t", "\\t": "\t"}.get(flags.separator or "", flags.separator)
  if separator is not None and len(separator.encode()) != 1:
    raise ValueError(f"Found --separator={separator!r}; expected a single character, or tab.")
  marks = parse_names("missing", flags.missing) if flags.missing else ()
  return reading.TableFile(flags.data_dir, separator, marks, names, classes)


def _check_known(flags: own_flags.TableFlags, known: Sequence[str], names: Sequence[str]) -> None:
  """Raises a `ValueError` unless a table has the columns that the model of an earlier one reads."""
  if lacking := [name for name in known if name not in names]:
    raise command_line.Mistake(
      f"Found no column {lacking[0]!r} in {flags.data_dir}, which the model reads; expected the"
      f" columns {values.listed(known, _MOST_NAMES)}",
      *_of_one_column(names),
      "add it, empty where its values are not known",
    )


def parse_names(flag: str, text: str) -> tuple[str, ...]:
  """Returns the names that a flag has, separated by commas, and quoted if they have such."""
  rows: list[list[str]] = []
  with contextlib.suppress(csv.Error):
    rows = list(csv.reader([text]))
  if not rows or not rows[0]:
    raise ValueError(
      f"Found --{flag}={text!r}; expected names separated by commas, on one line: quote a name that"
      " has a comma or a line break."
    )
  return tuple(map(str.strip, rows[0]))


def check_column(flag: str, name: str, names: Sequence[str]) -> None:
  """Raises a `ValueError` unless there is a column `name`; names those that there are."""
  if name in names:
    return
  has_numbers = any(values.number(other) is not None for other in names)
  close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
  guess = f" (did you mean {values.listed(close)}?)" if len(names) > 1 else ""
  raise command_line.Mistake(
    f"Found no column {name!r} {_PURPOSES.get(flag, f'for --{flag}')}; the columns are"
    f" {values.listed(names, _MOST_NAMES)}{guess}",
    *_of_one_column(names),
    *["put the names of columns into the first row"] * has_numbers,
    f"name another by --{flag}",
    "rename one",
  )


def _of_one_column(names: Sequence[str]) -> list[str]:
  """Returns a remedy where the names of all columns may have been read as one."""
  text = "name the character between values by --separator, as the first row has one column"
  return [text] if len(names) == 1 else []
