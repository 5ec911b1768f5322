"""Weighs the clients of a cohort by their losses, in runs side by side."""

from collections.abc import Callable

import numpy as np

from paper import smoothed
from paper.convergence import cutting
from tff_superquantile import superquantile


class SmoothedDual:
  """Weighs by the smoothed dual weights of the cohort's losses, as the paper does."""

  def __init__(self, thetas: np.ndarray, smoothings: np.ndarray):
    """Initializes the weighing by thetas and nu, [runs, seeds] each."""
    self._thetas, self._smoothings = thetas, smoothings

  def __call__(self, losses: np.ndarray) -> np.ndarray:
    """Returns weights of sum 1 for losses [r, seeds, m] of the first r runs."""
    active = len(losses)
    return smoothed.dual_weights(losses, self._thetas[:active], self._smoothings[:active])


class ExactDual:
  """Weighs by the dual weights of the cohort's losses: the largest theta m share the weight."""

  def __init__(self, thetas: np.ndarray):
    """Initializes the weighing by thetas, [runs, seeds]."""
    self._thetas, self._ranks = thetas, np.empty([0])

  def __call__(self, losses: np.ndarray) -> np.ndarray:
    """Returns weights of sum 1 for losses [r, seeds, m] of the first r runs."""
    size = losses.shape[-1]
    if not self._ranks.size:
      of_thetas = [cutting.rank_weights(size, theta) for theta in self._thetas.flat]
      self._ranks = np.reshape(of_thetas, [*self._thetas.shape, size])
    weights = np.empty_like(losses)
    order = np.argsort(-losses, axis=-1, kind="stable")
    np.put_along_axis(weights, order, self._ranks[: len(losses)], -1)
    return weights


class PrimalDual:
  """Weighs alike those at or above a number t of the server, which takes a step in each round.

  It is the rule of `tff_superquantile.threshold.build_primal_dual_quantile`, with its longer steps
  in the first rounds, but that the cohort that sets t also moves it.
  """

  def __init__(self, thetas: np.ndarray, step: float):
    """Initializes the weighing by thetas, [runs, seeds], and the step of t after the first rounds.

    The step is in units of the loss.
    """
    self._thetas, self._step = thetas, step
    self._t, self._round = np.full(thetas.shape, np.nan), 0

  def __call__(self, losses: np.ndarray) -> np.ndarray:
    """Returns weights of sum 1, or all 0 for an empty tail, for losses [r, seeds, m]."""
    t, thetas = self._t[: len(losses)], self._thetas[: len(losses)]
    if np.isnan(t).any():
      size = losses.shape[-1]
      last = np.ceil(thetas * size * (1 - superquantile.TAIL_MASS_TOLERANCE)).astype(int)
      of_first = -np.sort(-losses, axis=-1)
      t[:] = np.take_along_axis(of_first, np.maximum(last, 1)[..., np.newaxis] - 1, -1)[..., 0]
    above = losses >= t[..., np.newaxis]
    self._round += 1
    t += self._step * (1.0 + 30.0 / self._round) * (above.mean(axis=-1) / thetas - 1.0)
    return above / np.maximum(above.sum(axis=-1, keepdims=True), 1)


def build(
  thetas: np.ndarray, smoothings: np.ndarray, threshold_step: float | None = None
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a `PrimalDual` for a step, else a `SmoothedDual`, or an `ExactDual` if all nu are 0."""
  if threshold_step is not None:
    return PrimalDual(thetas, threshold_step)
  if smoothings.any():
    return SmoothedDual(thetas, smoothings)
  return ExactDual(thetas)
