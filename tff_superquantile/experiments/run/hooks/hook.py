"""A feature of runs, as a hook: what it does at each moment of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
import typing
from typing import Any, NamedTuple

from privacy import releases
from privacy import statements
from privacy.settings import plugins
import tasks
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

if typing.TYPE_CHECKING:
  from tff_superquantile import evaluation
  from tff_superquantile.simulation import client_files

Values = Mapping[str, Any]  # Numbers by column of rounds.csv.
Results = Mapping[str, "evaluation.ClientMetrics"]  # By split.
Described = Mapping[str, Mapping[str, Any]]  # `measurements.describe`, by split.


class Secret(NamedTuple):
  """What a private run has beside its config; the `key` is that of its cohorts."""

  release: releases.Release
  noise_key: bytes
  key: bytes
  released: int  # The last round of which the folder has anything.


@dataclasses.dataclass
class Job:
  """A run that is carried out, which hooks read, and complete by what they are for.

  Model and clients are known from `before` on, and the noise of the config after it; what the run
  leaves (`weights`, `metrics`) is completed by `finish`. `load` fills in model and clients, for
  `finished` hooks of a run that was finished before.
  """

  config: run_config.RunConfig
  task: tasks.task.Task
  earlier: run_folder.Run
  load: Callable[[], None] = lambda: None
  hooks: Sequence[Hook] = ()
  model: Any = None
  trained: Any = None  # The model, with the loss that training minimises.
  splits: Mapping[str, client_files.ClientFiles] = dataclasses.field(default_factory=dict)
  start: run_files.Weights | None = None  # Weights of round 0; None for the model's own.
  starts: Sequence[statements.StartingModel] = ()  # The runs from which they are.
  secret: Secret | None = None
  manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
  weights: Any = None
  metrics: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def folder(self) -> pathlib.Path:
    """The run's folder."""
    return self.earlier.path


class Hook:
  """A feature of runs; at each of these moments, in their order, it does nothing unless it says so.

  The first four belong to the class, as they come before there is a run. What a hook of a private
  run writes must be covered by its accounting: `release` gets what is released. So a private run
  has the project's own hooks alone, as a hook sees clients and keys.

  Attributes:
    measured: The measure by which an evaluation is to tell the clients of a split, by split.
  """

  measured: Mapping[str, str] = {}

  def __init__(self, job: Job):
    self.job = job

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    """Returns a config with what belongs to the feature; a `ValueError` refuses it."""
    return config

  @staticmethod
  def defaults(config: run_config.RunConfig, task: tasks.task.Task) -> Mapping[str, Any]:
    """Returns the values of flags that are None; a `ValueError` refuses what has none."""
    return {}

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    """Returns whether a resolved run has the feature."""
    return True

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    """Raises a `ValueError` for a resolved config that cannot be, before any client is read."""

  def before(self) -> None:
    """Gets ready, and refuses what the clients or the folder do not allow."""

  def begin(self) -> None:
    """Follows the writing of manifest and flags, with which the run has begun."""

  def of_round(self, round_num: int) -> Values:
    """Returns further values of a round, of which each round has some."""
    return {}

  def evaluate(self, weights: Any) -> Values:
    """Returns the values of an evaluation of a model."""
    return {}

  def evaluated(self, results: Results, described: Described) -> Values:
    """Returns further values of an evaluation, from results and statistics of the splits."""
    return {}

  async def release(self, value: Values, key: int) -> None:
    """Gets the released values of round `key`, from 0."""

  def consider(self, weights: Any, values: Values, round_num: int) -> None:
    """Gets an evaluated model with its values, after their release and before its checkpoint."""

  def is_over(self, round_num: int) -> bool:
    """Returns whether no round need follow this one."""
    return False

  def end(self, is_whole: bool) -> None:
    """Follows the last round, or, if not `is_whole`, whatever has interrupted the rounds."""

  def finish(self) -> None:
    """Completes `weights`, `metrics` and `manifest`, and writes files of the finished run."""

  def finished(self) -> None:
    """Follows the last file of a finished run, also of one that was finished before."""


OF_USERS = plugins.Kinds("hook", "hooks", Hook, {})
