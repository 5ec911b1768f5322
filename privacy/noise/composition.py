"""Composes privacy losses: the least epsilon of all rounds for a delta, as an upper bound.

A round's losses l are multiples of h, with probabilities p(l) and the rest at infinity. With p_T
the law of the sum of T of them,

    delta(epsilon) = Pr[infinity in T rounds] + sum_{l > epsilon} (1 - e^(epsilon - l)) p_T(l).

A Fourier transform errs by about T u everywhere, u = 2^-53, which is more than a small delta. So
the losses are tilted by theta > 0, until epsilon is a likely sum of T of them:

    q(l) = p(l) e^(theta l - K),    K(theta) = log sum_l p(l) e^(theta l),
    p_T(l) = q_T(l) e^(T K - theta l).

Every theta gives a bound. The one chosen minimizes that of Chernoff,

    delta(epsilon) <= e^(T K - theta epsilon) max_x (1 - e^-x) e^(-theta x),

whose maximum is theta^theta / (1 + theta)^(1 + theta). Three terms make up for what is left out:

- Sums outside of the window. Sums are computed modulo N steps. By Chernoff's bound q_T has at most
  `_OUTSIDE` outside of a window of N sums. The transform folds that into the window, which only
  adds there. Where it belongs, it adds at most e^(T K - theta epsilon) `_OUTSIDE` to delta.
- Rounding in transforms. N is a power of two. Every output of a transform is a sum of the inputs,
  of which each passes log2 N additions, which err by u, and at most as many products with roots of
  unity, which err by (sqrt(5) + 2) u. So it errs by at most 8 u log2 N times the sum of the inputs'
  magnitudes. The loss 0 is left out, so that this sum is s = 1 - q(0): of rounds that tell next to
  nothing the transform is f = 1 + w with |w| <= 2 s, and w is known to within s 8 u log2 N. f^T is
  exp(T log f), with |f|^2 = 1 + x, x = Re w (2 + Re w) + (Im w)^2. Where s <= 1/4, x and log f are
  known to within s 128 u; elsewhere s is replaced by 1, and x is, too. By the mean value theorem
  f^T errs by at most T e (|f|^2 + 4 e)^((T - 2) / 2), e = s u (128 + 8 log2 N), and the transform
  back, which divides by N, by at most

      eta = (T e + e / s) S / N,    S = sum_k (|f_k|^2 + 4 e)^((T - 2) / 2),

  everywhere. It is added to each q_T(l). As S / N is about the largest q_T(l), it matters little.
  Of several runs i, whose rounds are of one kind each, the transforms multiply, and so do their
  bounds: the sum over i of T_i e_i (|f_i|^2 + 4 e_i)^((T_i - 2) / 2) times those of the other runs,
  (|f_j|^2 + 4 e_j)^(T_j / 2). A round by itself enters as f, which errs by e.
- Rounding of probabilities. If q(l) errs by a factor of 1 + rho at most, q_T(l) errs by e^(T rho):
  rho = u (64 + max |log p| + theta max |l| + |K|), for exponents and sums. p follows from a round's
  divergences, which err by less than 1e-10 of themselves, as does e^K - 1, their weighted sum, and
  so T K. Sums of N positive numbers err by a factor of 1 + 4 N u. All is taken from delta.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import fft
from scipy import signal

# The tilted probability of the sums outside of the window.
_OUTSIDE = 1e-15
# The sums of a run are computed at no more points than these.
_MOST_POINTS = 2**21
# A tilt that changes more in one step only magnifies the terms for what is left out.
_LARGEST_TILT = 1.0
_UNIT = 2.0**-53


class Sums(NamedTuple):
  """The tilted law of the sum of T losses.

  Attributes:
    first: The least sum of the window, in steps of the grid.
    masses: q_T as computed, of the sums first, first + 1, ... in steps, float [N].
    error: eta, by which each of them may err.
  """

  first: int
  masses: np.ndarray
  error: float


class Transform(NamedTuple):
  """The Fourier transform of one round's tilted losses.

  Attributes:
    less_one: w = f - 1, of half of the frequencies.
    error: e, by which each of them may err.
  """

  less_one: np.ndarray
  error: float


def _relative_error(num_points: int) -> float:
  """Returns what a transform errs by, over the sum of its inputs' magnitudes."""
  return _UNIT * (128.0 + 8.0 * math.log2(num_points))


class Losses:
  """The privacy losses of one round, in one direction.

  Attributes:
    interval: h, the distance between losses.
    masses: The probabilities of the losses -n h, ..., n h, float [2 n + 1].
    infinity: The probability of an infinite loss.
    steps: The losses of positive probability, in steps of h.
  """

  def __init__(self, interval: float, masses: np.ndarray, infinity: float):
    self.interval, self.masses, self.infinity = interval, masses, infinity
    (places,) = np.nonzero(masses)
    self.steps = places - len(masses) // 2
    self._losses = interval * self.steps
    self._log_masses = np.log(masses[places])

  @property
  def total_variation(self) -> float:
    """The delta of one round for epsilon = 0."""
    return self.infinity + float(
      np.exp(self._log_masses) @ -np.expm1(-np.maximum(self._losses, 0.0))
    )

  def tilted(self, theta: float) -> tuple[float, np.ndarray]:
    """Returns K(theta) and q, of the losses of positive probability."""
    exponents = self._log_masses + theta * self._losses
    largest = float(exponents.max())
    masses = np.exp(exponents - largest)
    total = float(masses.sum())
    return largest + math.log(total), masses / total

  def moments(self, masses: np.ndarray) -> tuple[float, float]:
    """Returns mean and variance of a loss."""
    mean = float(masses @ self._losses)
    return mean, float(masses @ (self._losses - mean) ** 2)

  def rounding(self, theta: float) -> float:
    """Returns rho."""
    exponents = np.abs(self._log_masses).max() + theta * np.abs(self._losses).max()
    return _UNIT * (64.0 + float(exponents) + abs(self.tilted(theta)[0]))

  def transform(self, theta: float, num_points: int) -> Transform:
    """Returns the Fourier transform of q at so many points."""
    masses = np.where(self.steps == 0, 0.0, self.tilted(theta)[1])
    share = float(masses.sum())
    frequencies = fft.rfft(np.bincount(self.steps % num_points, masses, num_points))
    error = _relative_error(num_points) * (share if share <= 0.25 else 1.0)
    return Transform(frequencies - share, error)


class Composition:
  """The sum of the privacy losses of several runs, in one direction.

  Attributes:
    runs: The losses of a round of each, on one grid, and its number of rounds, at least 1.
  """

  def __init__(self, *runs: tuple[Losses, int]):
    self.runs, self.interval = runs, runs[0][0].interval

  @property
  def num_rounds(self) -> int:
    """The number of rounds of all runs."""
    return sum(num_rounds for _, num_rounds in self.runs)

  @property
  def total_variation(self) -> float:
    """A bound on the delta of all rounds for epsilon = 0."""
    return sum(num_rounds * losses.total_variation for losses, num_rounds in self.runs)

  def _log_moment(self, theta: float) -> float:
    return sum(num_rounds * losses.tilted(theta)[0] for losses, num_rounds in self.runs)

  def _tilted(self, theta: float) -> tuple[float, float, float]:
    """Returns K, mean and variance of the sum of all losses."""
    sums = np.zeros(3)
    for losses, num_rounds in self.runs:
      log_moment, masses = losses.tilted(theta)
      sums += num_rounds * np.array([log_moment, *losses.moments(masses)])
    log_moment, mean, variance = map(float, sums)
    return log_moment, mean, variance

  def _rounding(self, theta: float) -> float:
    return sum(num_rounds * losses.rounding(theta) for losses, num_rounds in self.runs)

  def _rest(self, delta: float) -> float:
    """Returns delta without the probability of an infinite loss."""
    finite = sum(num_rounds * math.log1p(-losses.infinity) for losses, num_rounds in self.runs)
    return delta + math.expm1(finite)

  def chernoff(self, delta: float) -> tuple[float, float]:
    """Returns the best tilt and Chernoff's bound on epsilon, infinite for a delta out of reach."""
    rest = self._rest(delta)
    if rest <= 0.0:
      return 1.0, math.inf
    # The bound is least where T (theta K' - K) + log(1 + theta) = log(1 / delta). The left side
    # grows with theta. Newton's method is quick between the logarithms of both sides.
    target = -math.log(rest)
    low, high = 1e-9, _LARGEST_TILT / self.interval
    theta = math.sqrt(2.0 * target / max(self._tilted(0.0)[2], 1e-300))
    while True:
      theta = min(max(theta, low), high)
      log_moment, mean, variance = self._tilted(theta)
      exponent = max(theta * mean - log_moment + math.log1p(theta), 1e-300)
      low, high = (low, theta) if exponent > target else (theta, high)
      slope = theta * (theta * variance + 1.0 / (1.0 + theta)) / exponent
      step = math.log(target / exponent) / slope
      if abs(step) < 1e-3 or high < 1.001 * low:
        break
      following = theta * math.exp(min(max(step, -3.0), 3.0))
      theta = following if low < following < high else math.sqrt(low * high)
    target += self._rounding(theta) - theta * math.log1p(1.0 / theta) - math.log1p(theta)
    return theta, (log_moment + target) / theta

  def compose(self, theta: float) -> Sums:
    """Returns the tilted law of the sum of all losses, but for `_OUTSIDE`, or refuses."""
    log_moment, _, variance = self._tilted(theta)
    room = math.log(2.0 / _OUTSIDE) + self._rounding(theta)
    # The best one for a normal variable.
    order = math.sqrt(2.0 * room / max(variance, self.interval**2))
    first, last = (
      sum(num_rounds * int(losses.steps[end]) for losses, num_rounds in self.runs)
      for end in (0, -1)
    )
    for s in (order, order / 3.0, order / 9.0):
      above, below = (
        math.ceil((self._log_moment(theta + t) - log_moment + room) / s / self.interval)
        for t in (s, -s)
      )
      first, last = max(first, -below), min(last, above)
    num_points = 1 << max(1, (last - first).bit_length())
    if num_points > _MOST_POINTS:
      raise ValueError(
        f"Found sums of {self.num_rounds} privacy losses at {num_points} points; expected at most"
        f" {_MOST_POINTS}: a coarser grid has fewer."
      )
    if self.num_rounds == 1:
      losses = self.runs[0][0]
      sums, error = np.bincount(losses.steps % num_points, losses.tilted(theta)[1], num_points), 0.0
    else:
      sums, error = self._convolve(theta, num_points)
    return Sums(first, np.roll(sums, -(first % num_points)), error)

  def _convolve(self, theta: float, num_points: int) -> tuple[np.ndarray, float]:
    """Returns the sums modulo so many steps, and eta."""
    product: np.ndarray = np.ones(num_points // 2 + 1, complex)
    bound, of_runs = np.zeros(len(product)), []  # Of logarithms.
    for losses, num_rounds in self.runs:
      w, error = losses.transform(theta, num_points)
      squares = np.maximum(w.real * (2.0 + w.real) + w.imag * w.imag, -1.0)  # |f|^2 - 1.
      with np.errstate(divide="ignore", under="ignore"):
        powers = 1.0 + w
        if num_rounds > 1:
          angles = num_rounds * np.arctan2(w.imag, powers.real)
          sizes = np.exp(0.5 * num_rounds * np.log1p(squares))
          powers = sizes * (np.cos(angles) + 1j * np.sin(angles))
        size = 0.5 * np.log1p(squares + 4.0 * error)
      product *= powers
      bound += num_rounds * size
      of_runs.append((num_rounds * error, min(num_rounds, 2) * size))
    with np.errstate(under="ignore"):
      sums = fft.irfft(product, num_points)
      totals = [float(np.exp(bound - own).sum()) for _, own in of_runs]
    # Nearly every frequency stands for two.
    total = sum(error * size for (error, _), size in zip(of_runs, totals))
    total += _relative_error(num_points) * max(totals)
    return sums, total * 2.0 / num_points

  def epsilon(self, delta: float, theta: float | None = None) -> float:
    """Returns an upper bound on epsilon at a tilt theta, None for the best.

    It is infinite if delta is not above the probability of an infinite loss. Too many points are a
    `ValueError`.
    """
    bound = math.inf
    if theta is None:
      theta, bound = self.chernoff(delta)
      if not 0.0 < bound < math.inf:
        return max(0.0, bound)
    rest = self._rest(delta)
    first, masses, error = self.compose(theta)
    epsilons = self.interval * (first + np.arange(len(masses)))
    centre = epsilons[len(epsilons) // 2]
    # All that follows is over this factor.
    moment = self._log_moment(theta)
    factor = moment - theta * centre
    rounding = self._rounding(theta) + 4.0 * _UNIT * len(masses) + 1e-10 * abs(moment)
    # An infinite weight of no mass makes what is no number, and fits nothing.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
      weights = np.exp(-theta * (epsilons - centre))
      target = math.exp(min(700.0, math.log(rest) - factor - rounding)) - _OUTSIDE * weights
      above = np.cumsum((weights * (np.maximum(masses, 0.0) + error))[::-1])
      # delta(eps) = e^-h delta(eps + h) + (1 - e^-h) Pr[l > eps], without differences.
      steps = -math.expm1(-self.interval) * np.append(0.0, above[:-1])
      deltas = signal.lfilter([1.0], [1.0, -math.exp(-self.interval)], steps)[::-1]
    fits = deltas <= target
    if not fits.any():
      return bound
    i = int(fits.argmax())
    if i == 0 or epsilons[i] <= 0.0:
      return max(0.0, float(epsilons[i]))
    # Between two points of the grid delta is linear in e^eps.
    share = 1.0
    if deltas[i] < deltas[i - 1] < math.inf:
      share = min(1.0, (deltas[i - 1] - target[i - 1]) / (deltas[i - 1] - deltas[i]))
    return max(0.0, float(epsilons[i - 1] + math.log1p(share * math.expm1(self.interval))))
