"""Composed privacy losses against an oracle of their own, exact laws, and the noise of transforms.

The oracle shares nothing with the code: it has densities on a fine grid of outputs in place of
divergences, replaces each output's loss by three on a grid that have its first two moments, and
composes these by a tilt in extended precision. It errs by the fourth power of the grid's width.
"""

import functools
import math

import numpy as np
import pytest
from scipy import fft
from scipy import optimize
from scipy import special

from privacy import accounting
from privacy import releases
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


def _epsilon(q, z, num_rounds, delta):
  return accounting.pld_epsilon(((1.0, _Pair(q, 1 / z, 2 / z)),), num_rounds, delta)


def _assert_tight(q, z, num_rounds, delta, parts):
  """An epsilon is an upper bound, and 99 % of it is none."""
  epsilon = _epsilon(q, z, num_rounds, delta)
  if epsilon == 0.0:
    assert num_rounds * q * _gaussian_delta(0.0, 1 / z) <= delta * (1 + 1e-9)
    return
  found = _oracle(q, 1 / z, num_rounds, epsilon, parts)
  assert found[0] <= delta * (1 + 1e-5)
  assert found[1] > delta


@pytest.mark.parametrize(
  "mu,num_rounds,parts", [(1.0, 1, 1), (0.1, 100, 20), (0.003, 10**5, 50), (0.001, 10**6, 100)]
)
def test_the_oracle_knows_gaussians(mu, num_rounds, parts):
  for delta in (1e-5, 1e-14):
    total = mu * math.sqrt(num_rounds)
    epsilon = optimize.brentq(lambda e: _gaussian_delta(e, total) - delta, 0.0, 60.0, xtol=1e-10)
    found = _oracle(1.0, mu, num_rounds, epsilon, parts)
    expected = [_gaussian_delta(e, total) for e in (epsilon, 0.99 * epsilon)]
    np.testing.assert_allclose(found, expected, rtol=3e-5)


def test_the_oracle_knows_two_rounds():
  first, second = _outputs(0.2, 1.5, 3000)
  epsilon = 1.0
  both = np.outer(first, first) - math.exp(epsilon) * np.outer(second, second)
  found = _oracle_deltas(first, second, 2, epsilon, 20)[0]
  assert found == pytest.approx(both[both > 0].sum(), rel=1e-4)


# Settings in which dp_accounting's transforms are noise: it says 0.155, and 22 for 2.44.
@pytest.mark.parametrize("z,num_rounds,delta", [(0.55, 10**5, 1e-10), (0.52, 10**6, 1e-14)])
def test_tiny_deltas_of_rare_clients(z, num_rounds, delta):
  release = releases.Release(10**6, 1, None, z)
  epsilon = accounting.epsilon(release, num_rounds, delta, "pld").epsilon
  found = _oracle(1e-6, 1 / z, num_rounds, epsilon, 4)
  assert found[0] <= delta < found[1]


@pytest.mark.parametrize(
  "q,z,num_rounds,delta,parts",
  [
    (1.0, 30.0, 100, 1e-5, 5),
    (1.0, 1000.0, 10**6, 1e-14, 100),
    (0.5, 3.0, 1, 1e-8, 1),
    (0.5, 100.0, 10**5, 1e-12, 50),
    (0.04, 1.731, 1000, 4e-4, 5),
    (0.04, 0.6, 100, 1e-14, 20),
    (0.04, 3.0, 10**5, 1e-5, 30),
    (0.01, 10.0, 10**6, 1e-10, 100),
    (1e-4, 0.6, 10**4, 1e-8, 3),
    (1e-4, 1.0, 10**6, 1e-14, 20),
    (1e-6, 0.5, 1, 1e-8, 1),
    (1e-6, 0.5, 10**5, 1e-10, 4),
    (1e-6, 1.0, 10**6, 1e-5, 20),
  ],
)
def test_epsilons_are_tight_upper_bounds(q, z, num_rounds, delta, parts):
  _assert_tight(q, z, num_rounds, delta, parts)
