"""Which attempt at a run may write: the last one that began.

A machine that has lost its network may still carry out a run which another one has been given. A
lock does not keep them apart on every disk that machines share. So each attempt writes a mark of
its own into the run's file `lock`, and writes no round, checkpoint or result once another one has.

A mark begins with the attempt's owner, such as a run's key at a scheduler, which has one attempt at
a time: so an earlier one of the same owner is lost, and may be superseded.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import secrets

from tff_superquantile.experiments.run import run_folder

_DIGITS = 16
_owner = "-" * _DIGITS  # Of the attempts of this process: nobody.
_own: dict[pathlib.Path, bytes] = {}  # The marks of this process, by the folders of its runs.


def owner(name: str) -> str:
  """Returns the beginning of the marks of an owner."""
  return hashlib.blake2b(name.encode(), digest_size=_DIGITS // 2).hexdigest()


def _write(folder: pathlib.Path, of: str) -> bytes:
  """Writes a new mark over the one that is there, which has the same length."""
  mark = f"{of} {secrets.token_hex(_DIGITS // 2)}\n".encode()
  descriptor = os.open(folder / run_folder.LOCK, os.O_WRONLY)
  try:
    os.pwrite(descriptor, mark, 0)
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
  return mark


def act_for(of: str) -> None:
  """Has the attempts of this process from here on be an owner's."""
  global _owner
  _owner = of


def begin(folder: pathlib.Path) -> None:
  """Begins an attempt of this process, which has the lock of the run's folder."""
  _own[folder] = _write(folder, _owner)


def is_of(folder: pathlib.Path, of: str) -> bool:
  """Returns whether the last attempt that began is an owner's."""
  return (folder / run_folder.LOCK).read_bytes()[:_DIGITS] == of.encode()


def supersede(folder: pathlib.Path, of: str) -> None:
  """Has the owner's attempt that holds the lock end before it writes anything else."""
  _write(folder, of)


def check(folder: pathlib.Path) -> None:
  """Raises a `run_folder.OccupiedError` unless the last attempt that began is this process's."""
  if (folder / run_folder.LOCK).read_bytes() != _own[folder]:
    raise run_folder.OccupiedError(
      f"Found that another attempt at the run in {folder} has begun since this one; this one ends."
    )
