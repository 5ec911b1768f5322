"""Rounds as dp_accounting's events, their Renyi divergences, and the corrections to these.

The accountants treat noise as continuous and unbounded. `round_slack` bounds the distance of the
clients' discrete noise from that, `with_drawn_noise` includes how a sampler rounds its law, and
`tail_probability` is the part of delta for the end of the server's noise.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import special

from privacy import cohorts
from privacy import releases
from privacy.noise import banded

# The server's Gaussian noise (`gaussian_sum`) ends at so many standard deviations.
GAUSSIAN_SUPPORT = 11.35

# dp_accounting's orders, which jump from 64 to 128, 256, 512 and 1024, and some between.
_ORDERS = tuple(
  [1 + x / 10 for x in range(1, 100)]
  + list(range(11, 65))
  + [72, 80, 88, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024]
)
# Sampling without replacement costs dp_accounting time quadratic in the order. Any set of orders
# gives a valid bound; the default set would be ten times slower and not visibly tighter.
_FIXED_SIZE_ORDERS = tuple(
  [1 + x / 10 for x in range(1, 30)] + list(range(4, 33)) + [40, 48, 64, 96, 128]
)

# (alpha - 1) D_alpha is known to within this share of 1 + itself (found: 1e-14). A divergence that
# rounding makes 0 would prove epsilon = 0.
_ROUNDING = 1e-12

# The shares of delta that the rounding of drawn noise may take; no digit shows the first.
_DRAWN_OF_DELTA = tuple(10.0**exponent for exponent in range(-6, -1))
# Beyond these a guarantee says nothing, or nothing that drawn noise is known to give.
_MOST_DRAWN_EPSILON, _LEAST_DRAWN_DELTA = 30.0, 1e-30

# Terms beyond the order, an even number. A is at most 1e-9 of itself too large (found: 6e-10).
_TERMS = 300


def round_event(release: releases.Release) -> dp_accounting.DpEvent:
  """Builds dp_accounting's event of a round: a sample of clients, and on it all releases jointly.

  It is for an accountant of the neighbouring relation that goes with the sampling: REPLACE_ONE with
  "fixed_size", ADD_OR_REMOVE_ONE otherwise. It knows nothing of cut cohorts and discrete noise.

  Args:
    release: What a round releases, with its noise.

  Returns:
    The event of one round.

  Raises:
    ValueError: If dp_accounting does not know the relation with the sampling, or the cohorts are
      known.
  """
  release.check_sampled()
  cohort = release.cohort
  fixed = isinstance(cohort, cohorts.FixedSize)
  replaced = release.relation == releases.REPLACE_ONE
  if replaced and isinstance(cohort, cohorts.Poisson):
    raise ValueError(
      "Found poisson sampling with relation = 'replace_one', for which RDP has no bound here;"
      " expected accounting by 'pld'."
    )
  # RdpAccountant(REPLACE_ONE) accounts a Gaussian by its noise multiplier as it stands, without
  # the factor between removing and replacing: google/differential-privacy#378.
  event = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(
        float(part.z / (part.replace_one_factor if fixed or replaced else 1.0))
      )
      for part in release.parts
    ]
  )
  return cohort.event(event)


def poisson_sampled(probability: float, noise_multiplier: float, orders: np.ndarray) -> np.ndarray:
  """Bounds D_alpha of one round from above, float [n], add-or-remove and zero-out, up to rounding.

  `probability` is q in (0, 1), `noise_multiplier` z; the orders alpha > 1, [n], are not whole.

      D_alpha = log(A) / (alpha - 1),    A = E[(1 - q + q e^((2 x - 1) / (2 z^2)))^alpha],

  x normal with deviation z (Mironov, Talwar, Zhang 2019, section 3.3). The ratio u of the second
  summand to the first is 1 at x_0 = z^2 log((1 - q) / q) + 1/2. Below it, (1 + u)^alpha is a
  binomial series in u, and above it one in 1 / u. Beyond alpha the coefficients alternate. But for
  a factor their magnitudes are Gamma(i - alpha) / i!, which are moments of a measure on [0, 1] (a
  beta integral), as the means of u^i are. So are their products, the magnitudes of the terms: they
  fall, and ever more slowly, so that what follows a positive term sums to minus half the next one
  or less. The sum up to a positive term, less that half, is an upper bound.

  dp_accounting has these orders, too. But where x_0 is within a few z of 0, terms fall as i^-(alpha
  + 2) only. Version 0.6.0 adds their magnitudes, stops at 1,000, and with a warning leaves out the
  orders, up to 2.3, whose last term is not below e^-30 of the sum. That costs up to 0.5 % of an
  epsilon up to 10, 5 % of one up to 30, and 25 % of one up to 100.

  Args:
    probability: q in (0, 1).
    noise_multiplier: z, positive.
    orders: The orders alpha > 1, float [n], none of them whole.

  Returns:
    The bounds, float [n].
  """
  q, z = probability, noise_multiplier
  alpha, ceiling = orders[:, np.newaxis], np.ceil(orders)[:, np.newaxis]
  i = np.arange(float(ceiling.max()) + _TERMS + 2.0)
  magnitudes = np.cumsum(np.log(np.abs(alpha - i[:-1]) / i[1:]), axis=1)
  binomials = np.concatenate([np.zeros_like(alpha), magnitudes], axis=1)
  signs = np.where((i <= ceiling) | ((i - ceiling) % 2 == 0), 1.0, -1.0)
  signs *= np.select([i <= ceiling + _TERMS, i == ceiling + _TERMS + 1], [1.0, 0.5])
  middle = z * z * (math.log1p(-q) - math.log(q)) + 0.5

  def terms(power: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Returns the logs of the terms' magnitudes: those of e^(power ...), on one side of x_0."""
    sampled = power * math.log(q) + (alpha - power) * math.log1p(-q)
    gaussian = (power * power - power) / (2.0 * z * z)
    logs: np.ndarray = binomials + sampled + gaussian + special.log_ndtr(room)
    return logs

  both = np.stack([terms(i, (middle - i) / z), terms(alpha - i, (alpha - i - middle) / z)])
  sums: np.ndarray = special.logsumexp(both, b=np.stack([signs, signs]), axis=(0, 2))
  return sums / (orders - 1.0)


@functools.lru_cache(maxsize=128)
def _event_curve(release: releases.Release, orders: tuple[float, ...]) -> np.ndarray:
  """Returns the Renyi divergences of `round_event` at some orders, without mechanisms."""
  fixed = isinstance(release.cohort, cohorts.FixedSize)
  relations = dp_accounting.NeighboringRelation
  relation = relations.REPLACE_ONE if fixed else relations.ADD_OR_REMOVE_ONE
  alphas = np.array(orders, dtype=float)
  q = release.cohort.probability
  is_poisson = isinstance(release.cohort, cohorts.Poisson) and q < 1.0
  is_ours = (alphas != np.floor(alphas)) & is_poisson
  is_theirs = np.isin(alphas, _FIXED_SIZE_ORDERS) if fixed else ~is_ours
  curve: np.ndarray = np.full_like(alphas, np.inf)
  if is_ours.any():
    curve[is_ours] = poisson_sampled(q, release.effective_noise_multiplier, alphas[is_ours])
  theirs = rdp.RdpAccountant(alphas[is_theirs], relation).compose(round_event(release))
  curve[is_theirs] = theirs.rdp
  if fixed:
    # With the cohort given, a client in it is a Gaussian's, and one outside is nothing to tell.
    gaussian = 0.5 * alphas * release.gaussian(1.0).distance ** 2
    curve = np.minimum(curve, _mixture_curve(alphas, np.zeros_like(alphas), q, gaussian))
  curve = np.maximum(curve, 0.0)
  return curve + _ROUNDING * (curve + 1.0 / (alphas - 1.0))


def _mixture_curve(
  orders: np.ndarray, curve: np.ndarray, weight: float, other: np.ndarray
) -> np.ndarray:
  """Mixes divergences: a round is the other mechanism with probability `weight`, publicly."""
  exponents = np.stack([(orders - 1.0) * curve, (orders - 1.0) * other])
  with np.errstate(divide="ignore"):  # A weight of 1.
    log_weights = np.log([[1.0 - weight], [weight]])
  mixed: np.ndarray = np.logaddexp(*(exponents + log_weights)) / (orders - 1.0)
  return mixed


@functools.lru_cache(maxsize=128)
def round_curve(release: releases.Release) -> tuple[np.ndarray, np.ndarray]:
  """Returns orders alpha > 1 and the Renyi divergences D_alpha of one round, float [orders] each.

  The slack of discrete noise is left out. Sampling without replacement and zero-out is accounted
  for as replacing a client, which includes it, but at no more than the cost to an adversary that
  knows the cohort: exp((alpha - 1) D_alpha) is jointly convex, so that it is at most the mean over
  cohorts.

  Args:
    release: What a round releases, with its noise.

  Returns:
    Orders and divergences.
  """
  overflow = release.overflow_probability
  release = release.without_mechanisms()
  if not overflow:
    return np.array(_ORDERS), _event_curve(release, _ORDERS)
  orders = _FIXED_SIZE_ORDERS
  # If the others fill the cohort, the client takes another's place: not worse than replacing it
  # in a sample of the same probability without replacement. The event knows whole numbers only.
  size = math.ceil(release.cohort.expected)
  full = dataclasses.replace(
    release,
    cohort=cohorts.FixedSize(release.cohort.population, size),
    noise=cohorts.Complement(),
    relation=releases.REPLACE_ONE,
  )
  curves = [_event_curve(sampled, orders) for sampled in (release, full)]
  return np.array(orders), _mixture_curve(np.array(orders), curves[0], overflow, curves[1])


@functools.lru_cache(maxsize=64)  # Every round of a run needs it.
def round_slack(release: releases.Release) -> float:
  """Returns the log of the ratio between a round's law and that with continuous Gaussian noise.

  Args:
    release: What a round releases, with its noise.

  Returns:
    The log; 0 where the server makes all noise.
  """
  return sum(part.slack(release.noise.protocol) for part in release.parts)


def with_drawn_noise(
  runs: Sequence[tuple[releases.Release, int]], delta: float, cost: Callable[[float], float]
) -> tuple[float, float]:
  """Returns the epsilon of some rounds of releases whose clients draw their noise.

  `shares.drawn_slack` is added to the cost of exact noise; as much of delta goes to what it leaves
  out as makes the sum of both least. Epsilons above 30, and those for deltas below 1e-30, remain
  those of exact noise.

  Args:
    runs: Releases, and the number of rounds of each.
    delta: That of all rounds together.
    cost: Returns the epsilon of exact noise for what is left of delta.

  Returns:
    Epsilon, and how much of it is for the rounding of drawn noise.

  Raises:
    ValueError: If the rounding would move a privacy loss by more than 0.5.
  """
  noisy = [(r, rounds) for r, rounds in runs if rounds and r.num_shares is not None]
  if not noisy or delta < _LEAST_DRAWN_DELTA:
    return cost(delta), 0.0
  parts = sum(part.mechanism is not None for release, _ in noisy for part in release.parts)
  first = cost(delta * (1.0 - 2.0 * _DRAWN_OF_DELTA[0]))
  if first > _MOST_DRAWN_EPSILON:
    return cost(delta), 0.0
  # The answer is no more than 1 above that of exact noise, or else there is none.
  growth = 1.0 + math.exp(first + 1.0)

  def slack(share: float) -> float:
    room = share * delta / growth / parts
    return sum(
      part.drawn_slack(rounds, release.relation == releases.REPLACE_ONE, room)
      for release, rounds in noisy
      for part in release.parts
    )

  # Of a small epsilon the same share of delta costs less.
  share = min(_DRAWN_OF_DELTA, key=lambda share: share * min(first, 1.0) + slack(share))
  added = slack(share)
  if max(share, added) <= _DRAWN_OF_DELTA[0]:
    return first + added, added
  if added > 0.5:
    raise ValueError(
      f"Found noise of {noisy[0][0].num_shares} clients a round, drawn as multiples of 2^-62, with"
      " which a privacy loss may be off by more than 0.5; expected more clients a round, or fewer"
      " numbers or rounds."
    )
  epsilon = cost(delta * (1.0 - share) * math.exp(-added)) + added
  return epsilon, max(epsilon - first, 0.0)


@functools.lru_cache(maxsize=64)
def tail_probability(release: releases.Release) -> float:
  """Returns the probability of an output of a round that is impossible without a client.

  The server's noise ends at `GAUSSIAN_SUPPORT` standard deviations; a client whose contribution is
  in a single number moves that end by 1 / z of them. The probability is charged to delta; it is at
  most 1e-16, unless there is next to no noise, and 0 where the clients make all noise. One that is
  spread over d numbers moves the end in each, by sqrt(d) / z in all, which together has at most
  4e-29 sqrt(d) / z: with 10^9 numbers 1e-24 / z, which no delta of use notices and is not charged.

  Args:
    release: What a round releases, with its noise.

  Returns:
    The probability.
  """
  total, reach = 0.0, 1.0
  participation = release.cohort.participation(1)
  if participation is not None:  # Earlier rounds move the end, too.
    reach = banded.reach(release.coefficients, participation.separation)
  replaced = release.relation == releases.REPLACE_ONE
  for part in release.parts:
    if part.noise_by_server:
      factor = part.replace_one_factor if replaced else 1.0
      beyond = special.ndtr(reach * factor / part.z - GAUSSIAN_SUPPORT)
      total += 2.0 * release.cohort.probability * float(beyond)
  return total
