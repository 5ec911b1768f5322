"""Checks the machine: Python, platform, disk and packages.

Needs the standard library alone: these checks run where nothing is installed, on any Python 3.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools
from importlib import metadata
import os
import pathlib
import platform
import re
import shlex
import shutil
import sys
import tempfile
from typing import Any, NamedTuple

# The same as in setup.cfg and scripts/venv.sh: those that TensorFlow 2.21 has wheels for, and the C
# library that TensorFlow Federated's wheel asks for.
PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
MIN_GLIBC = (2, 31)

_GB = 10**9
# A run leaves less than a MB, but the clients' files of the largest task take 0.6 GB.
_LEAST_DISK_BYTES = _GB // 10
_AMPLE_DISK_BYTES = _GB
_AMPLE_CACHE_BYTES = 6 * _GB  # EMNIST takes 5.5 GB while it is converted.

_LOCK = pathlib.Path(__file__).resolve().parents[2] / "requirements.lock"
_MOST_NAMED = 8
_WITH_GPUS_OR_NOT = {"tensorflow-cpu": "tensorflow", "tensorflow": "tensorflow-cpu"}
_PIP = shlex.join([sys.executable, "-m", "pip", "install", "--no-deps", "--ignore-requires-python"])
REINSTALL = (
  f"Run: {_PIP} --force-reinstall -r {shlex.quote(str(_LOCK))}"
  if _LOCK.is_file()
  else "Install it anew, as README says."
)


class Finding(NamedTuple):
  """The finding of one check: its status (ok, note, FAIL, skip), and the steps to mend it."""

  status: str
  name: str
  state: str
  remedy: str = ""


ok = functools.partial(Finding, "ok")
note = functools.partial(Finding, "note")
fail = functools.partial(Finding, "FAIL")


def check_all(output_dir: str, cache_dir: str) -> Iterator[Finding]:
  """Yields what can be told without any package."""
  yield check_python()
  yield check_platform()
  yield check_folder("results", output_dir, "--output_dir=DIR")
  yield check_folder("cache", cache_dir, "--cache_dir=DIR", _AMPLE_CACHE_BYTES)
  yield check_packages()


def check_python() -> Finding:
  """Checks whether this is a Python that TensorFlow has a wheel for."""
  implementation = platform.python_implementation()
  python = f"{implementation} {platform.python_version()}, {sys.executable}"
  if implementation == "CPython" and sys.version_info[:2] in PYTHONS:
    return ok("Python", python)
  return fail(
    "Python",
    f"Found {python}; expected CPython {', '.join(f'{x}.{y}' for x, y in PYTHONS)}, for"
    " which TensorFlow 2.21 has a wheel.",
    "Make the environment with one of these: PYTHON=/path/to/python3.13 ./run_experiments.sh",
  )


def check_platform() -> Finding:
  """Checks whether TFF and TensorFlow have wheels for this system and C library."""
  library = " ".join(platform.libc_ver()).strip() or "another C library than glibc"
  system, version = f"{platform.system()} {platform.machine()}", re.search(r"(\d+)\.(\d+)", library)
  if system == "Linux x86_64" and version and (int(version[1]), int(version[2])) >= MIN_GLIBC:
    return ok("platform", f"{system}, {library}")
  return fail(
    "platform",
    f"Found {system}, {library}; expected Linux x86_64 with glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or"
    " newer, for which TensorFlow Federated 0.87 has a wheel.",
    "Use such a machine, as Debian 11 or Ubuntu 20.04 are, or a container (on Windows, WSL 2).",
  )


def check_folder(name: str, path: str, other: str, ample: int = _AMPLE_DISK_BYTES) -> Finding:
  """Checks that files can be written into a folder, which `other` renames, leaving none."""
  folder = pathlib.Path(path).absolute()
  existing = next(p for p in (folder, *folder.parents) if p.exists())
  try:
    with tempfile.TemporaryFile(dir=str(existing)) as file:
      file.write(bytes(1 << 16))
      file.flush()
      os.fsync(file.fileno())
    free = shutil.disk_usage(str(existing)).free
  except OSError as error:
    state = (
      f"Found that nothing can be written to {existing} ({error.strerror}); expected that it can."
    )
    return fail(name, state, f"Change that, or name another folder: {other}")
  space, remedy = f"{free / _GB:.1f} GB free for {folder}", f"Make room, or name another: {other}"
  if free < _LEAST_DISK_BYTES:
    return fail(name, f"Found {space}; expected {_LEAST_DISK_BYTES / _GB:g} GB at least.", remedy)
  if free < ample:
    return note(name, f"Found {space}; expected {ample / _GB:g} GB.", remedy)
  return ok(name, space)


def _requirements() -> list[Any]:
  """Returns the packages that this Python should have: the lock's, or those of the metadata."""
  from packaging import requirements  # It may be among those that are missing.

  if _LOCK.is_file():  # It comes first: the metadata of an installation in place may be old.
    lines = _LOCK.read_text().splitlines()
  else:
    lines = metadata.requires("tff_superquantile") or []
  parsed = [requirements.Requirement(line.rstrip("\\ ")) for line in lines if line[:1].isalpha()]
  return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": "training"})]


def _version(name: str) -> str | None:
  try:
    return metadata.version(name)  # None if its metadata is damaged.
  except (metadata.PackageNotFoundError, KeyError):
    return None


def check_packages() -> Finding:
  """Compares what is installed with the lock; pip's own check asks for TFF's packages of 2023."""
  source = _LOCK.name if _LOCK.is_file() else "the metadata of tff_superquantile"
  try:
    expected = _requirements()
  except ImportError:
    return fail("packages", f"Found no package named packaging; expected {source}.", REINSTALL)
  unfit, install = [], []
  for requirement in expected:
    name = requirement.name
    version = _version(name) or _version(_WITH_GPUS_OR_NOT.get(name, name))
    if version is None or not requirement.specifier.contains(version, prereleases=True):
      state = f"{version} (not {requirement.specifier})" if version else "missing"
      unfit.append(f"{name} {state}")
      install.append(f"{name}{requirement.specifier}")
  if not unfit:
    return ok("packages", f"all {len(expected)} of {source}")
  rest = f" and {len(unfit) - _MOST_NAMED} more" if len(unfit) > _MOST_NAMED else ""
  state = f"Found {', '.join(unfit[:_MOST_NAMED])}{rest}; expected those of {source}."
  return fail("packages", state, REINSTALL if rest else f"Run: {_PIP} {shlex.join(install)}")
