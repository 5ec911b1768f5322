"""A feature of runs, as a hook: what it does at each moment of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
import dataclasses
import pathlib
import typing
from typing import Any, NamedTuple

from privacy import releases
from privacy.settings import plugins
import tasks
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

if typing.TYPE_CHECKING:
  from tff_superquantile import evaluation as evaluation_lib
  from tff_superquantile.simulation import client_files

Values = Mapping[str, Any]  # Numbers by column of rounds.csv.


class Secret(NamedTuple):
  """Release, noise key and cohort key of a private run.

  Attributes:
    release: What a round releases, with its noise.
    noise_key: The key of all noise, 16 bytes.
    key: The key of the cohorts, 16 bytes.
    released: The last round of which the folder has anything.
    epsilon: From a number of rounds to what they have cost.
  """

  release: releases.Release
  noise_key: bytes
  key: bytes
  released: int
  epsilon: Callable[[int], float]


class Evaluation(NamedTuple):
  """A model, and what clients measured of it.

  Attributes:
    weights: The model's weights, with `trainable` and `non_trainable`.
    results: The `evaluation.ClientMetrics` of each client, by split.
    statistics: {split: {"loss" | "error" | measure: {statistic: number}}}.
  """

  weights: Any
  results: Mapping[str, evaluation_lib.ClientMetrics]
  statistics: Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass
class Outcome:
  """What a run leaves: entries of manifest.json, its model's weights, and metrics.json."""

  manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
  weights: Any = None
  metrics: dict[str, Any] = dataclasses.field(default_factory=dict)


def _load_nothing() -> tuple[Any, Mapping[str, client_files.ClientFiles]]:
  return None, {}


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
  """A run that is carried out: its inputs, which `prepare` completes, and its outcome.

  Attributes:
    config: The resolved config; in a private run the noise follows in `prepare`.
    task: Its task.
    earlier: The run's folder, as an earlier process left it.
    load: Returns model and clients by split, which it reads once.
    trained: The model with the loss that training minimises; None for the model itself.
    start: Weights of round 0; None for the model's own.
    secret: What a private run keeps to itself; None for another run.
    outcome: What the run leaves.
  """

  config: run_config.RunConfig
  task: tasks.task.Task
  earlier: run_folder.Run
  load: Callable[[], tuple[Any, Mapping[str, client_files.ClientFiles]]] = _load_nothing
  trained: Any = None
  start: run_files.Weights | None = None
  secret: Secret | None = None
  outcome: Outcome = dataclasses.field(default_factory=Outcome)

  @property
  def folder(self) -> pathlib.Path:
    """The run's folder."""
    return self.earlier.path

  @property
  def model(self) -> Any:
    """The task's model."""
    return self.load()[0]

  @property
  def splits(self) -> Mapping[str, client_files.ClientFiles]:
    """The files of the clients, by split."""
    return self.load()[1]

  def read(self) -> run_folder.Run:
    """Returns the run as its folder has it now: `metrics`, `rounds`, `weights` and more."""
    return run_folder.Run(self.folder, self.config.seed)


class Hook:
  """A feature of runs: what it does at each of nine moments, which is nothing unless it says so.

  The first two belong to the class, as they come before there is a run. In the first three a
  `ValueError` refuses the run, of which nothing has been computed. A user's hook that fails
  otherwise is a warning; it then counts as one that returned None.

  What a hook of a private run writes must be covered by its accounting: `on_round` gets what is
  released. So a private run has the project's own hooks, and of a user's those that have
  `on_finished` alone, whose job has neither clients nor keys.

  Attributes:
    job: The run: its inputs, all of them from `on_start` on, and its outcome.
    measured: The measure by which an evaluation is to tell the clients of a split, by split.
  """

  measured: Mapping[str, str] = {}

  def __init__(self, job: Job):
    self.job = job

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    """Returns whether a resolved run has the feature; if not, only `resolve` is called."""
    return True

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    """Returns a config with what belongs to the feature, as values of flags that are None."""
    return config

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    """Refuses a resolved config that cannot be, before any client is read."""

  def prepare(self) -> Job | None:
    """Refuses what clients or folder do not allow, and returns the job with further inputs."""
    return None

  def on_start(self, round_num: int) -> bool | None:
    """Follows the writing of manifest and flags, with which the run has begun.

    Args:
      round_num: The last round that is done, of a run that goes on; else 0.

    Returns:
      Whether no round need follow, as `on_round` said of that round.
    """
    return None

  def on_evaluation(self, evaluation: Evaluation) -> Values | None:
    """Returns further numbers for the row of an evaluated round, under names of their own."""
    return None

  def on_round(self, round_num: int, values: Values) -> bool | None | Awaitable[bool | None]:
    """Follows each round, before its state counts as done; it may be `async`.

    Args:
      round_num: Its number; 0 is the evaluation before training. A run that was killed repeats
        the rounds after its last checkpoint.
      values: The round's row of rounds.csv.

    Returns:
      Whether no round need follow this one. A run has one round at least.
    """
    return None

  def on_rounds_end(self, is_whole: bool) -> None:
    """Follows the last round, or, if not `is_whole`, whatever has interrupted the rounds.

    After the last one the outcome has the last model, and may be given another.
    """

  def complete(self) -> None:
    """Follows the evaluation of the outcome's model, before manifest and metrics are written."""

  def on_finished(self) -> None:
    """Follows the last file of a finished run, also of one that was finished before."""


OF_USERS = plugins.Registry("hook", "hooks", Hook, {})
