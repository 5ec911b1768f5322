"""Opens EMNIST, or generated handwriting in its place, as client files that are written once."""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import functools
import lzma
import os
import sqlite3
import time

from absl import logging
import numpy as np

from tasks import data_set
from tasks import task
from tasks import user_files
from tasks.emnist import readers
from tasks.emnist import standin
from tff_superquantile.simulation import client_files

_CACHE_VERSION = 1  # A change of the conversion changes this too.
_LEVELS = 255
# LEAF's and TFF's pixels are k / 255; a copy rounded to four decimals is still within this.
_QUANTIZATION_TOLERANCE = 1e-3
_SQLITE_MAGIC = b"SQLite format 3\0"
_SECONDS_TO_COUNT = 2.0


class _NotEightBitError(Exception):
  """Pixels aren't multiples of 1 / 255; conversion goes on in float32."""


def _quantize(writers: Iterable) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields writers with their pixels as uint8, a quarter of the bytes to read in every round."""
  for writer, x, y in writers:
    levels = np.rint(x * _LEVELS)
    if np.max(np.abs(levels / _LEVELS - x)) > _QUANTIZATION_TOLERANCE:
      raise _NotEightBitError()
    yield writer, levels.astype(np.uint8), y


def _open_or_convert(
  cache_dir: str, name: str, paths: list[str], iterate: Callable[[], Iterable]
) -> client_files.ClientFiles:
  """Opens the client files of some source files, after converting them on first use.

  Args:
    cache_dir: Where the client files are kept.
    name: Tells caches of one source apart.
    paths: The source files; a change of any of them makes another cache.
    iterate: Returns the writers of these files.

  Returns:
    The files of all writers.
  """
  fingerprint = user_files.fingerprint([_CACHE_VERSION], paths)
  directory = os.path.join(cache_dir, f"emnist_{name}_{fingerprint}")
  try:
    return client_files.open_or_write_client_files(
      directory, lambda: _quantize(iterate()), x_scale=1 / _LEVELS
    )
  except _NotEightBitError:
    logging.info("The pixels of %s are not multiples of 1/255: kept as float32.", paths[0])
    return client_files.open_or_write_client_files(directory, iterate)


def _iterate_compressed(path: str, decompressed: str) -> Iterator:
  """Yields the writers of a compressed database, by way of a file that is removed at the end."""
  # There already if an earlier conversion was killed.
  if not os.path.exists(decompressed):
    readers.decompress(path, decompressed)
  try:
    yield from readers.iterate_sqlite(decompressed)
  finally:
    with contextlib.suppress(FileNotFoundError):  # Another conversion was faster.
      os.remove(decompressed)


def _open_database(cache_dir: str, path: str) -> client_files.ClientFiles:
  """Opens the writers of TFF's database, compressed or not."""
  if not path.endswith((".lzma", ".xz")):
    return _open_or_convert(cache_dir, "all", [path], lambda: readers.iterate_sqlite(path))
  fingerprint = user_files.fingerprint([_CACHE_VERSION], [path])
  decompressed = os.path.join(cache_dir, f"emnist_{fingerprint}.sqlite")
  return _open_or_convert(cache_dir, "all", [path], lambda: _iterate_compressed(path, decompressed))


def _describe_database(path: str) -> str:
  """Says how many writers TFF's database has, if that can be told soon."""
  is_compressed = path.endswith((".lzma", ".xz"))
  with lzma.open(path) if is_compressed else open(path, "rb") as file:
    if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
      raise ValueError(f"{path} is no SQLite database")
  if is_compressed:
    return f"{os.path.getsize(path) / 1e9:.2f} GB, compressed"
  least = readers.LEAF.min_examples
  end = time.monotonic() + _SECONDS_TO_COUNT
  query = (
    "SELECT COUNT(*), TOTAL(n >= ?) FROM (SELECT COUNT(*) AS n FROM examples"
    " WHERE split_name IN (?, ?) GROUP BY client_id)"
  )
  with readers.connect(path) as connection:
    connection.execute("SELECT split_name, client_id FROM examples LIMIT 1")
    connection.set_progress_handler(lambda: time.monotonic() > end, 10000)
    with contextlib.suppress(sqlite3.OperationalError):  # It was interrupted.
      writers, enough = connection.execute(query, [least, *readers.DATABASE_SPLITS]).fetchone()
      return (
        f"{writers} writers, of whom {enough:.0f} have {least} images or more"
        " (--min_examples_per_client)"
      )
  return f"{os.path.getsize(path) / 1e9:.2f} GB"


DATA_SET = data_set.DataSet(
  name="EMNIST",
  file_names=(readers.DATABASE_NAME, readers.COMPRESSED_NAME),
  leaf=readers.LEAF,
  has_texts=False,
  describe_file=_describe_database,
  remedy="The first run of a task on it downloads it. A copy can be named with --data_dir:\n"
  f"{readers.COMPRESSED_NAME}, or what LEAF's {readers.LEAF.command} leaves.\n{data_set.STANDIN}",
  find_downloaded=readers.find_downloaded,
)


def open_clients(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens the writers of EMNIST, after converting the user's files on first use.

  Args:
    request: Its `data_dir` is a directory with LEAF's train/*.json and test/*.json or with TFF's
      emnist_all.sqlite or emnist_all.sqlite.lzma, or one of these two files; "" to download TFF's.
      The converted files take 0.6 GB of its `cache_dir` for all of EMNIST.

  Returns:
    The [train, test] writers of LEAF, or [all] of TFF's database.

  Raises:
    ValueError: If the data is missing or not what it should be.
  """
  if not request.data_dir:
    return [_open_database(request.cache_dir, readers.download(request.cache_dir))]

  def open_files(name: str, paths: list[str]) -> client_files.ClientFiles:
    if name == "all":
      return _open_database(request.cache_dir, *paths)
    iterate = functools.partial(readers.iterate_leaf, paths)
    return _open_or_convert(request.cache_dir, name, paths, iterate)

  return DATA_SET.open(request.data_dir, open_files)


def open_standin(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens generated handwriting, always of the same 400 writers, 60 MB; see `standin`.

  It is not EMNIST, and no figure measured on it is one of EMNIST.

  Raises:
    ValueError: If the cache is damaged.
  """
  return [
    client_files.open_or_write_client_files(
      os.path.join(request.cache_dir, f"emnist_standin_{standin.VERSION}"),
      standin.make_writers,
      x_scale=1 / _LEVELS,
    )
  ]
