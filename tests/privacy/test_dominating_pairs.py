"""Divergences of sampled Gaussians against dp_accounting and against all cohorts, one by one."""

import dataclasses
import itertools
import math

from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution
from helpers import flat
from helpers import gaussian
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import optimize
from scipy import special
from scipy import stats

from privacy import accounting
from privacy import events
from privacy import releases
from privacy.noise import dominating_pairs
from privacy.noise import sum_mechanism

_EPSILONS = np.linspace(0.0, 6.0, 25)
_Pair = dominating_pairs.SampledGaussian


def _losses_of_round(mixture, interval):
  """Our losses, for dp_accounting to compose and to convert."""
  found = [
    pld_pmf.DensePLDPmf(
      losses.interval, -(len(losses.masses) // 2), losses.masses, losses.infinity, True
    )
    for losses in dominating_pairs.losses_of_round(mixture, interval)
  ]
  return privacy_loss_distribution.PrivacyLossDistribution(found[0], found[-1])


def _fixed_cohorts(data, size):
  """All sums of `size` of the data and their probabilities."""
  found = {}
  for cohort in itertools.combinations(data, size):
    total = round(sum(cohort), 9)
    found[total] = found.get(total, 0.0) + 1 / math.comb(len(data), size)
  return found


def _cut_cohorts(data, contacted, limit, coin=1.0):
  """All sums over Poisson cohorts that are cut at random, whose members may toss a coin."""
  found = {}
  for chosen in itertools.product((0, 1), repeat=len(data)):
    count = sum(chosen)
    weight = contacted**count * (1 - contacted) ** (len(data) - count)
    members = [value for value, is_chosen in zip(data, chosen) if is_chosen]
    cut = list(itertools.combinations(members, min(count, limit)))
    for cohort in cut:
      for tosses in itertools.product((0, 1), repeat=len(cohort)):
        adding = sum(tosses)
        if coin == 1.0 and adding < len(cohort):
          continue
        of_coins = coin**adding * (1 - coin) ** (len(cohort) - adding)
        total = round(sum(value for value, adds in zip(cohort, tosses) if adds), 9)
        found[total] = found.get(total, 0.0) + weight / len(cut) * of_coins
  return found


def _cells(sums, stddev, edges):
  """Probabilities of the intervals between edges: sums plus Gaussian noise.

  Divergences of these are never above those of the densities, so that a bound below them is wrong.
  """
  centres = np.array(list(sums))[:, np.newaxis]
  weights = np.array(list(sums.values()))
  x = (edges - centres) / stddev
  below = np.diff(special.ndtr(x), axis=1)
  above = -np.diff(special.ndtr(-x), axis=1)
  return weights @ np.where(x[:, :-1] > 0, above, below)


def _edges(largest, stddev, count=1500):
  inner = np.linspace(-largest - 8 * stddev, largest + 8 * stddev, count)
  return np.concatenate([[-np.inf], inner, [np.inf]])


def _hockey_sticks(first, second, epsilons=_EPSILONS):
  return np.array([np.maximum(first - math.exp(e) * second, 0).sum() for e in epsilons])


def _check_renyi(release, first, second):
  """Checks that no divergence of two laws of `_cells`, either way, is above the release's bound."""
  orders, bounds = events.round_curve(release)
  few, bounds = orders[orders < 30.0, np.newaxis], bounds[orders < 30.0]
  first, second = (np.log(np.maximum(law, 1e-300)) for law in (first, second))
  for p, q in ((first, second), (second, first)):
    found = special.logsumexp(few * p + (1.0 - few) * q, axis=1) / (few[:, 0] - 1.0)
    assert (found <= bounds * (1 + 1e-9) + 1e-9).all()


def _data_sets(rng, size):
  """What the others hold: the extremes, and much between."""
  yield from (-np.ones(size), np.ones(size), np.zeros(size))
  for _ in range(6):
    yield rng.choice([-1.0, 0.0, 1.0], size)
  for _ in range(5):
    yield rng.uniform(-1, 1, size)


def _bounds(mixture):
  found = np.zeros([2, len(_EPSILONS)])
  for weight, pair in mixture:
    found += weight * np.stack(dominating_pairs.divergences(pair, _EPSILONS))
  return found


@pytest.mark.parametrize("q", [1e-3, 0.04, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("z", [0.7, 2.0])
def test_poisson_divergences_are_exact_in_both_directions(q, z):
  edges = _edges(2.0, z, 40_000)
  nothing = _cells({0.0: 1.0}, z, edges)
  mixed = _cells({0.0: 1 - q, 1.0: q}, z, edges)
  forward, reverse = dominating_pairs.divergences(_Pair(q, 1 / z, 2 / z), _EPSILONS)
  np.testing.assert_allclose(_hockey_sticks(mixed, nothing), forward, rtol=1e-3, atol=1e-9)
  np.testing.assert_allclose(_hockey_sticks(nothing, mixed), reverse, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(
  "q,z,rounds,delta",
  [
    (0.04, 1.731, 1000, 4e-4),
    (0.04, 0.629, 1000, 4e-4),
    (0.01, 1.0, 100, 1e-6),
    (0.5, 4.0, 30, 1e-5),
    (1.0, 3.0, 10, 1e-5),
    (0.2, 2.0, 1, 1e-3),
    # The likelier losses are next to 0: the client is hardly ever in the sample.
    (1e-3, 2.0, 1000, 1e-6),
  ],
)
def test_poisson_epsilons_are_those_of_dp_accounting(q, z, rounds, delta):
  interval = 5e-4
  expected = privacy_loss_distribution.from_gaussian_mechanism(
    z, sampling_prob=q, value_discretization_interval=interval
  ).self_compose(rounds)
  pair = _Pair(q, 1 / z, 2 / z)
  found = _losses_of_round(((1.0, pair),), interval).self_compose(rounds)
  epsilon = expected.get_epsilon_for_delta(delta)
  assert found.get_epsilon_for_delta(delta) == pytest.approx(epsilon, rel=1e-4)
  # And the grid that is chosen for an answer is fine enough.
  chosen = accounting.pld_epsilon(((1.0, pair),), rounds, delta)
  assert chosen == pytest.approx(epsilon, rel=2e-3 if q > 1e-3 else 0.1)


@pytest.mark.parametrize("population,size", [(4, 2), (5, 3), (6, 3), (6, 5)])
@pytest.mark.parametrize("z", [0.5, 1.1])
@pytest.mark.parametrize("replace_one", [False, True])
def test_fixed_cohorts_against_all_of_them(population, size, z, replace_one):
  rng = np.random.default_rng(population + size)
  pair = _Pair(size / population, 1 / z, 2 / z, is_replaced=True, replace_one=replace_one)
  bounds = np.stack(dominating_pairs.divergences(pair, _EPSILONS))
  relation = "replace_one" if replace_one else "zero_out"
  release = flat.release(population, size, None, z, "fixed_size", relation=relation)
  edges = _edges(size, z)
  closest = np.zeros(2)
  for others in _data_sets(rng, population - 1):
    for mine, instead in ((1.0, -1.0), rng.uniform(-1, 1, 2)):
      instead = instead if replace_one else 0.0
      first, second = (
        _cells(_fixed_cohorts([*others, own], size), z, edges) for own in (mine, instead)
      )
      found = np.stack([_hockey_sticks(first, second), _hockey_sticks(second, first)])
      assert (found <= bounds + 1e-12).all()
      _check_renyi(release, first, second)
      closest = np.maximum(
        closest, (found[:, bounds[0] > 1e-6] / bounds[:, bounds[0] > 1e-6]).max(1)
      )
  # Some data are as bad as the bound, for some epsilon.
  assert closest.min() > 0.98


# Clients in nodes of their own: orthogonal, and so sqrt(2) apart. What a cohort has beside what all
# have is the client's data before or after, or another client's.
_TRIANGLES = {
  True: ((-math.sqrt(0.5), 0.0), (math.sqrt(0.5), 0.0), (0.0, math.sqrt(1.5))),
  False: ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)),
}


@pytest.mark.parametrize("z", [0.6, 1.2])
@pytest.mark.parametrize("q", [0.1, 0.5])
@pytest.mark.parametrize("replace_one", [False, True])
def test_histograms_of_fixed_cohorts_in_two_dimensions(z, q, replace_one):
  before, other, after = _TRIANGLES[replace_one]
  inner = np.linspace(-2 - 7 * z, 2 + 7 * z, 300)
  edges = np.concatenate([[-np.inf], inner, [np.inf]])

  def law(own):
    return sum(
      weight * np.outer(_cells({x: 1.0}, z, edges), _cells({y: 1.0}, z, edges))
      for weight, (x, y) in ((1 - q, other), (q, own))
    )

  pair = _Pair(q, 1 / z, math.sqrt(2) / z, is_replaced=True, replace_one=replace_one)
  bounds = dominating_pairs.divergences(pair, _EPSILONS)
  first, second = law(before), law(after)
  found = [_hockey_sticks(first, second), _hockey_sticks(second, first)]
  assert (found[0] <= bounds[0] + 1e-12).all() and (found[1] <= bounds[1] + 1e-12).all()
  assert found[0][0] > 0.999 * bounds[0][0] and found[0][1] > 0.6 * bounds[0][1]


@pytest.mark.parametrize(
  "population,expected,limit,contacted",
  [
    (4, 2, 2, None),
    (5, 2, 3, None),
    (5, 1.5, 2, None),
    (6, 3, 4, None),
    (4, 2, 4, None),
    (4, 3, 3, None),
    (4, 1, 2, 2),
    (5, 1, 3, 2.5),
  ],
)
@pytest.mark.parametrize("z", [0.8, 3.0])
def test_cut_poisson_cohorts_against_all_of_them(population, expected, limit, contacted, z):
  rng = np.random.default_rng(limit)
  arguments = dict(
    update_sum=sum_mechanism.build_sum_mechanism(z, 1.0, 1, limit),
    protocol="complement" if contacted is None else "private_coin",
    contacted=contacted,
  )
  coin = 1.0 if contacted is None else expected / contacted
  probability = (contacted or expected) / population
  by_relation = {
    relation: flat.release(population, expected, None, z, relation=relation, **arguments)
    for relation in releases.RELATIONS
  }
  assert (by_relation["zero_out"].overflow_probability > 0) == (limit < population)
  bounds = {relation: _bounds(release.mixture()) for relation, release in by_relation.items()}
  edges = _edges(limit, z, 600)

  def law(data):
    return _cells(_cut_cohorts(data, probability, limit, coin), z, edges)

  closest = {relation: 0.0 for relation in bounds}
  for others in itertools.islice(_data_sets(rng, population - 1), 7):
    first = law([*others, 1.0])
    for relation, second in (
      ("zero_out", law([*others, 0.0])),
      ("zero_out", law([*others])),  # Addition or removal.
      ("replace_one", law([*others, -1.0])),
    ):
      found = np.stack([_hockey_sticks(first, second), _hockey_sticks(second, first)])
      assert (found <= bounds[relation] + 1e-12).all()
      if relation == "zero_out":  # By RDP the other one has no bound.
        _check_renyi(by_relation[relation], first, second)
      closest[relation] = max(closest[relation], (found[0] / bounds[relation][0])[:5].max())
  # By how much a client is less likely to be in a cohort that is cut is given away.
  assert min(closest.values()) > (0.55 if limit < population else 0.98)


@pytest.mark.parametrize(
  "pair",
  [
    _Pair(0.04, 0.6, 1.2),
    _Pair(0.04, 0.6, 1.2, is_replaced=True),
    _Pair(0.04, 0.6, 1.2, is_replaced=True, replace_one=True),
    _Pair(0.3, 0.6, 1.2, replace_one=True),
    _Pair(1.0, 2.0, 4.0),
    _Pair(0.9, 1.5, 1.5 * math.sqrt(2), is_replaced=True),
    _Pair(0.04, 2.0, 4.0, is_replaced=True),  # Its bound is not convex.
  ],
)
def test_losses_of_one_round_are_the_divergences(pair):
  interval = 0.01
  losses = _losses_of_round(((1.0, pair),), interval)
  epsilons = interval * np.arange(0, 400, 25)
  curve = np.max(dominating_pairs.divergences(pair, epsilons), axis=0)
  found = np.array([losses.get_delta_for_epsilon(e) for e in epsilons])
  # The largest convex function below the bound is a bound, too; nothing is below that.
  dense = interval * np.arange(2000)
  hulls = [_hull(np.exp(dense), side) for side in dominating_pairs.divergences(pair, dense)]
  lowest = np.max(hulls, axis=0)[:400:25]
  assert (found <= curve * (1 + 1e-9) + 1e-13).all()
  assert (found >= lowest * (1 - 1e-9) - 1e-13).all()
  assert (found <= lowest * (1 + 1e-6) + 1e-12).all()
  # Between the points of the grid it is no less than the divergences of a Gaussian.
  if not pair.is_replaced and not pair.replace_one:
    between = epsilons[:-1] + 0.4 * interval
    exact = np.max(dominating_pairs.divergences(pair, between), axis=0)
    assert all(losses.get_delta_for_epsilon(e) >= v - 1e-13 for e, v in zip(between, exact))


def _turns_right(a, b, c):
  (x, y), (u, v) = np.subtract(b, a), np.subtract(c, a)
  return x * v - y * u <= 0


def _hull(x, y):
  """The lower convex hull of points, at these points; of divergences, which fall to 0."""
  kept = []
  for point in zip(x, y):
    while len(kept) > 1 and _turns_right(kept[-2], kept[-1], point):
      kept.pop()
    kept.append(point)
  return np.interp(x, *np.array(kept).T)


def test_a_mixture_is_the_mean_of_its_divergences():
  pairs = _Pair(0.04, 0.6, 1.2), _Pair(0.3, 1.0, 2.0, True, True), _Pair(1.0, 0.2, 0.4)
  weights = 0.7, 0.2, 0.1
  interval = 0.01
  losses = _losses_of_round(tuple(zip(weights, pairs)), interval)
  epsilons = interval * np.arange(0, 300, 20)
  curves = sum(
    w * np.stack(dominating_pairs.divergences(p, epsilons)) for w, p in zip(weights, pairs)
  )
  found = np.array([losses.get_delta_for_epsilon(e) for e in epsilons])
  np.testing.assert_allclose(found, curves.max(0), rtol=1e-6, atol=1e-13)
  # It costs more than the least and less than the worst of them.
  single = [
    _losses_of_round(((1.0, pair),), interval).get_epsilon_for_delta(1e-3) for pair in pairs
  ]
  assert min(single) < losses.get_epsilon_for_delta(1e-3) < max(single)
  # What is missing from its probabilities counts as a round that tells nothing.
  half = _losses_of_round(((0.5, pairs[1]),), interval)
  whole = _losses_of_round(((1.0, pairs[1]),), interval)
  assert half.get_delta_for_epsilon(0.5) == pytest.approx(0.5 * whole.get_delta_for_epsilon(0.5))


_pairs = st.builds(
  lambda q, mu, factor, is_replaced, replace_one: _Pair(
    q, mu, factor * mu, is_replaced, replace_one
  ),
  st.floats(1e-4, 1.0),
  st.floats(0.01, 6.0),
  st.floats(1.0, 2.0),
  st.booleans(),
  st.booleans(),
)


@hypothesis.given(_pairs, st.floats(1.0, 3.0), st.floats(0.0, 1.0))
def test_divergences_grow_with_probability_and_distance(pair, factor, share):
  epsilons = np.linspace(0, 20, 100)
  lower = np.stack(dominating_pairs.divergences(pair, epsilons))
  q = pair.probability
  more = [
    dataclasses.replace(pair, removed=factor * pair.removed, replaced=factor * pair.replaced),
    dataclasses.replace(pair, replaced=factor * pair.replaced),
    dataclasses.replace(pair, is_replaced=True),
    dataclasses.replace(pair, is_replaced=True, replace_one=True),
  ]
  if pair.replace_one or not pair.is_replaced:
    # Elsewhere the others, who may differ more than a client's data and none, count less.
    more.append(dataclasses.replace(pair, probability=q + share * (1 - q)))
  for changed in more:
    higher = np.stack(dominating_pairs.divergences(changed, epsilons))
    # The bound on one direction may be that of the other one.
    assert (lower <= higher.max(0) * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize(
  "z,replace_one,rdp",
  [(2.590, False, None), (3.589, True, 6.42)],
)
def test_golden_noise_of_fixed_cohorts(z, replace_one, rdp):
  mixture = ((1.0, _Pair(0.04, 1 / z, 2 / z, True, replace_one)),)
  assert accounting.pld_epsilon(mixture, 1000, 4e-4) == pytest.approx(3.0, rel=1e-3)
  relation = "replace_one" if replace_one else "zero_out"
  release = flat.release(2500, 100, None, z, "fixed_size", relation=relation)
  assert release.mixture() == mixture
  assert accounting.epsilon(release, 1000, 4e-4).epsilon == pytest.approx(3.0, rel=1e-3)
  if rdp is not None:
    by_rdp = accounting.epsilon(
      flat.changed(release, update_noise_multiplier=rdp), 1000, 4e-4, "rdp"
    )
    assert by_rdp.epsilon == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("noise", [0.02, 0.03, 0.05])
@pytest.mark.parametrize("is_replaced,replace_one", [(False, False), (True, False), (True, True)])
def test_next_to_no_noise_is_not_too_much_for_numbers(noise, is_replaced, replace_one):
  pair = _Pair(0.1, 1 / noise, 2 / noise, is_replaced, replace_one)
  with np.errstate(all="raise", under="ignore"):
    losses = _losses_of_round(((1.0, pair),), 0.1)
  epsilon = losses.get_epsilon_for_delta(1e-5)
  distance = (2 if replace_one else 1) / noise
  # What is left of sampling is the logarithm of its probability and next to nothing of delta.
  expected = optimize.brentq(
    lambda e: stats.norm.sf(e / distance - distance / 2) - 1e-4, 0, 2 * distance**2
  )
  assert 0.8 * expected < epsilon < 1.05 * expected


@pytest.mark.parametrize("is_replaced,replace_one", [(False, False), (False, True), (True, True)])
def test_a_delta_that_is_almost_too_small_for_double_precision(is_replaced, replace_one):
  # What is beyond the losses that are kept counts as lost, and must be next to nothing of delta.
  pair = _Pair(1.0, 0.1, 0.2, is_replaced, replace_one)
  rounds, delta = 100, 1e-13
  mu = 10 * (pair.replaced if replace_one else pair.removed)
  exact = gaussian.epsilon(mu, delta)
  found = accounting.pld_epsilon(((1.0, pair),), rounds, delta)
  # Fourier transforms err by 1e-15, a hundredth of delta.
  assert found == pytest.approx(exact, rel=1e-3)


def test_too_many_losses_are_refused():
  pair = _Pair(1.0, 100.0, 200.0)
  with pytest.raises(ValueError, match="^Found [0-9]+ privacy losses .* expected more noise"):
    _losses_of_round(((1.0, pair),), 1e-4)
  many = tuple((1e-3, _Pair(1.0, 5.0, 10.0)) for _ in range(1000))
  with pytest.raises(ValueError, match="privacy losses"):
    _losses_of_round(many, 1e-3)
