"""Opens EMNIST, or generated handwriting in its place, as client files that are written once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import functools
import os

from absl import logging
import numpy as np

from tasks import task
from tasks import user_files
from tasks.emnist import readers
from tasks.emnist import standin
from tff_superquantile.simulation import client_files

_CACHE_VERSION = 1  # Of what conversion does: whoever changes that changes this too.
_LEVELS = 255
# LEAF's and TFF's pixels are k / 255; a copy rounded to four decimals is still within this.
_QUANTIZATION_TOLERANCE = 1e-3


class _NotEightBitError(Exception):
  """Pixels that aren't multiples of 1 / 255; conversion goes on in float32."""


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
  """The client files of some source files, converted on first use.

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
  """The writers of TFF's database, compressed or not."""
  if not path.endswith((".lzma", ".xz")):
    return _open_or_convert(cache_dir, "all", [path], lambda: readers.iterate_sqlite(path))
  fingerprint = user_files.fingerprint([_CACHE_VERSION], [path])
  decompressed = os.path.join(cache_dir, f"emnist_{fingerprint}.sqlite")
  return _open_or_convert(cache_dir, "all", [path], lambda: _iterate_compressed(path, decompressed))


def _open_leaf(cache_dir: str, paths: Mapping[str, list[str]]) -> list[client_files.ClientFiles]:
  """The writers of LEAF's training and test files, [train, test]."""
  pools = {
    split: _open_or_convert(
      cache_dir, split, paths[split], functools.partial(readers.iterate_leaf, paths[split])
    )
    for split in ("train", "test")
  }
  user_files.check_split_by_user(pools, paths, readers.LEAF)
  return [pools["train"], pools["test"]]


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
  names = (readers.DATABASE_NAME, readers.COMPRESSED_NAME)
  source = user_files.find_source(request.data_dir, names, readers.LEAF)
  if isinstance(source, str):
    return [_open_database(request.cache_dir, source)]
  return _open_leaf(request.cache_dir, source)


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
