"""The models of a task's finished runs, and the test clients for them.

Importing this module starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import os
import sys
from typing import Any

from absl import flags
import numpy as np
import tqdm

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

WEIGHTS = "weights.npz"
# Flags of a run that a command about finished runs may override, as data may have moved.
WHERE_DATA_IS = ("data_dir", "glove", "cache_dir")
# A command that adopts this module's flags lists these in its --help.
for _name in ("output_dir", "task", *WHERE_DATA_IS):
  flags.declare_key_flag(_name)
# These flags decide a run's test clients.
_DATA_FLAGS = (
  "task",
  "seed",
  "data",
  "min_examples_per_client",
  "num_train_clients",
  "num_test_clients",
  "validation_fraction",
  *WHERE_DATA_IS,
)


@dataclasses.dataclass(frozen=True)
class Material:
  """A run's model with the test clients' examples.

  Attributes:
    config: Values of the run's flags.
    model: The task's model, a `tff.learning.models.FunctionalModel`.
    weights: The run's weights of it, `run_files.Weights`.
    examples: The test clients' examples in two parts, an `evaluation.SplitExamples`.
  """

  config: run_config.RunConfig
  model: Any
  weights: Any
  examples: Any


def find(output_dir: str | os.PathLike, task: str) -> list[run_folder.Run]:
  """Finds the finished runs of a task, in the order of `run_folder.find_runs`.

  Raises:
    ValueError: If there is none.
  """
  runs = [run for run in run_folder.find_runs(output_dir) if run.task == task]
  finished = [run for run in runs if run.finished]
  if not finished:
    others = sorted({run.task for run in run_folder.find_runs(output_dir) if run.finished})
    hint = f"; there are some of {', '.join(others)}" if others else ""
    raise ValueError(
      f"Found {len(runs)} unfinished and no finished run of {task!r} in"
      f" {os.fspath(output_dir)!r}{hint}; run the experiment first, or pass another --output_dir or"
      " --task."
    )
  return finished


def check_weights(runs: Iterable[run_folder.Run]) -> None:
  """Raises a `ValueError` that lists the runs without a file of their model."""
  lacking = [f"{run.method}/seed_{run.seed}" for run in runs if not (run.path / WEIGHTS).is_file()]
  if lacking:
    listed = ", ".join(lacking[:8]) + (", …" if len(lacking) > 8 else "")
    raise ValueError(
      f"Found no {WEIGHTS} in {len(lacking)} of the finished runs ({listed}), which an older"
      " version left; delete their metrics.json and run the same experiment again: it continues"
      " from the last checkpoint and writes the model."
    )


def fingerprint(run: run_folder.Run) -> str:
  """Identifies the run's model: results of another one are out of date."""
  return hashlib.sha256((run.path / WEIGHTS).read_bytes()).hexdigest()[:16]


def load_task(config: run_config.RunConfig) -> tuple[Any, Any]:
  """Rebuilds a run's (model, test clients as `client_files.ClientFiles`) from its flags."""
  with cli.starting_tensorflow():
    import tasks
    from tff_superquantile.experiments.run import build

  model, splits = build.load_task(tasks.get_task(config.task), config)
  return model, splits["test"]


class Loader:
  """Loads runs' models and the test clients, which the methods of a seed share, once a seed."""

  def __init__(self, held_in_fraction: float, overrides: Mapping[str, str] | None = None):
    """Prepares the loader.

    Args:
      held_in_fraction: As in `evaluation.split_examples`.
      overrides: Values in place of the runs' own, of the flags `WHERE_DATA_IS`.
    """
    self._held_in_fraction = held_in_fraction
    self._overrides = dict(overrides or {})
    self._key: tuple | None = None
    # The model, the test clients' examples in two parts, and the ids of all test clients.
    self._loaded: tuple[Any, Any, list[str]] | None = None

  def load(self, run: run_folder.Run) -> Material:
    """Loads a run's model with the test clients' examples.

    Raises:
      ValueError: If the model does not fit the task, or the test clients are not those that the run
        was evaluated on.
    """
    config = run_config.from_flags({**run.flags, **self._overrides})
    key = tuple(getattr(config, name) for name in _DATA_FLAGS)
    if self._loaded is None or key != self._key:
      from tff_superquantile import evaluation

      model, files = load_task(config)
      x, y, offsets = files.load()
      everything = evaluation.ClientExamples(files.client_ids, x, y, offsets, files.decode)
      self._loaded = (
        model,
        evaluation.split_examples(everything, self._held_in_fraction, run.seed),
        list(files.client_ids),
      )
      self._key = key
    model, examples, client_ids = self._loaded
    if list(run.clients("test").get("client_id", client_ids)) != client_ids:
      raise ValueError(
        f"Found other test clients than those of {run.path / 'test_clients.csv'}; expected the data"
        " that the run had: pass its --data_dir."
      )
    weights = run.weights
    if weights is None:
      raise ValueError(f"Found no {WEIGHTS} in {run.path}; expected the model of a finished run.")
    shapes = [[np.shape(w) for w in part] for part in (weights.trainable, weights.non_trainable)]
    expected = [[np.shape(w) for w in part] for part in model.initial_weights]
    if shapes != expected:
      raise ValueError(
        f"Found weights of shapes {shapes} in {run.path / WEIGHTS}; expected {expected}, as the"
        " task's model has them: run it again with this version."
      )
    return Material(config, model, weights, examples)


@dataclasses.dataclass(frozen=True)
class Results:
  """The results of a command in each run's folder: NAME.csv, a row a client, and NAME.json.

  Attributes:
    name: NAME.
    settings: Plain values on which the results depend, besides the run's model.
  """

  name: str
  settings: Mapping[str, Any]

  def _settings_of(self, run: run_folder.Run) -> dict[str, Any]:
    return {**self.settings, "model": fingerprint(run)}

  def missing(self, runs: Iterable[run_folder.Run]) -> list[run_folder.Run]:
    """Returns the runs without results of these settings and their present model."""
    return [
      run
      for run in runs
      if self.read(run).get("settings") != self._settings_of(run)
      or not (run.path / f"{self.name}.csv").is_file()
    ]

  def read(self, run: run_folder.Run) -> dict[str, Any]:
    """Returns the content of the JSON; empty if there is none."""
    return run_files.read_json(run.path / f"{self.name}.json")

  def read_clients(self, run: run_folder.Run) -> dict[str, np.ndarray]:
    """Returns the columns of the CSV: `client_id` as strings, the others as float64."""
    return run.read_columns(f"{self.name}.csv")

  def write(
    self,
    run: run_folder.Run,
    columns: Mapping[str, Sequence],
    described: Mapping[str, Any],
  ) -> None:
    """Writes both files, each whole or not at all; the JSON last, as it says that both are there.

    Raises:
      OSError: If the folder cannot be written.
    """
    (run.path / f"{self.name}.json").unlink(missing_ok=True)
    run_files.write_clients(run.path / f"{self.name}.csv", columns)
    atomic_files.write_json(
      run.path / f"{self.name}.json", {"settings": self._settings_of(run), **described}
    )


def for_each(
  runs: Sequence[run_folder.Run],
  name: str,
  work: Callable[[run_folder.Run, Callable[[], None]], None],
) -> None:
  """Works on every run, a seed after the other, under one bar that shows the time left.

  Args:
    runs: The runs.
    name: The bar's title.
    work: Takes a run and a function without arguments, to be called whenever a client is done.
  """
  sizes = [len(run.clients("test").get("client_id", ())) for run in runs]
  terminal = sys.stderr.isatty()
  with tqdm.tqdm(
    desc=name,
    total=sum(sizes) or None,
    unit="client",
    mininterval=0.2 if terminal else 20,
    dynamic_ncols=terminal,
    disable=not runs,
  ) as bar:
    # Runs go by seed, as the methods of a seed share their clients.
    done = 0
    for run, size in sorted(zip(runs, sizes), key=lambda pair: pair[0].seed):
      bar.set_postfix_str(f"{run.method}, seed {run.seed}", refresh=terminal)
      work(run, bar.update)
      done += size
      bar.update(done - bar.n)  # Clients that were left out count as done.


def task_of_flags() -> tuple[str, str, dict[str, str]]:
  """Reads --output_dir, --task (by default the only one with finished runs), the data's place.

  Returns:
    (output directory, task, overrides of `WHERE_DATA_IS`).

  Raises:
    ValueError: If another flag of a training run is given, or the task is not clear.
  """
  given = list(train_flags.given())
  strange = [name for name in given if name not in ("output_dir", "task", *WHERE_DATA_IS)]
  if strange:
    raise ValueError(
      f"Found --{strange[0]}, which this command does not take; the finished runs have their own."
    )
  output_dir, task = flags.FLAGS.output_dir, flags.FLAGS.task
  if "task" not in given:
    tasks = sorted({run.task for run in run_folder.find_runs(output_dir) if run.finished})
    if len(tasks) > 1:
      raise ValueError(
        f"Found finished runs of {', '.join(tasks)} in {output_dir}; choose one by --task."
      )
    task = tasks[0] if tasks else task
  overrides = {name: flags.FLAGS[name].value for name in WHERE_DATA_IS if name in given}
  return output_dir, task, overrides
