"""When a run has converged: a rule on the curves of its cohorts' losses, and who has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from privacy.settings import part
import tasks
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook

_FEWEST_ROUNDS = 60
# The most by which losses may still fall, as fractions: of the first one, which is next to nothing,
# or of the loss itself and of all its fall so far, as what falls slowly from the beginning goes on.
# Of 42 runs on fourteen tables 13 end at the first allowed round, and test losses are at most 0.2 %
# above those of round 1000; with 0.002, 0.02, 0.2 and the tail alone 24, and 2.2 %.
_OF_FIRST, _OF_LOSS, _OF_FALL = 0.001, 0.01, 0.05
# The mean over the whole cohort counts beside that of the clients that train: these may be a tail,
# which is drawn anew in each round, so that its loss is level while the model still learns.
_CURVES = ("train_loss", "cohort_loss_mean")


def has_converged(losses: np.ndarray, fewest: int = _FEWEST_ROUNDS) -> bool:
  """Returns whether losses [rounds], NaN where there is none, have stopped falling.

  That is where the mean of their last third is next to nothing below that of the third before. As
  thirds grow with the run, a slow fall counts as much as a fast one, and the noise of small cohorts
  is averaged away. With fewer losses than `fewest` it cannot be told.
  """
  known = losses[np.isfinite(losses)]
  third = len(known) // 3
  if not third or 3 * third < fewest:
    return False
  first, last = known[0], known[-third:].mean()
  fall = known[-2 * third : -third].mean() - last
  return bool(fall <= max(_OF_FIRST * first, min(_OF_LOSS * last, _OF_FALL * (first - last))))


def _have_converged(rounds: Mapping[str, np.ndarray], fewest: int = _FEWEST_ROUNDS) -> bool | None:
  """Returns whether all known curves of a run's rounds have; None where none is known."""
  curves = [rounds[name] for name in _CURVES if np.isfinite(rounds.get(name, np.nan)).any()]
  return all(has_converged(curve, fewest) for curve in curves) if curves else None


def of_run(run: run_folder.Run) -> bool | None:
  """Returns whether a run has converged; None where no loss of its rounds is known."""
  return _have_converged(run.rounds, 3)


def ended_first(run: run_folder.Run) -> bool:
  """Returns whether a run with --stop=converged ended at the first round at which it might."""
  if run.config is None or run.config.stop != "converged" or run.last_round is None:
    return False
  return bool(0 <= run.last_round - _FEWEST_ROUNDS < run.config.rounds_per_evaluation)


class StopWhenConverged(hook.Hook):
  """Ends a run that has converged, with --stop=converged."""

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    """Fills in when a run ends, and after how many rounds at the latest."""
    is_planned = config.is_private or config.local.schedule.needs_num_rounds
    if config.stop == "converged" and is_planned:
      raise ValueError(
        "Found --stop=converged in a run whose noise or learning rates are for a number of rounds"
        " that is fixed beforehand; leave it out."
      )
    is_free = task.most_rounds and config.num_rounds is None and not is_planned
    stop = config.stop or ("converged" if is_free else "never")
    values: dict[str, Any] = {"stop": stop}
    if stop != "never" and task.most_rounds:
      # Each method of a cross-validation has several runs.
      values["num_rounds"] = task.most_rounds // (2 if config.task.folds else 1)
    return part.fill(config, values)

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.stop == "converged"

  def prepare(self) -> None:
    """Reads the losses of an earlier process."""
    rounds = self.job.earlier.rounds
    numbers = rounds.get("round", np.array([])).astype(int).tolist()
    self._losses = {
      name: dict(zip(numbers, rounds.get(name, np.array([])).tolist())) for name in _CURVES
    }

  def on_start(self, round_num: int) -> bool:
    return self._is_over(round_num)

  def on_round(self, round_num: int, values: hook.Values) -> bool:
    for name, losses in self._losses.items():
      losses[round_num] = float(values.get(name, np.nan))
    return self._is_over(round_num)

  def _is_over(self, round_num: int) -> bool:
    if round_num % self.job.config.rounds_per_evaluation:
      return False
    curves = {
      name: np.array([loss for number, loss in sorted(losses.items()) if 0 < number <= round_num])
      for name, losses in self._losses.items()
    }
    return bool(_have_converged(curves))
