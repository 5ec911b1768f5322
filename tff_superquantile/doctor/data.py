"""The doctor's look at data sets: which are there, and of what kind, without reading all of them.

Finds them as the tasks do, in the same places. Imports TensorFlow, with the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import csv
import dataclasses
import json
import lzma
import os
import pathlib
import re
import sqlite3
import time

from tasks import user_files
from tasks.emnist import readers as emnist_readers
from tasks.sent140 import glove as glove_lib
from tasks.sent140 import readers as sent140_readers
from tff_superquantile.doctor import report

_HEAD_BYTES = 1 << 24  # Of a JSON file: its users' names and the first one's data.
_SNIPPET_BYTES = 200
_SECONDS_TO_COUNT = 2.0
_SQLITE_MAGIC = b"SQLite format 3\0"
_CSV_COLUMNS = 6
_STANDIN = "To try things out there are generated data: --data=standin"


@dataclasses.dataclass(frozen=True)
class _DataSet:
  """What a data set looks like.

  Attributes:
    names: The files that hold all of it.
    leaf: LEAF's files of it.
    has_texts: Whether LEAF's examples are texts, rather than numbers.
    describe_file: Takes the path of a file that holds all; says what is in it, or raises a
      ValueError.
    remedy: How to get it.
  """

  names: tuple[str, ...]
  leaf: user_files.Leaf
  has_texts: bool
  describe_file: Callable[[str], str]
  remedy: str


def _describe_database(path: str) -> str:
  """How many writers TFF's database has, if that can be told soon."""
  is_compressed = path.endswith((".lzma", ".xz"))
  with lzma.open(path) if is_compressed else open(path, "rb") as file:
    if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
      raise ValueError(f"{path} is no SQLite database")
  if is_compressed:
    return f"{os.path.getsize(path) / 1e9:.2f} GB, compressed"
  uri = pathlib.Path(path).absolute().as_uri() + "?mode=ro"
  end = time.monotonic() + _SECONDS_TO_COUNT
  with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
    connection.execute("SELECT split_name, client_id FROM examples LIMIT 1")
    connection.set_progress_handler(lambda: time.monotonic() > end, 10000)
    with contextlib.suppress(sqlite3.OperationalError):  # It was interrupted.
      query = (
        "SELECT COUNT(*), TOTAL(n >= ?) FROM (SELECT COUNT(*) AS n FROM examples"
        " WHERE split_name IN ('all_train', 'all_test') GROUP BY client_id)"
      )
      least = emnist_readers.LEAF.min_examples
      writers, enough = connection.execute(query, [least]).fetchone()
      return (
        f"{writers} writers, of whom {enough:.0f} have {least} images or more"
        " (--min_examples_per_client)"
      )
  return f"{os.path.getsize(path) / 1e9:.2f} GB"


def _describe_csv(path: str) -> str:
  with open(path, encoding="latin-1", newline="") as file:
    columns = len(next(csv.reader(file), []))
  if columns != _CSV_COLUMNS:
    raise ValueError(f"{path} has {columns} columns in its first line, expected {_CSV_COLUMNS}")
  return f"{os.path.getsize(path) / 1e6:.1f} MB of tweets"


_DATA_SETS = {
  "EMNIST": _DataSet(
    names=(emnist_readers.DATABASE_NAME, emnist_readers.COMPRESSED_NAME),
    leaf=emnist_readers.LEAF,
    has_texts=False,
    describe_file=_describe_database,
    remedy="The first run of a task on it downloads it. A copy can be named with --data_dir:\n"
    f"{emnist_readers.COMPRESSED_NAME}, or what LEAF's {emnist_readers.LEAF.command} leaves.\n"
    f"{_STANDIN}",
  ),
  "Sent140": _DataSet(
    names=(sent140_readers.CSV_NAME,),
    leaf=sent140_readers.LEAF,
    has_texts=True,
    describe_file=_describe_csv,
    remedy=f"Unpack {sent140_readers.CSV_SOURCE}\nor run LEAF's"
    f" {sent140_readers.LEAF.command}, and name its directory with --data_dir.\n{_STANDIN}",
  ),
}


def _peek(path: str) -> tuple[list[int] | None, bool | None]:
  """From the head of one of LEAF's files: (examples of each user, whether these are texts).

  None for what cannot be told.
  """
  with open(path, encoding="utf-8", errors="replace") as file:
    head = file.read(_HEAD_BYTES)
  num_samples = None
  found = re.search(r'"num_samples"\s*:\s*(?=\[)', head)
  if found:
    with contextlib.suppress(ValueError):  # Longer than the head.
      num_samples = json.JSONDecoder().raw_decode(head, found.end())[0]
  examples = re.search(r'"x"\s*:\s*\[', head)
  if examples is None:
    return num_samples, None
  return num_samples, '"' in head[examples.end() : examples.end() + _SNIPPET_BYTES]


def _describe_leaf(data_set: _DataSet, paths: Mapping[str, list[str]]) -> str:
  """How many users LEAF's files have; raises a ValueError if they are of another data set."""
  leaf = data_set.leaf
  counts, enough = [], []
  for split in ("train", "test"):
    peeks = [_peek(path) for path in paths[split]]
    wrong = [p for p, (_, has_texts) in zip(paths[split], peeks) if has_texts != data_set.has_texts]
    if wrong:
      expected = "texts" if data_set.has_texts else "numbers"
      raise ValueError(f"{wrong[0]} has no examples that are {expected}")
    known = [num_samples for num_samples, _ in peeks if num_samples is not None]
    if len(known) < len(peeks):
      return f"{leaf.client}s to train and to test on"
    counts.append(sum(map(len, known)))
    enough.append(sum(n >= leaf.min_examples for num_samples in known for n in num_samples))
  return (
    f"{counts[0]} training and {counts[1]} test {leaf.client}s, of whom {enough[0]} and {enough[1]}"
    f" have {leaf.min_examples} {leaf.examples} or more (--min_examples_per_client)"
  )


def _look(name: str, data_dir: str) -> str:
  """What of a data set is where the user says; raises a ValueError if it is not there."""
  data_set = _DATA_SETS[name]
  source = user_files.find_source(data_dir, data_set.names, data_set.leaf)
  try:
    if isinstance(source, str):
      return f"{data_set.describe_file(source)}, {source}"
    return f"{_describe_leaf(data_set, source)}, LEAF's JSON in {data_dir}"
  except (OSError, EOFError, lzma.LZMAError, sqlite3.Error, csv.Error) as error:
    raise ValueError(f"{source if isinstance(source, str) else data_dir}: {error}") from error


def check_data_dir(data_dir: str) -> report.Finding:
  """Whether what the user named holds one of the data sets."""
  found, reasons = [], []
  for name in _DATA_SETS:
    try:
      _look(name, data_dir)
      found.append(name)
    except ValueError as error:
      reasons.append(f"{name}: {str(error).rstrip('.')}.")
  if found:
    return report.ok(f"holds {' and '.join(found)}")
  return report.fail(
    f"Found no data set in --data_dir={data_dir}; expected one of {', '.join(_DATA_SETS)}.",
    "\n".join([*reasons, "Name another directory or file, or get the data again."]),
  )


def check_data_set(data_set: str, data_dir: str, cache_dir: str) -> report.Finding:
  """Whether a data set is where the user says, or where it is downloaded to.

  Args:
    data_set: Its name.
    data_dir: Where the user says; "" for nowhere.
    cache_dir: Where it may have been downloaded to.

  Returns:
    The finding, a note if it is not there.
  """
  downloaded = emnist_readers.find_downloaded(cache_dir) if data_set == "EMNIST" else None
  place = data_dir or downloaded
  if place:
    try:
      return report.ok(_look(data_set, place))
    except ValueError as error:
      if not data_dir:
        return report.fail(f"Found that {error}.", f"Delete {place}; it is downloaded again.")
  where = f"not in {data_dir}" if data_dir else "not here"
  return report.note(where, _DATA_SETS[data_set].remedy)


def check_word_vectors(glove: str, data_dir: str) -> report.Finding:
  """Whether GloVe's word vectors are where the user says, or beside the data.

  Args:
    glove: What the user named; "" for nothing.
    data_dir: The data; "" for nowhere.

  Returns:
    The finding: a failure if what the user named cannot be used, a note if nothing is there.
  """
  remedy = f"Get {glove_lib.FILE_NAME} from {glove_lib.SOURCE} and name it with --glove."
  if not glove and not data_dir:
    return report.note("not here", remedy)
  try:
    path = glove_lib.find_file(glove, data_dir)
  except ValueError as error:
    if glove:
      return report.fail(f"Found no file --glove={glove}; expected word vectors.", remedy)
    return report.note(str(error).partition(";")[0], remedy)
  with open(path, "rb") as file:
    numbers = file.readline(1 << 16).split()[1:]
  try:
    dimension = len([float(number) for number in numbers])
  except ValueError:
    dimension = 0
  if not dimension:
    return report.fail(
      f"Found {path}, whose first line is not a word and numbers; expected GloVe's text.", remedy
    )
  return report.ok(f"{dimension} numbers a word, {path}")
