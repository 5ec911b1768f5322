"""The answers of `spend` and `calibrate` for a run that is one mechanism, whatever its rounds do.

With --sensitivity it is a Gaussian mechanism: of a matrix of one's own, such as tree aggregation or
a buffered Toeplitz matrix (BLT), all of whose rounds release C x + z, where a client's part in C x
has at most the norm Delta. With --rho it is any mechanism of rho-zCDP (Bun and Steinke 2016): its
Renyi divergences are at most rho alpha, which bounds epsilon at every alpha.
"""

from __future__ import annotations

import argparse
import math

from dp_accounting import rdp
import numpy as np

from privacy import accounting
from privacy import checks
from privacy.command import answers
from privacy.command import asked
from privacy.command import meaning
from privacy.noise import banded

# Orders on both sides of the best one, about 1 + sqrt(log(1 / delta) / rho).
_ORDERS = np.geomspace(0.05, 20.0, 2000)
_LEAST_ORDER = 1.011  # dp_accounting leaves out those of 1.01 and less.
_GAUSSIAN = (
  "One Gaussian mechanism of all rounds, exactly. It holds if a client's part in all rounds of C x"
  " is at most Delta long whatever its rounds are, and these depend on nobody's data; C is lower"
  " triangular, and the noise has no end.",
  "Neighbouring data sets: those for which Delta is the sensitivity.",
)


def zcdp_epsilon(rho: float, delta: float) -> float:
  """Returns epsilon of any rho-zCDP mechanism."""
  orders = np.maximum(_LEAST_ORDER, 1.0 + math.sqrt(-math.log(delta) / rho) * _ORDERS)
  return float(rdp.compute_epsilon(orders, rho * orders, delta)[0])


def answer(args: argparse.Namespace) -> answers.CommandAnswer:
  """Returns the answer of `calibrate` or `spend` for one mechanism, or raises a `ValueError`."""
  by = meaning.way(args)
  if args.delta is None and args.population is None:
    raise ValueError(f"Found --{by} without --delta; expected --delta, or --population for one.")
  delta = asked.delta_of(args)
  if by == "rho":
    rho = checks.scale("--rho", args.rho)
    epsilon, words, details, lines = zcdp_epsilon(rho, delta), "", {}, []
    guarantee = (
      "The bound of any mechanism of rho-zCDP, for the neighbouring data sets that rho is about.",
      f"One Gaussian mechanism has epsilon = {banded.epsilon((2 * rho) ** -0.5, delta):.5g}.",
    )
  else:
    sensitivity = checks.scale("--sensitivity", args.sensitivity)
    noise = _noise(args, sensitivity, delta)
    epsilon, rho, z = banded.epsilon(noise, delta), 0.5 / noise**2, noise * sensitivity
    words, guarantee = f"z = {z:.5g}, ", _GAUSSIAN
    details = {"sensitivity": sensitivity, "noise_multiplier": z, "stddev": noise}
    lines = [answers.row("sensitivity of all rounds", answers.as_text(sensitivity), "Delta")]
    lines += answers.rows(details, "noise_multiplier", "stddev")
  values = dict(command=args.command, epsilon=epsilon, delta=delta, rho=rho, **details)
  warning = args.population and accounting.delta_warning(delta, args.population)
  warnings = [warning] if warning else []
  cost = f"epsilon = {epsilon:.5g} at delta = {answers.as_delta(delta)}"
  lines = [
    f"{cost} ({words}rho = {rho:.5g} of zCDP).",
    *answers.paragraphs("Warning:", warnings)[1:],
    *lines,
    *answers.paragraphs("What epsilon is about:", guarantee),
  ]
  return answers.CommandAnswer({**values, "guarantee": guarantee, "warnings": warnings}, lines)


def _noise(args: argparse.Namespace, sensitivity: float, delta: float) -> float:
  """Returns the standard deviation of the noise over the sensitivity of all rounds."""
  if args.command == "calibrate":
    return banded.noise_multiplier(checks.scale("--epsilon", args.epsilon), delta)
  z = args.update_noise_multiplier
  if z is None:
    raise ValueError("Found --sensitivity without --update_noise_multiplier; expected both.")
  z = checks.scale("--update_noise_multiplier", z)
  return checks.scale("--update_noise_multiplier over --sensitivity", z / sensitivity)
