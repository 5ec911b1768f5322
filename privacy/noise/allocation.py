"""Privacy losses of random allocation: one secret round of a block of Gaussian mechanisms.

The mechanism. A block has t rounds. A client takes part in round J of it, uniform, secret and
independent of all else, and all rounds release sums with Gaussian noise. The adversary has seen the
first r <= t rounds of the block. Let mu be the most by which the client's data move a round, over
the noise.

Theorem 1 (Feldman and Shenfeld 2025, "Privacy amplification by random allocation", 2502.08202; for
balls and bins Chua et al. 2024). Against removing the client's data, or the client, the block
is dominated by P, the law of z + mu e_J (z where J > r), and O, the law of z, z standard normal in
R^r.

Proof. Fix the rounds of all others: the hockey-stick divergence H is jointly convex. Round i
releases x + v 1[J = i] plus noise, where x and v, |v| <= mu, follow from the releases before it.
With y from P or from O, x + (v / mu) y_i plus independent normal noise of covariance 1 - v v' /
mu^2 has the same law given these, whether J = i or not. So the view is a post-processing of y, made
round by round. QED. It holds for several releases a round, each of which may depend on earlier
ones.

Its losses. With W_i = exp(mu z_i - mu^2 / 2), log-normal of mean 1 under O,

    dP / dO = A = (W_1 + ... + W_r + t - r) / t,
    H_a(P || O) = E_O[(A - a)+],    H_a(O || P) = E_O[(1 - a A)+].

Both are means of convex functions of A. So any law of A that is larger in convex order bounds BOTH
directions from above. W is put on a grid by splitting the mass within each cell between its ends
so that the mean stays, sums of independent variables keep the order, and each sum is put on a grid
in the same way. Sums of 2 n are those of n twice. Grids are geometric: on values e^(h i), the place
of a sum of two relative to the larger one depends on their distance alone. Mass below a grid is
lifted to its end, which costs H_a(O || P) at most its probability; mass above is lowered, which
costs H_a(P || O) at most the mean of what is lost. Both are added (`Law.lifted`, `Law.lowered`).

Theorem 2. k of T rounds, drawn uniformly, cost no more than the composition of k blocks whose
lengths differ by one at most and have the sum T. Proof (ibid.). Divide the rounds at random into
sets of these sizes, and draw one round of each: by symmetry, any k rounds are equally likely. Given
the sets, each is a block, and H is jointly convex. QED. So blocks in the order of time cost what is
proven for a uniform draw, and each prefix of a run is accounted for.

Theorem 3. If the client's data are replaced, let Q be the other world. For all a, b > 0,

    H_(a b)(P || Q) <= H_a(P || O) + a H_b(O || Q),

as P(E) - a b Q(E) = (P(E) - a O(E)) + a (O(E) - b Q(E)). Both terms are those of theorem 1; the
best a counts. By joint convexity whoever knows J loses at most what a Gaussian costs in r / t of
the cases, which bounds both relations, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from privacy.noise import dominating_pairs

# The points of a law's grid: it is refined when a law has half as many.
_POINTS = 2048
# Steps of the logarithm, over that of the noise, of what is added once to a sum of several.
_COARSE = 0.05
# Outside of these a sum of W is out of reach of double precision, and knowing J costs the bound.
_LEAST_DISTANCE, _MOST_DISTANCE = 1e-4, 10.0


@dataclasses.dataclass(frozen=True)
class Law:
  """A law of a sum of W that is larger in convex order, but for what `lifted` and `lowered` cost.

  Attributes:
    first: The exponent i of the least value e^(h i).
    step: h.
    masses: The probabilities of e^(h first), e^(h (first + 1)), ..., float [n].
    lifted: The probability of mass that was lifted, over all summands.
    lowered: The mean of what was lost as mass was lowered, over all summands.
  """

  first: int
  step: float
  masses: np.ndarray
  lifted: float = 0.0
  lowered: float = 0.0

  @property
  def values(self) -> np.ndarray:
    """The values, float [n]."""
    exponents = self.step * (self.first + np.arange(len(self.masses)))
    values: np.ndarray = np.exp(exponents)
    return values

  def refined(self) -> Law:
    """Returns the same on a grid of half the steps."""
    masses = np.zeros(2 * len(self.masses) - 1)
    masses[::2] = self.masses
    return dataclasses.replace(self, first=2 * self.first, step=self.step / 2.0, masses=masses)

  def excess(self) -> np.ndarray:
    """Returns E[(S - x)+] at the values x, without differences, float [n]."""
    above = np.cumsum(self.masses[:0:-1])[::-1]
    means = np.cumsum((np.diff(self.values) * above)[::-1])[::-1]
    return np.append(means, 0.0)

  def lack(self) -> np.ndarray:
    """Returns E[(x - S)+] at the values x, without differences, float [n]."""
    below = np.cumsum(self.masses[:-1])
    return np.append(0.0, np.cumsum(np.diff(self.values) * below))

  def trimmed(self, summed: int, number: int, budget: float) -> Law:
    """Returns the law, of so many of a number of summands, without the ends that matter to nobody.

    `budget` bounds what that adds to `lifted` of all of them, and to `lowered` over their number.
    """
    below, times = np.cumsum(self.masses), number / summed
    first = int(np.searchsorted(below, budget / times, side="right"))
    excess = self.excess()
    last = int(np.argmax(excess <= budget * summed))
    masses = self.masses[first : last + 1].copy()
    masses[-1] += self.masses[last + 1 :].sum()
    lifted = float(below[first - 1]) if first else 0.0
    masses[0] += lifted
    return Law(
      self.first + first,
      self.step,
      masses,
      self.lifted + times * lifted,
      self.lowered + times * float(excess[last]),
    )


def _shares(places: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns the lower points of places on a grid, and the upper ones' shares that keep the mean."""
  lower = np.floor(places)
  upper = np.expm1(step * (places - lower)) / math.expm1(step)
  return lower.astype(int), upper


def _on_grid(values: np.ndarray, masses: np.ndarray, step: float) -> Law:
  """Returns the law of some values on a grid."""
  lower, upper = _shares(np.log(values) / step, step)
  first = int(lower.min())
  lower -= first
  size = int(lower.max()) + 2
  split = np.bincount(lower, masses * (1.0 - upper), size)
  split += np.bincount(lower + 1, masses * upper, size)
  return Law(first, step, split)


def _lognormal(distance: float, beyond: float) -> Law:
  """Returns the law of W, whose ends have the probability `beyond`, also if tilted by W."""
  room = distance * float(-special.ndtri(beyond))
  step = (distance * distance + 2.0 * room) / _POINTS
  first = math.floor(-(distance * distance / 2.0 + room) / step)
  edges = step * np.arange(first, -first + 1)
  normal = edges / distance + distance / 2.0  # Those of the normal variable, under O.

  def probabilities(ends: np.ndarray) -> np.ndarray:
    """Returns the probabilities of cells, of the tail on which they are small."""
    side = np.where(ends[:-1] > 0.0, -1.0, 1.0)
    cells: np.ndarray = np.abs(special.ndtr(side * ends[1:]) - special.ndtr(side * ends[:-1]))
    return cells

  cells, means = probabilities(normal), probabilities(normal - distance)
  values = np.exp(edges)
  upper = np.clip((means - values[:-1] * cells) / np.diff(values), 0.0, cells)
  masses = np.append(cells - upper, 0.0)
  masses[1:] += upper
  below, above = float(special.ndtr(normal[0])), float(special.ndtr(-normal[-1]))
  masses[0] += below
  masses[-1] += above
  return Law(first, step, masses, below, float(special.ndtr(distance - normal[-1])))


def _doubled(law: Law) -> np.ndarray:
  """Returns the masses of the sum of two of a law, on the same grid from the same exponent."""
  masses, step, size = law.masses, law.step, len(law.masses)
  # The sum of e^(h (i - d)) and e^(h i) is at e^(h (i + place)), place = log(1 + e^(-h d)) / h.
  lower, upper = _shares(np.log1p(np.exp(-step * np.arange(size))) / step, step)
  sums = np.zeros(size + int(lower[0]) + 1)
  for apart in range(size):
    both = masses[apart:] * masses[: size - apart]
    if apart:
      both *= 2.0
    start, end = apart + lower[apart], size + lower[apart]
    above = both * upper[apart]
    sums[start:end] += both - above
    sums[start + 1 : end + 1] += above
  return sums


def _added(law: Law, other: Law) -> Law:
  """Returns the law of the sum of two of different laws, on the grid of the first."""
  values = np.add.outer(law.values, other.values).ravel()
  return _on_grid(values, np.outer(law.masses, other.masses).ravel(), law.step)


@functools.lru_cache(maxsize=64)
def law_of_sum(distance: float, number: int, beyond: float) -> Law:
  """Returns a law of W_1 + ... + W_r that is larger in convex order.

  Args:
    distance: mu.
    number: r, at least 1.
    beyond: What `lifted`, and `lowered` over r, may be.

  Returns:
    The law; its mean is r up to `lowered`.
  """
  bits = bin(number)[3:]
  single = _lognormal(distance, beyond / (4.0 * number))
  coarse = max(1, math.floor(_COARSE * min(1.0, distance) / single.step))
  few = _on_grid(single.values, single.masses, coarse * single.step)
  # Each of r has its part of the ends.
  law = dataclasses.replace(single, lifted=number * single.lifted, lowered=number * single.lowered)
  budget = beyond / (4.0 * max(1, 2 * len(bits)))
  summed = 1
  for bit in bits:
    while len(law.masses) <= _POINTS // 2 + 8:
      law = law.refined()
    law, summed = dataclasses.replace(law, masses=_doubled(law)), 2 * summed
    law = law.trimmed(summed, number, budget)
    if bit == "1":
      both = _added(law, few if summed > 2 else single)
      law = dataclasses.replace(both, lifted=law.lifted, lowered=law.lowered)
      summed += 1
      law = law.trimmed(summed, number, budget)
  return law


@dataclasses.dataclass(frozen=True)
class AllocatedGaussian:
  """Gaussian mechanisms of a block of rounds, in one of which a client's data count."""

  length: int  # t, the rounds of the block.
  seen: int  # r, those that were released.
  removed: float  # mu between a client's data and none.
  replaced: float  # mu between the data of two clients; not less than `removed`.
  # Whether the neighbouring data set has other data of the client, instead of none.
  replace_one: bool = False

  @property
  def distance(self) -> float:
    """mu between both data sets in the round in which the client's data count."""
    return self.replaced if self.replace_one else self.removed

  @property
  def _known(self) -> dominating_pairs.SampledGaussian:
    """The round by itself, for whoever knows which it is."""
    return dominating_pairs.SampledGaussian(
      1.0, self.removed, self.replaced, replace_one=self.replace_one
    )

  def _law(self, beyond: float) -> Law | None:
    """Returns the law of t A - (t - r); None where only knowing the round gives a bound."""
    if not _LEAST_DISTANCE <= self.removed <= _MOST_DISTANCE:
      return None
    # What is lifted counts e^epsilon times if data are replaced.
    share = 1e-4 if self.replace_one else 1.0
    # Searches ask for slightly different ones, for which one law is enough.
    least = 10.0 ** math.floor(math.log10(share * beyond))
    return law_of_sum(self.removed, self.seen, least)

  def largest_loss(self, beyond: float) -> float:
    """Returns a loss that the block exceeds with a probability of at most `beyond`."""
    known, law = self._known.largest_loss(beyond), self._law(beyond)
    if law is None:
      return known
    rest = self.length - self.seen
    ends = np.log((law.values[[-1, 0]] + rest) / self.length)
    loss = float(ends[0] - ends[1]) if self.replace_one else float(np.abs(ends).max())
    return min(known, loss)

  def divergences(self, epsilon: np.ndarray, beyond: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds the hockey-stick divergences of the block at epsilon >= 0, float [n], both ways.

    They are H_(e^epsilon)(P || Q) with the client's data in P, and H_(e^epsilon)(Q || P); a
    probability of about `beyond` may be added to them.
    """
    known, _ = self._known.divergences(epsilon, beyond)
    known, law = self.seen / self.length * known, self._law(beyond)
    if law is None:
      return known, known
    if not self.replace_one:
      forward, backward = self._removed(law, epsilon)
      return np.minimum(forward, known), np.minimum(backward, known)
    # The best a has Pr[A > a] = Pr[A < a e^-epsilon]; any other gives a bound, too.
    values = (law.values + self.length - self.seen) / self.length
    below = np.cumsum(law.masses)
    counter = np.searchsorted(below, np.cumsum(law.masses[::-1])[::-1])
    logs = np.log(values)
    losses = logs - logs[np.minimum(counter, len(logs) - 1)]
    tilts = np.clip(np.interp(epsilon, losses, logs), 0.0, epsilon)
    forward, backward = self._removed(law, tilts)[0], self._removed(law, epsilon - tilts)[1]
    both = np.minimum(forward + np.exp(tilts) * backward, known)
    return both, both

  def _removed(self, law: Law, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns E[(A - e^epsilon)+] and E[(1 - e^epsilon A)+], with what the law lacks."""
    values, rest = law.values, self.length - self.seen
    growth = np.exp(np.minimum(epsilon, 700.0))
    excess, lack = law.excess(), law.lack()

    def bound(ends: np.ndarray, means: np.ndarray, side: int, lost: float) -> np.ndarray:
      """Interpolates means at multiples of A, linear between values and outside of them."""
      at = self.length * ends - rest
      outside = np.maximum((values[side] - at) * (1.0 if side == 0 else -1.0), 0.0)
      interpolated: np.ndarray = np.interp(at, values, means) + outside
      return interpolated / self.length + lost

    forward = bound(growth, excess, 0, law.lowered / self.length)
    backward = growth * bound(1.0 / growth, lack, -1, 0.0) + law.lifted
    return forward, backward
