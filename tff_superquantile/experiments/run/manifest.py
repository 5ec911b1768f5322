"""The manifest of a run: versions, machine, revision and times."""

import datetime
import hashlib
import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

import tensorflow as tf

from privacy.evaluation import entries
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook

# Beside TensorFlow's, whose package has more than one name.
_VERSIONS_OF = ("tensorflow-federated", "tensorflow-privacy", "dp-accounting", "numpy")


def _git_revision() -> str:
  source = pathlib.Path(__file__).resolve().parent
  # Without the index's lock, which a run that is killed would leave.
  command = ["git", "--no-optional-locks", "-C", str(source)]
  command += ["describe", "--always", "--dirty", "--abbrev=40"]
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return ""  # Installed without git, or not from a checkout.


def now() -> str:
  """Returns the time in UTC, to the second."""
  return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def check_same_data(folder: pathlib.Path, data_digest: str) -> None:
  """Refuses a run whose task folder has runs on another table, or an earlier state of its own."""
  for path in folder.parent.parent.glob("*/seed_*/manifest.json") if data_digest else ():
    if run_files.read_json(path).get("data") not in (None, data_digest):
      raise ValueError(
        f"Found runs on another table, other columns or earlier content in {path.parents[2]};"
        " expected one table a folder: choose another --output_dir, or remove that folder."
      )


def build(job: hook.Job, flags: str) -> dict[str, Any]:
  """Returns the entries of the manifest of a run that starts, or goes on, with this flags.txt.

  A private run leaves the task's digest out, as it follows from the training clients.
  """
  config, earlier = job.config, job.earlier.manifest
  versions = {name: importlib.metadata.version(name) for name in _VERSIONS_OF}
  return {
    "seed": config.seed,
    "error": job.task.error,
    "data": None if config.is_private else job.task.data_digest or None,
    "python": platform.python_version(),
    "versions": {"tensorflow": tf.version.VERSION, **versions},
    "machine": f"{platform.system()} {platform.machine()}, {limits.num_cores()} cores",
    "git_revision": _git_revision(),
    "started": now(),
    "num_clients": {split: len(files.client_ids) for split, files in job.splits.items()},
    "flags": hashlib.sha256(flags.encode()).hexdigest(),  # By it an audit sees changes of them.
    **{name: earlier[name] for name in ("started", entries.HEAD) if name in earlier},
  }
