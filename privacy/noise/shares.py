"""Noise that clients make in shares: the number of shares of a round, and their sum's worth.

Each of the k clients of a round adds to every integer that it sends a share xi_i ~ N_Z(0, sigma^2),
a discrete Gaussian; a secure sum releases the total modulo M. The number of shares is the same in
every round, K, whatever k is. The protocol decides the source of the missing shares:

    "complement"    the server adds one draw of N_Z(0, (K - k) sigma^2) before it decodes;
    "helpers"       K - k other clients send a share of noise and no data;
    "private_coin"  more clients are contacted than are to add data; each adds its share of noise,
                    and its data if a coin says so that it tosses in secret. k is the number of
                    contacted clients here, and the server completes their shares to K.

Theorem. Let Delta be the l2-sensitivity, in integers, of the sum of what clients send before noise,
under zero-out adjacency; let K sigma^2 = (z Delta)^2 + 2 and sigma >= 2. Against an adversary that
sees the releases but not the participants, T rounds with d noisy integers each cost as much as T
rounds of the Gaussian mechanism of noise multiplier z on the same sample of clients, but for a
factor of e^(+-T d tau) on all densities, with `slack`'s tau. This holds for zero-out and for
add-or-remove adjacency and for any d: nothing depends on k, so that however many integers have
noise, they do not show k.

Proof. (1) Given the cohort, the noise of one integer is the convolution of k draws of variance
sigma^2 and, if the server completes them, one of (K - k) sigma^2. Convolving two discrete Gaussians
of variances v, w >= 1/4 gives the discrete Gaussian of variance v + w up to a factor of e^(+-10
exp(-2 pi^2 v w / (v + w))) on its probabilities (Kairouz, Liu, Steinke 2021, "The Distributed
Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation"). Adding share by share
has v w / (v + w) = sigma^2 j / (j + 1) for j = 1, 2, ..., and the complement sigma^2 k (K - k) / K
>= sigma^2 (K - 1) / K. So the noise is nu = N_Z(0, s^2) with s^2 = K sigma^2, one law for all k, up
to e^(+-tau) for each of the d integers; all of them count, because k differs between cohorts.
(2) nu is a post-processing of a continuous Gaussian. Draw y ~ N(0, s^2 - 2) and round it at random
to an integer with probability proportional to exp(-(z - y)^2 / 4), a discrete Gaussian of variance
2 around y. By Poisson's summation formula the sum of these weights over the integers is
sqrt(4 pi) (1 +- 2.01 exp(-4 pi^2)) wherever y is, so that z has probability proportional to
exp(-z^2 / (2 s^2)) up to a factor of e^(+-5 exp(-4 pi^2)). Rounding commutes with integer shifts.
Hence the round is the mechanism "sum of integer vectors plus N(0, (z Delta)^2)" and then rounding,
the modulus and all decoding, which are post-processing. (Bounding the Renyi divergence of shifted
discrete Gaussians directly is enough for integer orders, but not for privacy loss distributions: a
hockey-stick divergence has a kink, and its sum over a lattice is not its integral.)
(3) That mechanism's noise does not depend on the cohort. So it may be sampled like any additive
mechanism: conditioned on the others, one more client shifts a fixed law.
(4) Factors of e^(+-tau) per integer multiply, over d integers, a round's adaptive releases and T
rounds. QED

A cohort of more than K clients cannot be completed. The sampler drops clients at random down to K
(`cohort_limit`); `privacy.noise.dominating_pairs` accounts for the change.
"""

import math
from typing import Any

import numpy as np
from scipy import special

COMPLEMENT = "complement"
HELPERS = "helpers"
PRIVATE_COIN = "private_coin"
PROTOCOLS = (COMPLEMENT, HELPERS, PRIVATE_COIN)

# Below this standard deviation of a share, a sum of discrete Gaussians is not close enough to one.
MIN_STDDEV = 2.0
# A discrete Gaussian's variance exceeds that of its continuous one by this.
ROUNDING_VARIANCE = 2.0
_ROUNDING_SLACK = 5.0 * math.exp(-2.0 * math.pi**2 * ROUNDING_VARIANCE)
# A round has room for so many standard deviations of a Poisson cohort's size above its mean.
_ROOM = 4.0


def share_stddev(noise_multiplier: float, sensitivity: float, num_shares: int) -> float:
  """Returns sigma = sqrt(((z Delta)^2 + 2) / K) of one share; Delta is in integers."""
  total = math.hypot(noise_multiplier * sensitivity, math.sqrt(ROUNDING_VARIANCE))
  return total / math.sqrt(num_shares)


def delivered_noise_multiplier(local_stddev: float, sensitivity: float, num_shares: int) -> float:
  """Returns z of K shares, the inverse of `share_stddev`; 0 where the noise is too little."""
  # local_stddev**2 would raise an error where a product is infinite.
  return (
    math.sqrt(max(num_shares * local_stddev * local_stddev - ROUNDING_VARIANCE, 0.0)) / sensitivity
  )


def sum_slack(local_stddev: float, num_shares: int) -> float:
  """Bounds the absolute log-ratio of the sum of K shares to the discrete Gaussian of its variance.

  It is 10 sum_(j = 1)^(K - 1) exp(-2 pi^2 sigma^2 j / (j + 1)).
  """
  shares = np.arange(1, num_shares)
  return float(
    10.0 * np.exp(-2.0 * np.pi**2 * local_stddev * local_stddev * shares / (shares + 1)).sum()
  )


def slack(local_stddev: float, num_shares: int, protocol: str = COMPLEMENT) -> float:
  """Returns tau of the theorem above, for one integer of one round: 1.8e-16 at sigma = 2."""
  tau = sum_slack(local_stddev, num_shares) + _ROUNDING_SLACK
  if protocol != HELPERS and num_shares > 1:
    apart = local_stddev * local_stddev * (num_shares - 1) / num_shares
    tau += 10.0 * math.exp(-2.0 * math.pi**2 * apart)
  return tau


def cohort_limit(population: int, clients_per_round: float) -> int:
  """Returns K of a Poisson cohort: m + 4 sqrt(m), at most n.

  Larger cohorts lose clients at random. A lower limit would cost privacy (at K = m an epsilon of
  2.7 is 7.9), a higher one costs the server's view of the sum more.
  """
  return min(population, math.ceil(clients_per_round + _ROOM * math.sqrt(clients_per_round)))


def _survival(successes: int, trials: int, probability: float) -> float:
  """Returns P[Binomial(trials, probability) > successes]; `scipy.stats` takes 0.4 s to import."""
  if not 0 <= successes < trials:
    return float(successes < 0)
  return float(special.betainc(successes + 1, trials - successes, probability))


def overflow_probability(population: int, probability: float, limit: int) -> float:
  """Returns P[Binomial(n - 1, q) >= K]: that the other clients alone fill a Poisson cohort."""
  if limit >= population:
    return 0.0
  return _survival(limit - 1, population - 1, probability)


def reports_of_a_member(
  population: int, probability: float, limit: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the law of the number of reports in the rounds in which a given client reports.

  Poisson samples of more than K clients are cut at random. It is the numbers of reports, int [K],
  and their probabilities, float [K].
  """
  probabilities = np.zeros(limit)
  if limit > 1:
    others, j = population - 1, np.arange(limit - 2)
    odds = special.logit(min(probability, 1.0 - 2.0**-53))
    # From the ratios of neighbours: Gamma functions lose digits in large populations.
    logs = np.append(0.0, np.cumsum(np.log((others - j) / (j + 1.0)) + odds))
    fewer = special.betaincc(limit - 1, population - limit + 1, probability)  # P[at most K - 2].
    probabilities[:-1] = special.softmax(logs) * fewer
  # One of j + 1 >= K that are cut at random stays with probability K / (j + 1), and
  # P[Binomial(n - 1, q) = j] / (j + 1) = P[Binomial(n, q) = j + 1] / (n q).
  expected = population * probability
  probabilities[-1] = limit / expected * _survival(limit - 1, population, probability)
  return np.arange(1, limit + 1), probabilities / probabilities.sum()


def loss_ratio(num_reports: Any, num_shares: int) -> Any:
  """Returns the ratio of squared noise multipliers of K shares and of k shares, at least 1.

  The noise of k shares is worth a continuous Gaussian of variance k sigma^2 - 2. The ratio to that
  of K falls with sigma, so that sigma = 2 bounds it: (4 K - 2) / (4 k - 2).
  """
  least = MIN_STDDEV**2
  return (least * num_shares - ROUNDING_VARIANCE) / (least * num_reports - ROUNDING_VARIANCE)
