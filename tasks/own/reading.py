"""Reads a table of the user's: a CSV or Parquet file, or a folder of such files.

All values are texts here, each as it is in its file, and what a row is follows from its file alone.
In a folder without a client column, each file is a client, whose name is the file's without its
format, after those of sub-folders. Folders with names such as site=a are a column, site.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence
import csv
import dataclasses
import io
import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from tasks.own import files
from tasks.own import notation
from tasks.own import values

_SEPARATORS = ",;\t|"
# The column of clients where the files' names are the clients'.
FILE_NAME = "(file name)"
_BLOCK_BYTES = 1 << 26  # A row must fit in it.
_INDEX = "__index_level_"  # The column of an index that pandas has written.
# What stands for a missing value; but not in the column of clients, where NA is Namibia.
_MISSING = pa.array(["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"])
_MOST_SAID = 60  # Characters of a type's name.


@dataclasses.dataclass(frozen=True)
class Dialect:
  """How the user says that values are to be read, by the flags of these names."""

  separator: str | None
  missing: tuple[str, ...]


class _Csv:
  """A CSV file: its separator, the names of its columns, and its rows as bytes in UTF-8."""

  def __init__(self, path: str, separator: str | None, wanted: Collection[str]):
    self.path = path
    with files.reading(path):
      content = files.text_of(path)
      if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
      if match := re.match(rb"sep=(.)\r?\n", content, re.IGNORECASE):  # Excel's own.
        separator, content = separator or match[1].decode("latin-1"), content[match.end() :]
      heads = {sign: _head(content, sign) for sign in separator or _SEPARATORS}
    # The one by which the columns have the names that are asked for.
    self.separator = max(
      heads, key=lambda sign: (len(set(heads[sign][0]) & set(wanted)), len(heads[sign][0]))
    )
    self.names, start = heads[self.separator]
    self.content = content[start:]
    self.num_short = 0

  def read(self, names: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of these names. Rows that lack their last values come last."""
    fields = [str(place) for place in range(len(self.names))]
    wanted = [field for field, name in zip(fields, self.names) if name in names]
    short: list[list[str]] = []
    long: list[tuple[int, int]] = []

    def put_right(row: arrow_csv.InvalidRow) -> str:
      found = next(csv.reader(io.StringIO(row.text, newline=""), delimiter=self.separator), [])
      if any(value.strip() for value in found[len(fields) :]):
        long.append((row.number + 1, len(found)))
      elif any(value.strip() for value in found):
        self.num_short += len(found) < len(fields)
        short.append([*found, *[""] * len(fields)][: len(fields)])
      return "skip"

    columns = {field: pa.chunked_array([], pa.string()) for field in wanted}
    if self.content and not self.content.isspace():
      with files.reading(self.path):
        table = arrow_csv.read_csv(
          pa.BufferReader(self.content),
          # Without threads, which a fork of this process would lack.
          arrow_csv.ReadOptions(use_threads=False, column_names=fields, block_size=_BLOCK_BYTES),
          arrow_csv.ParseOptions(
            delimiter=self.separator, newlines_in_values=True, invalid_row_handler=put_right
          ),
          arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(fields, pa.string()), include_columns=wanted, null_values=[]
          ),
        )
      columns = dict(zip(wanted, table.columns))
    num_rows = len(columns[wanted[0]]) + len(short)
    if long or 2 * self.num_short > num_rows:
      place, number = long[0] if long else (2, "fewer")
      raise ValueError(
        f"{self.path} has {len(fields)} names of columns and {number} values in row {place};"
        f" expected as many: quote values that hold {self.separator!r}, or name another"
        " --separator."
      )
    return {
      self.names[int(field)]: pa.chunked_array(
        [*column.chunks, pa.array([row[int(field)] for row in short], pa.string())]
      )
      for field, column in columns.items()
    }


def _head(content: bytes, separator: str) -> tuple[list[str], int]:
  """Returns the first row of a CSV file that is not blank, and where the next one begins."""
  file = io.BytesIO(content)
  lines = (line.decode() for line in iter(file.readline, b""))
  rows = csv.reader(lines, delimiter=separator)
  names = next((row for row in rows if any(map(str.strip, row))), [])
  return [name.strip() for name in names], file.tell()


class _Parquet:
  """A Parquet file: the names of its columns."""

  def __init__(self, path: str):
    self.path = path
    with files.reading(path):
      names = parquet.read_schema(path).names
    self.names = [name for name in names if not name.startswith(_INDEX)]
    self.separator, self.num_short = "", 0

  def read(self, names: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of these names as texts."""
    with files.reading(self.path):
      table = parquet.read_table(self.path, columns=list(names), use_threads=False)
    return {name: _texts(column) for name, column in zip(table.column_names, table.columns)}


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
  """Returns a column of Parquet as texts, those of numbers being exact; bytes in UTF-8 are text."""
  types, kind = pa.types, column.type
  if types.is_dictionary(kind):
    return _texts(column.cast(kind.value_type))
  said = str(kind) if len(str(kind)) <= _MOST_SAID else f"{str(kind)[:_MOST_SAID]}..."
  if types.is_floating(kind):
    return column.cast(pa.float64()).cast(pa.string())
  if types.is_time(kind):
    return compute.replace_substring_regex(column.cast(pa.string()), r"\.0+$", "")
  if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
    return column.cast(pa.string())
  if types.is_decimal(kind) or types.is_date(kind):
    return column.cast(pa.string())
  is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
  is_bytes = not is_text and "binary" in str(kind)
  if is_text and not compute.any(compute.match_substring(column.cast(pa.string()), "\0")).as_py():
    return column.cast(pa.string())
  make = _decode if is_text or is_bytes else _name
  has_name = is_text or is_bytes or types.is_timestamp(kind) or types.is_duration(kind)
  return pa.chunked_array(
    [pa.array([v if v is None else make(v if has_name else "", said) for v in column.to_pylist()])],
    pa.string(),
  )


def _name(value: Any, kind: str) -> str:
  return values.unusable(kind, str(value))


def _decode(value: str | bytes, kind: str) -> str:
  try:
    text = value if isinstance(value, str) else value.decode()
  except UnicodeDecodeError as error:
    return values.unusable(f"{kind} that is no text in UTF-8", error.object.hex())
  # A program may end a text at a NUL, and take it for another one.
  return values.unusable(f"{kind} with NUL", text.replace("\0", "\\0")) if "\0" in text else text


class Table:
  """The files of a table, whose columns are those of the first.

  Attributes:
    names: The names of its columns.
    others: The files of its folder that are no tables.
  """

  def __init__(self, data_dir: str, dialect: Dialect, wanted: Collection[str]):
    """Finds the files, of which `wanted` are names of columns; all must have the same columns."""
    self._files, self.others = files.find(data_dir)
    self._dialect, self._wanted = dialect, wanted
    self.names: list[str] = []
    for file in self._files:
      opened = self._open(file)
      names = [name for name in (*opened.names, *file.of_folders) if name]
      if not names:
        raise ValueError(
          f"{file.path} is empty, or names no columns; expected names of these, and a row an"
          " example."
        )
      twice = [name for name, number in collections.Counter(names).items() if number > 1]
      if twice:
        raise ValueError(
          f"{file.path} has the column {twice[0]!r} twice; rename one of them, or give the columns"
          " names, if the first row has none."
        )
      self.names = self.names or names
      if set(names) != set(self.names):
        raise ValueError(
          f"{file.path} lacks or adds the columns {sorted(set(names) ^ set(self.names))}, compared"
          f" with {self._files[0].path}; expected the same columns in all files: make them alike."
        )

  def _open(self, file: files.File) -> _Csv | _Parquet:
    if file.path.lower().endswith(".parquet"):
      return _Parquet(file.path)
    return _Csv(file.path, self._dialect.separator, self._wanted)

  def digest(self) -> str:
    """Returns the SHA-256 of names and contents of the files, in hexadecimal digits."""
    return files.digest(self._files)

  def read(
    self, client: str | None, label: str, features: Sequence[str]
  ) -> tuple[dict[str, values.Column], list[str]]:
    """Reads columns, and says what was put right.

    The column of clients has no missing values but blank ones; with None the files' names become
    the column `FILE_NAME`.
    """
    names = [name for name in (client, label, *features) if name is not None]
    chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
    sizes, num_short, separators = [], 0, set()
    for file in self._files:
      opened = self._open(file)
      columns = opened.read(set(names) - set(file.of_folders) or opened.names[:1])
      sizes.append(len(next(iter(columns.values()))))
      for name, value in file.of_folders.items():
        columns[name] = pa.chunked_array([pa.repeat(value, sizes[-1])])
      for name in names:
        chunks[name] += columns[name].chunks
      num_short += opened.num_short
      separators |= {opened.separator} - {"", ","}
    if not sum(sizes):
      raise ValueError(f"{self._files[0].path} has no rows; expected one an example.")
    frame = {
      name: self._column(name, pa.chunked_array(chunks.pop(name), pa.string()), client, label)
      for name in names
    }
    remarks = []
    if separators:
      remarks.append(f"Values are separated by {' and '.join(map(repr, sorted(separators)))}.")
    if num_short:
      remarks.append(f"{num_short} rows lack their last values, which are read as missing.")
    is_blank = np.all([column.codes < 0 for column in frame.values()], axis=0)
    if client is None:
      owners = [file.client for file in self._files]
      twice = [name for name, number in collections.Counter(owners).items() if number > 1]
      if twice:
        raise ValueError(
          f"{os.path.dirname(self._files[0].path)} has two files for the client {twice[0]!r};"
          " expected one a client: rename one, or name --client_column."
        )
      codes = np.repeat(np.arange(len(owners)), sizes)
      frame[FILE_NAME] = values.Column(FILE_NAME, pa.array(owners), codes)
    if is_blank.any():
      of_files = frame.pop(FILE_NAME, None)
      frame = {name: column[~is_blank] for name, column in frame.items()}
      if of_files is not None:  # A file without rows is a client, too.
        frame[FILE_NAME] = dataclasses.replace(of_files, codes=of_files.codes[~is_blank])
      remarks.append(f"{is_blank.sum()} blank rows are left out.")
    return frame, remarks

  def _column(
    self, name: str, chunks: pa.ChunkedArray, client: str | None, label: str
  ) -> values.Column:
    """Makes a column, in which what stands for a missing value is missing."""
    column = values.Column.of(name, chunks)
    texts = compute.utf8_trim_whitespace(column.texts)
    is_missing = np.zeros(len(texts), bool)
    if name in (client, label):
      is_missing |= compute.equal(texts, "").to_numpy(zero_copy_only=False)
    if name != client:
      is_missing |= compute.is_in(column.texts, _MISSING).to_numpy(zero_copy_only=False)
    marks = [mark.strip() for mark in self._dialect.missing]
    if name != client and marks:
      numbers = [number for mark in marks if (number := values.number(mark)) is not None]
      is_missing |= compute.is_in(texts, pa.array(marks)).to_numpy(zero_copy_only=False)
      is_missing |= np.isin(notation.Notation().numbers(column), numbers)
    return column.without(is_missing)
