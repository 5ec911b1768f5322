"""Certified optima of F_theta and of its mean over cohorts, and the cost of the cohorts.

Weak duality certifies an optimum, however it was found: for every pi in P of `regression`, the
minimum over w of sum_i pi_i F_i(w) + lambda / 2 |w|^2, a linear system, is below the minimum of F.
"""

from collections.abc import Sequence
import dataclasses
from typing import Optional

import numpy as np
import pandas as pd
from scipy import optimize

from tff_superquantile.experiments.studies.convergence import regression

# The cutting surfaces stop at this absolute gap, in units of the loss; the real gap is reported.
_GAP = 1e-13
_MAX_CUTS = 60
# Surfaces with less weight than this in the solution take no part in it.
_MIN_SHARE = 1e-9
_TIE = 1e-9
_NUM_BIAS_POINTS = 1000


@dataclasses.dataclass(frozen=True)
class Optimum:
  """A minimiser and its certificate.

  Attributes:
    point: [d], w.
    value: F(w).
    weights: [n], pi in P.
    gap: F(w) less the minimum over w of sum_i pi_i F_i + lambda / 2 |w|^2: no point is better by
      more.
    num_tied: The number of clients with the same loss as another: w lies on kinks of F.
  """

  point: np.ndarray
  value: float
  weights: np.ndarray
  gap: float
  num_tied: int


def minimise(problem: regression.Problem, ranks: np.ndarray) -> Optimum:
  """Minimises F to about 1e-13 by cutting surfaces.

  Each permutation of omega gives a quadratic below F. Where the largest of those found so far is
  lowest, F shows the next one, until it is itself not larger.

  Args:
    problem: The problem.
    ranks: [n], omega of `regression.rank_weights`.

  Returns:
    The optimum, certified by its gap.

  Raises:
    ValueError: If the gap stays too wide.
  """
  point = problem.minimiser(np.full(problem.num_clients, 1.0 / problem.num_clients))
  cuts = np.empty([0, problem.num_clients])
  shares = np.empty([0])
  gap = np.inf
  best: Optional[tuple[np.ndarray, float, np.ndarray]] = None
  for _ in range(_MAX_CUTS):
    # Surfaces without a share lie below the others here, and come back if they are needed.
    order = np.argsort(-problem.losses(point), kind="stable")
    cuts = np.vstack([cuts[shares > _MIN_SHARE], ranks[np.argsort(order)]])
    point, shares = _lowest_of_largest(problem, cuts, point)
    weights = shares @ cuts
    value = float(problem.objective(point, ranks))
    found = value - problem.dual_value(weights)
    if found < gap:
      gap, best = found, (point, value, weights)
    if gap <= _GAP:
      break
  if best is None or gap > 100 * _GAP:
    raise ValueError(f"Found a duality gap of {gap:.1e}; expected at most {100 * _GAP:.0e}.")
  point, value, weights = best
  between = np.diff(np.sort(problem.losses(point))) < _TIE
  num_tied = np.sum(np.append(between, False) | np.append(False, between))
  return Optimum(point, value, weights, max(gap, 0.0), int(num_tied))


def _lowest_of_largest(
  problem: regression.Problem, cuts: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the w [d] of the lowest max_k sum_i cuts[k, i] F_i(w) + lambda / 2 |w|^2; shares [k].

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
    highest = int(np.argmax(values(point)))
    if highest not in active and values(point)[highest] > values(point)[active].max() + 1e-15:
      active.append(highest)
    elif np.linalg.norm(solution[:d]) < 1e-13:
      break
  return point, shares


def compare_optima(problem: regression.Problem, thetas: Sequence[float]) -> pd.DataFrame:
  """Minimises F_theta for tail fractions between FedAvg's, 1, and the worst case's, 1 / n.

  Args:
    problem: The problem.
    thetas: Tail fractions.

  Returns:
    A row for each "theta": "value", min F_theta; "mean" and "worst", F_1 and F_(1 / n) there;
    "distance", to the optimum of FedAvg; "num_tied" and "gap", as in `Optimum`.
  """
  everyone, worst_off = (
    regression.rank_weights(problem.num_clients, t) for t in (1.0, 1 / problem.num_clients)
  )
  fed_avg = minimise(problem, everyone)
  rows = []
  for theta in thetas:
    best = minimise(problem, regression.rank_weights(problem.num_clients, theta))
    mean, worst = (problem.objective(best.point, ranks) for ranks in (everyone, worst_off))
    distance = np.linalg.norm(best.point - fed_avg.point)
    rows.append((theta, best.value, mean, worst, distance, best.num_tied, best.gap))
  columns = ["theta", "value", "mean", "worst", "distance", "num_tied", "gap"]
  return pd.DataFrame(rows, columns=columns)


def sampling_biases(
  problem: regression.Problem, thetas: Sequence[float], cohort_sizes: Sequence[int]
) -> pd.DataFrame:
  """Compares F_theta with bar F_theta, its mean over cohorts, without any noise.

  Args:
    problem: The problem.
    thetas: Tail fractions.
    cohort_sizes: m.

  Returns:
    A row for each "theta" and "cohort_size": "at_optimum", F_theta - bar F_theta at the minimiser
    of F_theta; "largest", the largest of these differences at random points of the ball; "floor",
    F_theta at the minimiser of bar F_theta, less its minimum, which is what is left after any
    number of rounds; and "bound", B / sqrt(theta m).
  """
  constants = regression.build_constants(problem)
  points = np.random.default_rng(0).normal(size=[_NUM_BIAS_POINTS, problem.dimension])
  points *= constants.radius / np.linalg.norm(points, axis=1, keepdims=True)
  points *= np.linspace(0.0, 1.0, _NUM_BIAS_POINTS)[:, None]
  rows = []
  for theta in thetas:
    ranks = regression.rank_weights(problem.num_clients, theta)
    best = minimise(problem, ranks)
    for size in cohort_sizes:
      of_cohorts = regression.rank_weights(problem.num_clients, theta, size)
      reached = minimise(problem, of_cohorts).point
      here = np.vstack([best.point, reached, points])
      bias = problem.objective(here, ranks) - problem.objective(here, of_cohorts)
      floor = float(problem.objective(reached, ranks)) - best.value
      bound = constants.max_loss / np.sqrt(theta * size)
      rows.append((theta, size, bias[0], np.abs(bias).max(), floor, bound))
  columns = ["theta", "cohort_size", "at_optimum", "largest", "floor", "bound"]
  return pd.DataFrame(rows, columns=columns)
