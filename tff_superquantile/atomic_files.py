"""Writes files that are there whole or not at all, whatever ends the program.

A file that is not whole yet has a temporary name beside the final one. A program that is killed
leaves it, for a later one to remove: `remove_temporaries` where a lock keeps others out,
`temporary_folder` where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import json
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import time
from typing import Any

import numpy as np

_TEMPORARY_FILE = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_TEMPORARY_FOLDER = re.compile(r".+\.\d+-[0-9a-f]{8}\.tmp")
# Between making a folder and locking it, nobody owns it.
_SECONDS_TO_LOCK = 60.0


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
  """Gives an `OSError` without a file's name, such as a full disk's, the name of this file."""
  try:
    yield
  except OSError as error:
    if error.filename is None:
      error.filename = os.fspath(path)
    raise


def write(path: str | os.PathLike, content: str | bytes, mode: int | None = None) -> None:
  """Writes a file such that a reader, or a crash, finds the old file or the new, whole."""
  if isinstance(content, str):
    content = content.encode("utf-8", errors="replace")
  path = pathlib.Path(path)
  # In the same folder, because a rename is atomic only within one file system. An ordinary `open`
  # rather than `tempfile`, whose files nobody but their owner can read.
  temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
  try:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with naming(path):
      with open(os.open(temporary, flags, 0o666 if mode is None else mode), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def remove_temporaries(folder: str | os.PathLike) -> None:
  """Removes what calls of `write` that were killed have left in a folder, if there is one.

  Only where a lock keeps others from writing: a file in the making would be removed, too.
  """
  for path in pathlib.Path(folder).glob(".*.tmp"):
    if _TEMPORARY_FILE.fullmatch(path.name):
      path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder(target: str | os.PathLike) -> Iterator[str]:
  """Makes a folder beside a file or folder that is to appear at once, by a rename out of it.

  The folder may be renamed to `target` itself. It is locked until it is removed, at the end. Those
  beside it that nobody has locked were left by programs that were killed, and are removed first.
  """
  target = pathlib.Path(target)
  target.parent.mkdir(parents=True, exist_ok=True)
  _remove_abandoned(target.parent)
  path = f"{target}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
  os.mkdir(path)
  with contextlib.ExitStack() as stack:
    stack.callback(shutil.rmtree, path, ignore_errors=True)
    with contextlib.suppress(OSError):  # Where folders cannot be locked, nobody else removes it.
      stack.enter_context(_locked(path))
    yield path


def _remove_abandoned(parent: pathlib.Path) -> None:
  for path in parent.glob("*.tmp"):
    with contextlib.suppress(OSError):  # In use, another's, or removed meanwhile.
      if not _TEMPORARY_FOLDER.fullmatch(path.name) or not path.is_dir():
        continue
      if time.time() - path.stat().st_mtime > _SECONDS_TO_LOCK:
        with _locked(path):
          shutil.rmtree(path)


@contextlib.contextmanager
def _locked(folder: str | os.PathLike) -> Iterator[None]:
  """Holds the lock of a folder; an `OSError` if another program does."""
  descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def lock(path: str | os.PathLike, on_waiting: Callable[[], None]) -> Iterator[None]:
  """Holds a lock that one process has at a time, also of several machines that share a disk.

  `path` is a file, which is made and stays, or a folder, which only processes of one machine can
  lock. Where there can be no lock, as on some file systems, it goes on without. `on_waiting` is
  called before waiting for another process.
  """
  with contextlib.ExitStack() as stack:
    with contextlib.suppress(OSError):
      flags = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT
      descriptor = os.open(path, flags, 0o666)
      stack.callback(os.close, descriptor)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        on_waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes a value as indented JSON, like `write`; NumPy scalars and arrays are converted."""
  write(path, json.dumps(value, indent=2, default=_to_builtin) + "\n")


def _to_builtin(value: Any) -> Any:
  if isinstance(value, (np.ndarray, np.generic)):
    return value.tolist()
  raise TypeError(f"Only plain values and NumPy arrays can be written. Found {type(value)}.")


def make_folder(flag: str, path: pathlib.Path) -> None:
  """Makes the folder of a flag, and refuses one that files cannot be written to."""
  try:
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()
  except OSError as error:
    raise ValueError(
      f"Found that {path} cannot be written ({error.strerror}); choose another --{flag}."
    ) from error
