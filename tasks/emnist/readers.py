"""Reads handwriting by writer from the files that EMNIST users have, and names their faults.

Two formats hold the same images: LEAF's FEMNIST JSON (`iterate_leaf`) and the SQLite database that
TensorFlow Federated downloads (`iterate_sqlite`). Both readers yield (writer, x float32 [n, 28, 28]
with paper = 1.0 and ink = 0.0, y int32 [n] in 0..61), one writer at a time.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import lzma
import os
import pathlib
import sqlite3
import time
from typing import Any, Optional

from absl import logging
import numpy as np
import tensorflow as tf

from tasks import data_set
from tasks import user_files

NUM_CLASSES = 62
SIDE = 28
DATABASE_NAME = "emnist_all.sqlite"
COMPRESSED_NAME = DATABASE_NAME + ".lzma"

_COMMAND = "preprocess.sh -s niid --sf 1.0 -k 100 -t user --tf 0.5"  # LEAF's.
_MIN_EXAMPLES = 100
_SQLITE_MAGIC = b"SQLite format 3\0"
_SECONDS_TO_COUNT = 2.0
_NUM_PIXELS = SIDE * SIDE
_DATABASE_SPLITS = ("all_train", "all_test")

_Writer = tuple[str, np.ndarray, np.ndarray]


def _connect(path: str) -> contextlib.closing[sqlite3.Connection]:
  """Opens the user's database, which is never made or changed."""
  uri = pathlib.Path(path).absolute().as_uri() + "?mode=ro"
  return contextlib.closing(sqlite3.connect(uri, uri=True))


def _describe_database(path: str) -> str:
  """Says how many writers TFF's database has, if that can be told soon."""
  is_compressed = path.endswith((".lzma", ".xz"))
  with lzma.open(path) if is_compressed else open(path, "rb") as file:
    if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
      raise ValueError(f"{path} is no SQLite database")
  if is_compressed:
    return f"{os.path.getsize(path) / 1e9:.2f} GB, compressed"
  end = time.monotonic() + _SECONDS_TO_COUNT
  query = (
    "SELECT COUNT(*), TOTAL(n >= ?) FROM (SELECT COUNT(*) AS n FROM examples"
    " WHERE split_name IN (?, ?) GROUP BY client_id)"
  )
  with _connect(path) as connection:
    connection.execute("SELECT split_name, client_id FROM examples LIMIT 1")
    connection.set_progress_handler(lambda: time.monotonic() > end, 10000)
    with contextlib.suppress(sqlite3.OperationalError):  # It was interrupted.
      writers, enough = connection.execute(query, [_MIN_EXAMPLES, *_DATABASE_SPLITS]).fetchone()
      return (
        f"{writers} writers, of whom {enough:.0f} have {_MIN_EXAMPLES} images or more"
        " (--min_examples_per_client)"
      )
  return f"{os.path.getsize(path) / 1e9:.2f} GB"


def find_downloaded(cache_dir: str) -> Optional[str]:
  """Returns the path of a database that was downloaded before, here or by TFF itself, or None."""
  for folder in (os.path.join(os.path.expanduser("~"), ".tff"), cache_dir):
    path = os.path.join(folder, DATABASE_NAME)
    if os.path.exists(path):
      return path
  return None


def _is_image(x: Any, y: Any) -> bool:
  return isinstance(x, list) and not isinstance(y, str) and not any(isinstance(v, str) for v in x)


DATA_SET = data_set.DataSet(
  name="EMNIST",
  file_names=(DATABASE_NAME, COMPRESSED_NAME),
  command=_COMMAND,
  client="writer",
  examples="images",
  min_examples=_MIN_EXAMPLES,
  is_example=_is_image,
  describe_file=_describe_database,
  remedy="The first run of a task on it downloads it. A copy can be named with --data_dir:\n"
  f"{COMPRESSED_NAME}, or what LEAF's {_COMMAND} leaves.\n{data_set.STANDIN}",
  find_downloaded=find_downloaded,
)


def _check_writer(path: str, writer: str, x: np.ndarray, y: np.ndarray) -> _Writer:
  """Returns a writer's images [n, 28, 28] and labels, or raises a `ValueError` that says why not.

  Args:
    path: The file that they come from.
    writer: The writer.
    x: float32 [n, 784].
    y: [n].

  Returns:
    The writer, x float32 [n, 28, 28], y int32 [n].
  """
  # `not all(within)` and not `any(outside)`: NaN is neither below 0 nor above 1.
  if not np.all((x >= 0.0) & (x <= 1.0)):
    raise ValueError(
      f"{path}: writer {writer!r} has pixels that are NaN or outside [0, 1]; expected paper = 1.0"
      " and ink = 0.0."
    )
  if y.dtype.kind not in "iu" or not np.all((y >= 0) & (y < NUM_CLASSES)):
    raise ValueError(
      f"{path}: writer {writer!r} has labels that are not integers in 0..{NUM_CLASSES - 1};"
      f" expected EMNIST's {NUM_CLASSES} classes."
    )
  return writer, x.reshape(-1, SIDE, SIDE), y.astype(np.int32)


def _compact(data: dict) -> dict:
  """Makes a writer's images an array while JSON is parsed, if they are alike and numbers.

  Before the next writer is parsed, so that at most one writer's pixels are Python's numbers: a
  quarter of the memory and half the time of doing it afterwards.
  """
  if isinstance(data.get("x"), list) and "y" in data:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
      data["x"] = np.asarray(data["x"], np.float32)
  return data


def _leaf_writer(path: str, writer: str, data: Mapping[str, Any]) -> _Writer:
  """Checks and returns one user of a LEAF file."""
  x, y = data["x"], data["y"]
  if not isinstance(x, np.ndarray) or x.shape != (len(y), _NUM_PIXELS):
    raise ValueError(
      f"{path}: writer {writer!r} has an image that is not a list of {_NUM_PIXELS} numbers;"
      " expected the 28 x 28 pixels row by row, each in [0, 1]."
    )
  # Not by converting and looking at the type: True, 3.0 and 10**30 become numbers of some kind.
  integers = all(type(label) is int and 0 <= label < NUM_CLASSES for label in y)
  return _check_writer(path, writer, x, np.asarray(y) if integers else np.empty(0, object))


def iterate_leaf(paths: Iterable[str]) -> Iterator[_Writer]:
  """Yields the writers of a split's LEAF JSON files.

  A user's x is a list of images of 784 numbers, and y a list of integers, as LEAF's preprocess.sh
  leaves them for FEMNIST.

  Raises:
    ValueError: If a file isn't complete JSON of this form, or a writer is in two files.
  """
  for path, writer, data in user_files.iterate_leaf(paths, DATA_SET, _compact):
    yield _leaf_writer(path, writer, data)


def _not_a_database(path: str, reason: str) -> ValueError:
  return ValueError(
    f"{path} {reason}; expected TensorFlow Federated's {DATABASE_NAME}: delete it and"
    " download it again, or name another with --data_dir."
  )


def _rows_by_writer(path: str, connection: sqlite3.Connection) -> dict[str, list[list[int]]]:
  """Returns row numbers of each writer's examples, [train, test], in the database's order."""
  columns = {row[1] for row in connection.execute("PRAGMA table_info(examples)")}
  missing = {"split_name", "client_id", "serialized_example_proto"} - columns
  if missing:
    raise _not_a_database(path, f"has no table examples with the columns {sorted(missing)}")
  # Reads an index where there is one, and never the images.
  query = "SELECT rowid, client_id, split_name FROM examples WHERE split_name IN (?, ?)"
  rows: dict[str, list[list[int]]] = {}
  seen = set()
  for row, writer, split in connection.execute(query, _DATABASE_SPLITS):
    seen.add(split)
    rows.setdefault(writer, [[], []])[_DATABASE_SPLITS.index(split)].append(row)
  for split in _DATABASE_SPLITS:
    if split not in seen:
      raise _not_a_database(path, f"has no examples of the split {split}")
  return rows


def _parse_examples(path: str, writer: str, protos: list[bytes]) -> _Writer:
  """Returns a writer's serialized `tf.train.Example`s as arrays, checked."""
  spec = {
    "pixels": tf.io.FixedLenFeature([_NUM_PIXELS], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64),
  }
  try:
    parsed = tf.io.parse_example(protos, spec)
  except (tf.errors.InvalidArgumentError, TypeError, ValueError) as e:
    raise ValueError(
      f"{path}: writer {writer!r} has an example that is not a tf.train.Example of {_NUM_PIXELS}"
      " float pixels and an integer label; download the file again."
    ) from e
  return _check_writer(path, writer, parsed["pixels"].numpy(), parsed["label"].numpy())


def iterate_sqlite(path: str) -> Iterator[_Writer]:
  """Yields the writers of TFF's EMNIST database, each with all examples of both its splits.

  TFF divides every writer's examples in "all_train" and "all_test"; here a client is a writer, so
  the two are put together, train first. The "digits_only" splits repeat some of them: not read.

  Args:
    path: The SQLite database.

  Raises:
    ValueError: If the file isn't such a database.
  """
  logging.info("Reading %s.", path)
  try:
    with _connect(path) as connection:
      for writer, parts in _rows_by_writer(path, connection).items():
        protos = []
        for part in parts:
          rows = ",".join(map(str, part))
          query = f"SELECT serialized_example_proto FROM examples WHERE rowid IN ({rows})"
          protos += [row[0] for row in connection.execute(query + " ORDER BY rowid")]
        yield _parse_examples(path, str(writer), protos)
  except sqlite3.Error as e:
    raise _not_a_database(path, f"is not a readable SQLite database ({e})") from e
