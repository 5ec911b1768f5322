"""Composed privacy losses against an oracle of their own, exact laws, and the noise of transforms.

The oracle shares nothing with the code: it has densities on a fine grid of outputs in place of
divergences, replaces each output's loss by three on a grid that have its first two moments, and
composes these by a tilt in extended precision. It errs by the fourth power of the grid's width.
"""

import fractions
import functools
import math

from helpers import flat
from helpers import gaussian
import numpy as np
import pytest
from scipy import fft
from scipy import optimize

from privacy import accounting
from privacy.noise import composition
from privacy.noise import dominating_pairs

_Pair = dominating_pairs.SampledGaussian


def _oracle_deltas(first, second, num_rounds, epsilon, parts, beyond=0.0):
  """Deltas of some rounds, in one direction, at epsilon and a hundredth less.

  Without the largest and least losses of probability `beyond`; not numbers if it takes too long.
  """
  kept = (first > 0) & (second > 0)
  first, second = first[kept], second[kept]
  if num_rounds == 1:
    pair = (epsilon, 0.99 * epsilon)
    return np.array([np.maximum(first - math.exp(e) * second, 0).sum() for e in pair])
  losses = np.log(first / second)
  order = np.argsort(losses)
  below, above = np.cumsum(first[order]), np.cumsum(first[order[::-1]])[::-1]
  order = order[(below > beyond) & (above > beyond)]
  first, losses = first[order], losses[order]

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
  size = 1 << int(min(20.0 * spread + 16.0, 2.0**22)).bit_length()
  while True:
    folded = np.zeros(size, np.longdouble)
    np.add.at(folded, steps % size, tilted)
    law = fft.irfft(fft.rfft(folded) ** num_rounds, size)
    start = round(num_rounds * mean) - size // 2
    law = np.roll(law, -(start % size))
    if np.abs(np.concatenate([law[: size // 16], law[-size // 16 :]])).sum() < 1e-10:
      break
    size *= 2
    if size > 2**22:
      return np.full(2, np.nan)
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


def _oracle(q, mu, num_rounds, epsilon, parts, delta):
  laws, beyond = _outputs(q, mu), 1e-6 * delta / num_rounds
  return np.maximum(
    _oracle_deltas(*laws, num_rounds, epsilon, parts, beyond),
    _oracle_deltas(*laws[::-1], num_rounds, epsilon, parts, beyond),
  )


def _epsilon(q, z, num_rounds, delta):
  return accounting.pld_epsilon(((1.0, _Pair(q, 1 / z, 2 / z)),), num_rounds, delta)


def _largest_delta(q, mu, num_rounds):
  """A bound on the total variation of all rounds, the delta of an epsilon of zero.

  The sum of the rounds', or what Pinsker's inequality makes of their chi-squared divergence.
  """
  by_sum = num_rounds * q * gaussian.delta(0.0, mu)
  return min(by_sum, math.sqrt(num_rounds * q * q * math.expm1(mu * mu) / 2))


def _assert_tight(q, z, num_rounds, delta, parts):
  """An epsilon is an upper bound, and 99 % of it is none."""
  epsilon = _epsilon(q, z, num_rounds, delta)
  if epsilon == 0.0:
    assert _largest_delta(q, 1 / z, num_rounds) <= delta * (1 + 1e-9)
    return
  found = _oracle(q, 1 / z, num_rounds, epsilon, parts, delta)
  assert found[0] <= delta * (1 + 1e-5)
  assert found[1] > delta


@pytest.mark.parametrize(
  "mu,num_rounds,parts", [(1.0, 1, 1), (0.1, 100, 20), (0.003, 10**5, 50), (0.001, 10**6, 100)]
)
def test_the_oracle_knows_gaussians(mu, num_rounds, parts):
  total = mu * math.sqrt(num_rounds)
  for epsilon in (4.4, 7.8):
    delta = gaussian.delta(epsilon, total)
    found = _oracle(1.0, mu, num_rounds, epsilon, parts, delta)
    expected = [gaussian.delta(e, total) for e in (epsilon, 0.99 * epsilon)]
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
  release = flat.release(10**6, 1, None, z)
  epsilon = accounting.epsilon(release, num_rounds, delta, "pld").epsilon
  found = _oracle(1e-6, 1 / z, num_rounds, epsilon, 4, delta)
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


@pytest.mark.parametrize("q,z,delta", [(0.04, 1.731, 4e-4), (1e-6, 0.8, 1e-10), (1.0, 40.0, 1e-14)])
def test_epsilon_grows_with_rounds(q, z, delta):
  found = [_epsilon(q, z, round(t), delta) for t in np.geomspace(1, 10**6, 16)]
  assert (np.diff(found) >= 0).all()
  close = [_epsilon(q, z, t, delta) for t in range(1000, 1008)]
  assert (np.diff(close) > 0).all()


@pytest.mark.parametrize(
  "q,z,num_rounds,deltas",
  [
    (0.04, 1.731, 1000, np.geomspace(1e-16, 0.1, 100)),
    (0.04, 1.731, 1000, np.geomspace(1e-9, 1.01e-9, 30)),
    (1.0, 2.0, 1, np.geomspace(1e-50, 0.1, 100)),
    (1e-6, 0.55, 10**5, np.geomspace(1e-14, 1e-9, 6)),
    (1e-6, 0.52, 10**6, np.geomspace(1e-14, 1e-13, 3)),
  ],
)
def test_epsilon_falls_with_delta(q, z, num_rounds, deltas):
  found = [_epsilon(q, z, num_rounds, delta) for delta in deltas]
  assert (np.diff(found) < 0).all()


def test_as_many_rounds_as_delta_has_room_for_cost_nothing():
  q, z = 1e-6, 1.0
  round_delta = q * gaussian.delta(0.0, 1 / z)
  assert _epsilon(q, z, 100, 101 * round_delta) == 0.0
  assert _epsilon(q, z, 1, 0.99 * round_delta) > 0.0


def _two_losses(loss, probability, num_rounds, epsilon):
  """Delta of randomized response with one bit, exactly; e^loss = p / (1 - p)."""
  p, q, factor = (fractions.Fraction(x) for x in (probability, 1 - probability, math.exp(epsilon)))
  total = fractions.Fraction(0)
  for k in range(num_rounds + 1):
    ways = math.comb(num_rounds, k)
    first, second = p**k * q ** (num_rounds - k), q**k * p ** (num_rounds - k)
    total += ways * max(first - factor * second, 0)
  return total


_PROBABILITY = 0.53125  # A fraction that doubles have.
_LOSS = math.log(_PROBABILITY / (1 - _PROBABILITY))


def _bits(*num_rounds, spacing=1):
  """The losses of runs of a bit; multiples of a grid that is finer than they need."""
  masses = np.zeros(2 * spacing + 1)
  masses[0], masses[-1] = 1 - _PROBABILITY, _PROBABILITY
  losses = composition.Losses(_LOSS / spacing, masses, 0.0)
  return composition.Composition(*((losses, number) for number in num_rounds))


@pytest.mark.parametrize("runs", [(1,), (2,), (3,), (20,), (400,), (1, 1), (1, 399), (150, 2, 248)])
@pytest.mark.parametrize("delta", [0.01, 1e-6, 1e-14])
@pytest.mark.parametrize("spacing", [1, 3, 50])
def test_bits_are_composed_exactly(runs, delta, spacing):
  epsilon = _bits(*runs, spacing=spacing).epsilon(delta)
  assert _two_losses(_LOSS, _PROBABILITY, sum(runs), epsilon) <= delta
  assert epsilon == 0.0 or _two_losses(_LOSS, _PROBABILITY, sum(runs), 0.999 * epsilon) > delta


@pytest.mark.parametrize("theta", [1e-3, 0.5, 2.0, 20.0, 60.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-14])
def test_any_tilt_is_a_bound(theta, delta):
  losses = _bits(400, spacing=50)
  best, found = losses.epsilon(delta), losses.epsilon(delta, theta)
  assert best * (1 - 1e-9) <= found
  assert theta != 2.0 or found < best * (1 + 1e-6)


@pytest.mark.parametrize("outside", [1e-15, 1e-3, 0.3])
def test_sums_outside_of_the_window_count(monkeypatch, outside):
  losses, delta = _bits(400, spacing=50), 1e-3
  best, _ = losses.chernoff(delta)
  exact = losses.epsilon(delta)
  monkeypatch.setattr(composition, "_OUTSIDE", outside)
  for theta in (0.3 * best, best, 3.0 * best):
    assert losses.epsilon(delta, theta) >= exact * (1 - 1e-9)


@pytest.mark.parametrize("runs", [(2,), (50,), (10**4,), (1, 1), (1, 1000), (3, 40, 10**4)])
@pytest.mark.parametrize("theta", [0.0, 3.0])
@pytest.mark.parametrize("rare", [False, True])
def test_the_error_of_transforms(runs, theta, rare):
  rng = np.random.default_rng(sum(runs))
  laws = []
  for _ in runs:
    masses = rng.exponential(size=401) ** 4
    if rare:
      masses *= 1e-4 / masses.sum()
      masses[200] = 1 - masses.sum() + masses[200]
    laws.append(masses / masses.sum())
  of_runs = ((composition.Losses(1e-3, law, 0.0), number) for law, number in zip(laws, runs))
  found = composition.Composition(*of_runs).compose(theta)
  # In extended precision, by a transform of whatever length.
  steps, size = np.arange(-200, 201), len(found.masses)
  product = np.ones(size // 2 + 1, np.clongdouble)
  for law, number in zip(laws, runs):
    tilted = (law * np.exp(theta * 1e-3 * steps)).astype(np.longdouble)
    exact = np.zeros(size, np.longdouble)
    np.add.at(exact, steps % size, tilted / tilted.sum())
    product *= fft.rfft(exact) ** number
  exact = np.roll(fft.irfft(product, size), -(found.first % size))
  # The rounding of probabilities is accounted for apart.
  off = np.abs(found.masses - exact) - sum(runs) * 1e-15 * exact
  assert off.max() <= found.error
  assert found.error < 1e-8 * found.masses.max()
  assert found.masses.sum() == pytest.approx(1.0, abs=1e-9)


def test_what_transforms_may_err_by_is_added(monkeypatch):
  losses, delta = _bits(400, spacing=50), 1e-6
  exact = losses.epsilon(delta)
  compose = composition.Composition.compose

  def worst(self, *arguments):
    found = compose(self, *arguments)
    error = 1e-3 * found.masses.max()
    return found._replace(masses=found.masses - error, error=error)

  monkeypatch.setattr(composition.Composition, "compose", worst)
  assert losses.epsilon(delta) >= exact * (1 - 1e-9)


def test_an_infinite_loss_costs_its_probability():
  masses = np.array([0.5, 0.0, 0.4])
  losses = composition.Losses(0.1, masses, 0.1)
  for runs in (((losses, 2),), ((losses, 1), (losses, 1))):
    assert composition.Composition(*runs).epsilon(0.18) == math.inf
    assert composition.Composition(*runs).epsilon(0.2) < math.inf
  rare = composition.Losses(0.1, masses * 1e-9 + np.array([0, 1 - 1e-9, 0]), 1e-10)
  run = composition.Composition((rare, 1000))
  with_it, without = run.epsilon(1.05e-7), run.epsilon(0.05e-7)
  assert 0.0 < with_it < without == math.inf


def test_the_largest_losses_count_as_infinite():
  mixture, delta = ((1.0, _Pair(1.0, 1.0, 2.0)),), 1e-3
  epsilons = []
  for beyond in (1e-9, 0.3 * delta):
    losses, _ = dominating_pairs.losses_of_round(mixture, 1e-3, beyond)
    epsilons.append(composition.Composition((losses, 1)).epsilon(delta))
    assert 0.0 < losses.infinity <= beyond
  assert gaussian.delta(epsilons[1], 1.0) <= delta
  assert epsilons[1] >= epsilons[0]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_worse_direction_counts(monkeypatch, is_reversed):
  mixture = ((1.0, _Pair(0.04, 0.6, 1.2)),)
  expected = accounting.pld_epsilon(mixture, 100, 1e-6)
  losses_of_round = dominating_pairs.losses_of_round

  def in_order(*arguments):
    found = losses_of_round(*arguments)
    assert len(found) == 2
    return found[::-1] if is_reversed else found

  monkeypatch.setattr(dominating_pairs, "losses_of_round", in_order)
  assert accounting.pld_epsilon(mixture, 100, 1e-6) == expected


def test_grids_with_too_many_sums_are_refused_and_coarser_ones_taken(monkeypatch):
  q, z, num_rounds, delta = 0.04, 1.731, 1000, 4e-4
  expected = _epsilon(q, z, num_rounds, delta)
  losses = dominating_pairs.losses_of_round(((1.0, _Pair(q, 1 / z, 2 / z)),), 1e-3)
  monkeypatch.setattr(composition, "_MOST_POINTS", 2048)
  with pytest.raises(ValueError, match="^Found sums of 1000 .* points; expected at most 2048"):
    composition.Composition((losses[0], num_rounds)).epsilon(delta)
  assert expected < _epsilon(q, z, num_rounds, delta) < 1.1 * expected


def test_divergences_that_round_to_nothing_prove_nothing_by_rdp():
  # dp_accounting's are 0 here, from which it follows that epsilon is 0.
  release = flat.release(10**8, 1, None, 1.0)
  epsilon = accounting.epsilon(release, 1, 1e-10, "rdp").epsilon
  assert dominating_pairs.divergences(_Pair(1e-8, 1.0, 2.0), np.array([epsilon]))[0][0] <= 1e-10
  assert accounting.epsilon(release, 1, 1e-10).epsilon > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("num_rounds", [1, 100, 10**4, 10**5, 10**6])
@pytest.mark.parametrize("q", [1e-6, 1e-4, 1e-2, 0.04, 0.5, 1.0])
def test_the_whole_grid(q, num_rounds):
  for z in (max(0.5, q * math.sqrt(num_rounds)), max(1.5, 3 * q * math.sqrt(num_rounds))):
    for delta in (1e-5, 1e-8, 1e-10, 1e-12, 1e-14):
      # Finer and finer, until the oracle agrees with itself.
      epsilon, found = _epsilon(q, z, num_rounds, delta), np.zeros(2)
      for parts in (4, 20, 100, 400):
        if epsilon == 0.0:
          assert _largest_delta(q, 1 / z, num_rounds) <= delta * (1 + 1e-9)
          break
        last, found = found, _oracle(q, 1 / z, num_rounds, epsilon, parts, delta)
        if np.isnan(found[0]):
          break
        if num_rounds == 1 or abs(found[0] - last[0]) < 2e-5 * found[0]:
          assert found[0] <= delta * (1 + 2e-5)
          assert found[1] > delta
          break
