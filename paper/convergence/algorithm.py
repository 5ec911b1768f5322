"""Simulates the convex theorem's algorithm: exact reweighting, smoothed, averaged iterates.

`theorem_setting` gives the learning rate and the smoothing of the theorem's full version
(thm:a:sfl-cvx); `simulate` runs the algorithm in numpy for many settings and seeds at once;
`measure` compares the result with the optimum. The theorem (thm:sfl-main:cvx) bounds
E F_theta(w_T) - F_theta(w*), for the averaged iterate w_T, by about G^2 / (lambda T) +
B / sqrt(theta m).
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import pandas as pd

from paper.convergence import cutting
from paper.convergence import optimum
from paper.convergence import regression
from paper.convergence import rounds
from paper.convergence import weighing

LOCAL_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Setting:
  """A run of T rounds with learning rate gamma of local steps, and nu in units of the loss."""

  theta: float
  num_rounds: int
  learning_rate: float
  smoothing: float


def theorem_setting(
  constants: regression.Constants,
  squared_distance: float,
  *,
  theta: float,
  cohort_size: int,
  num_rounds: int,
  local_steps: int,
  smoothing: float | None = None,
) -> Setting:
  """Returns learning rate and smoothing of the theorem's full version with its constants.

  There is one change: the two terms of gamma with a logarithm are doubled. The proof bounds
  (1 - lambda tau gamma / 2)^-T by e^(lambda tau gamma T) from below, but only e^(lambda tau
  gamma T / 2) holds: for the printed gamma it shows that the start is forgotten as 1 / sqrt(T), not
  1 / T. Another term is mostly the smallest; then the change has no effect.

  The squared distance is Delta_0 = |w_0 - w*|^2. m is at least 2, as the formulas divide by log m;
  the theorem speaks of T >= 16 kappa^(3/2). `smoothing` is in place of the theorem's nu.
  """
  if cohort_size < 2:
    raise ValueError(f"Found cohort_size = {cohort_size}; expected at least 2.")
  kappa, l2 = constants.condition_number, constants.l2
  squared_slope = constants.lipschitz**2  # G^2
  c = l2**2 * squared_distance / squared_slope
  log_m = math.log(cohort_size)
  delta = min(
    1.0 / (16.0 * kappa**1.5),
    max(1.0, math.log(c * num_rounds / log_m)) / num_rounds,
    max(1.0, math.log(c * num_rounds**2 / (kappa**2 * log_m))) / num_rounds,
  )
  if smoothing is None:
    smoothing = 8.0 * squared_slope * delta / l2 * max(1.0, 32.0 * kappa**2 * delta)
  smoothness = constants.smoothness + l2 + squared_slope / smoothing  # L'
  forget = 2.0 / (l2 * num_rounds)
  rates = [
    1.0 / (4.0 * smoothness),
    1.0 / (8.0 * kappa * math.sqrt(2.0 * l2 * smoothness)),
    forget * max(1.0, math.log(c * theta * cohort_size * num_rounds)),
  ]
  if local_steps > 1:
    drift = 1.0 - 1.0 / local_steps
    rates.append(forget * max(1.0, math.log(c * num_rounds**2 / (kappa**2 * drift))) ** 2)
  return Setting(theta, num_rounds, min(rates) / local_steps, smoothing)


def simulate(
  problem: regression.Problem,
  start: np.ndarray,
  settings: Sequence[Setting],
  *,
  cohort_size: int,
  local_steps: int,
  num_seeds: int = 1,
  seed: int = 0,
  threshold_step: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Runs the algorithm from w_0 [d], all settings side by side, each with several seeds.

  A round draws m clients without replacement, weighs them by the smoothed dual weights pi of their
  losses (which leave out the regulariser), and averages the models that their local steps lead to.
  The averaged iterate weighs w_t by (1 - gamma lambda tau / 2)^-(1 + t). It is returned with w_T,
  [setting, seed, d] each. `threshold_step` is the step of the primal-dual threshold in place of
  reweighting; see `weighing`.
  """
  # Long runs come first, as `rounds.play` wants them.
  order = sorted(range(len(settings)), key=lambda i: -settings[i].num_rounds)
  rows = [settings[i] for i in order]
  rates = np.array([s.learning_rate for s in rows])
  thetas = np.array([[s.theta] * num_seeds for s in rows])
  smoothings = np.array([[s.smoothing] * num_seeds for s in rows])
  decay = (1.0 - 0.5 * rates * problem.l2 * local_steps)[:, None, None]
  points = np.tile(np.asarray(start, np.float64), [len(rows), num_seeds, 1])
  played = rounds.play(
    problem,
    points,
    [s.num_rounds for s in rows],
    weigh=weighing.build(thetas, smoothings, threshold_step),
    train=problem.local_training(rates, local_steps),
    cohort_size=cohort_size,
    seed=seed,
  )
  averages = points.copy()
  for t, active in enumerate(played):
    # beta_{t + 1} over the sum of beta_0 to beta_{t + 1}.
    share = (1.0 - decay[:active]) / (1.0 - decay[:active] ** (t + 2))
    averages[:active] += share * (points[:active] - averages[:active])
  return averages[np.argsort(order)], points[np.argsort(order)]


def measure(
  problem: regression.Problem,
  cohort_size: int,
  *,
  thetas: Sequence[float],
  all_rounds: Sequence[int],
  num_seeds: int,
  threshold_step: float | None = None,
) -> pd.DataFrame:
  """Runs the algorithm for every tail fraction and number of rounds, on which the setting depends.

  There is a row for each, with the attributes of its `Setting`, "cohort_size" and "num_seeds" (one
  with everyone, where nothing is random); "error", the mean over seeds of F_theta at the averaged
  iterate, less its minimum; "sd", that over seeds, 0 for one; and "last_error", as "error" of the
  last iterate.
  """
  constants = regression.build_constants(problem)
  start = regression.build_start(problem, constants)
  num_seeds = num_seeds if cohort_size < problem.num_clients else 1
  ranks = {theta: cutting.rank_weights(problem.num_clients, theta) for theta in thetas}
  optima = {theta: optimum.minimise(problem, ranks[theta]) for theta in thetas}
  settings = [
    theorem_setting(
      constants,
      float(np.sum((start - optima[theta].point) ** 2)),
      theta=theta,
      cohort_size=cohort_size,
      num_rounds=num_rounds,
      local_steps=LOCAL_STEPS,
    )
    for theta in thetas
    for num_rounds in all_rounds
  ]
  runs = simulate(
    problem,
    start,
    settings,
    cohort_size=cohort_size,
    local_steps=LOCAL_STEPS,
    num_seeds=num_seeds,
    seed=cohort_size,
    threshold_step=threshold_step,
  )
  errors = []
  for setting, averaged, last in zip(settings, *runs):
    minimum, of_theta = optima[setting.theta].value, ranks[setting.theta]
    error = problem.objective(averaged, of_theta) - minimum
    sd = error.std(ddof=1) if num_seeds > 1 else 0.0
    last_error = problem.objective(last, of_theta).mean() - minimum
    errors.append((num_seeds, error.mean(), sd, last_error))
  points = pd.DataFrame(settings)
  points.insert(1, "cohort_size", cohort_size)
  return points.join(pd.DataFrame(errors, columns=["num_seeds", "error", "sd", "last_error"]))
