"""Reads a table of the user's: a CSV or Parquet file, or a folder of such files.

A file's name says its format: .csv, .csv.gz or .parquet. In a folder without a client column, each
file is a client, whose name is the file's without its format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
import contextlib
import csv
import gzip
import hashlib
import io
import os
from typing import Any
import zlib

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute
from pyarrow import parquet

from tasks.own import values

FORMATS = (".csv", ".csv.gz", ".parquet")
# The column of clients where the files' names are the clients'.
FILE_NAME = "(file name)"
_CHUNK_BYTES = 1 << 20
_INDEX = "__index_level_"  # The column of an index that pandas has written.
# What stands for a missing value; but not in the column of clients, where NA is Namibia.
_MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A")
_MOST_SAID = 60  # Characters of a type's name.
_TIMES = (pa.types.is_timestamp, pa.types.is_duration)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
  pa.types.is_binary,
  pa.types.is_large_binary,
  pa.types.is_fixed_size_binary,
  pa.types.is_binary_view,
)
_OTHERS = (
  pa.types.is_null,
  pa.types.is_boolean,
  pa.types.is_integer,
  pa.types.is_floating,
  pa.types.is_decimal,
  pa.types.is_date,
  pa.types.is_time,
)


def stem(path: str) -> str:
  """Returns a file's name without its format, or a folder's name."""
  name = os.path.basename(os.path.abspath(path))
  return next((name[: -len(end)] for end in FORMATS if name.endswith(end)), name)


def find(data_dir: str) -> tuple[str, ...]:
  """Returns the path of the file, or those of the folder's files in the order of their names."""
  expected = f"expected a file {', '.join(FORMATS)}, or a folder of such files"
  if os.path.isdir(data_dir):
    names = sorted(n for n in os.listdir(data_dir) if n.endswith(FORMATS) and n[0] != ".")
    if not names:
      raise ValueError(f"Found no {', '.join(FORMATS)} in the folder {data_dir}; {expected}.")
    paths = tuple(os.path.join(data_dir, name) for name in names)
    for path in paths:
      _check_regular(path)
    return paths
  if not os.path.exists(data_dir):
    raise ValueError(f"Found no file or folder {data_dir}; {expected}: correct --data_dir.")
  if not data_dir.endswith(FORMATS):
    raise ValueError(f"Found {data_dir}; {expected}: give the file the name of its format.")
  _check_regular(data_dir)
  return (data_dir,)


def _check_regular(path: str) -> None:
  """Raises a `ValueError` unless a path is a regular file; a pipe or a device may never end."""
  if not os.path.isfile(path):
    raise ValueError(
      f"Found that {path} is no regular file but a folder, a pipe, a device or a link that leads"
      " nowhere; expected a table: move it away, or write its content to a file."
    )


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


class _NulError(ValueError):
  """A table has NUL bytes; its message is a sentence."""

  def __init__(self, path: str) -> None:
    super().__init__(
      f"{path} has NUL bytes, as text in UTF-16 and damaged files have; expected a table in UTF-8:"
      " write it anew in UTF-8."
    )


class _WithoutNul(io.RawIOBase):
  """Hands on the bytes of a file; raises a `_NulError` at a NUL, where pandas would end a value."""

  def __init__(self, file: Any, path: str) -> None:
    self._file, self._path = file, path

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    number = self._file.readinto(buffer)
    if b"\0" in bytes(buffer[:number]):
      raise _NulError(self._path)
    return number


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """Turns the errors of a file that cannot be read into one sentence."""
  try:
    yield
  except _NulError:
    raise
  except (OSError, EOFError, zlib.error, csv.Error, ValueError, pa.ArrowException) as error:
    why = " ".join(str(getattr(error, "strerror", None) or error).split())
    raise ValueError(
      f"{path} cannot be read ({why}); expected a table in UTF-8 whose format is that of its name:"
      " mend it, or write it anew."
    ) from error


def _header_of(path: str) -> tuple[list[str], list[str]]:
  """Returns the first two rows of a CSV file that are not blank; [] for those it lacks."""
  open_text: Any = gzip.open if path.endswith(".gz") else open
  with _reading(path), open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
    rows = (row for row in csv.reader(file) if row)
    return next(rows, []), next(rows, [])


def _columns_of(path: str) -> list[str]:
  """Returns the names of a file's columns."""
  if path.endswith(".parquet"):
    with _reading(path):
      names = parquet.read_schema(path).names
    return [name for name in names if not name.startswith(_INDEX)]
  header, first = _header_of(path)
  if any("\0" in value for value in (*header, *first)):
    raise _NulError(path)
  if first and len(first) != len(header):
    raise ValueError(
      f"{path} has {len(header)} names of columns and {len(first)} values in its first row;"
      " expected as many: quote values that hold commas."
    )
  return [name for name in header if name]


def _read_csv(path: str, dtype: Any, na_values: dict[str, list[str]]) -> pd.DataFrame:
  """Reads a CSV file; its columns without a name have their numbers as names."""
  open_bytes: Any = gzip.open if path.endswith(".gz") else open
  with _reading(path), open_bytes(path, "rb") as file:
    return pd.read_csv(
      io.BufferedReader(_WithoutNul(file, path), _CHUNK_BYTES),
      names=[name or place for place, name in enumerate(_header_of(path)[0])],
      header=0,
      dtype=dtype,
      encoding="utf-8-sig",
      na_values=na_values,
      keep_default_na=False,
      index_col=False,
      low_memory=False,
    )


def _is(kind: pa.DataType, tests: Collection) -> bool:
  return any(test(kind) for test in tests)


def _read_parquet(path: str, texts: Collection[str], *, all_texts: bool) -> pd.DataFrame:
  """Reads a Parquet file, in which the columns `texts`, or all, become text.

  Others are numbers, truth values and texts as pandas has them; dates and times of the day are text
  or objects with one; bytes in UTF-8 are text. All else is `values.Unusable`.
  """
  # Without threads, which a fork of this process would lack.
  table = parquet.read_table(path, use_threads=False)
  return pd.DataFrame(
    {
      name: _read_column(column, all_texts or name in texts)
      for name, column in zip(table.column_names, table.columns)
    }
  )


def _read_column(column: pa.ChunkedArray, is_text: bool) -> pd.Series:
  kind = column.type
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
    if not _is(kind, _TEXTS):
      column = column.cast(kind)
  if pa.types.is_string_view(kind):
    kind, column = pa.string(), column.cast(pa.string())
  said = str(kind) if len(str(kind)) <= _MOST_SAID else f"{str(kind)[:_MOST_SAID]}..."
  if _is(kind, _TIMES):
    return _map(_to_pandas(column), lambda value: values.Unusable(said, str(value)))
  if _is(kind, _BYTES):
    return _map(_to_pandas(column), lambda value: _decode(value, said))
  if not _is(kind, _TEXTS + _OTHERS):
    one = values.Unusable(said)
    return pd.Series([one if is_valid else None for is_valid in _valid(column)], dtype=object)
  found = _to_pandas(column, integer_object_nulls=is_text)
  if _is(kind, _TEXTS) and _has_nul(column, kind):
    found = _map(found, lambda value: _checked(value, said))
  return _map(found, _text) if is_text else found


def _to_pandas(column: pa.ChunkedArray, **asked: bool) -> pd.Series:
  return column.to_pandas(use_threads=False, **asked).reset_index(drop=True)


def _valid(column: pa.ChunkedArray) -> np.ndarray:
  return compute.is_valid(column).to_numpy()


def _has_nul(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
  has_nul = compute.match_substring(column.cast(kind), "\0")
  return bool(compute.any(has_nul).as_py())  # Neither if all are missing.


def _map(column: pd.Series, make: Any) -> pd.Series:
  """Returns `make` of each value that is not missing."""
  return column.astype(object).map(make, na_action="ignore").astype(object)


def _checked(text: str, said: str) -> Any:
  """Returns a text, unless pandas, which ends some at a NUL, would take it for another one."""
  return values.Unusable(f"{said} with NUL", text.replace("\0", "\\0")) if "\0" in text else text


def _decode(content: bytes, said: str) -> Any:
  try:
    return _checked(content.decode("utf-8"), said)
  except UnicodeDecodeError:
    return values.Unusable(f"{said} that is no text in UTF-8", content.hex())


def _text(value: Any) -> Any:
  """Returns the text of a value, the same for a number whatever the type of its column."""
  if isinstance(value, values.Unusable):
    return value
  return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def columns_of(paths: Sequence[str]) -> list[str]:
  """Returns the names of a table's columns, as the first file has them; all must have the same."""
  names: list[str] = []
  for path in paths:
    found = _columns_of(path)
    if not found:
      raise ValueError(
        f"{path} is empty, or names no columns; expected names of these, and a row an example."
      )
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


def _join(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
  """Puts tables below one another; a column of several types keeps each value as it is."""
  kinds = {tuple(table.dtypes) for table in tables}
  types = dict(zip(tables[0], map(set, zip(*kinds))))
  differ = [name for name, found in types.items() if len(found) > 1 and object in found]
  if differ:
    tables = [table.astype(dict.fromkeys(differ, object)) for table in tables]
  return pd.concat(tables, ignore_index=True)


def read(
  paths: Sequence[str],
  names: Sequence[str],
  client_column: str | None,
  texts: Sequence[str] = (),
  *,
  all_texts: bool = False,
) -> pd.DataFrame:
  """Reads a table with the columns `names`, as `columns_of` returns them.

  The column of clients and `texts` stay text, whatever their values look like; with None the files'
  names become the column `FILE_NAME`. A column's type follows from all of its values: numbers are
  float64, int64 or bool where all that is there is a number, the rest is text or missing. With
  `all_texts` all columns are text, so that how a value is read follows from it alone.
  """
  na_values = {name: list(_MISSING) for name in names if name != client_column}
  # A column's type is that of all its files: so types of many files are told when all are there.
  is_typed = len(paths) == 1 and not all_texts
  dtype = {name: str for name in (client_column, *texts)} if is_typed else str
  tables, owners = [], []
  for path in paths:
    if path.endswith(".parquet"):
      with _reading(path):
        table = _read_parquet(path, texts, all_texts=all_texts)
    else:
      table = _read_csv(path, dtype, na_values)
    tables.append(table[list(names)])
    owners.append(stem(path))
  sizes = [len(table) for table in tables]
  if not sum(sizes):
    raise ValueError(f"{paths[0]} has no rows; expected one an example.")
  whole = tables[0] if len(tables) == 1 else _join(tables)
  if client_column is None:
    if len(set(owners)) < len(owners):
      twice = next(name for name in owners if owners.count(name) > 1)
      raise ValueError(
        f"{os.path.dirname(paths[0])} has two files for the client {twice!r}; expected one a"
        " client: rename one, or name --client_column."
      )
    of_rows = np.repeat(np.arange(len(owners)), sizes)
    whole[FILE_NAME] = pd.Categorical.from_codes(of_rows, categories=owners)
  return whole
