"""Optima of F_theta and of its mean over cohorts, and the cost of the cohorts."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from paper.convergence import cutting
from paper.convergence import regression

_NUM_BIAS_POINTS = 1000


def minimise(problem: regression.Problem, ranks: np.ndarray) -> cutting.Minimum:
  """Minimises F of rank weights [n] to about 1e-13, from FedAvg's optimum (`cutting.minimise`)."""
  quadratic = cutting.Quadratic(problem.l2, np.zeros(problem.dimension), problem.l2)
  start = problem.minimiser(np.full(problem.num_clients, 1.0 / problem.num_clients))
  return cutting.minimise(problem, ranks, quadratic, start)


def compare_optima(problem: regression.Problem, thetas: Sequence[float]) -> pd.DataFrame:
  """Minimises F_theta for tail fractions between FedAvg's, 1, and the worst case's, 1 / n.

  There is a row for each "theta": "value", min F_theta; "mean" and "worst", F_1 and F_(1 / n)
  there; "distance", to the optimum of FedAvg; "num_tied" and "gap", as in `cutting.Minimum`.
  """
  everyone, worst_off = (
    cutting.rank_weights(problem.num_clients, t) for t in (1.0, 1 / problem.num_clients)
  )
  fed_avg = minimise(problem, everyone)
  rows = []
  for theta in thetas:
    best = minimise(problem, cutting.rank_weights(problem.num_clients, theta))
    mean, worst = (problem.objective(best.point, ranks) for ranks in (everyone, worst_off))
    distance = np.linalg.norm(best.point - fed_avg.point)
    rows.append((theta, best.value, mean, worst, distance, best.num_tied, best.gap))
  columns = ["theta", "value", "mean", "worst", "distance", "num_tied", "gap"]
  return pd.DataFrame(rows, columns=columns)


def sampling_biases(
  problem: regression.Problem, thetas: Sequence[float], cohort_sizes: Sequence[int]
) -> pd.DataFrame:
  """Compares F_theta with bar F_theta, its mean over cohorts, without any noise.

  There is a row for each "theta" and "cohort_size": "at_optimum", F_theta - bar F_theta at the
  minimiser of F_theta; "largest", the largest of these differences at random points of the ball;
  "floor", F_theta at the minimiser of bar F_theta, less its minimum, which is what is left after
  any number of rounds; and "bound", B / sqrt(theta m).
  """
  constants = regression.build_constants(problem)
  points = np.random.default_rng(0).normal(size=[_NUM_BIAS_POINTS, problem.dimension])
  points *= constants.radius / np.linalg.norm(points, axis=1, keepdims=True)
  points *= np.linspace(0.0, 1.0, _NUM_BIAS_POINTS)[:, None]
  rows = []
  for theta in thetas:
    ranks = cutting.rank_weights(problem.num_clients, theta)
    best = minimise(problem, ranks)
    for size in cohort_sizes:
      of_cohorts = cutting.rank_weights(problem.num_clients, theta, size)
      reached = minimise(problem, of_cohorts).point
      here = np.vstack([best.point, reached, points])
      bias = problem.objective(here, ranks) - problem.objective(here, of_cohorts)
      floor = float(problem.objective(reached, ranks)) - best.value
      bound = constants.max_loss / np.sqrt(theta * size)
      rows.append((theta, size, bias[0], np.abs(bias).max(), floor, bound))
  columns = ["theta", "cohort_size", "at_optimum", "largest", "floor", "bound"]
  return pd.DataFrame(rows, columns=columns)
