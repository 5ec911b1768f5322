"""The file of a scheduler: where it is, and the key and certificate without which none gets in.

Whoever has the file can run any program on all of its machines. So it is its owner's alone.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import secrets
from typing import Any, NamedTuple
import warnings

from tff_superquantile import atomic_files

_PRIVATE = 0o600


class Door(NamedTuple):
  """What a scheduler's file says.

  Attributes:
    address: Where it listens, tls://HOST:PORT.
    scheduler: Identifies it; one that is started again with the same file is the same one.
    silence: Seconds without a word after which a machine counts as lost.
    certificate: Its certificate, which is that of all workers and drivers, too (PEM).
    key: The key of the certificate (PEM).
  """

  address: str
  scheduler: str
  silence: float
  certificate: str
  key: str

  def security(self) -> Any:
    """Returns the `distributed.Security` by which either side lets in the other: TLS, mutual."""
    own = {
      f"tls_{role}_{what}": getattr(self, name)
      for role in ("client", "scheduler", "worker")
      for what, name in (("cert", "certificate"), ("key", "key"))
    }
    return distributed().Security(require_encryption=True, tls_ca_file=self.certificate, **own)


def distributed() -> Any:
  """Imports Dask's `distributed`, without its log and its pages; a `ValueError` without it."""
  try:
    import cryptography  # noqa: F401
    import dask
    import distributed
  except ImportError as error:
    raise ValueError(
      f"Found no package {error.name}, which runs on many machines need; install what belongs to"
      " them by pip install 'tff-superquantile[cluster]'."
    ) from None
  dask.config.set(
    {
      "distributed.scheduler.http.routes": [],
      "distributed.worker.http.routes": [],
      # A task begins when a worker is free for it, and moves to one that is free before.
      "distributed.scheduler.worker-saturation": 1.0,
      "distributed.scheduler.default-task-durations": {"carry_out": "1h"},
      # Processes of runs have the memory, of which a worker knows nothing.
      "distributed.worker.memory.terminate": False,
    }
  )
  for name in ("distributed", "distributed.client", "distributed.gc", "tornado.application"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  warnings.filterwarnings("ignore", module="distributed")
  return distributed


def make(scheduler: str, silence: float) -> Door:
  """Returns the door of a scheduler that has no address yet, with a new key."""
  made = distributed().Security.temporary()
  return Door("", scheduler, silence, made.tls_scheduler_cert, made.tls_scheduler_key)


def scheduler_of(path: pathlib.Path) -> str:
  """Returns who the scheduler of a file is: the one that was there, or a new one."""
  return read(path).scheduler if path.exists() else secrets.token_hex(8)


def write(path: pathlib.Path, door: Door) -> None:
  """Writes a scheduler's file for its owner alone."""
  atomic_files.write(path, json.dumps(door._asdict(), indent=2) + "\n", mode=_PRIVATE)


def read(path: pathlib.Path) -> Door:
  """Returns what a scheduler's file says; a `ValueError` if others may read it, or it says less."""
  try:
    mode = os.stat(path).st_mode & 0o777
    text = path.read_text(encoding="utf-8")
  except OSError as error:
    raise ValueError(
      f"Found that the scheduler's file {path} cannot be read ({error.strerror}); expected the file"
      f" of one that runs: superquantile scheduler --scheduler={path}"
    ) from None
  if mode & 0o077:
    raise ValueError(
      f"Found that others may read or write {path} (mode {mode:04o}), whose key opens all machines"
      f" of the scheduler; expected its owner alone: chmod 600 {path}, on every machine."
    )
  try:
    return Door(**json.loads(text))
  except (TypeError, ValueError):
    raise ValueError(
      f"Found no file of a scheduler in {path}; expected one that superquantile scheduler made."
    ) from None
