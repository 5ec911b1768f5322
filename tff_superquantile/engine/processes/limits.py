"""What the kernel allows this process: cores, and the limits of its control groups (containers).

Standard library alone, of any Python 3 and on any platform: whoever starts processes counts cores
here without importing TensorFlow.
"""

from __future__ import annotations

import math
import os
import pathlib

ROOT = pathlib.Path("/")  # Where /proc and /sys are.


def read(path: pathlib.Path) -> str:
  """Returns the text of a file of the kernel's; "" if it cannot be read."""
  try:
    return path.read_text(errors="replace")
  except OSError:
    return ""


def folders(controller: str) -> list[pathlib.Path]:
  """Returns the folders, which may not exist, of the "cpu" or "memory" limits that hold here."""
  paths = []
  for line in read(ROOT / "proc/self/cgroup").splitlines():
    _, controllers, path = line.split(":", 2)
    mount = ROOT / "sys/fs/cgroup"
    if controllers:  # Version 1: a hierarchy for each controller.
      if controller not in controllers.split(","):
        continue
      mount /= controller
    # In a container the path may be the host's, which is not there; its limits are at the mount.
    folder = mount / path.lstrip("/")
    paths += [f for f in (folder, *folder.parents) if f == mount or mount in f.parents]
  return paths


def cpu_quota() -> float | None:
  """Returns how many cores the quotas of containers allow; None for all."""
  quotas = []
  for folder in folders("cpu"):
    texts = read(folder / "cpu.max").split()  # Version 2: quota or "max", and period.
    if not texts:
      texts = [read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if all(text.isdecimal() for text in texts):  # Neither "max" nor -1.
      quotas.append(int(texts[0]) / int(texts[1]))
  return min(quotas, default=None)


def cores() -> list[int]:
  """Returns the numbers of the processor cores on which this process may run, in order."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def num_cores() -> int:
  """Returns how many processor cores this process may use: no more than a quota, rounded up."""
  number, quota = len(cores()), cpu_quota()
  return number if quota is None else max(1, min(number, math.ceil(quota)))
