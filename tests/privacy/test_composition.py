"""Composed privacy losses against an oracle of their own, exact laws, and the noise of transforms.

The oracle shares nothing with the code: it has densities on a fine grid of outputs in place of
divergences, replaces each output's loss by three on a grid that have its first two moments, and
composes these by a tilt in extended precision. It errs by the fourth power of the grid's width.
"""

import fractions
import functools
import math

import numpy as np
import pytest
from scipy import fft
from scipy import optimize
from scipy import special

from privacy import accounting
from privacy import releases
from privacy.noise import composition
from privacy.noise import dominating_pairs

_Pair = dominating_pairs.SampledGaussian


def _oracle_deltas(first, second, num_rounds, epsilon, parts):
  """Deltas of some rounds, in one direction, at epsilon and a hundredth less."""
  kept = (first > 0) & (second > 0)
  first, second = first[kept], second[kept]
  if num_rounds == 1:
    return np.array([np.maximum(first - math.exp(e) * second, 0).sum() for e in (epsilon, 0.99 * epsilon)])
  losses = np.log(first / second)

  def log_moment(theta):
    exponents = np.log(first) + theta * losses
    return exponents.max() + math.log(np.exp(exponents - exponents.max()).sum())

  def chernoff(log_theta):
    theta = math.exp(log_theta)
    return num_rounds * log_moment(theta) - theta * epsilon

  width = epsilon / (100 * parts)
  ends = (-5.0, math.log(10.0 / width))
  best = optimize.minimize_scalar(chernoff, bounds=ends, method="bounded")
  if best.fun < math.log(1e-25):
    return np.zeros(2)
  theta = math.exp(best.x)
  # Weights of three that keep the mean and the variance.
  nearest = np.rint(losses / width)
  rest = losses / width - nearest
  steps = np.concatenate([nearest - 1, nearest, nearest + 1]).astype(int)
  shares = np.concatenate([rest * (rest - 1) / 2, 1 - rest * rest, rest * (rest + 1) / 2])
  moment = log_moment(theta)
  exponents = (np.tile(np.log(first), 3) + theta * width * steps - moment).astype(np.longdouble)
  tilted = shares * np.exp(exponents)
  mean = float(tilted @ steps)
  spread = math.sqrt(num_rounds * float(tilted @ (steps - mean) ** 2))
  size = 1 << int(20.0 * spread + 16.0).bit_length()
  while True:
    folded = np.zeros(size, np.longdouble)
    np.add.at(folded, steps % size, tilted)
    law = fft.irfft(fft.rfft(folded) ** num_rounds, size)
    start = round(num_rounds * mean) - size // 2
    law = np.roll(law, -(start % size))
    if np.abs(np.concatenate([law[: size // 16], law[-size // 16 :]])).sum() < 1e-10:
      break
    size *= 2
    assert size < 2**23
  found = []
  for cell in (100 * parts, 99 * parts):
    i = cell - start
    above = width * np.arange(size - i)
    density = law[i:] * np.exp(num_rounds * moment - theta * (above + width * cell))
    # The sum is an integral but for Euler's and Maclaurin's correction, of the bend at epsilon.
    found.append(float((density * -np.expm1(-above)).sum() + density[0] * width / 12))
  return np.array(found)


@functools.lru_cache(maxsize=32)
def _outputs(q, mu, count=60_000):
  """Probabilities of outputs with a client's data, which count with probability q, and without."""
  x = np.linspace(-13.0, mu + 13.0, count)
  nothing = np.exp(-0.5 * x * x)
  mixed = (1 - q) * nothing + q * np.exp(-0.5 * (x - mu) ** 2)
  return mixed / mixed.sum(), nothing / nothing.sum()


def _oracle(q, mu, num_rounds, epsilon, parts):
  laws = _outputs(q, mu)
  return np.maximum(
    _oracle_deltas(*laws, num_rounds, epsilon, parts),
    _oracle_deltas(*laws[::-1], num_rounds, epsilon, parts),
  )


def _gaussian_delta(epsilon, mu):
  return special.ndtr(mu / 2 - epsilon / mu) - math.exp(
    epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
  )
