"""Finds tables of clients, wherever they lie and whatever they are called, and the clients in them.

A table of clients is a text file whose first line that is not blank names a column `client_id`,
separated by commas, semicolons, tabulators, bars or blanks; a JSON file, or one of JSON lines, with
such an entry at any depth; or a Parquet file with such a column, where pyarrow is installed. Any
other file that is no text is one of which nothing is known. Two names are one client if `same` says
so, whatever their tables are.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
import csv
import dataclasses
import io
import json
import os
import pathlib
import re
from typing import Any
import unicodedata

CLIENT_ID = "client_id"
_HEAD = 1 << 16  # Bytes in which there is a header.
_PARQUET = b"PAR1"
_BOMS = {  # The longer ones first, as they begin with the shorter.
  codecs.BOM_UTF32_LE: "utf-32",
  codecs.BOM_UTF32_BE: "utf-32",
  codecs.BOM_UTF16_LE: "utf-16",
  codecs.BOM_UTF16_BE: "utf-16",
}
_RULE = re.compile(r"[-: ]+")  # Below the header of a table in Markdown.
_SEPARATORS = (",", ";", "\t", "|", " ")
# The beginning of a formula for spreadsheets, also after `escape`.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(\.0*)?")


def escape(text: str) -> str:
  """Puts an apostrophe before a text that a spreadsheet would compute."""
  return f"'{text}" if _FORMULA.match(text) else text


def unescape(text: str) -> str:
  """Returns the text that `escape` was given."""
  return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def same(client: str) -> str:
  """Returns one text for all spellings of a name: 7, 007 and 7.0 are what formats make of one."""
  name = unicodedata.normalize("NFC", client).strip()
  return str(int(name.partition(".")[0])) if _WHOLE_NUMBER.fullmatch(name) else name


@dataclasses.dataclass(frozen=True)
class Tables:
  """What is in some places; paths are as they were found."""

  folders: tuple[pathlib.Path, ...]  # The folders, those that were given included.
  names: dict[pathlib.Path, frozenset[str]]  # The clients of a table as `same` has them, by path.
  unread: tuple[pathlib.Path, ...]  # Files and folders of which nothing is known.


def find(
  places: Iterable[pathlib.Path],
  is_passed_over: Callable[[pathlib.Path], bool] = lambda path: False,
) -> Tables:
  """Reads files, and all files in and below folders, through symbolic links, each folder once.

  Args:
    places: Files and folders.
    is_passed_over: Says of a file or folder whether it, and all below it, is left out.

  Returns:
    The folders, the tables of clients, and what cannot be read.
  """
  names: dict[pathlib.Path, frozenset[str]] = {}
  unread: list[pathlib.Path] = []
  folders = []
  for path in walk(places, unread, is_passed_over):
    if path.is_dir():
      folders.append(path)
      continue
    try:
      if clients := _read(path):
        names[path] = frozenset(map(same, clients))
    except (OSError, ValueError, RecursionError, csv.Error):
      unread.append(path)
  return Tables(tuple(folders), names, tuple(unread))


def walk(
  places: Iterable[pathlib.Path],
  unread: list[pathlib.Path],
  is_passed_over: Callable[[pathlib.Path], bool] = lambda path: False,
) -> Iterator[pathlib.Path]:
  """Yields files and folders, and all below these, through symbolic links, each folder once.

  Args:
    places: Files and folders.
    unread: The list to which folders are added that cannot be read.
    is_passed_over: As of `find`.
  """
  seen: set[str] = set()
  waiting = [(place, place.is_dir()) for place in sorted(places, reverse=True)]
  while waiting:
    path, is_folder = waiting.pop()
    if is_passed_over(path):
      continue
    if is_folder:
      if (target := os.path.realpath(path)) in seen:
        continue
      seen.add(target)
      try:
        with os.scandir(path) as entries:  # It knows folders from files without asking for each.
          below = [
            (path / e.name, os.path.isdir(e) if e.is_symlink() else e.is_dir()) for e in entries
          ]
      except OSError:
        unread.append(path)
        continue
      waiting += sorted(below, reverse=True)
    yield path


def _read(path: pathlib.Path) -> frozenset[str]:
  """Returns the clients that a file names; an error for a file of which nothing is known."""
  if not path.is_file():  # A pipe is read for ever, and a link may lead nowhere.
    raise ValueError(path)
  with open(path, "rb") as stream:
    head = stream.read(_HEAD)
  if head.startswith(_PARQUET):
    return _of_parquet(path)
  encoding = next((name for bom, name in _BOMS.items() if head.startswith(bom)), "utf-8-sig")
  if encoding == "utf-8-sig" and b"\0" in head:
    raise ValueError(path)
  text = head.decode(encoding, errors="replace")
  if text.lstrip()[:1] in ("{", "["):
    is_table = _has_name(path, encoding)  # Else it may be larger than the memory.
    return _of_json(path.read_text(encoding, errors="replace")) if is_table else frozenset()
  column = _column(next(filter(str.strip, text.splitlines()), ""))
  if column is None:
    return frozenset()
  with open(path, encoding=encoding, errors="replace", newline="") as stream:
    return _of_text(stream, *column)


def _fields(line: str, separator: str) -> list[str]:
  """Returns the fields of a line, without the blanks around them."""
  if separator == " ":
    return line.split()
  return [field.strip() for field in next(csv.reader([line], delimiter=separator), [])]


def _column(header: str) -> tuple[str, int] | None:
  """Returns the separator of a header and the place of its clients; None where it has none."""
  for separator in _SEPARATORS:
    fields = [field.strip("'\"# ").lower() for field in _fields(header, separator)]
    if CLIENT_ID in fields:
      return separator, fields.index(CLIENT_ID)
  return None


def _of_text(stream: Iterable[str], separator: str, place: int) -> frozenset[str]:
  """Returns the names in a column of lines, of which the first that is not blank is the header."""
  rows: Iterable[list[str]] = (
    map(str.split, stream) if separator == " " else csv.reader(stream, delimiter=separator)
  )
  rows = ([unescape(field).strip() for field in row] for row in rows)
  names = (row[place] if len(row) > place else "" for row in rows if any(row))
  next(names)
  return frozenset(
    name for name in names if name and (separator != "|" or not _RULE.fullmatch(name))
  )


def _has_name(path: pathlib.Path, encoding: str) -> bool:
  """Returns whether a text has the name of the column anywhere."""
  with open(path, encoding=encoding, errors="replace") as stream:
    before = ""
    while text := stream.read(_HEAD):
      if CLIENT_ID in (before + text).lower():
        return True
      before = text[-len(CLIENT_ID) :]
  return False


def _of_json(text: str) -> frozenset[str]:
  """Returns the names in the entries of a JSON text, or of JSON lines."""
  try:
    left: list[tuple[Any, bool]] = [(json.loads(text), False)]
  except ValueError:
    left = [(json.loads(line), False) for line in text.splitlines() if line.strip()]
  names = set()
  while left:
    value, is_name = left.pop()
    if isinstance(value, dict):
      left += ((below, is_name or key.lower() == CLIENT_ID) for key, below in value.items())
    elif isinstance(value, list):
      left += ((below, is_name) for below in value)
    elif is_name and value is not None:
      names.add(str(value))
  return frozenset(names)


def _of_parquet(path: pathlib.Path) -> frozenset[str]:
  try:
    import pyarrow as pa
    from pyarrow import parquet
  except ImportError:
    raise ValueError(path) from None
  try:
    # Without threads, which a fork of this process would lack.
    columns = [name for name in parquet.read_schema(path).names if name.lower() == CLIENT_ID]
    if not columns:
      return frozenset()
    table = parquet.read_table(io.BytesIO(path.read_bytes()), columns=columns, use_threads=False)
  except pa.ArrowException as error:
    raise ValueError(path) from error
  return frozenset(str(name) for column in table.columns for name in column.unique().to_pylist())
