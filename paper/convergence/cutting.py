"""Minimises a superquantile plus a quadratic term, and certifies the minimum.

The objectives, of the losses F_1, ..., F_n of a problem, rank weights omega, a strength mu > 0 and
a centre c, are

    H(w) = max { sum_i pi_i F_i(w) : pi in P } + mu / 2 |w - c|^2
         = sum_k omega_k F_(k)(w) + mu / 2 |w - c|^2,

where F_(1) >= F_(2) >= ... are the losses in descending order and P is the convex hull of the
permutations of omega. In F_theta the first theta n ranks share the weight; in its mean over the
cohorts of m clients, bar F_theta, which a cohort's reweighting descends, the hypergeometric
distribution spreads it. With c = 0 and mu = lambda, H is the paper's regularised objective; with
any c, its minimum is the Moreau envelope at c, and its minimiser the proximal point of c.

If F_i + rho / 2 |w|^2 is convex for all i, every surface sum_i pi_i F_i + mu / 2 |w - c|^2 is
strongly convex with modulus mu - rho. So a value v and a gradient s of a mixture of surfaces at w
say that min H >= v - |s|^2 / (2 (mu - rho)). This certifies a minimum, however it was found.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
from scipy import stats

from tff_superquantile import superquantile

# Surfaces with less weight than this in the solution take no part in it.
_MIN_SHARE = 1e-9
_TIE = 1e-9
_MAX_CUTS = 60


class Problem(Protocol):
  """The losses of n clients at points of d dimensions, twice differentiable."""

  @property
  def num_clients(self) -> int:
    """n."""

  @property
  def dimension(self) -> int:
    """d."""

  def losses(self, points: np.ndarray) -> np.ndarray:
    """Returns F_i [..., n] at points [..., d]."""

  def gradients(self, point: np.ndarray) -> np.ndarray:
    """Returns the gradients [n, d] of the F_i at a point [d]."""

  def mixed_hessian(self, point: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the Hessian [d, d] of sum_i weights_i F_i at a point [d], for weights [n]."""


def rank_weights(num_clients: int, theta: float, cohort_size: int | None = None) -> np.ndarray:
  """Returns omega [n], the weight of the k-th largest of n losses in F_theta, or in bar F_theta.

  bar F_theta is of cohorts of m, drawn without replacement. The k-th largest of all is in one with
  probability m / n, and then r of the k - 1 larger ones with the hypergeometric probability; the
  r + 1-st of a cohort weighs at most 1 / (theta m). The weights fall and sum to one.
  """
  theta = superquantile.check_theta(theta)
  size = num_clients if cohort_size is None else cohort_size
  if not 1 <= size <= num_clients:
    raise ValueError(f"Found cohort_size = {size}; expected it in 1..{num_clients}.")
  tail = theta * size
  of_cohort = np.clip(tail - np.arange(size), 0.0, 1.0) / min(tail, 1.0)
  of_cohort /= of_cohort.sum()
  if size == num_clients:
    return of_cohort
  larger = np.arange(num_clients)[:, None]
  chances = stats.hypergeom.pmf(np.arange(size), num_clients - 1, larger, size - 1)
  weights = size / num_clients * chances @ of_cohort
  return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class Quadratic:
  """The quadratic term of an objective: its strength mu, its center c [d], and mu - rho > 0.

  With this modulus every surface is strongly convex.
  """

  strength: float
  center: np.ndarray
  modulus: float

  def value(self, point: np.ndarray) -> float:
    """Returns mu / 2 |w - c|^2 at w [d]."""
    return 0.5 * self.strength * float(np.sum((point - self.center) ** 2))


@dataclasses.dataclass(frozen=True)
class Minimum:
  """A minimiser, `point` w [d], its value H(w), its weights pi [n] in P, and its certificate.

  No point is better by more than the gap. `num_tied` clients have the same loss as another: w lies
  on kinks of H.
  """

  point: np.ndarray
  value: float
  weights: np.ndarray
  gap: float
  num_tied: int


def minimise(
  problem: Problem,
  ranks: np.ndarray,
  quadratic: Quadratic,
  start: np.ndarray,
  tolerance: float = 1e-13,
) -> Minimum:
  """Minimises H by cutting surfaces, from a start [d] to a certified gap.

  Each permutation of omega [n] gives a smooth function below H. Where the largest of those found so
  far is lowest, H shows the next one, until it is itself not larger. It stops at a gap of
  `tolerance`, in units of the loss; a hundred times as much is accepted.
  """
  point, shares = start, np.empty([0])
  cuts = np.empty([0, problem.num_clients])
  best: Minimum | None = None
  for _ in range(_MAX_CUTS):
    # Surfaces without a share lie below the others here, and come back if they are needed.
    kept = shares > _MIN_SHARE
    cuts = np.vstack([cuts[kept], _highest(problem.losses(point), ranks)])
    point, shares = _lowest_of_largest(
      problem, cuts, quadratic, point, np.append(shares[kept], 0.0)
    )
    weights = shares @ cuts
    losses = problem.losses(point)
    slope = weights @ problem.gradients(point) + quadratic.strength * (point - quadratic.center)
    largest = float(-np.sort(-losses) @ ranks)
    gap = largest - float(weights @ losses) + float(slope @ slope) / (2.0 * quadratic.modulus)
    if best is None or gap < best.gap:
      value = largest + quadratic.value(point)
      best = Minimum(point, value, weights, max(gap, 0.0), _num_tied(losses))
    if gap <= tolerance:
      break
  assert best is not None
  if best.gap > 100.0 * tolerance:
    raise ValueError(
      f"Found a duality gap of {best.gap:.1e}; expected at most {100.0 * tolerance:.0e}."
    )
  return best


def _highest(losses: np.ndarray, ranks: np.ndarray) -> np.ndarray:
  """Returns the permutation of omega that gives the largest weighted sum of the losses, [n]."""
  return ranks[np.argsort(np.argsort(-losses, kind="stable"))]


def _num_tied(losses: np.ndarray) -> int:
  between = np.diff(np.sort(losses)) < _TIE
  return int(np.sum(np.append(between, False) | np.append(False, between)))


def _lowest_of_largest(
  problem: Problem, cuts: np.ndarray, quadratic: Quadratic, point: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the w [d] where the largest of the surfaces of `cuts` [k, n] is lowest; shares [k].

  Newton's method on the conditions that the surfaces with a share are level and their slopes,
  weighted by the shares, cancel; a surface whose share would be negative leaves, one that sticks
  out enters. It begins at a point [d] with shares [k] of which the last is 0: the surface that
  sticks out there.
  """
  d, size = problem.dimension, len(cuts)
  shares = shares / shares.sum() if shares.any() else np.ones(size) / size
  active = [*np.flatnonzero(shares[:-1]), size - 1]
  values = cuts @ problem.losses(point)
  for _ in range(4 * size + 30):
    k = len(active)
    slopes = cuts[active] @ problem.gradients(point)
    slopes += quadratic.strength * (point - quadratic.center)
    system = np.zeros([d + k + 1, d + k + 1])
    system[:d, :d] = problem.mixed_hessian(point, shares @ cuts)
    system[:d, :d] += quadratic.strength * np.eye(d)
    system[d : d + k, :d] = slopes
    system[:d, d : d + k] = slopes.T
    system[d : d + k, -1] = system[-1, d : d + k] = 1.0
    right = np.concatenate([np.zeros(d), -values[active], [1.0]])
    # Least squares would level two surfaces that hardly differ only on average.
    try:
      solution = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:  # The slopes depend on each other: one surface is too many.
      shares[active.pop()] = 0.0
      shares /= shares.sum()
      continue
    change = solution[d : d + k] - shares[active]
    if np.any(shares[active] + change < 0.0):
      # The step ends where a share would become negative; that surface leaves.
      with np.errstate(divide="ignore", invalid="ignore"):
        limits = np.where(change < 0.0, -shares[active] / change, np.inf)
      shares[active] += limits.min() * change
      shares[active[int(np.argmin(limits))]] = 0.0
      del active[int(np.argmin(limits))]
      continue
    shares[active] += change
    point = point + solution[:d]
    values = cuts @ problem.losses(point)
    highest = int(np.argmax(values))
    if highest not in active and values[highest] > values[active].max() + 1e-15:
      active.append(highest)
    elif np.linalg.norm(solution[:d]) < 1e-13:
      break
  return point, shares
