"""The paper's privacy accounting, to reproduce its experiments. NOT a guarantee.

The module computes zero-concentrated differential privacy of a round, rho = rho_q + rho_w, read as
the Renyi curve l -> rho l at integer orders. The curve is amplified by the generic bound of Zhu and
Wang (2019) for Poisson sampling (their Theorem 6, with the factor 3 for orders above 2), composed
over the rounds and converted by Canonne, Kamath and Steinke (2020). That reading gives the noise of
the paper's experiments.

It is no guarantee, because cohorts of fixed size are accounted for as if they were Poisson samples,
the number of tail clients is taken for public although it depends on who they are, and the noise on
the average ignores that. The statement that the weights satisfy sigma_w^2 / (2 C^2)-concentrated
differential privacy, as typeset, is upside down: `update_rho` has both. In the other direction, the
histogram's sensitivity is taken to be c log2 b instead of c sqrt(log2 b), which wastes noise.
"""

import dataclasses
import math

from dp_accounting import rdp
import numpy as np
from scipy import special

from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import shares
from privacy.noise import tree_mechanism

_ORDERS = np.arange(2, 257)


def update_rho(update_noise_multiplier: float, *, as_typeset: bool = False) -> float:
  """Returns the concentrated differential privacy of the noisy weights.

  Args:
    update_noise_multiplier: z_w; the paper's sigma_w is z_w C.
    as_typeset: Whether to return z_w^2 / 2, as the paper has it, which grows with the noise.

  Returns:
    rho_w = 1 / (2 z_w^2), the intended formula.

  Raises:
    ValueError: If `update_noise_multiplier` is not positive.
  """
  z = checks.positive("update_noise_multiplier", update_noise_multiplier)
  return 0.5 * z**2 if as_typeset else 0.5 / z**2


def threshold_rho(scale: int, num_bins: int, local_stddev: float, num_clients: int) -> float:
  """Returns rho_q, the noisy histogram's concentrated differential privacy by the paper's theorem.

      1/2 min{ s^2 + psi b, (s + psi sqrt(2 b))^2 },    s = c log2 b / (sqrt(m) sigma_local)

  Args:
    scale: c.
    num_bins: b, a power of two.
    local_stddev: sigma_local, of the noise of one client.
    num_clients: m, how many clients make noise.

  Returns:
    rho_q.

  Raises:
    ValueError: If `num_bins` is no power of two, or `local_stddev` not positive.
  """
  num_bins = tree_mechanism.check_num_bins(num_bins)
  local_stddev = checks.positive("local_stddev", local_stddev)
  shift = scale * math.log2(num_bins) / (math.sqrt(num_clients) * local_stddev)
  psi = shares.sum_slack(local_stddev, num_clients)
  return 0.5 * min(shift**2 + psi * num_bins, (shift + psi * math.sqrt(2.0 * num_bins)) ** 2)


def round_rho(release: releases.Release) -> float:
  """Returns rho = rho_q + rho_w of a round before subsampling, by the paper.

  Args:
    release: The releases of a round, of a fixed clip norm. With a tree its histogram is taken at
      its c, sigma_local and smallest cohort, with the paper's sensitivity; without one z_q is taken
      as it is.

  Returns:
    rho.
  """
  rho = 0.0
  for part in release.parts:
    tree = part.mechanism if isinstance(part, parts.Tree) else None
    if tree is not None:
      rho += threshold_rho(tree.scale, tree.num_bins, tree.local_stddev, tree.num_shares)
    elif part.before_training:
      rho += 0.5 / part.z**2
    else:
      rho += update_rho(part.z)
  return rho


def subsampled_rdp(rho: float, sampling_probability: float) -> np.ndarray:
  """Returns the bound of Zhu and Wang (2019) for a rho-concentrated mechanism, Poisson sampled.

      1/(a-1) log( (1-q)^(a-1) (a q - q + 1) + C(a,2) q^2 (1-q)^(a-2) e^(2 rho)
                   + 3 sum_(l=3)^a C(a,l) q^l (1-q)^(a-l) e^((l-1) l rho) )

  Args:
    rho: That of the mechanism on the sample.
    sampling_probability: q in (0, 1].

  Returns:
    The Renyi divergences at the orders 2..256, of shape [255].
  """
  q = sampling_probability
  if q >= 1.0:
    return rho * _ORDERS
  curve = []
  for order in _ORDERS.tolist():
    l = np.arange(2, order + 1)  # noqa: E741
    log_binomial = (
      special.gammaln(order + 1) - special.gammaln(l + 1) - special.gammaln(order - l + 1)
    )
    terms = log_binomial + l * math.log(q) + (order - l) * math.log1p(-q) + (l - 1) * l * rho
    terms[1:] += math.log(3.0)
    first = (order - 1) * math.log1p(-q) + math.log(order * q - q + 1)
    curve.append(special.logsumexp(np.append(terms, first)) / (order - 1))
  return np.maximum(curve, 0.0)


def epsilon_of_rho(rho: float, sampling_probability: float, num_rounds: int, delta: float) -> float:
  """Returns the epsilon that the paper would state, which is not a guarantee.

  Args:
    rho: That of a round before subsampling.
    sampling_probability: q = m / n, of a cohort whose size is really fixed.
    num_rounds: T; 0 costs nothing.
    delta: The delta of (epsilon, delta)-differential privacy.

  Returns:
    Epsilon; 0 for no round.

  Raises:
    ValueError: If delta is not in (0, 1).
  """
  if num_rounds == 0:
    return 0.0
  curve = num_rounds * subsampled_rdp(rho, sampling_probability)
  return float(rdp.compute_epsilon(_ORDERS, curve, checks.fraction("delta", delta))[0])


def epsilon(release: releases.Release, num_rounds: int, delta: float) -> float:
  """Returns `epsilon_of_rho` of a release, which is not a guarantee.

  Args:
    release: The releases of each round.
    num_rounds: T; 0 costs nothing.
    delta: The delta of (epsilon, delta)-differential privacy.

  Returns:
    Epsilon; 0 for no round.
  """
  # Without sampling, q = 1, there is nothing to amplify in the paper either.
  return epsilon_of_rho(round_rho(release), release.cohort.probability, num_rounds, delta)


def calibrate_noise(
  epsilon: float,  # pylint: disable=redefined-outer-name
  delta: float,
  *,
  population: int,
  clients_per_round: float,
  num_rounds: int,
) -> float:
  """Finds the noise for which the paper would state an epsilon, for a whole round.

  Args:
    epsilon: The target.
    delta: The target's delta.
    population: n.
    clients_per_round: m.
    num_rounds: T.

  Returns:
    z_eff with rho = 1 / (2 z_eff^2); without a threshold it is z_w.

  Raises:
    ValueError: If a number is out of its range or no noise in reach gives that epsilon.
  """
  q = cohorts.Poisson(population, clients_per_round).probability
  target = checks.positive("epsilon", epsilon)
  delta = checks.fraction("delta", delta)
  low, high = 0.05, 2000.0
  reached = [epsilon_of_rho(0.5 / z**2, q, num_rounds, delta) for z in (high, low)]
  if not reached[0] < target < reached[1]:
    raise ValueError(
      f"Found epsilon = {target:g}, which no noise reaches in the paper's accounting: it gives"
      f" {reached[0]:.3g} to {reached[1]:.3g}; expected an epsilon between these."
    )
  while high > low * (1.0 + 1e-7):
    middle = math.sqrt(low * high)
    if epsilon_of_rho(0.5 / middle**2, q, num_rounds, delta) > target:
      low = middle
    else:
      high = middle
  return high


def build_tree(
  noise_multiplier: float,
  num_bins: int,
  expected_clients: int,
  num_shares: int,
  bits: int | None = None,
) -> tree_mechanism.TreeMechanism:
  """Returns the paper's histogram: noise for a sensitivity of c log2 b, decoded around zero.

  Its modulus is 2^bits, with which sums may wrap; None for one with which they do not.

  Args:
    noise_multiplier: z_q, over the paper's sensitivity.
    num_bins: b, a power of two.
    expected_clients: The expected number of reports.
    num_shares: m, how many clients make noise.
    bits: The logarithm of the modulus to base 2.

  Returns:
    The parameters.

  Raises:
    ValueError: If `num_bins` is no power of two, or sums would not fit 64 bits.
  """
  num_levels = tree_mechanism.check_num_bins(num_bins).bit_length() - 1
  least = tree_mechanism.least_sensitivity(noise_multiplier, num_shares)
  scale = math.ceil(least / num_levels)
  local_stddev = noise_multiplier * (scale * num_levels) / math.sqrt(num_shares)
  if shares.MIN_STDDEV * (1.0 - 1e-12) < local_stddev < shares.MIN_STDDEV:
    local_stddev = shares.MIN_STDDEV  # It was below that by rounding alone.
  margin = tree_mechanism.wrap_margin(local_stddev * math.sqrt(num_shares), 2 * num_bins - 2)
  modulus = scale * num_shares + 2 * margin + 1 if bits is None else 2**bits
  tree_mechanism.check_modulus(modulus, noise_multiplier)
  return tree_mechanism.TreeMechanism(
    noise_multiplier=noise_multiplier,
    num_bins=num_bins,
    expected_clients=expected_clients,
    num_shares=num_shares,
    scale=scale,
    local_stddev=local_stddev,
    modulus=modulus,
    offset=modulus // 2,
    sensitivity="paper",
  )


def calibrate(
  epsilon: float,  # pylint: disable=redefined-outer-name
  delta: float,
  *,
  population: int,
  clients_per_round: float,
  num_rounds: int,
  rho_ratio: float | None,
  num_bins: int | None = None,
) -> releases.Release:
  """Finds the noise that the paper would use for an epsilon, in terms of true sensitivities.

  Args:
    epsilon: The epsilon that the paper would state.
    delta: Its delta.
    population: n.
    clients_per_round: m.
    num_rounds: T.
    rho_ratio: r, the budget of the histogram over that of the weights; None or 0 for no threshold.
    num_bins: b; needed with a threshold, for the paper's sensitivity.

  Returns:
    The release of cohorts of fixed size, with its tree. The threshold's noise multiplier is
    sqrt(log2 b) times the paper's own.

  Raises:
    ValueError: If a number is out of its range or no noise in reach gives that epsilon.
  """
  z_eff = calibrate_noise(
    epsilon,
    delta,
    population=population,
    clients_per_round=clients_per_round,
    num_rounds=num_rounds,
  )
  cohort = cohorts.FixedSize(population, clients_per_round)
  updates = () if rho_ratio == math.inf else (parts.UpdateSum(),)
  if not rho_ratio:
    return releases.Release(cohort=cohort, parts=updates).with_noise(z_eff)
  if num_bins is None:
    raise ValueError("Found a threshold without num_bins; expected the number of bins.")
  levels = tree_mechanism.check_num_bins(num_bins).bit_length() - 1
  share = 1.0 if rho_ratio == math.inf else rho_ratio
  release = releases.Release(cohort=cohort, parts=(parts.Tree(share=share), *updates))
  release = release.with_noise(z_eff)
  z_q, num_shares = release.parts[0].z, release.limit
  expected_clients = min(max(round(clients_per_round), 1), num_shares)
  tree = build_tree(z_q, num_bins, expected_clients, num_shares)
  # The tree's noise is z_q c log2 b; the true sensitivity c sqrt(log2 b).
  z_q = shares.delivered_noise_multiplier(
    tree.local_stddev, tree.scale * math.sqrt(levels), tree.num_shares
  )
  histogram = parts.Tree(noise_multiplier=z_q, num_bins=num_bins, mechanism=tree)
  return dataclasses.replace(release, parts=(histogram, *release.parts[1:]))
