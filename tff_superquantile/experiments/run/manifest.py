"""The manifest of a run: versions, machine, revision and times."""

import datetime
import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

from tff_superquantile.simulation import context

_VERSIONS_OF = (
  "tensorflow",
  "tensorflow-federated",
  "tensorflow-privacy",
  "dp-accounting",
  "numpy",
)


def _git_revision() -> str:
  source = pathlib.Path(__file__).resolve().parent
  command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40"]
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return ""  # Installed without git, or not from a checkout.


def now() -> str:
  """Returns the time in UTC, to the second."""
  return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def build(seed: int) -> dict[str, Any]:
  """Returns the entries of the manifest of a run that starts."""
  return {
    "seed": seed,
    "python": platform.python_version(),
    "versions": {name: importlib.metadata.version(name) for name in _VERSIONS_OF},
    "machine": f"{platform.system()} {platform.machine()}, {context.num_cores()} cores",
    "git_revision": _git_revision(),
    "started": now(),
  }
