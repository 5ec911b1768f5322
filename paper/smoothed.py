"""The weights of the smoothed superquantile F_theta^nu of the paper, in numpy."""

import numpy as np
from numpy import typing as npt

from tff_superquantile import superquantile


def dual_weights(
  losses: npt.ArrayLike,
  theta: npt.ArrayLike,
  smoothing: npt.ArrayLike,
  weights: npt.ArrayLike | None = None,
) -> np.ndarray:
  """argmax of sum_i pi_i losses[i] - nu * KL(pi || alpha) over the capped simplex (F_theta^nu).

  The optimality conditions give pi_i = alpha_i * min(1 / theta, exp((losses[i] - mu) / nu)) for the
  mu that makes them sum to one. The k largest losses are at the cap for some k; mu is closed form
  given k, and the smallest k under which nobody else exceeds the cap is the solution. Everything is
  computed from differences to the largest loss in log space, so any nu > 0 is stable.

  Args:
    losses: [..., n] finite losses of the n clients of each of some cohorts.
    theta: The tail fraction, in (0, 1]: one, or [...], one a cohort.
    smoothing: nu > 0, in units of the loss: one, or [...], one a cohort. nu -> 0 gives
      `superquantile.dual_weights`, nu -> infinity `weights`. For a theta so small that no weight is
      at its cap, this is Tilted-ERM of temperature 1 / nu.
    weights: [..., n] client weights alpha, or None for equal ones.

  Returns:
    [..., n] weights; those of a cohort sum to one.
  """
  superquantile.check_theta(np.min(np.asarray(theta)))
  superquantile.check_theta(np.max(np.asarray(theta)))
  if not (np.all(np.greater(smoothing, 0)) and np.all(np.isfinite(smoothing))):
    raise ValueError(f"Found smoothing = {smoothing!r}; it must be positive and finite.")
  theta, smoothing = (np.asarray(x, np.float64)[..., np.newaxis] for x in (theta, smoothing))
  losses = np.asarray(losses, np.float64)
  alpha = np.ones(losses.shape[-1]) if weights is None else np.asarray(weights, np.float64)
  alpha = alpha / np.sum(alpha, axis=-1, keepdims=True)
  order = np.argsort(-losses, axis=-1, kind="stable")
  alpha = alpha if weights is None else np.take_along_axis(alpha, order, -1)
  descending = np.take_along_axis(losses, order, -1)
  scores = (descending - descending[..., :1]) / smoothing  # <= 0.
  with np.errstate(divide="ignore"):
    log_alpha = np.log(alpha)
    # Mass left to the clients from k on when the k before them are at the cap.
    free = np.log(np.maximum(1.0 - (np.cumsum(alpha, axis=-1) - alpha) / theta, 0.0))
  log_sum = np.logaddexp.accumulate((log_alpha + scores)[..., ::-1], axis=-1)[..., ::-1]
  # log of exp((F_k - mu) / nu) for the largest uncapped client k, against log(1 / theta).
  top = scores + free - log_sum
  log_cap = -np.log(theta)
  feasible = top <= log_cap + superquantile.TAIL_MASS_TOLERANCE
  feasible[..., -1] = True
  k = np.argmax(feasible, axis=-1)[..., np.newaxis]
  log_ratio = scores + np.take_along_axis(free - log_sum, k, -1)
  log_ratio = np.where(np.arange(losses.shape[-1]) < k, log_cap, np.minimum(log_ratio, log_cap))
  pi = np.empty_like(losses)
  np.put_along_axis(pi, order, alpha * np.exp(log_ratio), -1)
  return pi / np.sum(pi, axis=-1, keepdims=True)
