"""Checks of the formulas against what does not use them: linear programs, differences, plain loops.

Each check is a number that should be zero, or a ratio that should not exceed one, and its limit.
"""

from collections.abc import Callable
import dataclasses

import numpy as np
from numpy import typing as npt
from scipy import optimize

from tff_superquantile import superquantile
from tff_superquantile.experiments import convergence_algorithm
from tff_superquantile.experiments import convergence_optimum
from tff_superquantile.experiments import convergence_problem

_THETAS = (0.9, 0.5, 0.333, 0.1, 0.01)
_SMOOTHINGS = (1.0, 0.1, 0.01)
_STEP = 1e-6  # Of central differences.


@dataclasses.dataclass(frozen=True)
class Check:
  """A comparison.

  Attributes:
    title: What is compared.
    found: The largest deviation.
    limit: What is allowed.
  """

  title: str
  found: float
  limit: float

  @property
  def passed(self) -> bool:
    return bool(self.found <= self.limit)


def superquantile_by_linear_program(losses: np.ndarray, theta: float) -> float:
  """max of sum_i pi_i losses_i over P_theta, for losses [n], by a general solver."""
  n = losses.size
  solution = optimize.linprog(
    -losses, A_eq=np.ones([1, n]), b_eq=[1.0], bounds=(0.0, 1.0 / (theta * n)), method="highs"
  )
  return float(-solution.fun)


def central_differences(function: Callable[[np.ndarray], float], point: np.ndarray) -> np.ndarray:
  """The gradient [d] of a function at a point [d]."""
  steps = _STEP * np.eye(point.size)
  return np.array([function(point + s) - function(point - s) for s in steps]) / (2.0 * _STEP)


def smoothed_objective(
  problem: convergence_problem.Problem, point: np.ndarray, theta: float, smoothing: float
) -> float:
  """F_theta^nu = max over P_theta of sum_i pi_i F_i - nu KL(pi || uniform), + lambda / 2 |w|^2."""
  losses = problem.losses(point)
  weights = superquantile.smoothed_dual_weights(losses, theta, smoothing)
  kept = weights[weights > 0]
  entropy = np.sum(kept * np.log(kept * losses.size))
  return float(weights @ losses - smoothing * entropy + 0.5 * problem.l2 * point @ point)


def fed_avg(
  problem: convergence_problem.Problem,
  start: np.ndarray,
  *,
  learning_rate: float,
  local_steps: int,
  num_rounds: int,
) -> np.ndarray:
  """Federated averaging as one writes it down, all clients with the same weight: w_T [d]."""
  point = start
  for _ in range(num_rounds):
    models = np.tile(point, [problem.num_clients, 1])
    for _ in range(local_steps):
      residuals = np.einsum("ied,id->ie", problem.features, models) - problem.labels
      gradients = np.einsum("ied,ie->id", problem.features, residuals) / problem.labels.shape[1]
      models = models - learning_rate * (gradients + problem.l2 * models)
    point = models.mean(axis=0)
  return point


def run(problem: convergence_problem.Problem, num_points: int = 20) -> list[Check]:
  """Carries out all checks.

  Args:
    problem: The problem.
    num_points: Random points; at each, every tail fraction and smoothing.

  Returns:
    The checks.
  """
  n, d = problem.num_clients, problem.dimension
  program, slope, smoothed_slope, too_far, below, batched = [], [], [], [], [], []
  for point in np.random.default_rng(0).normal(size=[num_points, d]):
    losses, gradients = problem.losses(point), problem.gradients(point)
    for theta in _THETAS:
      ranks = convergence_optimum.rank_weights(n, theta)
      value = superquantile.superquantile(losses, theta)
      program.append(value - superquantile_by_linear_program(losses, theta))
      total = value + 0.5 * problem.l2 * point @ point
      program.append(total - convergence_optimum.objective(problem, point, ranks))

      def objective(w: np.ndarray, theta: float = theta) -> float:
        return superquantile.superquantile(problem.losses(w), theta) + 0.5 * problem.l2 * w @ w

      expected = superquantile.dual_weights(losses, theta) @ gradients + problem.l2 * point
      slope.append(np.abs(central_differences(objective, point) - expected).max())
      for smoothing in _SMOOTHINGS:

        def smoothed(w: np.ndarray, theta: float = theta, smoothing: float = smoothing) -> float:
          return smoothed_objective(problem, w, theta, smoothing)

        weights = superquantile.smoothed_dual_weights(losses, theta, smoothing)
        expected = weights @ gradients + problem.l2 * point
        smoothed_slope.append(np.abs(central_differences(smoothed, point) - expected).max())
        # The proof has 2 nu log n; the entropy of P_theta is within [0, log(1 / theta)].
        too_far.append((total - smoothed(point)) / (2.0 * smoothing * np.log(n)))
        below.append(smoothed(point) - total)
        many = convergence_algorithm.smoothed_weights(
          losses[None], np.array([theta]), np.array([smoothing])
        )
        batched.append(np.abs(many[0] - weights).max())

  constants = convergence_problem.build_constants(problem)
  start = convergence_problem.build_start(problem, constants)
  setting = convergence_algorithm.Setting(1.0, 200, 0.02, 0.1)
  runs = convergence_algorithm.simulate(problem, start, [setting], cohort_size=n, local_steps=4)
  plain = fed_avg(problem, start, learning_rate=0.02, local_steps=4, num_rounds=200)

  def worst(values: npt.ArrayLike) -> float:
    return float(np.abs(values).max())

  return [
    Check("F_theta against a linear program over P_theta", worst(program), 1e-9),
    Check("its subgradient against central differences", worst(slope), 1e-7),
    Check("the gradient of F_theta^nu against central differences", worst(smoothed_slope), 1e-7),
    Check("(F_theta - F_theta^nu) / (2 nu log n), at most 1", worst(too_far), 1.0),
    Check("F_theta^nu - F_theta, nowhere positive", float(np.max(below)), 1e-12),
    Check("smoothed weights, many cohorts at once against one", worst(batched), 1e-12),
    Check("theta = 1 against FedAvg, 200 rounds", worst(runs.last[0, 0] - plain), 1e-12),
  ]
