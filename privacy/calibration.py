"""Finds the noise for a privacy budget, and divides the budget between threshold and weights."""

import contextlib
import dataclasses
import math

import numpy as np
from scipy import optimize

from privacy import accounting
from privacy import checks
from privacy import cohorts
from privacy import releases
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism

# Effective noise multipliers among which `calibrate` searches.
_LEAST_NOISE, _MOST_NOISE = 0.02, 2000.0
# Limits of the threshold's share of the budget when it is chosen here.
_LEAST_RATIO, _MOST_RATIO = 1e-3, 1.0
# Tolerance of the logarithm of the noise multiplier.
_TOLERANCE = 1e-6
# The default part of the updates' budget for the count by which a clip norm adapts. The updates'
# noise grows by half a percent, and C stays within a few percent of the wanted quantile's rank
# (docs/how_to/choose_parameters.md, "Clip norm").
CLIP_RHO_RATIO = 0.01
_LARGE_EXCESS = 700.0


def split_noise(
  effective_noise_multiplier: float, rho_ratio: float | None
) -> tuple[float | None, float | None]:
  """Divides a round's budget between threshold and weights.

  Args:
    effective_noise_multiplier: z_eff of both together.
    rho_ratio: r, the threshold's rho = 1 / (2 z^2) over that of the weights. None or 0 for weights
      alone, infinity for a threshold alone.

  Returns:
    (z_q, z_w), z sqrt((1 + r) / r) and z sqrt(1 + r); None for what is not released.

  Raises:
    ValueError: If a number is out of its range.
  """
  z = checks.positive("effective_noise_multiplier", effective_noise_multiplier)
  if not rho_ratio:
    return None, z
  if rho_ratio == math.inf:
    return z, None
  ratio = checks.scale("rho_ratio", rho_ratio)
  return z * math.sqrt((1.0 + ratio) / ratio), z * math.sqrt(1.0 + ratio)


def tree_for(
  release: releases.Release, num_bins: int, scale: int | None = None
) -> tree_mechanism.TreeMechanism:
  """Builds the histogram that delivers a release's threshold noise.

  Args:
    release: The releases of each round, with a tree threshold.
    num_bins: b, a power of two.
    scale: c; None for the smallest that will do.

  Returns:
    Its parameters, with `cohorts.limit` shares.

  Raises:
    ValueError: If a number is out of its range.
  """
  if release.threshold_noise_multiplier is None or release.threshold_kind != releases.TREE:
    raise ValueError("Found num_bins without a tree threshold; expected a threshold with a budget.")
  most = cohorts.limit(release)
  return tree_mechanism.build_tree_mechanism(
    release.threshold_noise_multiplier,
    num_bins,
    min(max(round(release.clients_per_round), 1), most),
    num_shares=most,
    scale=scale,
  )


def sum_for(
  release: releases.Release, clip_norm: float, num_parameters: int
) -> sum_mechanism.SumMechanism:
  """Builds the sum of updates, with noise from the clients, that delivers a release's noise.

  Args:
    release: The releases of each round.
    clip_norm: C.
    num_parameters: d, the number of numbers in an update.

  Returns:
    Its parameters, with `cohorts.limit` shares.

  Raises:
    ValueError: If a number is out of its range.
  """
  if release.update_noise_multiplier is None:
    raise ValueError("Found a sum of updates without update_noise_multiplier; expected both.")
  return sum_mechanism.build_sum_mechanism(
    release.update_noise_multiplier,
    clip_norm,
    num_parameters + release.weighted_updates,
    cohorts.limit(release),
  )


def complete(
  release: releases.Release,
  *,
  num_bins: int | None = None,
  distributed_updates: bool = False,
  clip_norm: float = 1.0,
  num_parameters: int | None = None,
) -> releases.Release:
  """Adds the parameters of the sums to which clients add noise to a release.

  Args:
    release: The releases of each round, as if the server made all noise.
    num_bins: b of a tree threshold; None for none.
    distributed_updates: Whether clients make the noise of the updates.
    clip_norm: C, of the updates; its unit does not matter to the cost.
    num_parameters: d, of the updates; needed with `distributed_updates`.

  Returns:
    The release with its `tree` and its `update_sum`.

  Raises:
    ValueError: If a number is missing or out of its range.
  """
  tree = update_sum = None
  if num_bins is not None:
    tree = tree_for(release, num_bins)
  if distributed_updates:
    if num_parameters is None:
      raise ValueError(
        "Found updates whose noise the clients make without the number of parameters of the model;"
        " expected both."
      )
    update_sum = sum_for(release, clip_norm, num_parameters)
  return dataclasses.replace(release, tree=tree, update_sum=update_sum)


def calibrate(
  epsilon: float,
  delta: float,
  *,
  population: int,
  clients_per_round: float,
  num_rounds: int,
  rho_ratio: float | None,
  sampling: str = releases.POISSON,
  accountant: str = accounting.TIGHTEST,
  threshold_kind: str = releases.TREE,
  relation: str = releases.ZERO_OUT,
  protocol: str = shares.COMPLEMENT,
  contacted: float | None = None,
  weighted_updates: bool = False,
  clip_rho_ratio: float | None = None,
  num_bins: int | None = None,
  distributed_updates: bool = False,
  clip_norm: float = 1.0,
  num_parameters: int | None = None,
) -> releases.Release:
  """Finds the least noise with which a run stays within a privacy budget.

  Args:
    epsilon: The budget.
    delta: The budget's delta.
    population: n.
    clients_per_round: m, the expected number of clients whose data count in a round.
    num_rounds: T, at least 1.
    rho_ratio: r, the threshold's cost rho over that of the weights and their clip norm; None or 0
      for no threshold (DP-FedAvg), infinity for a threshold alone.
    sampling: As in `releases.Release`, and likewise the next four.
    accountant: "tightest", "pld" or "rdp".
    threshold_kind: See there.
    relation: See there.
    protocol: See there.
    contacted: See there.
    weighted_updates: See there.
    clip_rho_ratio: The cost rho of the count by which the clip norm adapts over that of the
      updates, such as `CLIP_RHO_RATIO`; None or 0 for a fixed clip norm.
    num_bins: As for `complete`, and likewise the rest: the release has the sums to which clients
      add noise, and its cost is that with discrete noise and cut cohorts.
    distributed_updates: See there.
    clip_norm: See there.
    num_parameters: See there.

  Returns:
    The release. Its cost is at most epsilon, and that of a millionth less noise is more.

  Raises:
    ValueError: If a number is out of its range, or no noise in reach gives that epsilon.
  """
  epsilon = checks.positive("epsilon", epsilon)
  delta = checks.fraction("delta", delta)
  num_rounds = checks.whole("num_rounds", num_rounds, 1)

  def release_of(log_z: float) -> releases.Release:
    z_q, z_u = split_noise(math.exp(log_z), rho_ratio)
    if z_u is None and clip_rho_ratio:
      raise ValueError(
        f"Found clip_rho_ratio = {clip_rho_ratio:g} without weights; expected a finite rho_ratio."
      )
    # The weights' budget is divided once more, in the same way.
    z_b, z_w = (None, None) if z_u is None else split_noise(z_u, clip_rho_ratio)
    return releases.Release(
      population,
      clients_per_round,
      z_q,
      z_w,
      sampling,
      threshold_kind=threshold_kind,
      relation=relation,
      protocol=protocol,
      contacted=contacted,
      weighted_updates=weighted_updates,
      clip_count_noise_multiplier=z_b,
    )

  if num_bins is not None and (
    threshold_kind != releases.TREE or release_of(0.0).threshold_noise_multiplier is None
  ):
    raise ValueError(
      "Found num_bins without a tree threshold; expected a positive rho_ratio and the tree."
    )

  def completed(log_z: float) -> releases.Release:
    return complete(
      release_of(log_z),
      num_bins=num_bins,
      distributed_updates=distributed_updates,
      clip_norm=clip_norm,
      num_parameters=num_parameters,
    )

  completed(0.0)  # This raises an error before the search if there is no such release.

  def cost(log_z: float) -> float:
    return accounting.epsilon(completed(log_z), num_rounds, delta, accountant).epsilon

  def excess(log_z: float) -> float:
    """Returns log(cost / epsilon); a large number where too little noise has no answer."""
    found: float | None = None
    if accountant != accounting.RDP:
      # Near the solution the cost is about epsilon, so RDP need not guess it first.
      with contextlib.suppress(ValueError):
        release = completed(log_z)
        found = accounting.spent_by_pld(release, num_rounds, delta).epsilon
    if found is None:  # The cost is too far from epsilon, or only RDP has an answer.
      try:
        found = cost(log_z)
      except ValueError:
        return _LARGE_EXCESS
    return math.log(max(found, 1e-300) / epsilon)

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
  found = float(
    optimize.brentq(lambda log_z: np.clip(excess(log_z), -5, 5), low, high, xtol=_TOLERANCE)
  )
  # The grid of a PLD and the rounding of scales leave steps in the cost.
  step = _TOLERANCE
  while excess(found) > 0.0 or cost(found) > epsilon:
    found, step = found + step, 2.0 * step
  # Less noise has no finite cost, such as noise that ends too early.
  if cost(found) < 0.5 * epsilon and excess(found - 2.0 * step) == _LARGE_EXCESS:
    raise ValueError(too_large.format(math.exp(found)))
  return completed(found)


def default_rho_ratio(
  release: releases.Release, num_parameters: int, *, num_bins: int = 64, theta: float = 0.5
) -> float:
  """Returns the threshold's share of the budget with the least modelled error of the update.

  The model, in units of the squared clip norm C^2 of the sum over the tail. The weights' noise
  moves the sum by d z_w^2. A threshold whose rank is e clients off lets e clients in or out, at
  worst all in the same direction, and the tail's estimated size, by which the sum is divided, is e
  off as well: 2 e^2. With the tree, e^2 is the variance of the least-squares estimate of the count
  below the threshold, v L z_q^2; of other thresholds `releases.THRESHOLDS` has it. So with e^2 =
  A z_q^2 the error is 2 A z_q^2 + d z_w^2, and with z_q^2 = z^2 (1 + r) / r and z_w^2 = z^2 (1 + r)
  it is least at

      r = sqrt(2 A / d).

  For large models that leaves a threshold of little use; r is at least so large that e is a tenth
  of a cohort, A z_q^2 <= (m / 10)^2.

  Args:
    release: The releases of a round, with the noise of the whole budget as that of the updates, as
      `calibrate` finds it without a threshold; its `threshold_kind` counts.
    num_parameters: d, the number of numbers in an update.
    num_bins: b, of the tree.
    theta: The tail fraction.

  Returns:
    r, within 0.001 and 1.
  """
  error = releases.THRESHOLDS[release.threshold_kind].rank_variance
  if error is None:
    num_bins = tree_mechanism.check_num_bins(num_bins)
    variances = tree_mechanism.cumulative_variances(num_bins)
    below = min(max(round((1.0 - theta) * num_bins), 1), num_bins - 1)
    error = (num_bins.bit_length() - 1) * float(variances[below - 1])
  ratio = math.sqrt(2.0 * error / max(num_parameters, 1))
  # (1 + r) / r <= (m / 10)^2 / (A z^2)
  room = (0.1 * release.clients_per_round / release.effective_noise_multiplier) ** 2 / error
  least = 1.0 / (room - 1.0) if room > 1.0 else math.inf
  return float(min(max(ratio, least, _LEAST_RATIO), _MOST_RATIO))
