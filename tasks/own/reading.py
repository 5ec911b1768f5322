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
import itertools
import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from privacy.settings import command_line
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
_MOST_BEFORE = 20  # Rows before the names of columns.
csv.field_size_limit(_BLOCK_BYTES)  # A text may be as long as a row.
_MOST_SAID = 60  # Characters of a type's name.


class _Csv:
  """A CSV file: its separator, the names of its columns, and its rows as bytes in UTF-8."""

  def __init__(self, path: str, separator: str | None, columns: Collection[str]):
    self.path = path
    with files.reading(path):
      content = files.text_of(path)
      if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
      self._lines_before = 0
      if match := re.match(rb"sep=(.)\r?\n", content, re.IGNORECASE):  # Excel's own.
        self._lines_before = 1
        separator, content = separator or match[1].decode("latin-1"), content[match.end() :]
      heads = {sign: _head(content, sign, columns) for sign in separator or _SEPARATORS}
    # The one by which the columns have the names that are asked for.
    self.separator = max(
      heads, key=lambda sign: (len(set(heads[sign][0]) & set(columns)), len(heads[sign][0]))
    )
    self.names, start, self.num_title_rows = heads[self.separator]
    self.content = content[start:]
    self._lines_before += content[:start].count(b"\n")
    self.num_short_rows = 0

  def read(self, names: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of these names. Rows that lack their last values come last."""
    fields = [str(place) for place in range(len(self.names))]
    chosen = [field for field, name in zip(fields, self.names) if name in names]
    uneven: list[arrow_csv.InvalidRow] = []

    def skip(row: arrow_csv.InvalidRow) -> str:
      uneven.append(row)
      return "skip"

    columns = {field: pa.chunked_array([], pa.string()) for field in chosen}
    if self.content and not self.content.isspace():
      with files.reading(self.path):
        table = arrow_csv.read_csv(
          pa.BufferReader(self.content),
          # Without threads, which a fork of this process would lack.
          arrow_csv.ReadOptions(use_threads=False, column_names=fields, block_size=_BLOCK_BYTES),
          arrow_csv.ParseOptions(
            delimiter=self.separator, newlines_in_values=True, invalid_row_handler=skip
          ),
          arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(fields, pa.string()), include_columns=chosen, null_values=[]
          ),
        )
      columns = dict(zip(chosen, table.columns))
    rows = self._repair_uneven_rows(uneven, len(columns[chosen[0]]))
    return {
      self.names[int(field)]: pa.chunked_array(
        [*column.chunks, pa.array([row[int(field)] for row in rows], pa.string())]
      )
      for field, column in columns.items()
    }

  def _repair_uneven_rows(
    self, uneven: Sequence[arrow_csv.InvalidRow], num_even: int
  ) -> list[list[str]]:
    """Returns rows of as many values as there are names, of those that lack or add blank ones."""
    number, rows, wrong = len(self.names), [], []
    for row in uneven:
      with files.reading(self.path):
        row_values = next(csv.reader(io.StringIO(row.text, newline=""), delimiter=self.separator))
      if not any(map(str.strip, row_values)):
        continue
      rows.append([*row_values, *[""] * number][:number])
      self.num_short_rows += len(row_values) < number
      if any(map(str.strip, row_values[number:])) or "\n" in row.text.strip():
        wrong.append(row)
    if 2 * self.num_short_rows > num_even + len(uneven):
      wrong = list(uneven)
    if wrong:
      lines = wrong[0].text.strip().count("\n") + 1
      remedies = [f"quote values that hold {self.separator!r}", "name another --separator"]
      if lines > 1:
        remedies = [f"look for a quotation mark too many or too few, as it has {lines} lines"]
      raise command_line.Mistake(
        f"{self.path} has {number} names of columns and {wrong[0].actual_columns} values in line"
        f" {self._line_of(wrong[0].text)}; expected as many",
        *remedies,
      )
    return rows

  def _line_of(self, text: str) -> int:
    """Returns in which line of the file the first row with a text begins, as editors count them."""
    row = re.escape(text.strip("\r\n").encode())
    match = re.search(rb"^" + row + rb"(?=[\r\n]|\Z)", self.content, re.MULTILINE)
    start = match.start() if match else 0
    return self._lines_before + self.content[:start].count(b"\n") + 1


def _head(content: bytes, separator: str, columns: Collection[str]) -> tuple[list[str], int, int]:
  """Returns the names of columns, where the next row begins, and how many rows are before them.

  They are the first row that is not blank, or below a title the one with more of these `columns`.
  """
  file = io.BytesIO(content)
  lines = (line.decode() for line in iter(file.readline, b""))
  rows = (row for row in csv.reader(lines, delimiter=separator) if any(map(str.strip, row)))
  heads = [
    ([name.strip() for name in row], file.tell(), place)
    for place, row in enumerate(itertools.islice(rows, _MOST_BEFORE + 1))
  ]
  return max(heads, key=lambda head: len(set(head[0]) & set(columns)), default=([], 0, 0))


class _Parquet:
  """A Parquet file: the names of its columns."""

  def __init__(self, path: str):
    self.path = path
    with files.reading(path):
      names = parquet.read_schema(path).names
    self._keys = {name.strip(): name for name in names if not name.startswith(_INDEX)}
    self.names = [name.strip() for name in names if not name.startswith(_INDEX)]
    self.separator, self.num_short_rows, self.num_title_rows = "", 0, 0

  def read(self, names: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Returns the columns of these names as texts."""
    with files.reading(self.path):
      keys = [self._keys[name] for name in names]
      table = parquet.read_table(self.path, columns=keys, use_threads=False)
    return {name: _texts(table[key]) for name, key in zip(names, keys)}


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
  """Returns a column of Parquet as texts, those of numbers being exact; bytes in UTF-8 are text."""
  types, kind = pa.types, column.type
  if types.is_dictionary(kind):
    return _texts(column.cast(kind.value_type))
  if types.is_floating(kind):
    column = column.cast(pa.float64())
  is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
  is_bytes = "binary" in str(kind)
  if not (is_bytes or types.is_nested(kind) or types.is_timestamp(kind) or types.is_duration(kind)):
    texts = column.cast(pa.string())
    if types.is_time(kind):
      return compute.replace_substring_regex(texts, r"\.0+$", "")
    if not is_text or not compute.any(compute.match_substring(texts, "\0")).as_py():
      return texts
  title = str(kind) if len(str(kind)) <= _MOST_SAID else f"{str(kind)[:_MOST_SAID]}..."

  def name(value: Any) -> str:
    if types.is_nested(kind):
      return values.unusable(title)
    if not (is_text or is_bytes):
      return values.unusable(title, str(value))
    try:
      text = value if is_text else value.decode()
    except UnicodeDecodeError:
      return values.unusable(f"{title} that is no text in UTF-8", value.hex())
    # A program may end a text at a NUL, and take it for another one.
    return values.unusable(f"{title} with NUL", text.replace("\0", "\\0")) if "\0" in text else text

  names = [None if value is None else name(value) for value in column.to_pylist()]
  return pa.chunked_array([pa.array(names, pa.string())])


class TableFile:
  """The files of a table, whose columns are those of the first.

  Attributes:
    names: The names of its columns.
    files: Its files.
    others: The files of its folder that are no tables.
  """

  def __init__(
    self,
    data_dir: str,
    separator: str | None,
    marks: Sequence[str],
    columns: Collection[str],
    classes: Sequence[str] = (),
  ):
    """Finds files with these `columns`, in which `marks` stand for missing values, too.

    No label that is among the `classes` is missing.
    """
    self.files, self.others = files.find(data_dir)
    self._separator, self._marks, self._columns = separator, [*map(str.strip, marks)], columns
    self._classes = pa.array(classes, pa.string())
    self._num_trimmed: dict[str, int] = {}  # The rows with blanks around their values, by column.
    self.names: list[str] = []
    for file in self.files:
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
          f" with {self.files[0].path}; expected the same columns in all files: make them alike."
        )

  def _open(self, file: files.File) -> _Csv | _Parquet:
    if file.path.lower().endswith(".parquet"):
      return _Parquet(file.path)
    return _Csv(file.path, self._separator, self._columns)

  def read(
    self, client: str | None, label: str, features: Sequence[str]
  ) -> tuple[dict[str, values.Column], list[str]]:
    """Reads columns, and says what was put right.

    The column of clients has no missing values but blank ones; with None the files' names become
    the column `FILE_NAME`.
    """
    names = [name for name in (client, label, *features) if name is not None]
    chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
    sizes, num_short_rows, num_title_rows, separators = [], 0, 0, set()
    for file in self.files:
      opened = self._open(file)
      columns = opened.read(set(names) - set(file.of_folders) or opened.names[:1])
      sizes.append(len(next(iter(columns.values()))))
      for name, value in file.of_folders.items():
        columns[name] = pa.chunked_array([pa.repeat(value, sizes[-1])])
      for name in names:
        chunks[name] += columns[name].chunks
      num_short_rows, num_title_rows = (
        num_short_rows + opened.num_short_rows,
        num_title_rows + opened.num_title_rows,
      )
      separators |= {opened.separator} - {"", ","}
    if not sum(sizes):
      raise ValueError(f"{self.files[0].path} has no rows; expected one an example.")
    frame = {
      name: self._column(name, pa.chunked_array(chunks.pop(name), pa.string()), client, label)
      for name in names
    }
    remarks = []
    if separators:
      remarks.append(f"Values are separated by {' and '.join(map(repr, sorted(separators)))}.")
    if num_title_rows:
      remarks.append(f"{num_title_rows} rows before the names of columns are left out.")
    if num_short_rows:
      remarks.append(f"{num_short_rows} rows lack their last values, which are read as missing.")
    remarks += [
      f"{number} values of column {name} have blanks around them, which are left out."
      for name, number in self._num_trimmed.items()
    ]
    is_blank = np.all([column.codes < 0 for column in frame.values()], axis=0)
    if client is None:
      owners = [file.client for file in self.files]
      twice = [name for name, number in collections.Counter(owners).items() if number > 1]
      if twice:
        raise command_line.Mistake(
          f"{os.path.dirname(self.files[0].path)} has two files for the client {twice[0]!r};"
          " expected one a client",
          "rename one",
          "name --client_column",
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
    """Makes a column, in which what stands for a missing value is missing.

    Values have no blanks around them. Clients keep theirs: nobody else knows whether two are one.
    """
    column = values.Column.of(name, chunks)
    if name == client:
      blank = compute.equal(compute.utf8_trim_whitespace(column.texts), "")
      return column.without(blank.to_numpy(zero_copy_only=False))
    column = self._trimmed(column)
    is_missing = compute.is_in(column.texts, _MISSING).to_numpy(zero_copy_only=False)
    if self._marks:
      numbers = [number for mark in self._marks if (number := values.number(mark)) is not None]
      marked = compute.is_in(column.texts, pa.array(self._marks))
      is_missing |= marked.to_numpy(zero_copy_only=False)
      is_missing |= np.isin(notation.Notation().numbers(column), numbers)
    if name == label:
      named = compute.is_in(column.texts, self._classes).to_numpy(zero_copy_only=False)
      is_missing &= ~named
    return column.without(is_missing, keeps_marks=name == label)

  def _trimmed(self, column: values.Column) -> values.Column:
    """Returns a column without blanks around its values, and counts the names that had some."""
    texts = compute.utf8_trim_whitespace(column.texts)
    had_some = compute.and_(compute.not_equal(texts, column.texts), compute.not_equal(texts, ""))
    # To numbers they never mattered.
    had_some = compute.and_not(had_some, compute.match_substring_regex(texts, r"^[-+(]?[.,]?[0-9]"))
    if number := int(column.counts[had_some.to_numpy(zero_copy_only=False)].sum()):
      self._num_trimmed[column.name] = number
    return column.trimmed
