"""Reads a table of the user's: a CSV or Parquet file, or a folder of such files.

A file's name says its format: .csv, .csv.gz or .parquet. In a folder without a client column, each
file is a client, whose name is the file's without its format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import csv
import difflib
import gzip
import hashlib
import os
from typing import Any, Optional
import zlib

import numpy as np
import pandas as pd
from pyarrow import parquet

FORMATS = (".csv", ".csv.gz", ".parquet")
# The column of clients where the files' names are the clients'.
FILE_NAME = "(file name)"
_CHUNK_BYTES = 1 << 20
_MOST_NAMES = 20
_INDEX = "__index_level_"  # The column of an index that pandas has written.
# What stands for a missing value; but not in the column of clients, where NA is Namibia.
_MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A")


def stem(path: str) -> str:
  """Returns a file's name without its format, or a folder's name."""
  name = os.path.basename(os.path.abspath(path))
  return next((name[: -len(end)] for end in FORMATS if name.endswith(end)), name)


def find(data_dir: str) -> tuple[str, ...]:
  """Finds the files of a table.

  Args:
    data_dir: A file, or a folder of files.

  Returns:
    The path of the file, or those of the folder's files in the order of their names.

  Raises:
    ValueError: If there is nothing that can be read.
  """
  expected = f"expected a file {', '.join(FORMATS)}, or a folder of such files"
  if os.path.isdir(data_dir):
    names = sorted(n for n in os.listdir(data_dir) if n.endswith(FORMATS) and n[0] != ".")
    if not names:
      raise ValueError(f"Found no {', '.join(FORMATS)} in the folder {data_dir}; {expected}.")
    return tuple(os.path.join(data_dir, name) for name in names)
  if not os.path.exists(data_dir):
    raise ValueError(f"Found no file or folder {data_dir}; {expected}: correct --data_dir.")
  if not data_dir.endswith(FORMATS):
    raise ValueError(f"Found {data_dir}; {expected}: give the file the name of its format.")
  return (data_dir,)


def digest(paths: Sequence[str]) -> str:
  """Returns the SHA-256 of the files' names and contents, in hexadecimal digits."""
  total = hashlib.sha256()
  for path in paths:
    of_file = hashlib.sha256()
    with _reading(path), open(path, "rb") as file:
      while chunk := file.read(_CHUNK_BYTES):
        of_file.update(chunk)
    total.update(repr((os.path.basename(path), of_file.hexdigest())).encode())
  return total.hexdigest()


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """Turns the errors of a file that cannot be read into one sentence."""
  try:
    yield
  except (OSError, EOFError, zlib.error, csv.Error, ValueError) as error:
    why = " ".join(str(getattr(error, "strerror", None) or error).split())
    raise ValueError(
      f"{path} cannot be read ({why}); expected a table in UTF-8 whose format is that of its name:"
      " mend it, or write it anew."
    ) from error


def _columns_of(path: str) -> list[str]:
  """Returns the names of a file's columns."""
  if path.endswith(".parquet"):
    with _reading(path):
      names = parquet.read_schema(path).names
    return [name for name in names if not name.startswith(_INDEX)]
  open_text: Any = gzip.open if path.endswith(".gz") else open
  with _reading(path), open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
    rows = (row for row in csv.reader(file) if row)
    header, first = next(rows, []), next(rows, [])
  if first and len(first) != len(header):
    raise ValueError(
      f"{path} has {len(header)} names of columns and {len(first)} values in its first row;"
      " expected as many: quote values that hold commas."
    )
  return header


def columns_of(paths: Sequence[str]) -> list[str]:
  """Reads the names of a table's columns.

  Args:
    paths: Its files.

  Returns:
    The names, as the first file has them.

  Raises:
    ValueError: If a file cannot be read, is empty or has a column twice, or files differ.
  """
  names: list[str] = []
  for path in paths:
    found = _columns_of(path)
    if not found:
      raise ValueError(f"{path} is empty; expected names of columns, and a row an example.")
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
      raise ValueError(f"{path} has the column {twice[0]!r} twice; rename one of them.")
    names = names or found
    if set(found) != set(names):
      raise ValueError(
        f"{path} lacks or adds the columns {sorted(set(found) ^ set(names))}, compared with"
        f" {paths[0]}; expected the same columns in all files: make them alike."
      )
  return names


def check_column(flag: str, name: str, names: Sequence[str]) -> None:
  """Raises a `ValueError` unless there is a column `name`; names those that there are."""
  if name in names:
    return
  [close] = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
  listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
  raise ValueError(
    f"Found no column {name!r} for --{flag}; the columns are {listed}: did you mean {close!r}?"
  )


def _text(value: Any) -> str:
  """Returns the text of a value, the same for a number whatever the type of its column."""
  return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def read(
  paths: Sequence[str],
  client_column: Optional[str],
  texts: Sequence[str] = (),
  *,
  all_texts: bool = False,
) -> pd.DataFrame:
  """Reads a table.

  Args:
    paths: Its files.
    client_column: The column of clients, which stays text; None for the files' names, which become
      the column `FILE_NAME`.
    texts: Other columns that stay text, whatever their values look like.
    all_texts: Whether all columns are text, so that how a value is read follows from it alone. A
      column's type follows from all of its values.

  Returns:
    All columns; numbers are float64, int64 or bool where all that is there is a number, the rest is
    text or missing.

  Raises:
    ValueError: If a file cannot be read or has no rows.
  """
  names = columns_of(paths)
  na_values = {name: list(_MISSING) for name in names if name != client_column}
  # A column's type is that of all its files: so types of many files are told when all are there.
  is_typed = len(paths) == 1 and not all_texts
  dtype = {name: str for name in (client_column, *texts)} if is_typed else str
  tables, owners = [], []
  for path in paths:
    with _reading(path):
      if path.endswith(".parquet"):
        # Without threads, which a fork of this process would lack.
        whole_file = parquet.read_table(path, use_threads=False)
        table = whole_file.to_pandas(
          use_threads=False, ignore_metadata=True, integer_object_nulls=all_texts
        )
        if all_texts:
          table = table.apply(lambda column: column.astype(object).map(_text, na_action="ignore"))
      else:
        table = pd.read_csv(
          path,
          dtype=dtype,
          encoding="utf-8-sig",
          na_values=na_values,
          keep_default_na=False,
          index_col=False,
          low_memory=False,
        )
    tables.append(table[names])
    owners.append(stem(path))
  sizes = [len(table) for table in tables]
  if not sum(sizes):
    raise ValueError(f"{paths[0]} has no rows; expected one an example.")
  whole = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
  if client_column is None:
    if len(set(owners)) < len(owners):
      twice = next(name for name in owners if owners.count(name) > 1)
      raise ValueError(
        f"{os.path.dirname(paths[0])} has two files for the client {twice!r}; expected one a"
        " client: rename one, or name --client_column."
      )
    whole[FILE_NAME] = np.repeat(np.array(owners, object), sizes)
  return whole
