"""Random allocation: bounds against brute force over all allocations, and against adversaries."""

import csv
import dataclasses
import itertools
import math
import pathlib

import numpy as np
import pytest
from scipy import special

from benchmarks.accounting import vectors
from privacy import accounting
from privacy import calibration
from privacy import ledger
from privacy import server
from privacy import together
from privacy.noise import allocation
from privacy.noise import dominating_pairs
from tests.helpers import flat

_EPSILONS = np.array([0.0, 0.3, 1.0, 2.0])
_BEYOND = 1e-14


def _divergences(first, second, size, epsilons=_EPSILONS):
  """H of mixtures of normal laws in `size` <= 3 dimensions, by sums over a grid of points.

  A law is its means, [components, size], all of the same weight.
  """
  points = np.linspace(-7.0, 9.0 if len(second) == 1 else 7.0, {1: 20001, 2: 901, 3: 81}[size])
  axes = np.meshgrid(*[points] * size, indexing="ij", sparse=True)

  def density(means):
    total = 0.0
    for mean in means:
      total = total + math.prod(
        np.exp(-0.5 * (axis - m) ** 2) / math.sqrt(2.0 * math.pi) for axis, m in zip(axes, mean)
      )
    return total / len(means)

  cell = (points[1] - points[0]) ** size
  p, q = density(first), density(second)
  return np.array(
    [
      [np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * cell for epsilon in epsilons]
      for a, b in ((p, q), (q, p))
    ]
  )


def _removed(length, seen, mu, epsilon):
  """H of removing a client, by sums over all rounds but one, whose part is a closed form."""
  normal = np.linspace(-9.0, 12.0, 20_001 if seen < 3 else 801)
  weights = np.exp(-0.5 * normal**2) * (normal[1] - normal[0]) / math.sqrt(2.0 * math.pi)
  sums, joint = np.array(float(length - seen)), np.array(1.0)
  for _ in range(seen - 1):
    sums = np.add.outer(sums, np.exp(mu * normal - mu * mu / 2.0))
    joint = np.multiply.outer(joint, weights)

  def call(strike):
    """E[(W - strike)+] of a log-normal W of mean 1."""
    logs = np.log(np.maximum(strike, 1e-300))
    above = special.ndtr(mu / 2 - logs / mu) - strike * special.ndtr(-mu / 2 - logs / mu)
    return np.where(strike > 0.0, above, 1.0 - strike)

  a = math.exp(epsilon)
  forward = (joint * call(length * a - sums)).sum() / length
  strike = length / a - sums
  backward = a * (joint * (call(strike) - 1.0 + strike)).sum() / length
  return forward, backward


def _means(length, seen, mu, number=1):
  """The means of all allocations of a client, in the rounds that were seen."""
  chosen = itertools.combinations(range(length), number)
  return np.array([[mu * (i in rounds) for i in range(seen)] for rounds in chosen])


@pytest.mark.parametrize("mu", [0.4, 1.0, 1.8])
@pytest.mark.parametrize("length,seen", [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (7, 1)])
def test_removing_against_all_allocations(length, seen, mu):
  pair = allocation.AllocatedGaussian(length, seen, mu, 2.0 * mu)
  bounds = np.array(pair.divergences(_EPSILONS, _BEYOND))
  exact = np.transpose([_removed(length, seen, mu, epsilon) for epsilon in _EPSILONS])
  assert (bounds >= exact - (1e-9 if seen < 3 else 1e-5)).all()  # Of the sums here.
  np.testing.assert_allclose(bounds, exact, rtol=2e-3, atol=1e-5 if seen == 3 else 1e-9)


def test_the_exact_numbers_are_those_of_all_allocations():
  exact = np.transpose([_removed(3, 2, 1.0, epsilon) for epsilon in _EPSILONS])
  found = _divergences(_means(3, 2, 1.0), np.zeros([1, 2]), 2)
  np.testing.assert_allclose(found, exact, atol=1e-4)


@pytest.mark.parametrize("mu", [0.5, 1.3])
@pytest.mark.parametrize("length,seen", [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("other", [-1.0, -0.4, 0.0, 0.6])
def test_replacing_against_all_allocations(length, seen, mu, other):
  pair = allocation.AllocatedGaussian(length, seen, mu, 2.0 * mu, replace_one=True)
  bounds = np.array(pair.divergences(_EPSILONS, _BEYOND))
  exact = _divergences(_means(length, seen, mu), _means(length, seen, other * mu), seen)
  assert (bounds >= exact - 1e-4).all()


def test_one_round_of_a_block_is_a_poisson_sample():
  pair = allocation.AllocatedGaussian(25, 1, 0.8, 1.6)
  sampled = dominating_pairs.SampledGaussian(1.0 / 25.0, 0.8, 1.6)
  exact = np.array(dominating_pairs.divergences(sampled, _EPSILONS))
  bounds = np.array(pair.divergences(_EPSILONS, _BEYOND))
  assert (bounds >= exact * (1.0 - 1e-9)).all()
  np.testing.assert_allclose(bounds, exact, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("distance", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("number", [1, 2, 3, 5, 25, 64])
def test_a_law_keeps_the_mean_and_has_a_larger_variance(distance, number):
  law = allocation.law_of_sum(distance, number, 1e-16)
  values = law.values / number
  assert law.masses.sum() == pytest.approx(1.0, abs=1e-12)
  assert law.masses @ values == pytest.approx(1.0, abs=1e-11)
  variance = math.expm1(distance * distance) / number
  assert variance <= law.masses @ (values - 1.0) ** 2 + 1e-6 <= variance * 1.005 + 1e-6
  assert law.lifted <= 1e-16 and law.lowered <= 1e-16 * number


def test_a_law_is_larger_in_convex_order():
  # Fourth cumulants would not show it: the mean of any convex function is no less than exact.
  law = allocation.law_of_sum(1.0, 2, 1e-16)
  normal = np.linspace(-9.0, 9.0, 4001)
  weights = np.exp(-0.5 * normal**2) * (normal[1] - normal[0]) / math.sqrt(2.0 * math.pi)
  lognormal = np.exp(normal - 0.5)
  sums, joint = np.add.outer(lognormal, lognormal), np.outer(weights, weights)
  for bound in (0.2, 0.7, 1.5, 2.0, 4.0, 20.0):
    for side in (1.0, -1.0):
      exact = (np.maximum(side * (sums - bound), 0.0) * joint).sum()
      found = np.maximum(side * (law.values - bound), 0.0) @ law.masses
      assert exact * (1.0 - 1e-6) - 1e-9 <= found <= exact * (1.0 + 5e-3) + 1e-6


@pytest.mark.parametrize("length,number", [(3, 2), (2, 1), (3, 3)])
def test_rounds_drawn_from_the_whole_run_cost_no_more_than_blocks(length, number):
  """Theorem 2, with blocks whose lengths differ by one."""
  mu, delta = 1.1, 1e-3
  size, more = divmod(length, number)
  blocks = [size + 1] * more + [size] * (number - more)
  runs = [(((1.0, allocation.AllocatedGaussian(t, t, mu, 2 * mu)),), 1) for t in blocks]
  epsilon = accounting.composed_epsilon(runs, delta)
  epsilons = np.array([epsilon])
  exact = _divergences(_means(length, length, mu, number), np.zeros([1, length]), length, epsilons)
  assert exact.max() <= delta * (1.0 + 1e-2)  # Of the sums here.


def test_less_than_poisson_and_more_than_an_adversary_finds():
  z, length, blocks, delta = 1.0, 25, 40, 1e-5
  rounds = length * blocks
  epsilon = accounting.epsilon(flat.release(2500, 100, None, z, "allocated"), rounds, delta).epsilon
  poisson = accounting.epsilon(flat.release(2500, 100, None, z), rounds, delta).epsilon
  assert 0.9 * poisson < epsilon < 0.97 * poisson
  # An adversary that knows the rounds in which it might be: the largest release of each block.
  rng = np.random.default_rng(5)
  num_runs, losses = 10_000, np.zeros(10_000)
  for _ in range(blocks):  # The likelihood ratio, of runs with the client.
    noise = rng.standard_normal([num_runs, length])
    noise[:, 0] += 1.0 / z
    losses += special.logsumexp(noise / z - 0.5 / z**2, axis=1) - math.log(length)
  found = np.mean(np.maximum(-np.expm1(1.0 - losses), 0.0))
  error, release = 5.0 / math.sqrt(num_runs), flat.release(2500, 100, None, z, "allocated")
  assert accounting.epsilon(release, rounds, found - error).epsilon >= 1.0
  assert accounting.epsilon(release, rounds, found + error).epsilon <= 1.0


def test_a_client_in_a_known_round_is_the_most_that_anybody_finds():
  # The lower bound: who guesses the round 0 of a block of two, and is right in half of the cases.
  mu = 1.2
  pair = allocation.AllocatedGaussian(2, 2, mu, 2 * mu)
  forward, backward = pair.divergences(_EPSILONS, _BEYOND)
  one = dominating_pairs.divergences(dominating_pairs.SampledGaussian(0.5, mu, mu), _EPSILONS)
  known = dominating_pairs.divergences(dominating_pairs.SampledGaussian(1.0, mu, mu), _EPSILONS)
  assert (forward >= one[0]).all() and (backward >= one[1]).all()
  assert (forward <= known[0]).all() and (backward <= known[1]).all()


def test_a_run_is_whole_blocks_and_the_rest():
  release = flat.release(60, 20, None, 1.0, "allocated")  # Blocks of three.
  pair = release.gaussian(1.0 / 3.0)
  whole = allocation.AllocatedGaussian(3, 3, pair.removed, pair.replaced)
  rest = dataclasses.replace(whole, seen=2)
  assert release.runs(11) == ((((1.0, whole),), 3), (((1.0, rest),), 1))
  assert release.runs(9) == ((((1.0, whole),), 3),)
  assert release.runs(2) == ((((1.0, rest),), 1),)
  costs = [accounting.epsilon(release, rounds, 1e-4).epsilon for rounds in range(8)]
  assert costs == sorted(costs) and costs[0] == 0.0
  assert flat.release(60, 60, None, 1.0, "allocated").runs(7) == (
    flat.release(60, 60, None, 1.0, "none").runs(7)
  )


def test_cut_cohorts_cost_more():
  release = flat.release(2500, 100, 2.0, None, "allocated")
  made = flat.complete(release, num_bins=64)
  assert made.num_shares == 170
  pair = made.gaussian(made.cohort.probability)
  plain = made.cohort.runs(50, pair, 0.0)
  cut = made.cohort.runs(50, pair, 1e-3)
  (of_none, block), (of_one, fewer), (of_known, known) = cut[0][0]
  assert (of_one, of_known) == pytest.approx((0.025, 0.001 + 0.025**2 / 2))
  assert of_none + of_one + of_known == pytest.approx(1.0)
  assert (fewer.length, fewer.seen) == (block.length - 1, block.seen - 1) == (24, 24)
  assert known.distance == pair.replaced
  costs = [accounting.composed_epsilon(runs, 1e-5) for runs in (plain, made.runs(50), cut)]
  assert costs[0] <= costs[1] < costs[0] * 1.001 and costs[2] > 1.01 * costs[0]
  assert made.overflow_probability > 0.0


def test_several_runs_count_their_blocks_by_themselves():
  release = flat.release(100, 4, None, 1.5, "allocated")
  twice = together.spent([together.Repeated(release, 30, times=2)], 1e-5).epsilon
  apart = together.spent([together.Repeated(release, 30)] * 2, 1e-5).epsilon
  (block, rest) = release.runs(30)
  expected = accounting.composed_epsilon(((block[0], 2), (rest[0], 2)), 1e-5)
  assert twice == pytest.approx(apart) == pytest.approx(expected, rel=1e-6)


def test_calibration_the_ledger_and_the_server():
  release = flat.asked(
    population=250,
    clients_per_round=25,
    sampling="allocated",
    rho_ratio=0.5,
    threshold_kind="geometric",
    clip_rho_ratio=0.1,
  )
  release = calibration.calibrate(release, 2.0, 1e-4, 50)
  assert accounting.epsilon(release, 50, 1e-4).epsilon == pytest.approx(2.0, rel=1e-4)
  kept = ledger.build_ledger(
    accounting.Accountant(release, 1e-4),
    claim_epsilon=2.0,
    clip_norm=1.0,
    num_rounds_planned=50,
    rounds_done=30,
  )
  read = ledger.Ledger.from_json(kept.to_json())
  assert read.release == release and read.epsilon_spent <= 2.0
  assert "one of 10 successive rounds" in kept.guarantee["sampling"]
  made = flat.complete(flat.release(250, 25, 2.0, None, "allocated"), num_bins=16)
  against = server.server_epsilon(made, 50, 1e-4)
  assert against.participations == 5 and "thousand" not in against.explanation


def test_what_is_not_known_is_refused():
  release = flat.release(250, 10, None, 1.0, "allocated")
  with pytest.raises(ValueError, match="allocated sampling.*expected 'pld'"):
    accounting.epsilon(release, 10, 1e-5, "rdp")
  with pytest.raises(ValueError, match="private_coin with allocated.*expected poisson"):
    flat.release(250, 10, 2.0, None, "allocated", protocol="private_coin", contacted=20)
  assert flat.release(250, 10, 2.0, None, "allocated", protocol="helpers").noise


def test_an_oracle_brackets_the_vectors():
  """`pld-accounting` 2.0 in an environment of its own: benchmarks/accounting/allocation_oracle."""
  folder = pathlib.Path(vectors.__file__).parent
  bounds = list(csv.DictReader((folder / "allocation_oracle.csv").read_text().splitlines()))
  table = folder.parents[1] / "docs/reference/accounting_vectors.csv"
  rows = [r for r in csv.DictReader(table.read_text().splitlines()) if r["sampling"] == "allocated"]
  assert len(rows) == len(bounds) == 20
  for row, bound in zip(rows, bounds):
    assert float(bound["lower"]) <= float(row["epsilon"]) * (1.0 + 1e-3) + 1e-4, row
    # The oracle's grid is coarse; ours may be the tighter one.
    assert float(row["epsilon"]) <= float(bound["upper"]) * (1.0 + 2e-3) + 1e-4, row
