"""Measures what smoothing with another nu than the theorem's costs.

The algorithm descends the smoothed F_theta^nu = max over P_theta of sum_i pi_i F_i - nu D(pi), plus
lambda / 2 |w|^2. D is between 0 and log(1 / theta) on P_theta, so that F_theta^nu is at most
nu log(1 / theta) below F_theta, and its minimiser at most as much above the minimum of F_theta.
(The paper has 2 nu log n.) A smaller nu costs rounds: the gradient has the Lipschitz constant
L + lambda + G^2 / nu, which limits the learning rate.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import optimize

from paper import smoothed
from paper.convergence import algorithm
from paper.convergence import cutting
from paper.convergence import optimum
from paper.convergence import regression


def minimise(
  problem: regression.Problem, theta: float, smoothing: float, start: np.ndarray
) -> np.ndarray:
  """Returns the minimiser [d] of F_theta^nu, from a start [d]."""

  def value_and_slope(point: np.ndarray) -> tuple[float, np.ndarray]:
    losses = problem.losses(point)
    weights = smoothed.dual_weights(losses, theta, smoothing)
    kept = weights > 0.0
    entropy = float(np.sum(weights[kept] * np.log(weights[kept] * losses.size)))
    value = weights @ losses - smoothing * entropy + 0.5 * problem.l2 * point @ point
    return value, weights @ problem.gradients(point) + problem.l2 * point

  options = dict(gtol=1e-9, maxiter=2000)
  return optimize.minimize(value_and_slope, start, jac=True, method="BFGS", options=options).x


def measure(
  problem: regression.Problem,
  thetas: Sequence[float],
  smoothings: Sequence[float],
  num_rounds: int,
  local_steps: int,
) -> pd.DataFrame:
  """Runs the algorithm with everyone for several nu, in units of the loss, and for the theorem's.

  Tail fractions are below 1, where nothing is smoothed. There is a row for each, with the
  attributes of its `algorithm.Setting`; "is_theorems", whether nu is the theorem's; "error",
  F_theta at the averaged iterate less its minimum; "floor", F_theta at the minimiser of F_theta^nu
  less its minimum; and "bound", nu log(1 / theta).
  """
  constants = regression.build_constants(problem)
  start = regression.build_start(problem, constants)
  rows = []
  for theta in thetas:
    ranks = cutting.rank_weights(problem.num_clients, theta)
    best = optimum.minimise(problem, ranks)
    settings = [
      algorithm.theorem_setting(
        constants,
        float(np.sum((start - best.point) ** 2)),
        theta=theta,
        cohort_size=problem.num_clients,
        num_rounds=num_rounds,
        local_steps=local_steps,
        smoothing=smoothing,
      )
      for smoothing in [None, *smoothings]
    ]
    averages, _ = algorithm.simulate(
      problem, start, settings, cohort_size=problem.num_clients, local_steps=local_steps
    )
    for index, (setting, average) in enumerate(zip(settings, averages[:, 0])):
      smooth = minimise(problem, theta, setting.smoothing, best.point)
      rows.append(
        dict(
          **dataclasses.asdict(setting),
          is_theorems=index == 0,
          error=float(problem.objective(average, ranks)) - best.value,
          floor=float(problem.objective(smooth, ranks)) - best.value,
          bound=setting.smoothing * math.log(1.0 / theta),
        )
      )
  return pd.DataFrame(rows).sort_values(["theta", "smoothing"], ascending=[False, True])
