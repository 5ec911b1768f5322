"""Quantile, superquantile and the client weights that attain it, in numpy.

The superquantile (conditional value at risk, CVaR) of n client losses at tail fraction theta is

    SQ_theta(F) = max { sum_i pi_i F_i : pi in the simplex, pi_i <= alpha_i / theta },

the paper's equation (dual form of the superquantile), for clients of weight alpha_i (1 / n each
when unweighted). `dual_weights` is an argmax, `smoothed_dual_weights` the argmax with the entropic
term of F_theta^nu, of many cohorts at once where losses have leading dimensions, and `tail_weights`
the paper's threshold rule, which equals the argmax whenever theta * n is an integer and no losses
tie.

theta is the tail fraction in (0, 1] everywhere: theta = 1 is the mean, theta -> 0 the maximum.
"""

import numpy as np
from numpy import typing as npt

# theta * n is computed in floating point (0.1 * 30 > 3): sums within this relative distance of the
# tail mass count as having reached it, so that exactly ceil(theta * n) untied clients pass.
TAIL_MASS_TOLERANCE = 1e-9


def check_theta(theta: float) -> float:
  """Returns `theta` as a float.

  Raises:
    ValueError: If `theta` is not a tail fraction in (0, 1].
  """
  if not 0.0 < float(theta) <= 1.0:  # Also refuses NaN.
    raise ValueError(
      f"Found theta = {theta}; the tail fraction must lie in (0, 1]: 1 is the mean of all clients,"
      " 0.1 the worst tenth."
    )
  return float(theta)


def _check(
  losses: npt.ArrayLike, weights: npt.ArrayLike | None, may_lead: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  """Returns float64 losses and weights that sum to one over the last dimension; None gives [n]."""
  losses = np.asarray(losses, np.float64)
  if losses.ndim < 1 or (losses.ndim > 1 and not may_lead) or losses.size == 0:
    raise ValueError(
      f"Found losses of shape {losses.shape}; expected one loss a client, shape [n]."
    )
  if not np.all(np.isfinite(losses)):
    raise ValueError(
      f"Found {np.sum(~np.isfinite(losses))} losses that are not finite; leave those clients out."
    )
  if weights is not None and np.shape(weights) != losses.shape:
    raise ValueError(
      f"Found weights of shape {np.shape(weights)} for losses of shape {losses.shape}."
    )
  weights = np.ones(losses.shape[-1]) if weights is None else np.asarray(weights, np.float64)
  total = np.sum(weights, axis=-1, keepdims=True)
  if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.all(total > 0)):
    raise ValueError("Client weights must be finite, not negative and not all zero.")
  return losses, weights / total


def quantile(losses: npt.ArrayLike, theta: float, weights: npt.ArrayLike | None = None) -> float:
  """The upper (1 - theta)-quantile: inf { eta : P(Z > eta) < theta }.

  Z takes the value losses[i] with probability proportional to weights[i]. Without ties and weights
  exactly ceil(theta * n) losses are at or above the result (the paper's infimum over <= theta is
  the lower quantile, which lets floor(theta * n) + 1 pass).

  Args:
    losses: [n] finite client losses.
    theta: The tail fraction, in (0, 1].
    weights: [n] client weights, or None for equal ones.

  Returns:
    One of the losses.

  Raises:
    ValueError: If theta is outside (0, 1], or losses or weights are not as described.
  """
  theta = check_theta(theta)
  losses, weights = _check(losses, weights)
  order = np.argsort(-losses, kind="stable")
  mass = np.cumsum(weights[order])
  # mass ends at 1 up to rounding, so the tail mass is always reached for theta <= 1.
  first = int(np.searchsorted(mass, theta * (1.0 - TAIL_MASS_TOLERANCE), side="left"))
  return float(losses[order][min(first, losses.size - 1)])


def tail_weights(
  losses: npt.ArrayLike, theta: float, weights: npt.ArrayLike | None = None
) -> np.ndarray:
  """The paper's threshold rule: weight of each client when only the tail is averaged.

  pi_i is proportional to weights[i] * [losses[i] >= quantile], the line "reweigh" of the algorithm.

  Args:
    losses: [n] finite client losses.
    theta: The tail fraction, in (0, 1].
    weights: [n] client weights, or None for equal ones.

  Returns:
    [n] weights that sum to one.

  Raises:
    ValueError: As `quantile`.
  """
  threshold = quantile(losses, theta, weights)
  losses, weights = _check(losses, weights)
  tail = np.where(losses >= threshold, weights, 0.0)
  return tail / np.sum(tail)


def dual_weights(
  losses: npt.ArrayLike, theta: float, weights: npt.ArrayLike | None = None
) -> np.ndarray:
  """pi*: an argmax of sum_i pi_i losses[i] over the capped simplex, also for non-integer theta * n.

  Clients above the quantile get the cap weights[i] / theta, those at the quantile share what is
  left in proportion to their weights (every split among ties attains the maximum), the rest zero.

  Args:
    losses: [n] finite client losses.
    theta: The tail fraction, in (0, 1].
    weights: [n] client weights, or None for equal ones.

  Returns:
    [n] weights that sum to one.

  Raises:
    ValueError: As `quantile`.
  """
  threshold = quantile(losses, theta, weights)
  losses, weights = _check(losses, weights)
  above, at = losses > threshold, losses == threshold
  share = (theta - np.sum(weights[above])) / np.sum(weights[at])
  pi = weights * (above + at * np.clip(share, 0.0, 1.0))
  return pi / np.sum(pi)


def smoothed_dual_weights(
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
      `dual_weights`, nu -> infinity `weights`. For a theta so small that no weight is at its cap,
      this is Tilted-ERM of temperature 1 / nu.
    weights: [..., n] client weights alpha, or None for equal ones.

  Returns:
    [..., n] weights; those of a cohort sum to one.

  Raises:
    ValueError: As `quantile`, or if smoothing is not positive and finite.
  """
  check_theta(np.min(np.asarray(theta)))
  check_theta(np.max(np.asarray(theta)))
  if not (np.all(np.greater(smoothing, 0)) and np.all(np.isfinite(smoothing))):
    raise ValueError(f"Found smoothing = {smoothing!r}; it must be positive and finite.")
  theta, smoothing = (np.asarray(x, np.float64)[..., np.newaxis] for x in (theta, smoothing))
  losses, alpha = _check(losses, weights, may_lead=True)
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
  feasible = top <= log_cap + TAIL_MASS_TOLERANCE
  feasible[..., -1] = True
  k = np.argmax(feasible, axis=-1)[..., np.newaxis]
  log_ratio = scores + np.take_along_axis(free - log_sum, k, -1)
  log_ratio = np.where(np.arange(losses.shape[-1]) < k, log_cap, np.minimum(log_ratio, log_cap))
  pi = np.empty_like(losses)
  np.put_along_axis(pi, order, alpha * np.exp(log_ratio), -1)
  return pi / np.sum(pi, axis=-1, keepdims=True)


def superquantile(
  losses: npt.ArrayLike, theta: float, weights: npt.ArrayLike | None = None
) -> float:
  """The mean of the worst theta fraction of the losses, SQ_theta of the paper.

  Args:
    losses: [n] finite client losses.
    theta: The tail fraction, in (0, 1].
    weights: [n] client weights, or None for equal ones.

  Returns:
    sum_i pi*_i losses[i], with pi* of `dual_weights`.

  Raises:
    ValueError: As `quantile`.
  """
  return float(np.dot(dual_weights(losses, theta, weights), np.asarray(losses, np.float64)))


def percentile(values: npt.ArrayLike, q: float, weights: npt.ArrayLike | None = None) -> float:
  """The q-th percentile with linear interpolation, for reporting distributions.

  Values stand at the middles of their weights' steps; equal weights give `numpy.percentile`.

  Args:
    values: [n] finite values.
    q: Percent, in [0, 100].
    weights: [n] weights, or None for equal ones.

  Returns:
    The percentile, in the unit of the values.

  Raises:
    ValueError: If values or weights are not as described.
  """
  values, weights = _check(values, weights)
  kept = np.flatnonzero(weights > 0)
  order = kept[np.argsort(values[kept], kind="stable")]
  steps = weights[order]
  middles = np.cumsum(steps) - steps / 2
  positions = middles - middles[0]
  if positions[-1] <= 0:
    return float(values[order][0])
  return float(np.interp(q / 100.0 * positions[-1], positions, values[order]))
