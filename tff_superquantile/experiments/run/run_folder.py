"""Reads the folders of runs, OUTPUT_DIR/TASK/METHOD/seed_S/.

docs/how_to/read_results.md lists their files. `metrics.json` is written last, so a folder that has
it is a finished run. Everything here tolerates a run in progress, as `run_files` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import time
from typing import Any

import numpy as np

from privacy.settings import command_line
from privacy.settings import versions
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import evaluation_files
from tff_superquantile.experiments.run import run_files

DIVERGED = "diverged.txt"
FAILED = "failed.txt"  # What ended a job of many otherwise.
LOG = "log.txt"  # What a run of many prints; `logs.path` says where.
LOCK = "lock"
COLUMNS = "columns.json"
WEIGHTS = "weights.npz"
CHECKPOINTS = "checkpoints"
RELATIVE_NOISE = "relative_noise"  # The entry of the manifest of private runs.
# The kinds of CPU that have carried out a run, one after the other: what `cpu.kind` says, and the
# number of TensorFlow's threads. Nothing is known of those of an earlier version.
CPUS = "cpus"
_SECONDS_BETWEEN_LOOKS = 0.05


class OccupiedError(ValueError):
  """Says that another process is at work in the folder of a run."""


@contextlib.contextmanager
def lock(folder: pathlib.Path, patience: float = 1.0) -> Iterator[None]:
  """Makes a run's folder where there is none, and keeps a second process out of it.

  It tries for `patience` seconds: a process that was killed has its lock until its last thread is
  gone.
  """
  atomic_files.make_folder("output_dir", folder)
  run_files.check_file(folder / LOCK)
  end = time.monotonic() + patience
  with open(folder / LOCK, "a") as file:  # It has what `attempts` writes.
    while True:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except OSError as error:
        if time.monotonic() >= end:
          raise OccupiedError(
            f"Found that another process is at work in {folder}; wait for it."
          ) from error
      time.sleep(_SECONDS_BETWEEN_LOOKS)
    yield


@dataclasses.dataclass(frozen=True)
class Run:
  """One run's folder. Files are read when first asked for, and once.

  Attributes:
    path: The folder of the run.
    seed: The seed, a non-negative integer.
  """

  path: pathlib.Path
  seed: int

  @property
  def task(self) -> str:
    """The name of the task's folder, the first below the output directory."""
    return self.path.parent.parent.name

  @functools.cached_property
  def method(self) -> names.Name:
    """The name of the method's folder, with its label for people."""
    return names.Name(self.path.parent.name, self.config)

  @property
  def task_title(self) -> str:
    """The name of the task for people."""
    return names.printable(self.task) if self.config is None else names.task_title(self.config)

  @functools.cached_property
  def config(self) -> run_config.RunConfig | None:
    """The config of the run, with the task's defaults; None if its flags cannot be read."""
    flags = self.flags
    try:
      return run_config.from_flags(flags) if flags else None
    except ValueError:  # A part from outside may have gone.
      return None

  @property
  def about(self) -> str:
    """What its task is, for the readers of a report; "" if its title says it."""
    return self.config.task.about if self.config is not None else ""

  @property
  def finished(self) -> bool:
    """Whether the run left its metrics."""
    return bool(self.metrics)

  @property
  def diverged(self) -> str:
    """Why the run ended, if its model diverged, as it would again; else ""."""
    return self._reason(DIVERGED)

  @property
  def failed(self) -> str:
    """Why a job of many failed, as it would again, and has not begun anew since; else ""."""
    return self._reason(FAILED)

  def _reason(self, name: str) -> str:
    """Returns the content of a file whose presence says something already; "" if it is missing."""
    try:
      return (self.path / name).read_text(encoding="utf-8").strip() or name
    except OSError:
      return ""

  @functools.cached_property
  def metrics(self) -> dict[str, Any]:
    """The content of `metrics.json`, errors as fractions; empty if the run is unfinished."""
    return run_files.read_json(self.path / "metrics.json")

  @functools.cached_property
  def manifest(self) -> dict[str, Any]:
    """The content of `manifest.json`; empty if there is none."""
    return run_files.read_json(self.path / "manifest.json")

  @property
  def cpus(self) -> list[dict[str, Any]]:
    """The kinds of CPU that have carried it out, one after the other; {} is unknown."""
    return self.manifest.get(CPUS) or [{}]

  @property
  def num_threads(self) -> int | None:
    """The number of TensorFlow's threads with which it goes on; None for any."""
    return self.cpus[-1].get("threads")

  @property
  def error_kind(self) -> str:
    """How the run measures a client's error, a key of `evaluation.errors.ERRORS`."""
    return str(self.manifest.get("error", "misclassification"))

  @property
  def relative_noise(self) -> float | None:
    """The noise's length in a round's mean over that of the longest update; None if unknown."""
    noise = self.manifest.get(RELATIVE_NOISE)
    return float(noise) if isinstance(noise, (int, float)) else None

  @functools.cached_property
  def columns(self) -> str:
    """The content of `columns.json`, a task's `columns`; "" if there is none."""
    return run_files.read_text(self.path / COLUMNS)

  @functools.cached_property
  def classes(self) -> tuple[str, ...]:
    """The names of the classes of a table's labels; empty where there are none, or no table."""
    try:
      return tuple(map(str, self._label["classes"]))
    except (KeyError, TypeError):  # Commands that need the columns refuse them.
      return ()

  @property
  def label_sd(self) -> float | None:
    """The standard deviation of a table's labels that are numbers, in their unit; else None."""
    sd = self._label.get("std")
    return sd if isinstance(sd, float) and not self.classes else None

  @property
  def label_unit(self) -> str:
    """The unit of a table's labels that are numbers, as it is in the table; "" for none."""
    return str(self._label.get("unit", ""))

  @functools.cached_property
  def _label(self) -> dict[str, Any]:
    """What the labels of a table became; empty without a table."""
    try:
      return dict(json.loads(self.columns)["label"]) if self.columns else {}
    except (KeyError, TypeError, ValueError):
      return {}

  @functools.cached_property
  def flags(self) -> dict[str, str]:
    """Flag values by name; a `ValueError` for those of an earlier version."""
    flags = command_line.read_flags(run_files.read_text(self.path / "flags.txt"))
    versions.check(flags, self.path)
    return flags

  @functools.cached_property
  def numbers(self) -> dict[str, float]:
    """The numbers in `metrics.json` by dotted name, and `seconds_per_round` of the manifest.

    For example `test.error.p90`, a fraction, and `train.loss.mean`, in nats.
    """
    seconds = self.manifest.get("seconds_per_round")
    return {
      name: float(value)
      for name, value in run_files.flatten({**self.metrics, "seconds_per_round": seconds}).items()
      if isinstance(value, (int, float)) and not isinstance(value, bool)
    }

  @functools.cached_property
  def rounds(self) -> dict[str, np.ndarray]:
    """The columns of `rounds.csv`, float arrays of shape [number of rounds], NaN where blank.

    Sorted by round. A run that was killed after its last checkpoint repeats some rounds when it
    resumes: the last row of a round counts, it belongs to the history of the final model.
    """
    columns = self.read_columns("rounds.csv")
    if "round" not in columns:
      return {}
    last_row = {number: row for row, number in enumerate(columns["round"]) if np.isfinite(number)}
    rows = np.array([last_row[number] for number in sorted(last_row)], dtype=int)
    return {name: values[rows] for name, values in columns.items()}

  @property
  def last_round(self) -> int | None:
    """The last round in `rounds.csv`, or None before the first row."""
    numbers = self.rounds.get("round")
    return None if numbers is None or not len(numbers) else int(numbers[-1])

  def clients(self, split: str) -> dict[str, np.ndarray]:
    """Reads the per-client file of a split, or of one of `personal.ALL_PARTS`, once; empty if none.

    Arrays [number of clients] by column: `client_id` (strings), `num_examples`, `loss` (nats) and
    `error` (fraction of the examples, or RMSE in sd of the labels).
    """
    # Cached properties are kept there, too.
    read: dict[str, dict[str, np.ndarray]] = self.__dict__.setdefault("_clients", {})
    if split not in read:
      read[split] = self.read_columns(f"{split}_clients.csv")
    return read[split]

  def evaluations(self, split: str) -> dict[str, np.ndarray]:
    """Reads the results of every client of a split at each evaluation: `evaluation_files.read`."""
    return evaluation_files.read(self.path / run_files.CLIENTS, split)

  @functools.cached_property
  def weights(self) -> run_files.Weights | None:
    """The weights of the trained model; None where there is no `weights.npz`."""
    return run_files.read_weights(self.path / WEIGHTS)

  def read_columns(self, name: str) -> dict[str, np.ndarray]:
    """Reads the complete rows of a CSV file: `client_id` as strings, the others as float64."""
    return run_files.read_columns(self.path / name, is_whole=self.finished)

  def check_columns(self, task: Any) -> None:
    """Raises a `ValueError` for a run on a table that has lost what the table's columns became."""
    if task.data_digest and not self.columns:
      raise ValueError(
        f"Found no {COLUMNS} in {self.path}, a run on a table; expected what the table's columns"
        " became: bring the file back, or train again."
      )

  @property
  def fingerprint(self) -> str:
    """Identifies the run's model: results of another one are out of date."""
    return hashlib.sha256((self.path / WEIGHTS).read_bytes()).hexdigest()[:16]

  def check_same(self, config: run_config.RunConfig, followed: Iterable[str]) -> None:
    """Raises a `ValueError` if `run_config.differences` keep the run from being continued."""
    different = run_config.differences(self.flags, config, followed)
    if different:
      raise ValueError(
        f"Found a run with other flags in {self.path} ({'; '.join(different)}); choose another"
        " --output_dir or --run_name, or remove that folder."
      )

  def check_clients(self, split: str, ids: Sequence[str]) -> None:
    """Raises a `ValueError` unless these are the clients on which the run left results, if any."""
    if list(self.clients(split).get("client_id", ids)) != list(ids):
      raise ValueError(
        f"Found other {split} clients than those of {self.path / f'{split}_clients.csv'}; expected"
        " the data that the run had: pass its --data_dir."
      )

  def weights_for(self, model: Any) -> run_files.Weights:
    """Reads the weights of a run's model; refuses a file that does not fit the task's model."""
    weights = self.weights
    if weights is None:
      raise ValueError(f"Found no {WEIGHTS} in {self.path}; expected the model of a finished run.")
    shapes = [[np.shape(w) for w in part] for part in (weights.trainable, weights.non_trainable)]
    expected = [[np.shape(w) for w in part] for part in model.initial_weights]
    if shapes != expected:
      raise ValueError(
        f"Found weights of shapes {shapes} in {self.path / WEIGHTS}; expected {expected}, as the"
        " task's model has them: take a run of this model, made by this version."
      )
    return weights


# Runs by method, as `group_by_method` makes them.
Groups = Mapping[names.Name, Sequence[Run]]


def of_config(config: run_config.RunConfig) -> Run:
  """Returns the run that a config asks for, whether it has begun or not."""
  return Run(names.run_path(config), config.seed)


def leave_failure(config: run_config.RunConfig, why: str) -> None:
  """Leaves in a run's folder why it failed, unless the folder is another's or cannot be written.

  What a private run says of its failure may follow from its clients: of such a run it leaves no
  word of that.
  """
  run = of_config(config)
  try:
    if run.flags and run_config.differences(run.flags, config, run_config.flags()):
      return
  except ValueError:  # It is of an earlier version.
    return
  if config.is_private:
    why = "The run failed; its reason, which may tell of its clients, is in what the job printed."
  with contextlib.suppress(OSError, ValueError), lock(run.path):
    atomic_files.write(run.path / FAILED, f"{why}\n")


def find_finished(folder: pathlib.Path) -> Run:
  """Returns the finished run of a folder OUTPUT_DIR/TASK/METHOD/seed_S; refuses other folders.

  Args:
    folder: The run's folder.

  Returns:
    The run.

  Raises:
    ValueError: If it is no folder of a run, or the run is not finished.
  """
  path = folder.resolve()
  seed = path.name.removeprefix("seed_")
  is_run = seed.isdecimal() and path.name != seed
  run = Run(path, int(seed) if is_run else 0)
  if not is_run or not (run.finished or run.flags):
    raise ValueError(
      f"Found no finished run in {folder}; expected its folder, OUTPUT_DIR/TASK/METHOD/seed_S, with"
      " metrics.json."
    )
  if not run.finished:
    raise ValueError(
      f"Found that the run in {folder} is at round {run.last_round or 0} of"
      f" {run.flags.get('num_rounds', 'an unknown number')}; expected a finished run: it goes on by"
      f" superquantile train --flagfile={folder / 'flags.txt'}."
    )
  return run


def find_runs(output_dir: str | os.PathLike[str]) -> list[Run]:
  """Returns the runs of all tasks below a directory, finished or not.

  Args:
    output_dir: The directory, which may be missing.

  Returns:
    The runs, by task, method and seed.
  """
  runs = []
  for path in pathlib.Path(output_dir).glob("*/*/seed_*"):
    seed = path.name.removeprefix("seed_")
    is_hidden = any(part.name.startswith(".") for part in (path.parent, path.parent.parent))
    if seed.isdecimal() and path.is_dir() and not is_hidden:
      runs.append(Run(path, int(seed)))
  return sorted(runs, key=lambda run: (run.task, run.method.order, run.seed))


def group_by_method(runs: Iterable[Run]) -> dict[names.Name, list[Run]]:
  """Groups runs by method, FedAvg first; runs of a method keep their order.

  Args:
    runs: Runs of one task.

  Returns:
    The runs by the method's name.
  """
  groups: dict[names.Name, list[Run]] = {}
  for run in sorted(runs, key=lambda run: run.method.order):
    groups.setdefault(run.method, []).append(run)
  return groups
