"""Opens EMNIST, or generated handwriting in its place, as client files that are written once."""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import functools
import logging
import lzma
import os
import shutil

import numpy as np

from tasks import downloads
from tasks import task
from tasks import user_files
from tasks.emnist import readers
from tasks.emnist import standin
from tff_superquantile import atomic_files
from tff_superquantile.simulation import client_files

_LOG = logging.getLogger("tff_superquantile.tasks")

_CACHE_VERSION = 1  # A change of the conversion changes this too.
# LEAF's and TFF's pixels are k / 255; a copy rounded to four decimals is still within this.
_QUANTIZATION_TOLERANCE = 1e-3


class _NotEightBitError(Exception):
  """Pixels aren't multiples of 1 / 255; conversion goes on in float32."""


def _quantize(all_writers: Iterable, rounds: bool) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields writers with their pixels as uint8, a quarter of the bytes to read in every round."""
  for writer, x, y in all_writers:
    levels = np.rint(x * readers.LEVELS)
    if not rounds and np.max(np.abs(levels / readers.LEVELS - x)) > _QUANTIZATION_TOLERANCE:
      raise _NotEightBitError()
    yield writer, levels.astype(np.uint8), y


def _open_or_convert(
  request: task.Request, name: str, paths: list[str], iterate: Callable[[], Iterable]
) -> client_files.ClientFiles:
  """Opens the client files of all writers of some source files, after converting them on first use.

  In private runs pixels are rounded where they are not multiples of 1 / 255: kept as they are, they
  would change the type of all writers' pixels, and their last bits. `name` tells caches of one
  source apart; a change of any file makes another cache. `iterate` returns the files' writers.
  """
  fingerprint = user_files.fingerprint([_CACHE_VERSION], paths)
  directory = os.path.join(request.cache_dir, f"emnist_{name}_{fingerprint}")

  def open_quantized(directory: str, rounds: bool) -> client_files.ClientFiles:
    return client_files.open_or_write_client_files(
      directory, lambda: _quantize(iterate(), rounds), x_scale=1 / readers.LEVELS
    )

  try:
    opened = open_quantized(directory, False)
  except _NotEightBitError:
    if request.keeps_apart:
      return open_quantized(f"{directory}_rounded", True)
    _LOG.info("The pixels of %s are not multiples of 1/255: kept as float32.", paths[0])
    return client_files.open_or_write_client_files(directory, iterate)
  if request.keeps_apart and opened.x_dtype != "uint8":
    return open_quantized(f"{directory}_rounded", True)
  return opened


def decompress(path: str, target: str) -> None:
  """Writes the decompressed contents of an lzma file to `target`, all or nothing."""
  _LOG.info("Decompressing %s to %s, once.", path, target)
  with atomic_files.temporary_folder(target) as temporary:
    made = os.path.join(temporary, readers.DATABASE_NAME)
    try:
      with atomic_files.naming(made), open(made, "wb") as out, lzma.open(path) as compressed:
        shutil.copyfileobj(compressed, out)
    except (EOFError, lzma.LZMAError) as e:
      raise ValueError(f"{path} is truncated or not an lzma file ({e}); download it again.") from e
    os.replace(made, target)


def _iterate_compressed(path: str, decompressed: str) -> Iterator:
  """Yields the writers of a compressed database, by way of a file that is removed at the end."""
  # There already if an earlier conversion was killed.
  if not os.path.exists(decompressed):
    if os.path.getsize(path) == readers.DOWNLOAD.size:
      folder = os.path.dirname(decompressed)
      downloads.check_room(folder, readers.DOWNLOAD.room, readers.DATA_SET.name)
    decompress(path, decompressed)
  try:
    yield from readers.iterate_sqlite(decompressed)
  finally:
    with contextlib.suppress(FileNotFoundError):  # Another conversion was faster.
      os.remove(decompressed)


def open_clients(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens EMNIST's writers, after converting the user's files on first use: [train, test] or [all].

  The converted files take 0.6 GB of the request's `cache_dir` for all of EMNIST, and the
  decompressed database 4.7 GB more until they are written.
  """

  def open_files(name: str, paths: list[str]) -> client_files.ClientFiles:
    iterate = functools.partial(readers.iterate_file, paths[0])
    if paths[0].endswith(".json"):
      iterate = functools.partial(readers.iterate_leaf, paths)
    elif paths[0].endswith((".lzma", ".xz")):
      fingerprint = user_files.fingerprint([_CACHE_VERSION], paths)
      decompressed = os.path.join(request.cache_dir, f"emnist_{fingerprint}.sqlite")
      iterate = functools.partial(_iterate_compressed, paths[0], decompressed)
    return _open_or_convert(request, name, paths, iterate)

  return readers.DATA_SET.open(readers.DATA_SET.complete(request).data_dir, open_files)


def open_standin(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens generated handwriting, always of the same 400 writers, 60 MB; see `standin`."""
  return [
    client_files.open_or_write_client_files(
      os.path.join(request.cache_dir, f"emnist_standin_{standin.VERSION}"),
      standin.make_writers,
      x_scale=1 / readers.LEVELS,
    )
  ]
