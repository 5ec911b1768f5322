"""Optima of F_theta and of its mean over cohorts, certified.

With pi the weights of the clients, every objective of the paper is

    F(w) = max { sum_i pi_i F_i(w) : pi in P } + lambda / 2 |w|^2
         = sum_k omega_k F_(k)(w) + lambda / 2 |w|^2,

where F_(1) >= F_(2) >= ... are the losses in descending order, omega the weights of the ranks, and
P the convex hull of the permutations of omega. In F_theta the first theta n ranks share the weight;
in its mean over the cohorts of m clients, bar F_theta, which a cohort's reweighting descends, the
hypergeometric distribution spreads it.

Weak duality certifies an optimum, whoever found it: for every pi in P, the minimum over w of
sum_i pi_i F_i(w) + lambda / 2 |w|^2, a linear system, is below the minimum of F.
"""

import dataclasses
from typing import Optional

import numpy as np
from scipy import optimize
from scipy import stats

from tff_superquantile import superquantile
from tff_superquantile.experiments import convergence_problem

# The cutting surfaces stop here, absolute, in units of the loss; what is reached is reported.
_GAP = 1e-13
_MAX_CUTS = 60
# Surfaces with less weight than this in the solution take no part in it.
_MIN_SHARE = 1e-9
_TIE = 1e-9


def rank_weights(num_clients: int, theta: float, cohort_size: Optional[int] = None) -> np.ndarray:
  """omega: the weight of the k-th largest of n losses in F_theta, or in bar F_theta of cohorts.

  The k-th largest of all is in the cohort with probability m / n, and then r of the k - 1 larger
  ones with the hypergeometric probability; the r + 1-st of a cohort weighs at most 1 / (theta m).

  Args:
    num_clients: n.
    theta: The tail fraction, in (0, 1].
    cohort_size: m, of cohorts drawn without replacement; None for all clients.

  Returns:
    [n] weights that fall and sum to one.

  Raises:
    ValueError: If theta is outside (0, 1] or the cohort is not of 1 to n clients.
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


def attaining_weights(
  problem: convergence_problem.Problem, point: np.ndarray, ranks: np.ndarray
) -> np.ndarray:
  """pi [n]: a permutation of omega that attains the maximum at a point [d]."""
  weights = np.empty_like(ranks)
  weights[np.argsort(-problem.losses(point), kind="stable")] = ranks
  return weights


def objective(
  problem: convergence_problem.Problem, points: np.ndarray, ranks: np.ndarray
) -> np.ndarray:
  """F at points [..., d] for rank weights omega [n]: [...]."""
  descending = -np.sort(-problem.losses(points), axis=-1)
  return descending @ ranks + 0.5 * problem.l2 * np.sum(np.square(points), axis=-1)


@dataclasses.dataclass(frozen=True)
class Optimum:
  """A minimiser and its certificate.

  Attributes:
    point: [d], w.
    value: F(w).
    weights: [n], pi in P.
    gap: F(w) less the minimum over w of sum_i pi_i F_i + lambda / 2 |w|^2: no point is better by
      more.
    slope: The norm of sum_i pi_i grad F_i(w) + lambda w.
    num_tied: How many clients have the same loss as another: w lies on kinks of F.
  """

  point: np.ndarray
  value: float
  weights: np.ndarray
  gap: float
  slope: float
  num_tied: int


def minimise(problem: convergence_problem.Problem, ranks: np.ndarray) -> Optimum:
  """Minimises F to about 1e-13 by cutting surfaces.

  Each permutation of omega gives a quadratic below F. Where the largest of those found so far is
  lowest, F shows the next one, until it is itself not larger.

  Args:
    problem: The problem.
    ranks: [n], omega of `rank_weights`.

  Returns:
    The optimum, certified by its gap.

  Raises:
    ValueError: If the gap stays too wide.
  """
  point = problem.minimiser(np.full(problem.num_clients, 1.0 / problem.num_clients))
  cuts = attaining_weights(problem, point, ranks)[None]
  gap = np.inf
  best: Optional[tuple[np.ndarray, float, np.ndarray]] = None
  for _ in range(_MAX_CUTS):
    point, shares = _lowest_of_largest(problem, cuts, point)
    weights = shares @ cuts
    value = float(objective(problem, point, ranks))
    found = value - problem.dual_value(weights)
    if found < gap:
      gap, best = found, (point, value, weights)
    if gap <= _GAP:
      break
    # Surfaces that carry nothing are below the others here, and come back if they are needed.
    cuts = np.vstack([cuts[shares > _MIN_SHARE], attaining_weights(problem, point, ranks)])
  if best is None or gap > 100 * _GAP:
    raise ValueError(f"Found a duality gap of {gap:.1e}; expected at most {100 * _GAP:.0e}.")
  point, value, weights = best
  slope = np.linalg.norm(weights @ problem.gradients(point) + problem.l2 * point)
  between = np.diff(np.sort(problem.losses(point))) < _TIE
  num_tied = np.sum(np.append(between, False) | np.append(False, between))
  return Optimum(point, value, weights, max(gap, 0.0), float(slope), int(num_tied))


def _lowest_of_largest(
  problem: convergence_problem.Problem, cuts: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The w [d] where max_k sum_i cuts[k, i] F_i(w) + lambda / 2 |w|^2 is lowest; shares [k] of it.

  Sequential quadratic programming, then Newton's method on the conditions that the surfaces with a
  share are level and their slopes, weighted by the shares, cancel; a surface whose share would be
  negative leaves, one that sticks out enters.
  """
  d, size = problem.dimension, len(cuts)
  hessians = np.tensordot(cuts, problem.hessians, 1) + problem.l2 * np.eye(d)
  linear = cuts @ problem.linear_terms
  offsets = cuts @ problem.losses(np.zeros(d))

  def values(w: np.ndarray) -> np.ndarray:
    return 0.5 * np.einsum("kij,i,j->k", hessians, w, w) - linear @ w + offsets

  def slopes(w: np.ndarray) -> np.ndarray:
    return hessians @ w - linear

  point = optimize.minimize(
    lambda z: z[-1],
    np.append(start, values(start).max()),
    jac=lambda z: np.append(np.zeros(d), 1.0),
    constraints=dict(
      type="ineq",
      fun=lambda z: z[-1] - values(z[:-1]),
      jac=lambda z: np.column_stack([-slopes(z[:-1]), np.ones(size)]),
    ),
    method="SLSQP",
    options=dict(ftol=1e-15, maxiter=200),
  ).x[:-1]
  below = values(point).max() - values(point)
  conditions = np.vstack([slopes(point).T, below, np.ones(size)])
  shares = optimize.nnls(conditions, np.append(np.zeros(d + 1), 1.0))[0]
  shares /= shares.sum()
  active = list(np.flatnonzero(shares))
  for _ in range(4 * size + 10):
    k = len(active)
    system = np.zeros([d + k + 1, d + k + 1])
    system[:d, :d] = np.tensordot(shares, hessians, 1)
    system[d : d + k, :d] = slopes(point)[active]
    system[:d, d : d + k] = system[d : d + k, :d].T
    system[d : d + k, -1] = system[-1, d : d + k] = 1.0
    right = np.concatenate([np.zeros(d), -values(point)[active], [1.0]])
    # Not by least squares: two surfaces that hardly differ would be levelled only on average.
    try:
      solution = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:  # Slopes that depend on each other: one surface is too many.
      shares[active.pop()] = 0.0
      shares /= shares.sum()
      continue
    change = solution[d : d + k] - shares[active]
    if np.any(shares[active] + change < 0.0):
      # As far as no share is negative, and without the first that would be.
      with np.errstate(divide="ignore", invalid="ignore"):
        limits = np.where(change < 0.0, -shares[active] / change, np.inf)
      shares[active] += limits.min() * change
      shares[active[int(np.argmin(limits))]] = 0.0
      del active[int(np.argmin(limits))]
      continue
    shares[active] += change
    point = point + solution[:d]
    highest = int(np.argmax(values(point)))
    if highest not in active and values(point)[highest] > values(point)[active].max() + 1e-15:
      active.append(highest)
    elif np.linalg.norm(solution[:d]) < 1e-13:
      break
  return point, shares
