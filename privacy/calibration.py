"""Finds the noise for a privacy budget, and divides the budget between threshold and weights."""

import contextlib
import functools
import math

import numpy as np
from scipy import optimize

from privacy import accounting
from privacy import checks
from privacy import parts
from privacy import releases
from privacy.noise import banded

# Effective noise multipliers among which `calibrate` searches.
_LEAST_NOISE, _MOST_NOISE = 0.02, 2000.0
# Limits of the threshold's share of the budget when it is chosen here.
_LEAST_RATIO, _MOST_RATIO = 1e-3, 1.0
# Tolerance of the logarithm of the noise multiplier.
_TOLERANCE = 1e-6
_LARGE_EXCESS = 700.0


@functools.lru_cache(maxsize=128, typed=True)  # Typed: True is no 1.
def calibrate(
  release: releases.Release,
  epsilon: float,
  delta: float,
  num_rounds: int,
  accountant: str = accounting.TIGHTEST,
) -> releases.Release:
  """Finds the least noise with which a run stays within a privacy budget.

  Args:
    release: The release of each round, whose parts have the `share` by which the budget is divided.
    epsilon: The budget.
    delta: The budget's delta.
    num_rounds: T, at least 1.
    accountant: "tightest", "pld" or "rdp".

  Returns:
    The release with noise, and with the sums to which clients add theirs: its cost is that with
    discrete noise and cut cohorts. It is at most epsilon, and that of a millionth less noise is
    more.

  Raises:
    ValueError: If a number is out of its range, or no noise in reach gives that epsilon.
  """
  epsilon = checks.positive("epsilon", epsilon)
  delta = checks.fraction("delta", delta)
  num_rounds = checks.whole("num_rounds", num_rounds, 1)

  def completed(log_z: float) -> releases.Release:
    return release.with_noise(math.exp(log_z))

  completed(0.0)  # This raises an error before the search if there is no such release.

  def cost(log_z: float) -> float:
    return accounting.epsilon(completed(log_z), num_rounds, delta, accountant).epsilon

  def excess(log_z: float) -> float:
    """Returns log(cost / epsilon); a large number where too little noise has no answer."""
    spent: float | None = None
    if accountant != accounting.RDP and not release.cohort.is_one_mechanism:
      # Near the solution the cost is about epsilon, so RDP need not guess it first.
      with contextlib.suppress(ValueError):
        spent = accounting.spent_by_pld(completed(log_z), num_rounds, delta).epsilon
    if spent is None:  # The cost is too far from epsilon, or only RDP has an answer.
      try:
        spent = cost(log_z)
      except ValueError:
        return _LARGE_EXCESS
    return math.log(max(spent, 1e-300) / epsilon)

  # The search goes from more noise to less, so that no absurd cost is computed.
  highest = math.log(_MOST_NOISE)
  if excess(highest) > 0.0:
    least = cost(highest)
    raise ValueError(
      f"Found epsilon = {epsilon:g}, which no noise reaches: a noise multiplier of"
      f" {_MOST_NOISE:g} costs {least:.3g}; expected a larger epsilon."
    )
  low = high = min(highest, math.log(max(1.0 / epsilon, 1.0)))
  while excess(high) > 0.0:
    low, high = high, min(highest, high + math.log(2.0))
  too_large = (
    f"Found epsilon = {epsilon:g}, which no noise is little enough for: a noise multiplier of"
    " {:.2g} costs less; expected a smaller epsilon."
  )
  while excess(low) <= 0.0:
    low, high = low - math.log(1.5), low
    if low < math.log(_LEAST_NOISE):
      raise ValueError(too_large.format(math.exp(high)))
  log_noise = float(
    optimize.brentq(lambda log_z: np.clip(excess(log_z), -5, 5), low, high, xtol=_TOLERANCE)
  )
  # The grid of a PLD and the rounding of scales leave steps in the cost.
  step = _TOLERANCE
  while excess(log_noise) > 0.0 or cost(log_noise) > epsilon:
    log_noise, step = log_noise + step, 2.0 * step
  # Less noise has no finite cost, such as noise that ends too early.
  if cost(log_noise) < 0.5 * epsilon and excess(log_noise - 2.0 * step) == _LARGE_EXCESS:
    raise ValueError(too_large.format(math.exp(log_noise)))
  return completed(log_noise)


def default_share(
  threshold: parts.PrivateThreshold,
  without: releases.Release,
  num_parameters: int,
  theta: float = 0.5,
  num_rounds: int = 1,
) -> float:
  """Returns the threshold's share of the budget with the least modelled error of the update.

  The model, in units of the squared clip norm C^2 of the sum over the tail. The weights' noise
  moves the sum by d z_w^2. A threshold whose rank is e clients off lets e clients in or out, at
  worst all in the same direction, and the tail's estimated size, by which the sum is divided, is e
  off as well: 2 e^2. With the tree, e^2 is the variance of the least-squares estimate of the count
  below the threshold, v L z_q^2; `rank_variance` is A in e^2 = A z_q^2. So the error is
  2 A z_q^2 + d z_w^2, and with z_q^2 = z^2 (1 + r) / r and z_w^2 = z^2 (1 + r) it is least at

      r = sqrt(2 A / d).

  Noise that is correlated over rounds lets both fall: A is of the variance with which the threshold
  follows it, and z_w is multiplied by the noise of the running sums of updates over that of
  independent noise.

  For large models that leaves a threshold of little use; r, within 0.001 and 1, is at least so
  large that e is a tenth of a cohort, A z_q^2 <= (m / 10)^2. `without` is the release without the
  threshold, with the noise of the whole budget, and d is `num_parameters`.

  Args:
    threshold: The part, with no need of noise.
    without: The release without the threshold, with the noise of the whole budget.
    num_parameters: d, the numbers of an update.
    theta: The tail fraction, in (0, 1].
    num_rounds: T, of which noise that is correlated over rounds counts the errors.

  Returns:
    r, the threshold's share over the update's, from 0.001 to 1.
  """
  error = threshold.rank_variance(theta, without.coefficients)
  relative = banded.relative_error(without.coefficients[:num_rounds], num_rounds)
  ratio = math.sqrt(2.0 * error / max(num_parameters, 1)) / relative
  # (1 + r) / r <= (m / 10)^2 / (A z^2)
  room = (0.1 * without.cohort.expected / without.effective_noise_multiplier) ** 2 / error
  least = 1.0 / (room - 1.0) if room > 1.0 else math.inf
  return float(min(max(ratio, least, _LEAST_RATIO), _MOST_RATIO))
