"""When a run has converged: a rule on the curve of the loss of the clients that train.

Importing this starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder

_FEWEST_ROUNDS = 60
# The most by which losses may still fall, as fractions: of the first one, which is next to nothing,
# or of the loss itself and of all its fall so far, as what falls slowly from the beginning goes on.
# In 76 tables of known truth 0.005 to 0.08 and 0.05 to 0.8 change no decision; 0 for the first, 2.
_OF_FIRST, _OF_LOSS, _OF_FALL = 0.002, 0.02, 0.2


def has_converged(losses: np.ndarray, fewest: int = _FEWEST_ROUNDS) -> bool:
  """Returns whether the training losses [rounds], NaN where there is none, have stopped falling.

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


def of_run(run: run_folder.Run) -> bool | None:
  """Returns whether a run has converged; None where no loss of its rounds is known."""
  losses = run.rounds.get("train_loss", np.array([]))
  return has_converged(losses, 3) if np.isfinite(losses).any() else None


class Ending:
  """Ends a run that has converged, with --stop=converged; its keeper of the best model may, too.

  It is the `training_loop.Keeper` of the run.
  """

  def __init__(self, config: run_config.RunConfig, earlier: run_folder.Run, best: Any):
    """Reads the losses of an earlier process; `best` is None where the last model is kept."""
    rounds = earlier.rounds
    numbers = rounds.get("round", np.array([])).astype(int).tolist()
    self._losses = dict(zip(numbers, rounds.get("train_loss", np.array([])).tolist()))
    self._config, self._best = config, best

  def add(self, values: Mapping[str, Any], round_num: int) -> None:
    """Takes the values of a round."""
    self._losses[round_num] = float(values.get("train_loss", np.nan))

  def consider(self, weights: Any, values: Mapping[str, float], round_num: int) -> None:
    """Hands an evaluated model on."""
    if self._best is not None:
      self._best.consider(weights, values, round_num)

  def is_over(self, round_num: int) -> bool:
    """Returns whether the rounds up to this one are enough."""
    if self._best is not None and self._best.is_over(round_num):
      return True
    if self._config.stop != "converged" or round_num % self._config.rounds_per_evaluation:
      return False
    known = [loss for number, loss in sorted(self._losses.items()) if 0 < number <= round_num]
    return has_converged(np.array(known))
