"""Checks the paper's convergence theorem in numbers, on a problem whose optimum is known.

    python -m paper.convergence [--quick]

Linear regression on 100 clients, whose optima are certified by a duality gap. The study runs the
algorithm with exact reweighting, smoothing and the weighted averaged iterate over numbers of
rounds, and compares the error with the theorem's terms, 1 / (lambda T) and B / sqrt(theta m). Then
it takes the primal-dual threshold, which has no floor, for the most rounds, and other smoothing
than the theorem's. It needs no TensorFlow and takes three minutes on one core. It writes

    DIR/convergence/report.html  figures, tables and how to read them
    DIR/convergence/report.md    the tables
    DIR/convergence/report.csv   the error of every setting (`algorithm.measure` has the columns)
                                 and threshold, "reweighting" or "primal_dual"
    DIR/convergence/bias.csv     the exact cost of cohorts (`optimum.sampling_biases` has them)
    DIR/convergence/smoothing.csv  the error for several nu (`smoothing.measure` has them)

`--figures_dir=DIR` writes the figures as files too.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from paper import theory
from paper.convergence import algorithm
from paper.convergence import figures
from paper.convergence import optimum
from paper.convergence import regression
from paper.convergence import smoothing
from privacy.settings import command_line
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables

THETAS = (1.0, 0.5, 0.1, 0.01)
COHORT_SIZES = (100, 50, 25, 10)
_LOG2_ROUNDS = range(4, 17)
_QUICK_LOG2_ROUNDS = range(4, 12)
_BIAS_SIZES = sorted({*COHORT_SIZES, 2, 5, 15, 20, 30, 40, 60, 70, 80, 90})
_OPTIMA = (1.0, 0.99, 0.8, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
_THRESHOLD_STEP = 0.01
_SMOOTHED_THETAS = (0.5, 0.1)
_SMOOTHINGS = tuple(10.0 ** (k / 2) for k in range(-6, 2))
_LOG2_SMOOTHED_ROUNDS = 13
_ROUNDING = 1e-12
# The primal-dual threshold has to leave less than this of the floor.
_SHARE_OF_FLOOR = 0.2
# With fewer it is still on its way there.
_ENOUGH_ROUNDS = 2**14

_SUMMARY = (
  "Exact reweighting with smoothing approaches the minimum of F_θ at a rate of about 1 / T if all"
  " clients take part. If m of them do, the error levels off where the mean over cohorts has its"
  " minimum: a floor that can be computed, and that lies far below the theorem’s B / √(θ m)."
)
_ERRORS_NOTE = (
  "Errors: F_θ at the averaged iterate less its minimum, mean over runs. Rate: the slope of log"
  " error against log T over the five largest T. Floor: F_θ at the minimiser of the mean over"
  " cohorts, less its minimum. Bias: F_θ less that mean, at the minimum of F_θ. Primal-dual: the"
  f" error after the most rounds with the primal-dual threshold and a step of {_THRESHOLD_STEP:g}."
  " Learning rate and"
  " smoothing are those of the theorem’s full version with its constants, but for a factor of 2 in"
  " the learning rate’s logarithmic terms, which the proof needs."
)
_OPTIMA_NOTE = (
  "The mean and the worst loss are those at the minimum of F_θ; tied clients share their loss with"
  " another, so that F_θ has a kink there; the gap certifies that no point is better by more."
)


def _or_nothing(error: float) -> str:
  return "" if np.isnan(error) else f"{error:.1e}"


def _tables(
  points: pd.DataFrame,
  duals: pd.DataFrame,
  biases: pd.DataFrame,
  optima: pd.DataFrame,
  num_clients: int,
) -> list[tables.Table]:
  setting = ["theta", "cohort_size"]
  errors = points.pivot(index=setting, columns="num_rounds", values="error").iloc[:, [-7, -4, -1]]
  errors.columns = [f"T = {num_rounds}" for num_rounds in errors.columns]
  errors["rate"] = points.groupby(setting)[["num_rounds", "error"]].apply(theory.rate, "error")
  titles = {"floor": "floor", "at_optimum": "bias", "bound": "B / sqrt(theta m)"}
  costs = biases.set_index(setting)[list(titles)].rename(columns=titles)
  of_duals = duals.set_index(setting)["error"].rename("primal-dual")
  errors = errors.join(of_duals).join(costs).sort_index(ascending=False)
  errors.index = [f"{theta:g}, {size}" for theta, size in errors.index]
  optima = optima.set_axis(
    ["theta", "min F_theta", "mean", "worst", "from FedAvg's", "tied", "gap"], axis=1
  )
  optima.index = [f"{theta:g}" for theta in optima.pop("theta")]

  def cost(value: float) -> str:
    # Without a bias, only rounding is left.
    return "0" if value < 1e-9 else f"{value:.1e}"

  return [
    theory.table(
      "Errors",
      "theta, m",
      errors,
      [*["{:.1e}".format] * 3, "{:.2f}".format, _or_nothing, cost, cost, "{:.2f}".format],
      note=_ERRORS_NOTE,
      lead=f"F_theta at the averaged iterate less its minimum, n = {num_clients}:",
    ),
    theory.table(
      "Optima",
      "theta",
      optima,
      [*["{:.6f}".format] * 4, "{:d}".format, "{:.0e}".format],
      note=_OPTIMA_NOTE,
    ),
  ]


def _smoothings_table(smoothings: pd.DataFrame) -> tables.Table:
  frame = smoothings.sort_values(["theta", "smoothing"], ascending=[False, True])
  marks = frame["is_theorems"].map({True: ", the theorem's", False: ""})
  frame.index = [
    f"{theta:g}, {nu:.2g}{mark}"
    for theta, nu, mark in zip(frame["theta"], frame["smoothing"], marks)
  ]
  return theory.table(
    "Smoothing",
    "theta, nu",
    frame[["error", "floor", "bound"]].rename(columns={"bound": "nu log(1 / theta)"}),
    ["{:.1e}".format] * 3,
    note=f"Error: as above, with everyone and T = {frame['num_rounds'].iloc[0]}, and the learning"
    " rate that the theorem has for that ν. Floor: F_θ at the minimum of the smoothed objective,"
    " less its own minimum.",
  )


def check(
  points: pd.DataFrame,
  duals: pd.DataFrame,
  biases: pd.DataFrame,
  optima: pd.DataFrame,
  smoothings: pd.DataFrame,
) -> dict[str, bool]:
  """Compares the measurements with the theory: sentences, and whether they hold.

  `points` are `algorithm.measure`'s, `duals` the same with the primal-dual threshold, `biases` and
  `optima` those of `optimum`, `smoothings` of `smoothing`.
  """
  gap, lowest = optima["gap"].max(), points["error"].min()
  unbiased = biases.loc[biases["theta"] == 1.0, ["largest", "floor"]].max(axis=None)
  of_smoothing = (smoothings["floor"] / smoothings["bound"]).max()
  bias, floor = ((biases[name] / biases["bound"]).max() for name in ("largest", "floor"))
  return {
    f"the duality gap of every optimum is at most {gap:.0e}": gap <= 1e-11,
    f"no run is below the minimum, the lowest error being {lowest:.0e}": lowest >= -_ROUNDING,
    f"at θ = 1 cohorts have no bias beyond {unbiased:.0e}": unbiased <= _ROUNDING,
    f"no bias is above {100 * bias:.2g} % of B / √(θ m)": bias <= 1.0,
    f"no floor is above {100 * floor:.2g} % of it": floor <= 2.0,
    f"no floor of smoothing is above {100 * of_smoothing:.2g} % of ν log(1 / θ)": (
      of_smoothing <= 1.0
    ),
    **_check_primal_dual(duals, biases),
  }


def _check_primal_dual(duals: pd.DataFrame, biases: pd.DataFrame) -> dict[str, bool]:
  """Compares the primal-dual threshold with the floor of cohorts whose floor is the highest."""
  if duals["num_rounds"].max() < _ENOUGH_ROUNDS:
    return {}
  setting = ["theta", "cohort_size"]
  both = duals.merge(biases[[*setting, "floor"]], on=setting).query("theta * cohort_size >= 1")
  worst = both.loc[both["floor"].idxmax()]
  text = (
    f"the primal-dual threshold ends at {worst['error']:.1e} for θ = {worst['theta']:g} and m ="
    f" {worst['cohort_size']:.0f}, where the floor of cohorts is {worst['floor']:.1e}"
  )
  return {text: worst["error"] <= _SHARE_OF_FLOOR * worst["floor"]}


def report(num_seeds: int, quick: bool) -> tuple[page.Page, dict[str, str], dict[str, bool]]:
  """Measures the errors and the cost of cohorts, with at least 2 seeds, and reports.

  It returns the page, bias.csv and smoothing.csv by their names, and the checks. `quick` is for few
  numbers of rounds.
  """
  problem = regression.build_problem()
  all_rounds = [2**k for k in (_QUICK_LOG2_ROUNDS if quick else _LOG2_ROUNDS)]
  sizes = theory.progress(COHORT_SIZES, "convergence")
  optima = optimum.compare_optima(problem, _OPTIMA)
  biases = optimum.sampling_biases(problem, THETAS, _BIAS_SIZES)
  points = pd.concat(
    [
      algorithm.measure(problem, size, thetas=THETAS, all_rounds=all_rounds, num_seeds=num_seeds)
      for size in sizes
    ],
    ignore_index=True,
  )
  duals = pd.concat(
    [
      algorithm.measure(
        problem,
        size,
        thetas=[theta for theta in THETAS if theta < 1.0],
        all_rounds=all_rounds[-1:],
        num_seeds=num_seeds,
        threshold_step=_THRESHOLD_STEP,
      )
      for size in COHORT_SIZES
      if size < problem.num_clients
    ],
    ignore_index=True,
  )
  smoothings = smoothing.measure(
    problem,
    _SMOOTHED_THETAS,
    _SMOOTHINGS,
    min(all_rounds[-1], 2**_LOG2_SMOOTHED_ROUNDS),
    algorithm.LOCAL_STEPS,
  )
  constants, n = regression.build_constants(problem), problem.num_clients
  checks = check(points, duals, biases, optima, smoothings)
  content = page.Page(
    "report",
    "The theory in numbers",
    "does the algorithm converge as the theorem says?",
    f"Linear regression, n = {n} clients, d = {problem.dimension}, λ = {constants.l2:g},"
    f" L = {constants.smoothness:g}, κ = {constants.condition_number:g};"
    f" B = {constants.max_loss:.2f} and G = {constants.lipschitz:.2f} on a ball of radius"
    f" {constants.radius:.2f}; τ = {algorithm.LOCAL_STEPS}, {num_seeds} runs a setting",
    _SUMMARY,
    [
      figures.error_by_rounds(points, biases, n),
      figures.sampling_bias(points, duals, biases, n),
      figures.smoothing_error(smoothings),
      *_tables(points, duals, biases, optima, n),
      _smoothings_table(smoothings),
      theory.describe_checks(checks),
    ],
    pd.concat(
      [points.assign(threshold="reweighting"), duals.assign(threshold="primal_dual")]
    ).to_csv(index=False),
  )
  files = {"bias.csv": biases, "smoothing.csv": smoothings}
  return content, {name: frame.to_csv(index=False) for name, frame in files.items()}, checks


def define(parser: command_line.Parser) -> None:
  theory.define(parser, "convergence", num_seeds=5)


def main(args: argparse.Namespace) -> None:
  theory.main(args, "convergence", report)
