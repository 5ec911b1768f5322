"""Runs the algorithm on the network, and measures the gradient of the Moreau envelope.

The proximal point of each measured iterate is certified: a duality gap eps of a problem that is
strongly convex with modulus mu - rho puts it within sqrt(2 eps / (mu - rho)).
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import numpy as np
import pandas as pd

from paper.convergence import algorithm
from paper.convergence import cutting
from paper.convergence import rounds
from paper.convergence import weighing
from paper.nonconvex import network
from paper.nonconvex import theorem

# Later blocks of rounds are this much longer than the rounds before them.
_GROWTH = 0.2


def proximal_point(
  problem: network.Problem, constants: network.Constants, ranks: np.ndarray, point: np.ndarray
) -> cutting.Minimum:
  """Computes prox of the objective of rank weights [n] at a point [d], for mu = 2 L, certified.

  Its value is that of the Moreau envelope at the point.
  """
  modulus = constants.strength - constants.weak_convexity
  quadratic = cutting.Quadratic(constants.strength, point, modulus)
  return cutting.minimise(problem, ranks, quadratic, point)


def drift(
  problem: network.Problem,
  ranks: np.ndarray,
  point: np.ndarray,
  learning_rate: float,
  local_steps: int,
) -> float:
  """Computes E sum_i pi_i sum_k |w_ik - w|^2 of a round from w [d], exact over all cohorts."""
  order = np.argsort(-problem.losses(point), kind="stable")
  models = np.tile(point, [problem.num_clients, 1])
  total = 0.0
  for _ in range(local_steps - 1):
    models = models - learning_rate * problem.gradients(models)
    total += float(ranks @ np.sum((models - point) ** 2, axis=1)[order])
  return total


def draw_rounds(num_rounds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Draws a round of each of some blocks of 0, ..., T - 1, short ones first.

  They ascend, with weights of sum 1: the mean of anything over them has the expectation of the mean
  over all rounds, which is what the theorem's uniform draw is about.
  """
  edges = [0]
  while edges[-1] < num_rounds:
    edges.append(min(edges[-1] + max(1, round(_GROWTH * edges[-1])), num_rounds))
  return rng.integers(edges[:-1], edges[1:]), np.diff(edges) / num_rounds


def measure(
  problem: network.Problem,
  settings: Sequence[algorithm.Setting],
  *,
  cohort_size: int,
  local_steps: int,
  num_seeds: int,
) -> pd.DataFrame:
  """Runs the algorithm with exact reweighting, and compares it with the theorem.

  Settings are without smoothing. There is a row for each, with the attributes of its `Setting` but
  the smoothing, "cohort_size", "local_steps" and "num_seeds" (1 with everyone, where nothing is
  random); "squared_norm", the mean of |grad Phi|^2 over rounds and seeds; "sd", that over seeds, 0
  for one; "last", |grad Phi|^2 in the last block of rounds; "drift", the mean of `drift`;
  "start_term", "noise_term", "drift_term" and "bound" of `theorem.bound`; "drift_bound" and
  "plain_drift_bound" of `theorem`; and "norm_error", the largest error of a |grad Phi|, certified.
  """
  constants, start = network.build_constants(problem), network.build_start(problem)
  num_seeds = num_seeds if cohort_size < problem.num_clients else 1
  settings = sorted(settings, key=lambda setting: -setting.num_rounds)
  rng = np.random.default_rng(cohort_size)
  drawn = [draw_rounds(setting.num_rounds, rng) for setting in settings]
  iterates = _iterates(
    problem, start, settings, [where for where, _ in drawn], cohort_size, local_steps, num_seeds
  )
  rows = []
  for setting, (_, shares), points in zip(settings, drawn, iterates):
    ranks = cutting.rank_weights(problem.num_clients, setting.theta, cohort_size)
    norms, drifts, gaps = np.empty(points.shape[:2]), np.empty(points.shape[:2]), []
    for index in np.ndindex(norms.shape):
      point = points[index]
      proximal = proximal_point(problem, constants, ranks, point)
      norms[index] = constants.strength**2 * np.sum((point - proximal.point) ** 2)
      drifts[index] = drift(problem, ranks, point, setting.learning_rate, local_steps)
      gaps.append(proximal.gap)
    of_seeds = shares @ norms
    rate, num_rounds = setting.learning_rate, setting.num_rounds
    limit = theorem.bound(
      constants,
      descent(problem, setting.theta, cohort_size),
      num_rounds=num_rounds,
      rate=rate,
      local_steps=local_steps,
    )
    modulus = constants.strength - constants.weak_convexity
    rows.append(
      dict(
        theta=setting.theta,
        cohort_size=cohort_size,
        local_steps=local_steps,
        num_rounds=num_rounds,
        learning_rate=rate,
        num_seeds=num_seeds,
        squared_norm=of_seeds.mean(),
        sd=of_seeds.std(ddof=1) if num_seeds > 1 else 0.0,
        last=norms[-1].mean(),
        drift=(shares @ drifts).mean(),
        start_term=limit.start,
        noise_term=limit.noise,
        drift_term=limit.drift,
        bound=limit.total,
        drift_bound=theorem.drift_bound(constants, rate, local_steps),
        plain_drift_bound=theorem.plain_drift_bound(constants, rate, local_steps),
        norm_error=constants.strength * math.sqrt(2.0 * max(gaps) / modulus),
      )
    )
  return pd.DataFrame(rows).sort_values(["theta", "num_rounds"], ascending=[False, True])


def descent(problem: network.Problem, theta: float, cohort_size: int) -> float:
  """Returns Phi(w_0), which is at least Delta = Phi(w_0) - inf Phi, as no loss is negative."""
  ranks = cutting.rank_weights(problem.num_clients, theta, cohort_size)
  start = network.build_start(problem)
  return proximal_point(problem, network.build_constants(problem), ranks, start).value


def _iterates(
  problem: network.Problem,
  start: np.ndarray,
  settings: Sequence[algorithm.Setting],
  drawn: Sequence[np.ndarray],
  cohort_size: int,
  local_steps: int,
  num_seeds: int,
) -> list[np.ndarray]:
  """Returns the w_t [k, seeds, d] of the drawn rounds of each setting; the longest comes first."""
  points = np.tile(start, [len(settings), num_seeds, 1])
  thetas = np.array([[setting.theta] * num_seeds for setting in settings])
  played = rounds.play(
    problem,
    points,
    [setting.num_rounds for setting in settings],
    weigh=weighing.build(thetas, np.zeros_like(thetas)),
    train=problem.local_training(
      np.array([setting.learning_rate for setting in settings]), local_steps
    ),
    cohort_size=cohort_size,
    seed=cohort_size,
  )
  of_rounds: dict[int, list[int]] = {}
  for row, where in enumerate(drawn):
    for t in where:
      of_rounds.setdefault(int(t), []).append(row)
  kept: list[list[np.ndarray]] = [[points[row].copy()] for row in range(len(settings))]
  for t, _ in enumerate(played, start=1):
    for row in of_rounds.get(t, ()):
      kept[row].append(points[row].copy())
  return [np.array(of_row) for of_row in kept]
