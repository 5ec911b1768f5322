"""The manifest of a run: versions, machine, revision and times."""

from collections.abc import Mapping
import datetime
import hashlib
import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

import tensorflow as tf

from privacy.evaluation import entries
from tff_superquantile.engine import context
from tff_superquantile.engine.processes import cpu
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
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
        " expected one table a folder: bring that table back, choose another --output_dir, or"
        " remove that folder."
      )


def _cpus(run: run_folder.Run) -> list[dict[str, Any]]:
  """Returns the kinds of CPU of the rounds that a folder has; none if it has no rounds."""
  return run.cpus if accounts.rounds_released(run) else []


def check_same_cpu(config: run_config.RunConfig, earlier: run_folder.Run) -> None:
  """Refuses a run that goes on where its last bits are others, unless `--other_cpu` allows it.

  It goes on where all is as its manifest says of the last one's CPU. What an earlier version did
  not write there is not known, and the manifest says so from then on.
  """
  here = _cpu()
  for last in _cpus(earlier)[-1:] if config.other_cpu == "refused" else ():
    found = {name: here[name] for name in last if here[name] != last[name]}
    if found:
      raise ValueError(
        f"Found a CPU with {_said(found)}; expected {_said({name: last[name] for name in found})},"
        f" as the run in {earlier.path} had, since another one computes other last bits: go on"
        " there, or here by --other_cpu=allowed, which the manifest will say."
      )


def _cpu() -> dict[str, Any]:
  """Returns the kind of CPU of this process."""
  return {**cpu.kind(), "threads": context.num_threads()}


def _said(values: Mapping[str, Any]) -> str:
  return "; ".join(f"{name} {value or 'unknown'}" for name, value in values.items())


def build(job: hook.Job, flags: str) -> dict[str, Any]:
  """Returns the entries of the manifest of a run that starts, or goes on, with this flags.txt.

  A private run leaves the task's digest out, as it follows from the training clients.
  """
  config, earlier = job.config, job.earlier.manifest
  cpus = [*_cpus(job.earlier), _cpu()]
  versions = {name: importlib.metadata.version(name) for name in _VERSIONS_OF}
  return {
    "seed": config.seed,
    "error": job.task.error,
    "data": None if config.is_private else job.task.data_digest or None,
    "python": platform.python_version(),
    "versions": {"tensorflow": tf.version.VERSION, **versions},
    "machine": f"{platform.system()} {platform.machine()}, {limits.num_cores()} cores",
    run_folder.CPUS: cpus[:-1] if cpus[-2:-1] == cpus[-1:] else cpus,
    "git_revision": _git_revision(),
    "started": now(),
    "num_clients": {split: len(files.client_ids) for split, files in job.splits.items()},
    "flags": hashlib.sha256(flags.encode()).hexdigest(),  # By it an audit sees changes of them.
    **{name: earlier[name] for name in ("started", entries.HEAD) if name in earlier},
  }
