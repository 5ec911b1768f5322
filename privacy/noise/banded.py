"""Gaussian noise that is correlated over rounds, whose budget needs no secret cohorts.

The mechanism (a matrix mechanism, DP-FTRL). Round t of T adds up the contributions of its clients,
x_t, and releases x_t + (C^-1 z)_t, where z_t are independent N(0, (Delta z)^2) in each coordinate
and C is a lower triangular T x T matrix with b bands whose entries depend on the distance to the
diagonal alone, C_ij = c_(i-j) (Toeplitz). Later noise cancels earlier noise, so that the running
sums, with which a model moves, have little: their noise is A C^-1 z with A_ij = 1 for i >= j.

Guarantee. Neighbours differ in the contributions of one client, by vectors g_t of norm at most 1
in the rounds in which it takes part, and by 0 in others. Everybody may know the rounds: there are
at most k, any two at least s apart, and their choice does not depend on data that neighbours do not
share. All releases follow from y = C x + z, as C^-1 is lower triangular. y has noise of standard
deviation Delta z in each coordinate, and Delta is the largest Frobenius norm of C g. So the run is
the Gaussian mechanism of noise multiplier z: epsilon is that of one release, without composition
and without amplification by sampling.

Adaptive streams. A round's contributions depend on the releases before it, and the same Delta is
enough (Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
Operators on Adaptive Streams", theorem 2.1). Sketch: fix the releases y_1 ... y_(t-1). They fix the
contributions of both neighbours up to round t, so that y_t has the laws N(a, v) and N(a + d_t, v)
with d_t = (C g)_t, since row t of C reads no later round. Whatever the releases, sum_t |d_t|^2 <=
Delta^2, since g obeys the schema on each path. The log of the likelihood ratio thus is a Gaussian
random walk whose quadratic variation never passes 1 / z^2; filled up to it with a step that depends
on no data, it has the law N(1 / (2 z^2), 1 / z^2), which is that of one Gaussian mechanism. A
round may release one number before another, such as a threshold before updates: the same holds.

Joint vectors. What a round releases (the sum of updates, a threshold's bits, the bits of the clip
norm) is one vector, each part over its own sensitivity times the root of its share of the budget,
so that a client's norm is 1 (`releases.Release.with_noise`). If its data are replaced, g is the
difference of two such vectors: its norm is that of the parts' factors, 2 for updates.

The sensitivity. |C g|^2 = sum_jl G_jl <g_j, g_l> <= sum_jl |G_jl| over the client's rounds, where
G = C' C, G_jl = sum_(t < T - l) c_t c_(t + l - j) for j <= l. For b <= s only G_jj count, and they
fall with j. If c is not negative and does not increase, G_jl falls with l, and with l - j. Either
way the rounds 0, s, 2 s, ... are the worst: the j-th of a client's rounds is no earlier than j s,
and the distances are no smaller. For all other c, `sensitivity` is an upper bound.
"""

from collections.abc import Sequence
import dataclasses
from typing import TypeAlias

import dp_accounting
import numpy as np
from scipy import optimize
from scipy import signal

from privacy import checks

Coefficients: TypeAlias = np.ndarray | Sequence[float]
# Those of noise that is independent between rounds.
INDEPENDENT = (1.0,)

# Relative tolerance of the logarithm of the squared error, and the most steps, of `optimal`.
_TOLERANCE = 1e-11
_MOST_STEPS = 2000
_MOST_BANDS = 1000  # Over 20,000 rounds those of 2,000 take more than a minute.


@dataclasses.dataclass(frozen=True)
class Participation:
  """The rounds in which a client may take part."""

  num_rounds: int  # T.
  separation: int  # s, the least distance of two rounds of a client; 1 allows all rounds.
  most: int | None = None  # k, the most rounds of a client; None for as many as fit.

  def __post_init__(self) -> None:
    num_rounds = checks.whole("num_rounds", self.num_rounds, 1)
    separation = checks.whole("separation", self.separation, 1)
    fit = -(-num_rounds // separation)
    most = fit if self.most is None else checks.whole("participations", self.most, 1)
    object.__setattr__(self, "num_rounds", num_rounds)
    object.__setattr__(self, "separation", separation)
    object.__setattr__(self, "most", min(most, fit))

  def bands(self, asked: int | None = None) -> int:
    """Returns the number of bands of a run: b."""
    most = min(self.num_rounds, _MOST_BANDS)
    if asked is None:
      return min(self.separation, most)
    if not 1 <= asked <= most:
      raise ValueError(
        f"Found --bands={asked} with {self.num_rounds} rounds; expected 1 to {most}."
      )
    return asked

  @property
  def earliest(self) -> np.ndarray:
    """The earliest rounds of a client, s apart: 1 in these and 0 in others, shape (T,)."""
    turns = np.zeros(self.num_rounds)
    turns[:: self.separation][: self.most] = 1.0
    return turns


def _checked(coefficients: Coefficients, num_rounds: int) -> np.ndarray:
  """Returns c as floats, or raises a ValueError."""
  vector = np.asarray(coefficients, float)
  if vector.ndim != 1 or not 1 <= vector.size <= num_rounds:
    raise ValueError(
      f"Found coefficients of shape {vector.shape}; expected a vector of 1 to {num_rounds} numbers,"
      " one a band and no more bands than rounds."
    )
  if not np.isfinite(vector).all() or vector[0] <= 0.0:
    raise ValueError(
      f"Found coefficients that begin with {vector[0]:g} or are not all finite; expected finite"
      " ones, the first of them positive."
    )
  return vector


def square_root(bands: int) -> np.ndarray:
  """Returns c_j = binom(2 j, j) / 4^j, shape (b,), of the root of A: C C = A if b = T."""
  j = np.arange(1, checks.whole("bands", bands, 1))
  return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def checked(coefficients: Coefficients) -> tuple[float, ...]:
  """Returns coefficients as floats, the first of which is 1, of any number of rounds."""
  vector = _checked(coefficients, max(1, np.size(coefficients)))
  if vector[0] != 1.0:
    raise ValueError(f"Found coefficients that begin with {vector[0]:g}; expected 1.")
  return tuple(map(float, vector))


def is_exact(coefficients: Coefficients, separation: int) -> bool:
  """Returns whether `sensitivity` is exact and no mere upper bound."""
  falling = bool((np.diff(coefficients) <= 0.0).all() and coefficients[-1] >= 0.0)
  return len(coefficients) <= separation or falling


def sensitivity(coefficients: Coefficients, participation: Participation) -> float:
  """Returns the largest norm of C g for contributions of norm 1 a round, when a client is removed.

  It is sqrt(k) |c| if `is_exact`, and otherwise the upper bound (k r_0 + 2 sum_(l < k) (k - l)
  max_(d >= l s) r_d)^(1/2) with r_d = sum_t |c_t c_(t + d)|.
  """
  c = _checked(coefficients, participation.num_rounds)
  if is_exact(c, participation.separation):
    return float(np.linalg.norm(signal.lfilter(c, [1.0], participation.earliest)))
  products = signal.correlate(np.abs(c), np.abs(c))[c.size - 1 :]
  largest = np.maximum.accumulate(products[::-1])[::-1][:: participation.separation]
  most = int(participation.earliest.sum())
  pairs = most - np.arange(min(most, largest.size))
  return float(np.sqrt(2.0 * pairs @ largest[: pairs.size] - most * largest[0]))


def reach(coefficients: Coefficients, separation: int) -> float:
  """Returns a bound on |(C g)_t| in any round t, for contributions of norm 1 a round.

  It is sum_i max_(d >= i s) |c_d|, which is 1 if b <= s and c does not increase from c_0 = 1.
  """
  largest = np.maximum.accumulate(np.abs(coefficients)[::-1])[::-1]
  return float(largest[::separation].sum())


def tracking_variance(coefficients: Coefficients, gain: float) -> float:
  """Returns the variance of e_t = (1 - g) e_(t-1) + g n_t, n = C^-1 z, for large t and gain g.

  z has variance 1. For independent noise it is g / (2 - g).
  """
  impulse = np.eye(1, len(coefficients) + round(40.0 / gain))[0]
  noise = signal.lfilter([1.0], coefficients, impulse)
  return float(np.sum(signal.lfilter([gain], [1.0, gain - 1.0], noise) ** 2))


def error(coefficients: Coefficients, num_rounds: int) -> float:
  """Returns the RMS over rounds of the running sums' noise, for z of standard deviation 1."""
  w = signal.lfilter([1.0], _checked(coefficients, num_rounds), np.ones(num_rounds))
  return float(np.sqrt((1.0 - np.arange(num_rounds) / num_rounds) @ np.square(w)))


def relative_error(coefficients: Coefficients, num_rounds: int) -> float:
  """Returns `error` over that of independent noise of the same size."""
  return error(coefficients, num_rounds) / error(INDEPENDENT, num_rounds)


def _log_loss(c: np.ndarray, participation: Participation) -> tuple[float, np.ndarray]:
  """Returns log(Delta^2 error^2) for the worst rounds, and its gradient by c."""
  num_rounds, b = participation.num_rounds, c.size
  weights = 1.0 - np.arange(num_rounds) / num_rounds
  inverse = signal.lfilter([1.0], c, np.eye(1, num_rounds)[0])
  w = np.cumsum(inverse)  # A C^-1, a Toeplitz matrix with dw = -C^-1 (dc) w.
  squared_error = weights @ np.square(w)
  slopes = signal.fftconvolve(w, inverse)[:num_rounds]
  of_error = -2.0 * signal.fftconvolve(weights * w, slopes[::-1])[num_rounds - 1 :][:b]
  image = signal.lfilter(c, [1.0], participation.earliest)
  rounds = np.flatnonzero(participation.earliest)
  padded = np.append(image, np.zeros(b))
  of_norm = 2.0 * sum(padded[t : t + b] for t in rounds)
  squared_norm = image @ image
  value = float(np.log(squared_norm) + np.log(squared_error))
  return value, of_norm / squared_norm + of_error / squared_error


def optimal(bands: int, participation: Participation) -> np.ndarray:
  """Returns the coefficients with the least noise of the running sums for a given budget.

  They minimise Delta^2 error^2 over all c that are not negative and do not increase, for which the
  sensitivity is exact, by L-BFGS-B from the square root; c_0 = 1. Where a client takes part as
  often as fits, the coefficients of more bands than `separation` were found to be 0; they help
  where k is small.
  """
  start = _checked(square_root(bands), participation.num_rounds)

  def loss(steps: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss by u, c_j = sum_(i >= j) u_i."""
    value, gradient = _log_loss(np.cumsum(steps[::-1])[::-1], participation)
    return value, np.cumsum(gradient)

  solution = optimize.minimize(
    loss,
    -np.diff(start, append=0.0),
    jac=True,
    method="L-BFGS-B",
    bounds=[(0.0, None)] * start.size,
    options=dict(maxiter=_MOST_STEPS, maxfun=2 * _MOST_STEPS, ftol=_TOLERANCE, gtol=1e-9),
  )
  c: np.ndarray = np.cumsum(solution.x[::-1])[::-1]
  c /= c[0]
  return c


def _limits() -> np.errstate:
  """Lets the logarithm of a difference that rounding makes 0 be that of 0, without a warning."""
  return np.errstate(divide="ignore")


def noise_multiplier(target_epsilon: float, delta: float) -> float:
  """Returns the least z of which `epsilon` is at most a target."""
  with _limits():
    sigma = dp_accounting.get_sigma_gaussian(target_epsilon, checks.fraction("delta", delta))
  return float(sigma)


def epsilon(noise_multiplier: float, delta: float) -> float:
  """Returns epsilon of the Gaussian mechanism of noise z Delta, exactly (Balle and Wang 2018)."""
  z = checks.positive("noise_multiplier", noise_multiplier)
  with _limits():
    return float(dp_accounting.get_epsilon_gaussian(z, checks.fraction("delta", delta)))
