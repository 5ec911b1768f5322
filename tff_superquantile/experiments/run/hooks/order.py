"""The features of runs, in the order in which they write, and what each moment asks of them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import inspect
import logging
import pathlib
import traceback
from typing import Any, NoReturn

from privacy.settings import plugins
import tasks
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import measurements
from tff_superquantile.experiments.run.hooks import best_model
from tff_superquantile.experiments.run.hooks import class_weights
from tff_superquantile.experiments.run.hooks import client_split
from tff_superquantile.experiments.run.hooks import convergence
from tff_superquantile.experiments.run.hooks import ditto
from tff_superquantile.experiments.run.hooks import divergence
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import initial_weights
from tff_superquantile.experiments.run.hooks import outputs
from tff_superquantile.experiments.run.hooks import personalizing
from tff_superquantile.experiments.run.hooks import private_rounds
from tff_superquantile.experiments.run.hooks import siblings
from tff_superquantile.experiments.run.hooks import superseded

_LOG = logging.getLogger(__name__)

HOOKS: Sequence[type[hook.Hook]] = (
  superseded.Superseded,  # Nothing is written after it has ended the run.
  client_split.ClientSplit,
  siblings.Siblings,
  initial_weights.InitialWeights,
  private_rounds.PrivateRounds,  # Its ledger never lags.
  class_weights.ClassWeights,
  outputs.RoundsTable,
  outputs.ClientResults,
  personalizing.Personalizing,
  ditto.DittoTraining,
  outputs.Progress,
  divergence.DivergenceGuard,  # No round counts that it refuses, nor is its model kept.
  best_model.BestModel,
  convergence.StopWhenConverged,
)
_MAY_REFUSE = ("resolve", "check", "prepare")  # By a ValueError.


def _changed(kind: type[hook.Hook]) -> list[str]:
  """Returns which of a hook's moments and attributes, but `on_finished`, are not `Hook`'s own."""
  names = [name for name in vars(hook.Hook) if name == "__init__" or not name.startswith("_")]
  return plugins.changed(kind, hook.Hook, [name for name in names if name != "on_finished"])


def _kinds(config: run_config.RunConfig) -> list[type[hook.Hook]]:
  """Returns all features, those that --hook names at the end; a `ValueError` if these cannot be."""
  of_users = {name: hook.OF_USERS[name] for name in plugins.names(config.hook)}
  for name, kind in of_users.items():
    if config.is_private and (changed := _changed(kind)):
      raise ValueError(
        f"Found --hook={name} in a private run, with {', '.join(changed)} of its own; expected"
        " on_finished alone, as all else shows cohorts, clients or keys, and no accounting covers"
        " what a hook of yours writes of them: leave it out."
      )
  return [*HOOKS, *of_users.values()]


def _checked(value: Any, kind: type) -> Any:
  if not isinstance(value, kind):
    raise TypeError(f"Found {value!r} returned; expected a {kind.__name__}")
  return value


@contextlib.contextmanager
def _warning(of: hook.Hook | type[hook.Hook], moment: str, said: set | None = None) -> Iterator:
  """Warns of a user's hook that fails at a moment, of which `said` has those already said."""
  kind = of if isinstance(of, type) else type(of)
  try:
    yield
  except Exception as error:
    if kind in HOOKS:
      raise
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{moment} ({pathlib.Path(frame.filename).name}, line {frame.lineno})"
    head = f"Found that the hook {kind.__module__}:{kind.__qualname__}"
    if moment in _MAY_REFUSE and isinstance(error, ValueError):
      raise ValueError(f"{head} refuses the run in {place}: {error}") from None
    if said is not None and (kind, moment) in said:
      return
    _LOG.warning(
      "%s failed in %s: %s: %s; the run goes on without what it would have done there: mend it, or"
      " leave it out.",
      *(head, place, type(error).__name__, error),
    )
    if said is not None:
      said.add((kind, moment))


def _taking_part(config: run_config.RunConfig) -> list[type[hook.Hook]]:
  taking_part = []
  for kind in _kinds(config):
    with _warning(kind, "takes_part"):
      taking_part += [kind] if kind.takes_part(config) else []
  return taking_part


def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
  """Returns a config with what belongs to the features; a `ValueError` refuses it."""
  for kind in _kinds(config):
    with _warning(kind, "resolve"):
      config = _checked(kind.resolve(config, task), run_config.RunConfig)
  return config


def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
  """Raises a `ValueError` for a resolved config that cannot be."""
  for kind in _taking_part(config):
    with _warning(kind, "check"):
      kind.check(config, task)


def _refuse_clients() -> NoReturn:
  raise ValueError(
    "Found a hook that asks for the model and the clients of a private run; expected one that is"
    " content with the files of the finished run: see job.read()."
  )


class AllHooks:
  """The hooks of a run, each moment of which it hands to them one after the other.

  Attributes:
    measured: (split, measure) that they ask of evaluations.
  """

  def __init__(self, job: hook.Job):
    self._hooks: list[hook.Hook] = []
    self._started: list[hook.Hook] = []
    self._said: set[tuple[type[hook.Hook], str]] = set()
    self.measured: list[tuple[str, str]] = []
    for kind in _taking_part(job.config):
      with _warning(kind, "__init__", self._said):
        each = kind(self._shown(job, kind))
        self.measured += each.measured.items()
        self._hooks.append(each)

  @staticmethod
  def _shown(job: hook.Job, kind: type[hook.Hook]) -> hook.Job:
    """Returns what a hook gets to see of a job: of a private run a user's gets no client or key."""
    if kind in HOOKS or not job.config.is_private:
      return job
    return hook.Job(job.config, job.task, job.earlier, _refuse_clients, outcome=job.outcome)

  def prepare(self, job: hook.Job) -> hook.Job:
    """Returns the job with all inputs, which all hooks see from here on."""
    for each in self._hooks:
      each.job = self._shown(job, type(each))
      with _warning(each, "prepare", self._said):
        prepared = each.prepare()
        job = job if prepared is None else _checked(prepared, hook.Job)
    for each in self._hooks:
      each.job = self._shown(job, type(each))
    return job

  def on_start(self, round_num: int) -> bool:
    """Follows the loading of the state of the last round done; returns whether none need follow."""
    is_over = False
    for each in self._hooks:
      with _warning(each, "on_start", self._said):
        is_over = bool(each.on_start(round_num)) or is_over
        self._started.append(each)
    return is_over

  def on_evaluation(self, evaluation: hook.Evaluation) -> hook.Values:
    """Returns the numbers of an evaluation in a row of rounds.csv."""
    values = measurements.of_test_clients(evaluation.statistics["test"])
    for each in self._hooks:
      with _warning(each, "on_evaluation", self._said):
        further = {name: float(x) for name, x in (each.on_evaluation(evaluation) or {}).items()}
        if taken := sorted(further.keys() & {*values, "round"}):
          raise ValueError(f"Found numbers for {', '.join(taken)}; expected names of its own")
        values.update(further)
    return values

  async def on_round(self, round_num: int, values: Mapping[str, Any]) -> bool:
    """Hands the values of a round to all hooks; returns whether one has had enough rounds."""
    is_over = False
    for each in self._hooks:
      with _warning(each, "on_round", self._said):
        answer = each.on_round(round_num, values)
        is_over = bool(await answer if inspect.isawaitable(answer) else answer) or is_over
    return is_over

  def on_rounds_end(self, is_whole: bool) -> None:
    """Tells those hooks of the end of the rounds whose start there was."""
    for each in self._started:
      with _warning(each, "on_rounds_end", self._said):
        each.on_rounds_end(is_whole)

  def complete(self) -> None:
    """Follows the evaluation of the model that the run leaves."""
    for each in self._hooks:
      with _warning(each, "complete", self._said):
        each.complete()

  def on_finished(self) -> None:
    """Follows the last file of a finished run."""
    for each in self._hooks:
      with _warning(each, "on_finished", self._said):
        each.on_finished()
