"""Checks the machine: Python, platform, processor, memory and disk.

Needs the standard library alone: these checks run where nothing is installed, on any Python 3.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile

from tff_superquantile.doctor import report
from tff_superquantile.simulation import limits

# The same as in setup.cfg and scripts/venv.sh: those that TensorFlow 2.21 has wheels for, and the C
# library that TensorFlow Federated's wheel asks for.
PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
MIN_GLIBC = (2, 31)

_GB = 10**9
# A run holds as much with cohorts of 100: docs/performance.md.
_RUN_BYTES = _GB
# A run leaves less than a MB, but the clients' files of the largest task take 0.6 GB.
_LEAST_DISK_BYTES = _GB // 10
_AMPLE_DISK_BYTES = _GB
_TRIED_BYTES = 1 << 16


def check_python() -> report.Finding:
  """Checks whether this is a Python that TensorFlow has a wheel for."""
  implementation = platform.python_implementation()
  found = f"{implementation} {platform.python_version()}, {sys.executable}"
  if implementation == "CPython" and sys.version_info[:2] in PYTHONS:
    return report.ok(found)
  return report.fail(
    f"Found {found}; expected CPython {', '.join(f'{x}.{y}' for x, y in PYTHONS)}, for"
    " which TensorFlow 2.21 has a wheel.",
    "Make the environment with one of these: PYTHON=/path/to/python3.13 ./run_experiments.sh",
  )


def check_platform() -> report.Finding:
  """Checks whether this is a platform that TFF has a wheel for."""
  found = f"{platform.system()} {platform.machine()}"
  if found == "Linux x86_64":
    return report.ok(found)
  return report.fail(
    f"Found {found}; expected Linux x86_64, for which TensorFlow Federated 0.87 has a wheel.",
    "Use such a machine or a container (on Windows, WSL 2).",
  )


def check_c_library() -> report.Finding:
  """Checks whether the C library is glibc, and new enough."""
  wanted = f"expected glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or newer"
  remedy = "Use a newer Linux, such as Debian 11 or Ubuntu 20.04, or a container of one."
  try:
    found = os.confstr("CS_GNU_LIBC_VERSION") or ""
  except (ValueError, OSError):  # Only glibc knows that name.
    found = ""
  version = re.match(r"glibc (\d+)\.(\d+)", found)
  if version:
    if (int(version[1]), int(version[2])) >= MIN_GLIBC:
      return report.ok(found)
    return report.fail(f"Found {found}; {wanted}.", remedy)
  if any((limits.ROOT / "lib").glob("ld-musl-*")):
    return report.fail(
      f"Found musl, as in Alpine; {wanted}, for which TensorFlow's wheels are.",
      "Use Debian, Ubuntu or the like, or a container of one.",
    )
  return report.note(f"Found a C library that tells no version; {wanted}.", remedy)


def check_processor() -> report.Finding:
  """Checks whether the processor has the instructions that TensorFlow's wheels use."""
  cpuinfo = limits.read(limits.ROOT / "proc/cpuinfo")
  model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
  flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
  found = " ".join(model[1].split()) if model else "a processor without a name"
  if flags is None:
    return report.note(
      "Found no list of instructions in /proc/cpuinfo; expected AVX among them.",
      "If TensorFlow is ended by SIGILL below, it is for want of AVX.",
    )
  if "avx" in flags[1].split():
    return report.ok(f"{found}, with AVX")
  return report.fail(
    f"Found {found} without AVX; expected AVX, which TensorFlow's wheels use.",
    "Use a processor of 2011 or later; a virtual machine has to pass its instructions on"
    " (QEMU: -cpu host).",
  )


def _number(*paths: pathlib.Path) -> int | None:
  """Returns the number in the first file that is there; None for a word, or without a file."""
  texts = [text for text in (limits.read(path).strip() for path in paths) if text]
  return int(texts[0]) if texts and re.fullmatch(r"-?\d+", texts[0]) else None


def check_cores() -> report.Finding:
  """Counts the cores that may be used, and says if a quota allows less than all."""
  cores, quota = len(limits.cores()), limits.cpu_quota()
  if quota is not None and quota < cores:
    return report.ok(
      f"{limits.num_cores()} of {cores}, as a quota of the container's allows {quota:g}"
    )
  return report.ok(str(cores))


def _available_bytes() -> int | None:
  """Returns the memory without swapping: the machine's, or the container's if it has less."""
  match = re.search(
    r"^MemAvailable:\s*(\d+) kB", limits.read(limits.ROOT / "proc/meminfo"), re.MULTILINE
  )
  available = [int(match[1]) * 1024] if match else []
  for folder in limits.folders("memory"):
    limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
    if limit is not None:
      used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
      # Files that were read count as used, but make room.
      stat = limits.read(folder / "memory.stat")
      cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
      available.append(max(0, limit - used + (int(cached[1]) if cached else 0)))
  return min(available, default=None)


def check_memory() -> report.Finding:
  """Checks whether a run has the memory that it needs, and each core its run."""
  available = _available_bytes()
  if available is None:
    return report.note("Found no MemAvailable in /proc/meminfo; it cannot be told.")
  found, a_run = f"{available / _GB:.1f} GB available", f"{_RUN_BYTES / _GB:g} GB"
  at_once = available // _RUN_BYTES
  if at_once == 0:
    return report.fail(
      f"Found {found}; expected {a_run}, which a run takes.",
      "End other programs, or raise the memory limit of the container.",
    )
  if at_once < limits.num_cores():
    return report.note(
      f"Found {found}; expected {a_run} for each core, as a sweep starts a run on each.",
      f"Start sweeps with --num_workers={at_once}.",
    )
  return report.ok(found)


def check_folder(path: str, other: str) -> report.Finding:
  """Checks whether files can be written into a folder, which may still have to be made.

  Args:
    path: The folder. Nothing is left in it.
    other: The flag that names another.

  Returns:
    The finding.
  """
  folder = pathlib.Path(path).absolute()
  existing = next(p for p in (folder, *folder.parents) if p.exists())
  try:
    with tempfile.TemporaryFile(dir=str(existing)) as file:
      file.write(bytes(_TRIED_BYTES))
      file.flush()
      os.fsync(file.fileno())
    free = shutil.disk_usage(str(existing)).free
  except OSError as error:
    return report.fail(
      f"Found that nothing can be written to {existing} ({error.strerror}); expected that it can.",
      f"Change that, or name another folder: {other}",
    )
  found = f"{free / _GB:.1f} GB free for {folder}"
  if free < _LEAST_DISK_BYTES:
    return report.fail(
      f"Found {found}; expected {_LEAST_DISK_BYTES / _GB:g} GB at least.",
      f"Make room, or name another folder: {other}",
    )
  if free < _AMPLE_DISK_BYTES:
    return report.note(
      f"Found {found}; expected {_AMPLE_DISK_BYTES / _GB:g} GB.",
      f"Make room before a large task or sweep, or name another folder: {other}",
    )
  return report.ok(found)
