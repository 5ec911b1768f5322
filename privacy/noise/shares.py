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

import dataclasses
import functools
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
# A sampler's probabilities are multiples of 2^-62, at worst rounded twice (a block, and what blocks
# leave), of numbers in double precision.
_UNIT, _DOUBLE = 2.0**-62, 2.0**-52
# Below this deviation two shares of a client are drawn at once, and their joint law is rounded.
_OF_PAIRS = 2.7
# The range of one share, in standard deviations, and the points at which sums over it are taken.
_POINTS = np.linspace(-12.0, 12.0, 601)
# A bound that has so large a factor is none.
_MOST_EXPONENT = 300.0
# Ends of the bulk of a sum, in standard deviations.
_BULKS = (*np.arange(3.0, 10.0, 0.5), *np.arange(10.0, 37.0, 3.0))


def share_stddev(noise_multiplier: float, sensitivity: float, num_shares: int) -> float:
  """Returns sigma = sqrt(((z Delta)^2 + 2) / K) of one share.

  Args:
    noise_multiplier: z.
    sensitivity: Delta, in integers, in the l2 norm.
    num_shares: K.

  Returns:
    sigma, in integers.
  """
  total = math.hypot(noise_multiplier * sensitivity, math.sqrt(ROUNDING_VARIANCE))
  return total / math.sqrt(num_shares)


def delivered_noise_multiplier(local_stddev: float, sensitivity: float, num_shares: int) -> float:
  """Returns z of K shares, the inverse of `share_stddev`; 0 where the noise is too little.

  Args:
    local_stddev: sigma, of one share, in integers.
    sensitivity: Delta, in integers, in the l2 norm; positive.
    num_shares: K.

  Returns:
    z, the standard deviation of all noise over the sensitivity.
  """
  # local_stddev**2 would raise an error where a product is infinite.
  return (
    math.sqrt(max(num_shares * local_stddev * local_stddev - ROUNDING_VARIANCE, 0.0)) / sensitivity
  )


def sum_slack(local_stddev: float, num_shares: int) -> float:
  """Bounds the absolute log-ratio of the sum of K shares to the discrete Gaussian of its variance.

  It is 10 sum_(j = 1)^(K - 1) exp(-2 pi^2 sigma^2 j / (j + 1)).

  Args:
    local_stddev: sigma, of one share, in integers.
    num_shares: K.

  Returns:
    The bound; 0 for one share.
  """
  shares = np.arange(1, num_shares)
  return float(
    10.0 * np.exp(-2.0 * np.pi**2 * local_stddev * local_stddev * shares / (shares + 1)).sum()
  )


def slack(local_stddev: float, num_shares: int, protocol: str = COMPLEMENT) -> float:
  """Returns tau of the theorem above, for one integer of one round: 1.8e-16 at sigma = 2.

  Args:
    local_stddev: sigma, of one share, in integers.
    num_shares: K.
    protocol: Who makes the shares that a cohort lacks: `COMPLEMENT`, the server, or `HELPERS`.

  Returns:
    tau, a natural logarithm.
  """
  tau = sum_slack(local_stddev, num_shares) + _ROUNDING_SLACK
  if protocol != HELPERS and num_shares > 1:
    apart = local_stddev * local_stddev * (num_shares - 1) / num_shares
    tau += 10.0 * math.exp(-2.0 * math.pi**2 * apart)
  return tau


@dataclasses.dataclass(frozen=True)
class DrawnLaw:
  """Bounds on the law of the sum of drawn shares over that of exact ones; see `drawn_slack`.

  r is the logarithm of their ratio.
  """

  ratio: float  # R >= |r|, in the bulk.
  one: float  # A >= |the change of r if one share more is drawn|, in the bulk.
  slope: float  # L >= |r(y) - r(y - c)| / |c|, in the bulk.
  outside: float  # beta: the absolute difference of the laws outside of the bulk, added up.


def _sum_of_exp(logs: np.ndarray) -> float:
  """Returns the sum of e^logs, or a number that is too large for any bound."""
  return math.exp(min(float(special.logsumexp(logs)), _MOST_EXPONENT))


@functools.lru_cache(maxsize=1024)
def drawn_law(local_stddev: float, num_shares: int, bulk: float) -> DrawnLaw:
  """Bounds the law of the sum of K drawn shares, in `bulk` standard deviations of it and beyond.

  Args:
    local_stddev: sigma, of one share, in integers.
    num_shares: K.
    bulk: Standard deviations of the sum within which its law is bounded.

  Returns:
    The bounds.
  """
  sigma, k, t = local_stddev, num_shares, _POINTS
  are_pairs, values, step = sigma < _OF_PAIRS, 24.0 * sigma + 3.0, (t[1] - t[0]) * sigma
  law = np.exp(-0.5 * t * t) / (math.sqrt(2.0 * math.pi) * sigma)
  # What rounding leaves, and the error of the law's own sum, is all at zero.
  at_zero = (math.log2(values) + 2.0) * _DOUBLE + values ** (1 + are_pairs) * _UNIT
  means = np.linspace(0.0, bulk, 9) / math.sqrt(k)  # Of a share, given the sum.
  exponents = np.outer(means, t) - 0.5 * means[:, np.newaxis] ** 2
  tilts = np.exp(np.minimum(exponents, _MOST_EXPONENT))
  # P[a share is x | the sum is y] / P[a share is x], [sums, points].
  exponents = np.minimum(
    exponents - 0.5 * (t - means[:, np.newaxis]) ** 2 / max(k - 1, 1), _MOST_EXPONENT
  )
  weights = math.sqrt(k / max(k - 1, 1)) * np.exp(exponents)
  # Errors of one number: by itself, and with the weight that a pair's other number gives them.
  plain = weighted = np.minimum(_UNIT, law)
  tilted = step * float((tilts @ plain).max())
  if are_pairs:
    joint, at_bulk = np.minimum(_UNIT, np.outer(law, law)), math.exp(-0.5 * bulk * bulk) * law.max()
    plain, tilted = step * joint.sum(axis=0), step * step * float((tilts @ joint @ tilts.T).max())
    weighted = step * (weights @ joint).max(axis=0) if k > 1 else np.minimum(_UNIT / at_bulk, law)
    at_zero *= math.sqrt(k / (k - 1)) if k > 1 else 1.0 / law.max()
  of_double = law * _DOUBLE * (4.0 + 2.0 * t * t)
  plain, weighted = plain + of_double, weighted + of_double
  total = step * plain.sum() + at_zero
  if k == 1:  # Nothing smooths a single share, so that neighbours may differ by twice the ratio.
    inner, outer = np.abs(t) <= bulk, np.abs(t) > bulk
    ratio = float((weighted[inner] / law[inner]).max()) + float(at_zero / law.max())
    return DrawnLaw(ratio, ratio, 2.0 * ratio, step * float(plain[outer].sum()))

  zeros = at_zero * weights[:, t.size // 2]
  one = float((step * weights @ weighted + zeros).max())
  distances = np.abs(t - means[:, np.newaxis])
  moment = float((step * (weights * distances) @ weighted + zeros * means).max())
  # Terms of j = 2, 3, ... errors, whose sum is at most 12 j sigma.
  j = np.arange(2, k + 1)
  left = np.maximum(k - j, 0.5)
  apart = np.maximum(bulk * math.sqrt(k) - t[-1] * j, 0.0) / np.sqrt(left)
  errors_of_j = j * math.log(k * total) - special.gammaln(j + 1.0)
  second_beyond = 2.0 * _sum_of_exp(errors_of_j + special.log_ndtr(-apart))
  tilted += (1 + are_pairs) * step * float((tilts @ of_double).max()) + at_zero
  roots = np.where(
    j < k, 0.5 * np.log(k / left), 0.5 * math.log(2.0 * math.pi * k) + math.log(sigma)
  )
  untilted = j * math.log((1 + are_pairs) * total) + 0.5 * (1 + are_pairs) * bulk**2
  logs = np.minimum(j * math.log(tilted), untilted - 0.5 * apart**2) + j * math.log(k)
  second = _sum_of_exp(logs - special.gammaln(j + 1.0) + (1 + are_pairs) * roots)
  ends = [special.ndtr(-(bulk * math.sqrt(k) + s * t) / math.sqrt(k - 1)) for s in (-1, 1)]
  at_ends = 2.0 * at_zero * special.ndtr(-bulk * math.sqrt(k / (k - 1)))
  beyond = k * (step * float((plain * (ends[0] + ends[1])).sum()) + at_ends) + second_beyond
  ratio = 2.0 * (k * one + second)
  return DrawnLaw(
    ratio=ratio,
    one=2.0 * (one + second),
    slope=2.0 * (k / (k - 1) * moment / sigma + second),
    outside=2.0 * (beyond + 2.0 * float(special.ndtr(-bulk)) * ratio),
  )


def drawn_slack(
  local_stddev: float,
  num_shares: int,
  num_entries: int,
  sensitivity: float,
  num_rounds: int,
  room: float,
) -> float:
  """Bounds what a sampler's rounding adds to epsilon: infinite where there is no bound.

  Mechanism. The sums of the theorem, of d = `num_entries` integers in each of T rounds, but each of
  the k <= K shares is drawn from a law of integer masses with the sum 2^62, which are the exact
  probabilities as double precision has them, rounded (`secure_sums.discrete_gaussian`), and as many
  as round to 0 are never drawn. The bits are taken as uniform and independent, and what completes
  the shares as exact. Sensitivity: `sensitivity`, in integers, in the l2 norm. Neighbours:
  zero-out, replace-one and add-or-remove, in which k changes by one.

  Statement. Let exact shares be (epsilon, delta')-differentially private. Then drawn ones are
  (epsilon + s, e^s delta' + (1 + e^epsilon) o)-private, with this s and o = `room`.

  Proof. (1) Let e be the drawn less the exact law p of a share, and r(y) the logarithm of the
  ratio of the sum's laws. It is that of the mean of prod (1 + e(x_i) / p(x_i)) over exact shares
  with the sum y. Given y, a share is normal around y / K with variance sigma^2 (K - 1) / K, so
  that its first order is sum_x e(x) w_y(x) for each share, w_y = P[x | y] / P[x], and its slope
  is that of log w_y, (x - y / K) / ((K - 1) sigma^2); terms of j errors are at most (K E)^j / j!
  times sqrt(K / (K - j)), the root of 2 pi K times sigma at j = K, with E = sum_x |e(x)| v(x) and
  v(x) = exp((y x - y^2 / (2 K)) / (K sigma^2)): for z = y - x_1 - ... - x_j and n = K - j it is
  z^2 / n >= 2 z y / K - n y^2 / K^2. With e^(b^2 / 2) in the place of v's they are known, too.
  Where pairs are drawn, e is that of a pair, its weight the product of both numbers' weights, the
  other's at its worst, and each number is charged for all of it. (2) Beyond these let r stay as
  it is at the end. That changes the law by at most `outside` in total variation, so delta by T d
  (1 + e^epsilon) of it: b is the least for which T d of it is at most half of o. (3) With r so
  continued, take the cohort as given, and the sum without the client as zero. All densities
  divided by the client-free exponential h(y) = exp(sum_i r(y_i)) are those of exact shares, up to
  exp(sum_i r(y_i - c_i) - r(y_i)) of the client's own: at most L |c|_1 <= L sqrt(d) Delta a
  round, and where there is a share more sum_i a(y_i), |a| <= A. Mixing over cohorts changes
  nothing, as a hockey-stick divergence is jointly convex. (4) h itself multiplies what is
  integrated, so delta'. The means of exp r over exact noise are 1; so given the past those of r
  and of a are at most 2 R^2, and by Azuma's inequality T d of them add up to less than R u and A
  u, u = sqrt(2 T d log(1 / q)), each but for a probability q under either data set, which is the
  other half of o. QED

  Args:
    local_stddev: sigma, of one share, in integers.
    num_shares: K.
    num_entries: d, the integers of a sum.
    sensitivity: That of the sum, in integers, in the l2 norm.
    num_rounds: T.
    room: o, the part of delta that is for what lies outside the bound.

  Returns:
    s; infinite where there is no bound.
  """
  number = float(num_rounds) * num_entries
  if not number:
    return 0.0
  if local_stddev > 1.0 / _UNIT:  # Then no multiple of 2^-62 is as small as a probability.
    return math.inf
  for bulk in _BULKS:
    law = drawn_law(local_stddev, num_shares, float(bulk))
    if not number * law.outside <= 0.5 * room:  # Nor of what double precision has no number for.
      continue
    mean, chance = 4.0 * number * law.ratio**2, math.sqrt(2.0 * number * -math.log(0.25 * room))
    shift = num_rounds * math.sqrt(num_entries) * sensitivity * law.slope
    moved = min(shift, 2.0 * number * law.ratio)
    return moved + (law.ratio + law.one) * chance + mean
  return math.inf


def cohort_limit(population: int, clients_per_round: float, room: float = 4.0) -> int:
  """Returns K of a cohort whose size varies: m + 4 sqrt(m) for a `room` of 4, at most n.

  Larger cohorts lose clients at random. A lower limit would cost privacy (at K = m an epsilon of
  2.7 is 7.9), a higher one costs the server's view of the sum more.

  Args:
    population: n.
    clients_per_round: m, the expected number of clients of a round.
    room: So many square roots of m above m.

  Returns:
    K, clients.
  """
  return min(population, math.ceil(clients_per_round + room * math.sqrt(clients_per_round)))


def _survival(successes: int, trials: int, probability: float) -> float:
  """Returns P[Binomial(trials, probability) > successes]; `scipy.stats` takes 0.4 s to import."""
  if not 0 <= successes < trials:
    return float(successes < 0)
  return float(special.betainc(successes + 1, trials - successes, probability))


def overflow_probability(population: int, probability: float, limit: int) -> float:
  """Returns P[Binomial(n - 1, q) >= K]: that the other clients alone fill a Poisson cohort.

  Args:
    population: n.
    probability: q, with which each client takes part.
    limit: K, the most clients of a round.

  Returns:
    The probability; 0 where K is n or more.
  """
  if limit >= population:
    return 0.0
  return _survival(limit - 1, population - 1, probability)


def reports_of_a_member(
  population: int, probability: float, limit: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the law of the number of reports in the rounds in which a given client reports.

  Poisson samples of more than K clients are cut at random.

  Args:
    population: n.
    probability: q, positive, with which each client is sampled.
    limit: K.

  Returns:
    The numbers of reports, 1 to K, int [K], and their probabilities, float [K].
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

  Args:
    num_reports: k, from 1 to K, or an array of such numbers.
    num_shares: K.

  Returns:
    The ratio, of the type of `num_reports`.
  """
  least = MIN_STDDEV**2
  return (least * num_shares - ROUNDING_VARIANCE) / (least * num_reports - ROUNDING_VARIANCE)
