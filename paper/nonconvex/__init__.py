"""Checks the paper's non-convex theorem in numbers, on a network whose gradients are known.

    python -m paper.nonconvex [--quick]

A network of two tanh units on 100 clients, for which the theorem's assumptions hold everywhere. The
study runs the algorithm with exact reweighting over numbers of rounds, and compares the gradient of
the Moreau envelope, from certified proximal points, with the bound of the theorem's proof. Then it
takes 1, 2, 5 and 10 local steps. It needs no TensorFlow and takes two minutes of one core. It
writes

    DIR/nonconvex/report.html  figures, tables and how to read them
    DIR/nonconvex/report.md    the tables
    DIR/nonconvex/report.csv   every setting (`measurement.measure` has the columns), with schedule:
                               the learning rate of the theorem, the same "rate" for every number
                               of local steps, or that of the same "step" of a round

`--figures_dir=DIR` writes the figures as files too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import pandas as pd

from paper import theory
from paper.convergence import algorithm
from paper.nonconvex import figures
from paper.nonconvex import measurement
from paper.nonconvex import network
from paper.nonconvex import theorem
from privacy.settings import command_line
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables

THETAS = (1.0, 0.5, 0.1)
COHORT_SIZES = (100, 10)
LOCAL_STEPS = 5
ALL_LOCAL_STEPS = (1, 2, 5, 10)
DRIFT_THETA = 0.5
_LOG2_ROUNDS = range(4, 16)
_QUICK_LOG2_ROUNDS = range(4, 9)
_DRIFT_LOG2_ROUNDS = range(4, 14)
# The largest error of a norm that the certificates may leave, far below every norm measured.
_NORM_ERROR = 1e-5
# Local steps change the mean of |grad Phi|^2 by less than this share, if a round's step stays.
_CHANGE = 0.1
# The theorem's rate is -1/2, which the measured one reaches slowly.
_RATE = -0.35
_ENOUGH_ROUNDS = 2**12

_SUMMARY = (
  "The gradient of the Moreau envelope falls about as the theorem says, and lies far below the"
  " bound of its proof. Local steps cost next to nothing: τ of them do the work of τ rounds, where"
  " the bound grows with τ."
)
_GRADIENTS_NOTE = (
  "Rate: the slope of log |∇Φ|² against log T over the five largest T; the theorem has −1/2. Bound:"
  " that of the proof with its constants, for the most rounds, where Φ(w₀) stands for Φ(w₀) − inf"
  " Φ. Last: |∇Φ|² in the last rounds."
)
_DRIFTS_NOTE = (
  "Columns: |∇Φ|² with the learning rates of the theorem; with γ = 1 / (40 L) for every τ, and the"
  " bound for it; with γ = 1 / (4 τ L), whose rounds take the same step for every τ, and the bound."
  " Drift: Σᵢ πᵢ Σₖ |wᵢₖ − w|² of a round with γ = 1 / (40 L); lengths: at most γ² G² times the sum"
  " of k²; paper: its bound, 8 τ² (τ − 1) γ² G²."
)


def _measure_gradients(
  problem: network.Problem, all_rounds: Sequence[int], num_seeds: int
) -> pd.DataFrame:
  """Measures |grad Phi|^2 at the theorem's learning rates."""
  constants = network.build_constants(problem)
  frames = []
  for size in theory.progress(COHORT_SIZES, "gradients"):
    descents = {theta: measurement.descent(problem, theta, size) for theta in THETAS}
    settings = [
      _setting(constants, theta, num_rounds, descents[theta], LOCAL_STEPS)
      for theta in THETAS
      for num_rounds in all_rounds
    ]
    arguments = dict(cohort_size=size, local_steps=LOCAL_STEPS, num_seeds=num_seeds)
    frames.append(measurement.measure(problem, settings, **arguments))
  return pd.concat(frames, ignore_index=True)


def _setting(
  constants: network.Constants, theta: float, num_rounds: int, descent: float, local_steps: int
) -> algorithm.Setting:
  rate = theorem.learning_rate(constants, descent, num_rounds=num_rounds, local_steps=local_steps)
  return algorithm.Setting(theta, num_rounds, rate, 0.0)


def _measure_drifts(problem: network.Problem, all_rounds: Sequence[int]) -> pd.DataFrame:
  """Measures the effect of local steps, with everyone, so that nothing is random."""
  constants, n = network.build_constants(problem), problem.num_clients
  descent = measurement.descent(problem, DRIFT_THETA, n)
  least = theorem.largest_rate(constants, max(ALL_LOCAL_STEPS))
  frames = []
  for local_steps in theory.progress(ALL_LOCAL_STEPS, "local steps"):
    same_step = theorem.largest_rate(constants, local_steps)
    schedules: dict[str, list[algorithm.Setting]] = {
      "theorem": [_setting(constants, DRIFT_THETA, t, descent, local_steps) for t in all_rounds],
      "rate": [algorithm.Setting(DRIFT_THETA, t, least, 0.0) for t in all_rounds],
      "step": [algorithm.Setting(DRIFT_THETA, t, same_step, 0.0) for t in all_rounds],
    }
    for name, settings in schedules.items():
      measured = measurement.measure(
        problem, settings, cohort_size=n, local_steps=local_steps, num_seeds=1
      )
      frames.append(measured.assign(schedule=name))
  return pd.concat(frames, ignore_index=True)


def _gradients_table(points: pd.DataFrame, rates: pd.Series, num_clients: int) -> tables.Table:
  setting = ["theta", "cohort_size"]
  frame = points.pivot(index=setting, columns="num_rounds", values="squared_norm")
  some = [frame.columns[0], frame.columns[len(frame.columns) // 2], frame.columns[-1]]
  frame = frame[some].set_axis([f"T = {num_rounds}" for num_rounds in some], axis=1)
  longest = points[points["num_rounds"] == some[-1]].set_index(setting)
  frame = frame.assign(rate=rates).join(longest[["last", "bound"]]).sort_index(ascending=False)
  frame.index = [f"{theta:g}, {size}" for theta, size in frame.index]
  formats: list[Callable] = [*["{:.1e}".format] * 3, "{:.2f}".format, *["{:.1e}".format] * 2]
  return theory.table(
    "Gradients",
    "theta, m",
    frame,
    formats,
    note=_GRADIENTS_NOTE,
    lead=f"Mean of |grad Phi|^2 over rounds, n = {num_clients}:",
  )


def _drifts_table(drifts: pd.DataFrame) -> tables.Table:
  longest = drifts[drifts["num_rounds"] == drifts["num_rounds"].max()]
  of = {
    name: here.set_index("local_steps").sort_index() for name, here in longest.groupby("schedule")
  }
  frame = pd.DataFrame(
    {
      "theorem's": of["theorem"]["squared_norm"],
      "same rate": of["rate"]["squared_norm"],
      "bound": of["rate"]["bound"],
      "same step": of["step"]["squared_norm"],
      "its bound": of["step"]["bound"],
      "drift": of["rate"]["drift"],
      "lengths": of["rate"]["plain_drift_bound"],
      "paper": of["rate"]["drift_bound"],
    }
  )
  frame.index = [str(steps) for steps in frame.index]
  return theory.table(
    "Local steps",
    "tau",
    frame,
    [lambda value: f"{value:.1e}" if value > 0.0 else "0"] * len(frame.columns),
    note=_DRIFTS_NOTE,
    lead=f"Mean of |grad Phi|^2 for theta = {DRIFT_THETA:g}, everyone,"
    f" T = {longest['num_rounds'].iloc[0]}, and the drift of a round:",
  )


def check(points: pd.DataFrame, drifts: pd.DataFrame, rates: pd.Series) -> dict[str, bool]:
  """Compares the measurements with the theory: sentences, and whether they hold.

  `points` are `measurement.measure`'s with the theorem's learning rate, `drifts` the same for
  several tau and a "schedule" of "theorem", "rate" or "step", `rates` the slopes of
  log |grad Phi|^2 against log T of each setting of the points.
  """
  both = pd.concat([points, drifts])
  error = both["norm_error"].max()
  share = (both["squared_norm"] / both["bound"]).max()
  drifting = both[both["local_steps"] > 1]
  plain = (drifting["drift"] / drifting["plain_drift_bound"]).max()
  printed = (drifting["plain_drift_bound"] / drifting["drift_bound"]).max()
  of_step = drifts[drifts["schedule"] == "step"].groupby("num_rounds")["squared_norm"]
  change = (of_step.max() / of_step.min() - 1.0).max()
  checks = {
    f"every norm is certified to {error:.0e}": error <= _NORM_ERROR,
    f"no mean of |∇Φ|² is above {100 * share:.2g} % of the bound": share <= 1.0,
    f"no drift is above {100 * plain:.2g} % of what the lengths of the steps allow": plain <= 1.0,
    f"which is at most {100 * printed:.2g} % of the paper’s bound": printed <= 1.0,
    f"local steps change |∇Φ|² by at most {100 * change:.2g} %, if a round’s step stays": (
      change <= _CHANGE
    ),
  }
  if points["num_rounds"].max() >= _ENOUGH_ROUNDS:
    checks[f"|∇Φ|² falls at a rate of {rates.max():.2f} or faster"] = rates.max() <= _RATE
  return checks


def report(num_seeds: int, quick: bool) -> tuple[page.Page, dict[str, str], dict[str, bool]]:
  """Measures the gradients and the effect of local steps, with at least 2 seeds, and reports.

  It returns the page, no further files, and the checks. `quick` is for few numbers of rounds.
  """
  problem = network.build_problem()
  constants, n = network.build_constants(problem), problem.num_clients
  of_gradients = _QUICK_LOG2_ROUNDS if quick else _LOG2_ROUNDS
  of_drifts = _QUICK_LOG2_ROUNDS if quick else _DRIFT_LOG2_ROUNDS
  points = _measure_gradients(problem, [2**k for k in of_gradients], num_seeds)
  drifts = _measure_drifts(problem, [2**k for k in of_drifts])
  grouped = points.groupby(["theta", "cohort_size"])[["num_rounds", "squared_norm"]]
  rates = grouped.apply(theory.rate, "squared_norm")
  checks = check(points, drifts, rates)
  content = page.Page(
    "report",
    "The non-convex theorem in numbers",
    "does the gradient vanish as the theorem says?",
    f"A network of {problem.num_units} tanh units, n = {n} clients, d = {problem.dimension};"
    f" B = {constants.max_loss:.2f}, G = {constants.lipschitz:.2f}, L = {constants.smoothness:.2f}"
    f" and weakly convex with {constants.weak_convexity:.2f} everywhere; μ = 2 L;"
    f" τ = {LOCAL_STEPS}, {num_seeds} runs a setting",
    _SUMMARY,
    [
      figures.gradient_by_rounds(points, n),
      figures.client_drift(drifts),
      _gradients_table(points, rates, n),
      _drifts_table(drifts),
      theory.describe_checks(checks),
    ],
    pd.concat([points.assign(schedule="theorem"), drifts]).to_csv(index=False),
  )
  return content, {}, checks


def define(parser: command_line.Parser) -> None:
  theory.define(parser, "nonconvex", num_seeds=3)


def main(args: argparse.Namespace) -> None:
  theory.main(args, "nonconvex", report)
