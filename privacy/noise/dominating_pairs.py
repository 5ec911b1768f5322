"""Privacy loss distributions of Gaussian mechanisms on samples of clients, for every sampling here.

A round on a cohort with the client i in it, given all the others, is one of two laws, and its
hockey-stick divergences H_a(P || Q) = sup_E P(E) - a Q(E) follow from those of Gaussians,

    G_mu(a) = H_a(N(mu, 1) || N(0, 1)) = Phi(mu/2 - ln(a)/mu) - a Phi(-mu/2 - ln(a)/mu).

Let q be the probability that i's data count, nu the noise's law, x and x' the client's data before
and after the change, omega the law of a round in which they do not count:

    P = (1 - q) omega + q nu_x,    Q = (1 - q) omega + q nu_x'.

By advanced joint convexity (Balle, Barthe, Gaboardi 2018), with a = 1 + (a' - 1) / q and b = a'/a,

    H_a'(P || Q) <= q ((1 - b) H_a(nu_x || omega) + b H_a(nu_x || nu_x')).

What is omega?
- Poisson sampling, zero-out and add-or-remove: the same cohort without i, so that omega = nu_x' =
  nu_0. The bound is q G_mu(a), and the other direction is known exactly.
- m of n without replacement: a round in which i does not count has another client j in its place.
  Couple the cohorts S + i and S + j, uniform over S and j. So omega = nu_y for some y. x and y are
  as far apart as two clients' data can be (`replaced`), x and 0 as one client's can (`removed`).
  For zero-out, i itself still counted, the cohort has the same law in both worlds, also if it is
  known, so that H_a'(P || Q) <= q G_removed(a') by joint convexity alone. The smaller bound counts;
  so this costs at most what no sampling costs.
- Poisson sampling down to K: if the others alone fill the cohort, i takes another client's place
  with probability at most q, as without replacement. How many the others are has the same law in
  both worlds, and H_a is jointly convex: a mixture of the two cases above with constant weights. It
  holds for zero-out, where omega = nu_y and nu_x' = nu_0, and for add-or-remove, where both are
  nu_y, as for replacing the client; so the latter's bound, the largest, is taken.
- A cohort's size that the adversary knows (the server): a mixture over sizes, likewise.

A bound on H for all a >= 1 in both directions is a dominating pair; adaptive composition of rounds
is dominated by the product of their pairs (Zhu, Dong, Wang 2022). Adaptive Gaussian releases within
a round are dominated by one Gaussian pair with the root of the sum of squared distances.
Discretized by "connect the dots" (Doroshenko et al. 2022), upwards only.
"""

import dataclasses
import math
from typing import Protocol

import numpy as np
from scipy import special

from privacy.noise import composition

# The losses of a round have at most so many points, of all mechanisms together.
_MOST_POINTS = 20_000_000


@dataclasses.dataclass(frozen=True)
class SampledGaussian:
  """A Gaussian mechanism on a sample of clients, with and without one client's data."""

  probability: float  # q, with which the client's data count in a round, in (0, 1].
  removed: float  # mu between a client's data and none, 1 / z_eff.
  replaced: float  # mu between the data of two clients; not less than `removed`.
  # Whether another client counts in a round in which the client does not (sampling without
  # replacement), instead of nobody (Poisson sampling).
  is_replaced: bool = False
  # Whether the neighbouring data set has other data of the client, instead of none.
  replace_one: bool = False

  @property
  def distance(self) -> float:
    """mu between both data sets in a round in which the client's data count."""
    return self.replaced if self.replace_one else self.removed

  def largest_loss(self, beyond: float) -> float:
    """Returns a loss that the round exceeds with a probability of at most `beyond`."""
    share = min(beyond / self.probability, 0.1)

    def of_gaussian(mu: float) -> float:
      # Where the client's data count, the loss is normal with mean mu^2 / 2.
      return mu * mu / 2.0 - float(special.ndtri(share)) * mu

    largest = of_gaussian(self.replaced if self.is_replaced or self.replace_one else self.removed)
    if largest <= 600.0:
      largest = math.log1p(self.probability * math.expm1(largest))
    return min(largest, of_gaussian(self.distance))

  def divergences(self, epsilon: np.ndarray, beyond: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns `divergences`, which are bounds without a probability `beyond`."""
    del beyond
    return divergences(self, epsilon)


class Pair(Protocol):
  """A mechanism with and without one client's data, in a round or in several."""

  def largest_loss(self, beyond: float) -> float:
    """Returns a loss that it exceeds with a probability of at most `beyond`."""

  def divergences(self, epsilon: np.ndarray, beyond: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds its hockey-stick divergences at epsilon >= 0, float [n], in both directions.

    A probability of `beyond` may count as an infinite loss.
    """


# A mechanism is one of these, with these probabilities.
Mixture = tuple[tuple[float, Pair], ...]


def _gaussian(epsilon: np.ndarray, mu: float) -> np.ndarray:
  """Returns G_mu(e^epsilon), elementwise."""
  if mu <= 0.0:
    return np.zeros_like(epsilon)
  first = special.log_ndtr(mu / 2.0 - epsilon / mu)
  second = epsilon + special.log_ndtr(-mu / 2.0 - epsilon / mu)
  divergence: np.ndarray = np.maximum(np.exp(first) - np.exp(second), 0.0)
  return divergence


def _poisson_add(epsilon: np.ndarray, q: float, mu: float) -> np.ndarray:
  """Returns H(nu_0 || (1 - q) nu_0 + q nu_x) at e^epsilon, exactly."""
  if q >= 1.0:
    return _gaussian(epsilon, mu)
  # The density ratio of nu_x to nu_0 must be below this for the loss to exceed epsilon.
  with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
    room = -np.expm1(epsilon + math.log1p(-q))  # 1 - e^epsilon (1 - q)
    log_ratio = np.log(np.maximum(room, 0.0)) - epsilon - math.log(q)
    below = log_ratio / mu + mu / 2.0
    divergence = room * special.ndtr(below) - q * np.exp(epsilon + special.log_ndtr(below - mu))
  return np.where(room > 0.0, np.maximum(divergence, 0.0), 0.0)


def divergences(pair: SampledGaussian, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Bounds the hockey-stick divergences of one round at several epsilons.

  Args:
    pair: The round.
    epsilon: Numbers that are not negative, float [n].

  Returns:
    H_(e^epsilon)(P || Q) with the client's data in P, and H_(e^epsilon)(Q || P), each float [n].
  """
  q = pair.probability
  # a = 1 + (e^epsilon - 1) / q and b = e^epsilon / a.
  inner = np.log1p(np.expm1(np.minimum(epsilon, 600.0)) / q)
  inner = np.where(epsilon < 600.0, inner, epsilon - math.log(q))
  share = np.exp(epsilon - inner)
  removed, replaced = _gaussian(inner, pair.removed), _gaussian(inner, pair.replaced)
  apart = replaced if pair.is_replaced else removed
  if pair.replace_one:
    both = q * ((1.0 - share) * apart + share * replaced)
    return both, both
  forward = q * ((1.0 - share) * apart + share * removed)
  if pair.is_replaced:
    return np.minimum(forward, q * _gaussian(epsilon, pair.removed)), q * removed
  return forward, _poisson_add(epsilon, q, pair.removed)


def _masses(curve: np.ndarray, interval: float) -> np.ndarray:
  """Returns the probabilities [n] of losses h, 2 h, ... by `curve`, H at e^(i h), [n + 1]."""
  steps = np.diff(curve)
  inner = (steps[1:] - steps[:-1] * math.exp(interval)) / math.expm1(interval)
  last = steps[-1] / math.expm1(-interval)
  masses: np.ndarray = np.maximum(np.append(inner, last), 0.0)
  return masses


def _convex_minorant(curve: np.ndarray, interval: float) -> np.ndarray:
  """Returns the largest convex function of e^epsilon below a curve: a bound, as H is convex."""
  largest = interval * (len(curve) - 1)
  if largest > 700.0:
    return curve  # e^epsilon overflows; without the minorant the bound is a little worse.
  x = np.exp(interval * np.arange(len(curve)))
  slopes = np.diff(curve) / np.diff(x)
  # Rounding alone makes slopes of next to nothing jump about; `_masses` cuts that off.
  if not (np.diff(slopes) < -1e-9 * np.abs(slopes[1:]) - 1e-18).any():
    return curve
  kept: list[int] = []
  for i in range(len(curve)):
    while len(kept) > 1 and (curve[kept[-1]] - curve[kept[-2]]) * (x[i] - x[kept[-1]]) >= (
      curve[i] - curve[kept[-1]]
    ) * (x[kept[-1]] - x[kept[-2]]):
      kept.pop()
    kept.append(i)
  minorant: np.ndarray = np.interp(x, x[kept], curve[kept])
  return minorant


def distance_of_gaussian(mixture: Mixture) -> float | None:
  """Returns the distance of a mechanism that is Gaussian and samples nobody.

  Args:
    mixture: The mechanisms of which it is one, with their probabilities.

  Returns:
    mu, the distance of the means over the noise; None of any other mechanism.
  """
  (_, pair), *others = mixture
  if others or not isinstance(pair, SampledGaussian) or pair.probability < 1.0:
    return None
  return pair.distance


def largest_loss(mixture: Mixture, beyond: float) -> float:
  """Returns a loss that a round exceeds with a probability of at most `beyond`.

  Args:
    mixture: The mechanisms of which the round is one, with their probabilities.
    beyond: A probability, in (0, 1).

  Returns:
    The loss, a natural logarithm.
  """
  return max(pair.largest_loss(beyond) for _, pair in mixture)


def losses_of_round(
  mixture: Mixture, interval: float, beyond: float = 1e-21
) -> tuple[composition.Losses, ...]:
  """Returns the privacy losses of one round, rounded upwards to multiples of `interval`.

  Args:
    mixture: The mechanisms of which the round is one, with their probabilities.
    interval: The step of the grid, positive.
    beyond: Losses that are exceeded with this probability count as infinite.

  Returns:
    The losses if the data are P's, and if they are Q's; once if they are equal.

  Raises:
    ValueError: If the grid would have millions of points.
  """
  num_points = max(2, math.ceil(largest_loss(mixture, beyond) / interval))
  if num_points * len(mixture) > _MOST_POINTS:
    raise ValueError(
      f"Found {num_points} privacy losses at intervals of {interval:.3g}; expected more noise, or"
      " accounting by 'rdp'."
    )
  epsilon = interval * np.arange(num_points + 1)
  curves = np.zeros([2, num_points + 1])
  for weight, pair in mixture:
    curves += weight * np.stack(pair.divergences(epsilon, beyond))
  # Both directions have the same total variation, H at 1; the bounds may differ.
  curves[:, 0] = np.max(curves[:, 0])
  curves = np.stack([_convex_minorant(curve, interval) for curve in curves])

  def losses(curve: np.ndarray, other: np.ndarray) -> composition.Losses:
    positive = _masses(curve, interval)
    # P has the mass e^l Q at a loss of l; Q's at -l are those of the other direction.
    negative = (_masses(other, interval) * np.exp(-epsilon[1:]))[::-1]
    infinity = float(curve[-1])
    at_zero = max(0.0, 1.0 - infinity - positive.sum() - negative.sum())
    masses = np.concatenate([negative, [at_zero], positive])
    return composition.Losses(interval, masses, infinity)

  if np.array_equal(*curves):
    return (losses(*curves),)
  return losses(*curves), losses(*curves[::-1])
