"""Finds the files of a table, one or those of a folder, and opens those of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import gzip
import hashlib
import os
import urllib.parse
import zlib

import pyarrow as pa

from tasks import request

FORMATS = request.TABLE_FORMATS
_CHUNK_BYTES = 1 << 20
_STARTS = {  # Of files that are no text, in small letters.
  b"pk\x03\x04": "an Excel file (.xlsx) or another archive",
  b"\xd0\xcf\x11\xe0": "an Excel file (.xls)",
  b"%pdf-": "a PDF document",
  b"sqlite format": "a database",
  b"<!doctype": "a web page",
  b"<html": "a web page",
}


@dataclasses.dataclass(frozen=True)
class File:
  """A file of a table: the name of its client, and the values that its folders' names give."""

  path: str
  client: str
  of_folders: Mapping[str, str]


def find(data_dir: str) -> tuple[list[File], list[str]]:
  """Returns the files of a table in the order of their names, and those of a folder left out."""
  expected = f"expected a file {', '.join(FORMATS)}, or a folder of such files"
  if not os.path.exists(data_dir):
    raise ValueError(f"Found no file or folder {data_dir}; {expected}: correct --data_dir.")
  if not os.path.isdir(data_dir):
    _check_regular(data_dir)
    if not data_dir.lower().endswith(FORMATS):
      with open(data_dir, "rb") as file:
        _check_text(data_dir, file.read(99))
      raise ValueError(f"Found {data_dir}; {expected}: give the file the name of its format.")
    return [File(data_dir, request.table_name(data_dir), {})], []
  files, others = [], []
  for folder, folders, names in os.walk(data_dir):
    for name in (*folders, *names):
      path = os.path.join(folder, name)
      relative = os.path.relpath(path, data_dir)
      is_table = name.lower().endswith(FORMATS)
      is_left_out = not is_table and (name in names or name[0] == "_" or os.path.islink(path))
      if is_left_out and name[0] != "." and name != "_SUCCESS":
        others.append(relative)
      if name[0] == "." or not is_table:
        continue
      _check_regular(path)
      parts = os.path.dirname(relative).split(os.sep)
      keys = dict(part.split("=", 1) for part in parts if "=" in part)
      of_folders = {key: urllib.parse.unquote(value) for key, value in keys.items()}
      client = os.path.join(os.path.dirname(relative), request.table_name(path))
      files.append(File(path, client, of_folders))
    folders[:] = [name for name in folders if name[0] not in "._"]
  if not files:
    there = f" but {', '.join(sorted(others)[:3])}" if others else ""
    raise ValueError(f"Found no {', '.join(FORMATS)} in the folder {data_dir}{there}; {expected}.")
  return sorted(files, key=lambda file: os.path.relpath(file.path, data_dir)), sorted(others)


def _check_regular(path: str) -> None:
  """Raises a `ValueError` unless a path is a regular file; a pipe or a device may never end."""
  if not os.path.isfile(path):
    raise ValueError(
      f"Found that {path} is no regular file but a folder, a pipe, a device or a link that leads"
      " nowhere; expected a table: move it away, or write its content to a file."
    )


def digest(files: Sequence[File]) -> str:
  """Returns the SHA-256 of the files' names and contents, in hexadecimal digits."""
  total = hashlib.sha256()
  for file in files:
    of_file = hashlib.sha256()
    with reading(file.path), open(file.path, "rb") as opened:
      while chunk := opened.read(_CHUNK_BYTES):
        of_file.update(chunk)
    folders = os.path.dirname(file.client)
    name = os.path.join(folders, os.path.basename(file.path))
    total.update(repr((name, of_file.hexdigest())).encode())
  return total.hexdigest()


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
  """Turns the errors of a file that cannot be read into one sentence."""
  try:
    yield
  except (OSError, EOFError, zlib.error, csv.Error, UnicodeError, pa.ArrowException) as error:
    why = " ".join(str(getattr(error, "strerror", None) or error).split())
    raise ValueError(
      f"{path} cannot be read ({why}); expected a table in UTF-8 whose format is that of its name:"
      " mend it, or write it anew."
    ) from error


def text_of(path: str) -> bytes:
  """Returns the content of a file of text, unpacked and in UTF-8."""
  with open(path, "rb") as file:
    content = file.read()
  if content.startswith(b"\x1f\x8b"):
    content = gzip.decompress(content)
  _check_text(path, content[:99])
  if content.startswith((b"\xff\xfe", b"\xfe\xff")):
    content = content.decode("utf-16").encode()
  if b"\0" in content:
    raise ValueError(
      f"{path} has NUL bytes, as text in UTF-16 and damaged files have; expected a table in UTF-8:"
      " write it anew in UTF-8."
    )
  content.decode()  # Fails where it is in another encoding.
  return content.removeprefix(b"\xef\xbb\xbf")


def _check_text(path: str, start: bytes) -> None:
  """Raises a `ValueError` if a file is none of text, as its first bytes tell."""
  for known, kind in _STARTS.items():
    if start.lstrip().lower().startswith(known):
      raise ValueError(f"Found that {path} is {kind}; expected a table in UTF-8: save it as .csv.")
