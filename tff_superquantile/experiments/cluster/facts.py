"""What all machines that share work must have in common, by name, with no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
from typing import NamedTuple

from tff_superquantile.engine.processes import cpu

CPU = "the kind of CPU"
_FOLDER = "the folder"
_MISSING = "none"
_PACKAGES = ("tensorflow-federated", "tensorflow-privacy", "dp-accounting", "numpy", "tf-keras")
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "intel-tensorflow")
_ROOT = pathlib.Path(__file__).resolve().parents[3]
_SOURCES = ("tff_superquantile", "privacy", "tasks")


class Needs(NamedTuple):
  """What a driver needs of a worker.

  Attributes:
    folder: Where the driver was started; paths of data may be relative to it.
    witness: A file that the driver has written into the output directory, which machines share.
    data: Files and folders of data.
    expected: The facts that the worker must have, by name.
    is_of_cohort: Whether workers compute parts of one cohort, and not runs of their own.
  """

  folder: str
  witness: str
  data: tuple[str, ...]
  expected: Mapping[str, str] = {}
  is_of_cohort: bool = False


def _version(*names: str) -> str:
  for name in names:
    try:
      return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return _MISSING


@functools.cache
def _source() -> str:
  """Returns a digest of this project's code."""
  digest = hashlib.blake2b(digest_size=8)
  for path in sorted(path for name in _SOURCES for path in (_ROOT / name).rglob("*.py")):
    digest.update(f"{path.relative_to(_ROOT)}\n".encode() + path.read_bytes())
  return digest.hexdigest()


@functools.lru_cache(1000)
def _digest(states: Sequence[tuple[str, int, int]]) -> str:
  """Returns a digest of files, by their (path, size, time of the last change)."""
  digest = hashlib.blake2b(digest_size=8)
  for path, size, _ in states:
    digest.update(f"{os.path.basename(path)} {size}\n".encode())
    with open(path, "rb") as file:
      while block := file.read(1 << 20):
        digest.update(block)
  return digest.hexdigest()


def _of_data(path: pathlib.Path) -> str:
  """Returns a digest of a file, or of all files below a folder."""
  try:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = ((str(file), file.stat()) for file in files)
    return _digest(tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))
  except OSError:
    return _MISSING


def of_here(needs: Needs) -> dict[str, str]:
  """Returns the facts of this machine that a driver needs to know."""
  folder, witness = needs.folder, needs.witness
  versions = {name: _version(name) for name in _PACKAGES}
  return {
    "Python": ".".join(platform.python_version_tuple()[:2]),
    "tensorflow": _version(*_TENSORFLOW),
    **versions,
    "a code of this project with the digest": _source(),
    _FOLDER: folder if os.path.isdir(folder) else _MISSING,
    "the file of the driver in the output directory": witness
    if os.path.exists(witness)
    else _MISSING,
    **{
      f"{path} with the digest": _of_data(pathlib.Path(folder, path)) for path in sorted(needs.data)
    },
    CPU: "; ".join(cpu.kind().values()),
  }


def difference(found: Mapping[str, str], needs: Needs, where: str) -> str:
  """Returns a sentence on the first fact of a worker that is not what is needed; "" if none.

  Another kind of CPU may carry out runs of its own, and no part of a run's cohort.
  """
  for name, value in needs.expected.items():
    if found.get(name, _MISSING) != value:
      what = "as where the command was started: mend that, or leave it out."
      if name == CPU and not needs.is_of_cohort:
        what = "as on the others: take it by --other_cpu=allowed, or leave it out."
      return (
        f"Found {name} {found.get(name, _MISSING)} on {where}; expected {value} on each worker,"
        f" {what}"
      )
  return ""
