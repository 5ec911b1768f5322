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

from privacy import checks
from privacy.command import answers
from privacy.command import asked
from privacy.noise import banded

# Orders on both sides of the best one, about 1 + sqrt(log(1 / delta) / rho).
_ORDERS = np.geomspace(0.05, 20.0, 2000)
_GAUSSIAN = (
  "One Gaussian mechanism of all rounds, exactly. It holds if a client's part in all rounds of C x"
  " is at most Delta long whatever its rounds are, and these depend on nobody's data; C is lower"
  " triangular, and the noise has no end.",
  "Neighbouring data sets: those for which Delta is the sensitivity.",
)


def zcdp_epsilon(rho: float, delta: float) -> float:
  """Returns epsilon of any rho-zCDP mechanism."""
  orders = 1.0 + math.sqrt(-math.log(delta) / rho) * _ORDERS
  return float(rdp.compute_epsilon(orders, rho * orders, delta)[0])


def is_asked(args: argparse.Namespace) -> bool:
  """Returns whether the flags are about a run that is one mechanism."""
  return args.sensitivity is not None or getattr(args, "rho", None) is not None


def answer(args: argparse.Namespace) -> answers.Answer:
  """Returns the answer of `calibrate` or `spend` for one mechanism, or raises a `ValueError`."""
  by = "rho" if getattr(args, "rho", None) is not None else "sensitivity"
  asked.refuse(args, f"--{by}", ("clients_per_round", "num_rounds", "bands", "coefficients"))
  if args.delta is None and args.population is None:
    raise ValueError(f"Found --{by} without --delta; expected --delta, or --population for one.")
  delta = asked.delta_of(args)
  if by == "rho":
    asked.refuse(args, "--rho", ("sensitivity", "update_noise_multiplier", "rho_ratio"))
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
  first = f"epsilon = {epsilon:.5g} at delta = {delta:.4g} ({words}rho = {rho:.5g} of zCDP)."
  lines = [first, *lines, *answers.paragraphs("What epsilon is about:", guarantee)]
  return answers.Answer({**values, "guarantee": guarantee}, lines)


def _noise(args: argparse.Namespace, sensitivity: float, delta: float) -> float:
  """Returns the standard deviation of the noise over the sensitivity of all rounds."""
  if args.command == "calibrate":
    asked.refuse(args, "--sensitivity", ("rho_ratio",))
    return banded.noise_multiplier(checks.positive("epsilon", args.epsilon), delta)
  z = args.update_noise_multiplier
  if z is None:
    raise ValueError("Found --sensitivity without --update_noise_multiplier; expected both.")
  asked.refuse(args, "--sensitivity", ("threshold_noise_multiplier",))
  return checks.scale("update_noise_multiplier", z) / sensitivity
