"""Quantile, superquantile and the client weights that attain it, in numpy.

The superquantile (conditional value at risk, CVaR) of n client losses at tail fraction theta is

    SQ_theta(F) = max { sum_i pi_i F_i : pi in the simplex, pi_i <= alpha_i / theta },

the paper's equation (dual form of the superquantile), for clients of weight alpha_i (1 / n each
when unweighted). `dual_weights` is an argmax, and `tail_weights` the paper's threshold rule, which
equals the argmax whenever theta * n is an integer and no losses tie.

theta is the tail fraction in (0, 1] everywhere: theta = 1 is the mean, theta -> 0 the maximum.
"""

import numbers

import numpy as np
from numpy import typing as npt

from privacy import checks

# theta * n is computed in floating point (0.1 * 30 > 3): sums within this relative distance of the
# tail mass count as having reached it, so that exactly ceil(theta * n) untied clients pass.
TAIL_MASS_TOLERANCE = 1e-9


def check_theta(theta: float) -> float:
  """Returns `theta` as a float; an error if it is no tail fraction.

  Args:
    theta: A real number in (0, 1].

  Returns:
    The number.

  Raises:
    TypeError: If it is no real number.
    ValueError: If it is outside (0, 1].
  """
  checks.of_type("theta", theta, numbers.Real, "a tail fraction in (0, 1]")
  if not 0.0 < float(theta) <= 1.0:  # Also refuses NaN.
    raise ValueError(
      f"Found theta = {theta}; the tail fraction must lie in (0, 1]: 1 is the mean of all clients,"
      " 0.1 the worst tenth."
    )
  return float(theta)


def _check(losses: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
  """Returns float64 losses [n] and weights [n] that sum to one."""
  losses = np.asarray(losses, np.float64)
  if losses.ndim != 1 or losses.size == 0:
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
  weights = np.ones(len(losses)) if weights is None else np.asarray(weights, np.float64)
  total = np.sum(weights)
  if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and total > 0):
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
    float64 [n], of sum one.

  Raises:
    ValueError: If theta is outside (0, 1], or losses or weights are not as described.
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
    float64 [n], of sum one.

  Raises:
    ValueError: If theta is outside (0, 1], or losses or weights are not as described.
  """
  threshold = quantile(losses, theta, weights)
  losses, weights = _check(losses, weights)
  above, at = losses > threshold, losses == threshold
  share = (theta - np.sum(weights[above])) / np.sum(weights[at])
  pi = weights * (above + at * np.clip(share, 0.0, 1.0))
  return pi / np.sum(pi)


def superquantile(
  losses: npt.ArrayLike, theta: float, weights: npt.ArrayLike | None = None
) -> float:
  """The mean of the worst theta fraction of the losses, SQ_theta of the paper.

  It is sum_i pi*_i losses[i], with pi* of `dual_weights`.

  Args:
    losses: [n] finite client losses.
    theta: The tail fraction, in (0, 1]; 1 is the mean.
    weights: [n] client weights, or None for equal ones.

  Returns:
    A number in the unit of the losses.

  Raises:
    ValueError: If theta is outside (0, 1], or losses or weights are not as described.
  """
  return float(np.dot(dual_weights(losses, theta, weights), np.asarray(losses, np.float64)))


def percentile(values: npt.ArrayLike, q: float, weights: npt.ArrayLike | None = None) -> float:
  """The q-th percentile with linear interpolation, for reporting distributions.

  Values stand at the middles of the steps of weights; equal weights give `numpy.percentile`.

  Args:
    values: [n] finite numbers, of at least one client.
    q: The percentile, in [0, 100].
    weights: [n] client weights, or None for equal ones.

  Returns:
    The percentile, between two of the values.

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
