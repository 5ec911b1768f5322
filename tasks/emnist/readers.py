"""Reads handwriting by writer from the files that EMNIST users have, and names their faults.

Three formats hold the same images: LEAF's FEMNIST JSON (`iterate_leaf`), the SQLite database that
TensorFlow Federated downloads (`iterate_sqlite`), and the Parquet file of Hugging Face. The readers
yield one writer at a time: (name, x float32 [n, 28, 28] with paper = 1.0 and ink = 0.0, y int32 [n]
in 0..61).
"""

from collections.abc import Iterable, Iterator
import contextlib
import logging
import pathlib
import sqlite3
import string
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import data_set
from tasks import downloads
from tasks import user_files

_LOG = logging.getLogger("tff_superquantile.tasks")

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
SIDE = 28
LEVELS = 255  # Pixels are k / 255.
DATABASE_NAME = "emnist_all.sqlite"
COMPRESSED_NAME = DATABASE_NAME + ".lzma"

_PARQUET, _PARQUET_NAME = ".parquet", "train-00000-of-00001.parquet"
_PARQUET_COLUMNS = ("image", "writer_id", "character")
_OTHER_PARQUET = (
  "expected the Parquet file of Hugging Face's flwrlabs/femnist: download it again, or name another"
  " with --data_dir"
)
_NUM_PIXELS = SIDE**2
_DATABASE_SPLITS = ("all_train", "all_test")

Writer = tuple[str, np.ndarray, np.ndarray]

DOWNLOAD = downloads.Download(
  what="EMNIST",
  urls=(f"https://storage.googleapis.com/tff-datasets-public/{COMPRESSED_NAME}",),
  sha256="c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
  size=170_507_172,
  room=4_708_990_976 + 600_000_000,  # Of the database while it is converted, and of its clients.
  instead=DATABASE_NAME,
)

DATA_SET = data_set.DataSet(
  name="EMNIST",
  file_names=(DATABASE_NAME, COMPRESSED_NAME, _PARQUET_NAME),
  command="preprocess.sh -s niid --sf 1.0 -k 100 -t user --tf 0.5",
  client="writer",
  examples="images",
  min_examples=100,
  downloads=(DOWNLOAD,),
)


def _check(path: str, writer: str, x: np.ndarray, y: np.ndarray) -> Writer:
  """Returns a writer of a file, or says what is wrong."""
  # `not all(within)` and not `any(outside)`: NaN is neither below 0 nor above 1.
  if not np.all((x >= 0.0) & (x <= 1.0)):
    raise ValueError(
      f"{path}: writer {writer!r} has pixels that are NaN or outside [0, 1]; expected paper = 1.0"
      " and ink = 0.0."
    )
  if y.dtype.kind not in "iu" or not np.all((y >= 0) & (y < len(CLASSES))):
    raise ValueError(
      f"{path}: writer {writer!r} has labels that are not integers in 0..{len(CLASSES) - 1};"
      f" expected EMNIST's {len(CLASSES)} classes."
    )
  return writer, x.reshape(-1, SIDE, SIDE), y.astype(np.int32)


def _compact(data: dict) -> dict:
  """Makes a writer's images an array before the next writer is parsed: a quarter of the memory."""
  if isinstance(data.get("x"), list) and "y" in data:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
      data["x"] = np.asarray(data["x"], np.float32)
  return data


def iterate_leaf(paths: Iterable[str]) -> Iterator[Writer]:
  """Yields the writers of a split's LEAF JSON files, each in one file."""
  for path, writer, data in user_files.iterate_leaf(paths, DATA_SET, _compact):
    x, y = data["x"], data["y"]
    if not isinstance(x, np.ndarray) or x.shape != (len(y), _NUM_PIXELS):
      raise ValueError(
        f"{path}: writer {writer!r} has an image that is not a list of {_NUM_PIXELS} numbers;"
        " expected the 28 x 28 pixels row by row, each in [0, 1]."
      )
    # Not by converting and looking at the type: True, 3.0 and 10**30 become numbers of some kind.
    integers = all(type(label) is int and 0 <= label < len(CLASSES) for label in y)
    yield _check(path, writer, x, np.asarray(y) if integers else np.empty(0, object))


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


def _parse_examples(path: str, writer: str, protos: list[bytes]) -> Writer:
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
  return _check(path, writer, parsed["pixels"].numpy(), parsed["label"].numpy())


def iterate_sqlite(path: str) -> Iterator[Writer]:
  """Yields the writers of TFF's EMNIST database, each with all examples of both its splits.

  TFF divides every writer's examples in "all_train" and "all_test"; here a client is a writer, so
  the two are put together, train first. The "digits_only" splits repeat some of them: not read.
  """
  _LOG.info("Reading %s.", path)
  uri = pathlib.Path(path).absolute().as_uri() + "?mode=ro"  # Nothing is made or changed.
  try:
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
      for writer, parts in _rows_by_writer(path, connection).items():
        protos = []
        for part in parts:
          rows = ",".join(map(str, part))
          query = f"SELECT serialized_example_proto FROM examples WHERE rowid IN ({rows})"
          protos += [row[0] for row in connection.execute(query + " ORDER BY rowid")]
        yield _parse_examples(path, str(writer), protos)
  except sqlite3.Error as e:
    raise _not_a_database(path, f"is not a readable SQLite database ({e})") from e


def _not_femnist(path: str, reason: str) -> ValueError:
  return ValueError(f"{path} {reason}; {_OTHER_PARQUET}.")


def _decode(path: str, writer: str, pngs: list[Any]) -> np.ndarray:
  """Returns a writer's images, uint8 [n, 28, 28], from the bytes of PNG files."""
  try:
    images = [tf.io.decode_png(png, channels=1).numpy()[:, :, 0] for png in pngs]
  except (tf.errors.InvalidArgumentError, TypeError, ValueError) as e:
    raise _not_femnist(path, f"has an image of writer {writer!r} that is not PNG") from e
  if any(image.shape != (SIDE, SIDE) for image in images):
    raise _not_femnist(path, f"has an image of writer {writer!r} that is not {SIDE} x {SIDE}")
  return np.stack(images)


def _iterate_parquet(path: str) -> Iterator[Writer]:
  """Yields the writers of Hugging Face's Parquet file, sorted, of a row an image.

  A row has a structure of PNG `bytes` and a path, `writer_id`, such as f0000_14, and `character`,
  the class from 0 to 61. Paper is the most frequent half of a writer's levels: where that is black,
  as in EMNIST's own files, the writer's images are turned. So no writer's images follow from
  another's.
  """
  _LOG.info("Reading %s.", path)
  with user_files.open_parquet(path, _PARQUET_COLUMNS, _OTHER_PARQUET) as file:
    try:
      table = file.read(list(_PARQUET_COLUMNS)).combine_chunks()
      names = table["writer_id"].to_numpy()
      labels = table["character"].to_numpy()
      pngs = table.flatten()["image.bytes"]
    except (OSError, ValueError, KeyError) as e:  # Arrow's errors are such ones.
      raise _not_femnist(path, "has columns that cannot be read") from e
  if table["writer_id"].null_count:
    raise _not_femnist(path, "has rows without a writer_id")
  if np.issubdtype(names.dtype, np.integer):  # Numbers are names, too.
    names = names.astype(str).astype(object)
  if any(not isinstance(name, str) for name in names):
    raise _not_femnist(path, "has a writer_id that is neither a text nor a whole number")
  unique, owners, counts = np.unique(names, return_inverse=True, return_counts=True)
  rows_of_each = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
  for name, rows in zip(unique, rows_of_each):
    levels = _decode(path, name, pngs.take(rows).to_pylist())
    is_paper_black = np.median(levels) < LEVELS / 2
    x = LEVELS - levels if is_paper_black else levels
    yield _check(path, name, x / np.float32(LEVELS), labels[rows])


def iterate_file(path: str) -> Iterator[Writer]:
  """Yields the writers of a file that holds all, by what its name ends with; TFF's otherwise."""
  return _iterate_parquet(path) if path.endswith(_PARQUET) else iterate_sqlite(path)
