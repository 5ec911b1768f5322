"""Plays the rounds of the paper's algorithm with exact reweighting, many runs side by side.

The algorithm (algo:sfl-new) does not care which problem it runs: a round draws m clients without
replacement, weighs them by their losses, and averages the models that their local steps lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np


class Problem(Protocol):
  """The clients of a run."""

  @property
  def num_clients(self) -> int:
    """n."""

  def losses(self, points: np.ndarray) -> np.ndarray:
    """Returns F_i [..., n] at points [..., d]."""

  def local_training(
    self, learning_rates: np.ndarray, local_steps: int
  ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns the local steps of all runs, each [runs] with a learning rate, as `play` calls them.

    They map points [r, seeds, d] and weights [r, seeds, n] of the first r runs to the average,
    [r, seeds, d], of the models after the local steps, with these weights.
    """


def play(
  problem: Problem,
  points: np.ndarray,
  num_rounds: Sequence[int],
  *,
  weigh: Callable[[np.ndarray], np.ndarray],
  train: Callable[[np.ndarray, np.ndarray], np.ndarray],
  cohort_size: int,
  seed: int,
) -> Iterator[int]:
  """Plays rounds, changes the points [runs, seeds, d] in place, and yields how many runs moved.

  `num_rounds`, T of each run, descend, so that those under way are always the first r. `weigh`
  returns weights of sum 1, or all 0, for losses [r, seeds, m]; `train` is of
  `Problem.local_training`.
  """
  rng = np.random.default_rng(seed)
  active = len(points)
  for t in range(num_rounds[0]):
    while num_rounds[active - 1] <= t:
      active -= 1
    here = points[:active]
    losses = problem.losses(here)
    if cohort_size < problem.num_clients:
      # The m smallest of n random numbers are a uniform draw without replacement.
      cohorts = np.argpartition(rng.random(losses.shape), cohort_size - 1, -1)[..., :cohort_size]
      weights = np.zeros_like(losses)
      np.put_along_axis(weights, cohorts, weigh(np.take_along_axis(losses, cohorts, -1)), -1)
    else:
      weights = weigh(losses)
    # Without any weight, the tail is empty and the model stays.
    points[:active] = np.where(weights.any(-1, keepdims=True), train(here, weights), here)
    yield active
