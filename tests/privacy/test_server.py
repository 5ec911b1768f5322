"""What a run costs a client against the server: closed forms, an exact mixture, golden numbers."""

import dataclasses
import math

from helpers import flat
from helpers import gaussian
import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from privacy import accounting
from privacy import server
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism

_DELTA = 4e-4
_ROUNDS = 1000
_Z = 1.731


def _release(threshold=3.0, update=2.0, sampling="poisson", **kwargs):
  return flat.release(2500, 100, threshold, update, sampling, **kwargs)


def _distributed(z=_Z, num_parameters=210, **kwargs):
  return flat.complete(
    _release(None, z, **kwargs), distributed_updates=True, num_parameters=num_parameters
  )


def _mixture_epsilon(release, rounds, delta):
  """Exactly, for a server that knows how many report in each round: no dp_accounting.

  Given the sizes k_1, ..., k_T, T rounds are one Gaussian mechanism of mu^2 = sum mu^2(k_t). Sizes
  are independent of data, so that the divergences are the mean of its.
  """
  limit = release.num_shares
  sigma_squared = flat.of(release).update_sum.local_stddev ** 2
  sensitivity = flat.of(release).update_sum.sensitivity
  others = np.arange(flat.of(release).population)
  weights = stats.binom.pmf(others, flat.of(release).population - 1, release.contact_probability)
  weights = weights * np.minimum(1, limit / (others + 1))
  reports = np.minimum(others + 1, limit)
  squared = sensitivity**2 / (reports * sigma_squared - 2)
  weights = weights / weights.sum()
  kept = weights > 1e-15
  squared, weights = squared[kept], weights[kept]
  # The law of the sum of T of these, on a fine grid.
  step = squared.mean() * 1e-4
  size = 1 << math.ceil(math.log2(rounds * squared.max() / step + 2))
  low = np.floor(squared / step).astype(int)
  share = squared / step - low
  law = np.bincount(low, weights * (1 - share), size) + np.bincount(low + 1, weights * share, size)
  law = np.maximum(np.fft.irfft(np.fft.rfft(law) ** rounds, size), 0)
  likely = law > 1e-16
  mu, law = np.sqrt(step * np.arange(size)[likely]), law[likely]
  return optimize.brentq(lambda e: law @ gaussian.delta(e, mu) - delta, 0, 400)


def test_likely_participations():
  # How often a client takes part, but for one in a thousand.
  release = _release()
  assert server.likely_participations(release, _ROUNDS) == 60
  assert stats.binom.sf(60, _ROUNDS, 0.04) <= 1e-3 < stats.binom.sf(59, _ROUNDS, 0.04)
  assert server.server_epsilon(release, _ROUNDS, _DELTA).participations == 60
  assert server.likely_participations(release, 0) == 0
  assert server.likely_participations(_release(sampling="fixed_size"), _ROUNDS) == 60
  assert server.likely_participations(_release(sampling="none"), 10) == 10
  coin = _release(protocol="private_coin", contacted=2500)
  assert server.likely_participations(coin, _ROUNDS) == _ROUNDS
  coin = _release(protocol="private_coin", contacted=400)
  assert server.likely_participations(coin, _ROUNDS) == stats.binom.ppf(0.999, _ROUNDS, 0.16)


@pytest.mark.parametrize("participations", [1, 7, 60])
def test_helpers_are_the_gaussian_mechanism_exactly(participations):
  release = _distributed(protocol="helpers")
  spent = server.server_epsilon(release, _ROUNDS, _DELTA, participations)
  expected = gaussian.epsilon(math.sqrt(participations) / _Z, _DELTA)
  assert expected * (1 - 1e-6) <= spent.epsilon <= 1.001 * expected
  if participations == 60:
    assert spent.epsilon == pytest.approx(24.27, abs=0.01)


def test_a_private_coin_of_everybody_amplifies_as_for_an_outsider():
  # Everybody is contacted, and who adds data is secret to the server as well.
  release = _distributed(protocol="private_coin", contacted=2500)
  assert release.num_shares == 2500
  spent = server.server_epsilon(release, _ROUNDS, _DELTA)
  outside = accounting.epsilon(release, _ROUNDS, _DELTA).epsilon
  assert spent.participations == _ROUNDS
  assert spent.epsilon == pytest.approx(outside, rel=1e-3)
  assert spent.epsilon == pytest.approx(2.66, abs=0.01)
  assert "is contacted in all of the 1000 rounds." in spent.explanation
  assert "but not who adds data" in spent.explanation


def test_contacting_more_clients_costs_less_against_the_server():
  costs = []
  for contacted in (100, 200, 400, 1000, 2500):
    release = _distributed(protocol="private_coin", contacted=contacted)
    costs.append(server.server_epsilon(release, _ROUNDS, _DELTA).epsilon)
  assert costs == sorted(costs, reverse=True)
  # With all K shares it would be 15.1, 9.3, 5.0; here fewer report, more so of few.
  for found, with_all in zip(costs[1:], (15.1, 9.3, 5.0, 2.66)):
    assert with_all * 0.99 < found < 1.3 * with_all
  # Nobody's coin says no: as without one.
  complement = server.server_epsilon(_distributed(), _ROUNDS, _DELTA).epsilon
  assert costs[0] == pytest.approx(complement, rel=1e-6)


@pytest.mark.parametrize("participations", [1, 10, 60])
def test_complement_against_an_exact_mixture(participations):
  release = _distributed()
  spent = server.server_epsilon(release, _ROUNDS, _DELTA, participations).epsilon
  exact = _mixture_epsilon(release, participations, _DELTA)
  # From above; a little is given away for shares of two and cohorts that are too small.
  assert exact * (1 - 1e-6) <= spent < 1.005 * exact
  # Not less than with helpers, nor than with the likely cohort, nor more than with the smallest.
  helpers = server.server_epsilon(_distributed(protocol="helpers"), _ROUNDS, _DELTA, participations)
  assert helpers.epsilon < spent
  sizes, probabilities = shares.reports_of_a_member(2500, 0.04, 140)
  smallest = sizes[np.searchsorted(np.cumsum(probabilities), 1e-3 * _DELTA / participations)]
  mean = float(probabilities @ sizes)
  for reports, is_more in ((smallest, True), (mean, False)):
    mu = math.sqrt(participations * shares.loss_ratio(reports, 140)) / _Z
    assert (gaussian.epsilon(mu, _DELTA) > spent) == is_more


@pytest.mark.parametrize(
  "population,clients,z,rounds,delta,most",
  [
    # With a huge delta for them, small cohorts do not count; with a small one they do.
    (40, 20, 2.0, 5, 1e-2, 1.05),
    (40, 20, 2.0, 5, 1e-6, 1.05),
    # Of a large cohort a few sizes count as their smallest.
    (20_000, 2000, 1.5, 20, 1e-5, 1.01),
  ],
)
def test_sizes_are_on_the_safe_side(population, clients, z, rounds, delta, most):
  release = flat.release(population, clients, None, z)
  release = flat.complete(release, distributed_updates=True, num_parameters=10)
  spent = server.server_epsilon(release, rounds, delta, rounds).epsilon
  exact = _mixture_epsilon(release, rounds, delta)
  assert exact * (1 - 1e-6) <= spent < most * exact


def test_large_populations_take_no_longer():
  release = flat.release(10**9, 1000, None, 1.5)
  release = flat.complete(release, distributed_updates=True, num_parameters=10)
  spent = server.server_epsilon(release, 20, 1e-10, 2)
  less = flat.changed(release, population=10**5)
  expected = server.server_epsilon(less, 20, 1e-10, 2).epsilon
  assert spent.epsilon == pytest.approx(expected, rel=1e-2)


def test_one_round_is_the_gaussian_mechanism_exactly():
  # With all shares: Balle and Wang (2018).
  epsilon = server.server_epsilon(_release(2.0, protocol="helpers"), 10, 1e-5, 1).epsilon
  assert gaussian.delta(epsilon, 0.5) == pytest.approx(1e-5, rel=1e-3)
  # In cohorts of fixed size all shares are there, whoever they replace.
  fixed = server.server_epsilon(_release(2.0, 2.0, "fixed_size"), 10, 1e-5, 1)
  assert fixed.epsilon == pytest.approx(epsilon, rel=1e-6)
  replaced = _release(2.0 * math.sqrt(2), 2.0, "fixed_size", relation="replace_one")
  replaced = server.server_epsilon(replaced, 10, 1e-5, 1)
  assert replaced.epsilon == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("sampling", ["fixed_size", "none"])
def test_cohorts_of_fixed_size_that_lack_shares(sampling):
  # The server makes what they lack, and knows it.
  z, reports, num_shares = 2.0, 100, 150
  summed = sum_mechanism.build_sum_mechanism(z, 1.0, 10, num_shares)
  release = _release(None, z, sampling, update_sum=summed)
  mu = summed.sensitivity / math.sqrt(reports * summed.local_stddev**2 - 2)
  assert mu > 1.2 / z
  epsilon = server.server_epsilon(release, 10, 1e-5, 1).epsilon
  assert gaussian.epsilon(mu, 1e-5) <= epsilon < 1.01 * gaussian.epsilon(mu, 1e-5)


def test_threshold_and_updates_are_seen_together():
  release = flat.complete(
    _release(3.0, 2.0, protocol="helpers"),
    num_bins=64,
    distributed_updates=True,
    num_parameters=210,
  )
  spent = server.server_epsilon(release, 100, 1e-5, 4)
  z = 6 / math.sqrt(13)
  assert spent.epsilon == pytest.approx(gaussian.epsilon(2 / z, 1e-5), rel=1e-3)
  assert "sees noisy sums only" in spent.explanation
  # Trusted with the updates, it learns from the threshold alone.
  trusted = flat.changed(release, update_sum=None)
  spent = server.server_epsilon(trusted, 100, 1e-5, 4)
  assert spent.epsilon == pytest.approx(gaussian.epsilon(2 / 3, 1e-5), rel=1e-3)
  assert "trusted with the updates" in spent.explanation


def test_who_makes_the_noise_does_not_matter_but_for_its_shares():
  # The same noise on a histogram and on updates.
  tree = tree_mechanism.build_tree_mechanism(2.0, 64, 100, num_shares=140)
  threshold = server.server_epsilon(_release(2.0, None, tree=tree), _ROUNDS, _DELTA).epsilon
  updates = server.server_epsilon(_distributed(2.0), _ROUNDS, _DELTA).epsilon
  assert threshold == pytest.approx(updates, rel=1e-6)
  # Without parameters of a histogram: those of the one that would be built.
  bare = server.server_epsilon(_release(2.0, None), _ROUNDS, _DELTA).epsilon
  assert bare == pytest.approx(threshold, rel=1e-6)


def test_coarse_shares_cost_what_they_are_apart():
  # With shares of 1 the sums are not close to one law, and the difference is paid for.
  num_shares = 100
  summed = sum_mechanism.build_sum_mechanism(2.0, 1.0, 10, num_shares)
  scale = math.sqrt(num_shares - 2) / 2 - math.sqrt(10) / 2
  coarse = dataclasses.replace(summed, scale=scale, local_stddev=1.0)
  fine = _release(None, 2.0, protocol="helpers", update_sum=summed)
  release = flat.changed(
    fine,
    update_sum=coarse,
    update_noise_multiplier=shares.delivered_noise_multiplier(1.0, coarse.sensitivity, num_shares),
  )
  costs = [server.server_epsilon(r, 20, 1e-5, 5).epsilon for r in (fine, release)]
  slack = 2 * 5 * 10 * shares.slack(1.0, num_shares, "helpers")
  assert slack > 1e-3
  assert costs[1] - costs[0] > slack


@pytest.mark.parametrize(
  "release",
  [
    _release(threshold_kind="geometric"),
    _release(None),
    _release(3, None, "none", threshold_kind="geometric"),
    # Whoever makes the updates' noise.
    flat.changed(_distributed(2.0), threshold_noise_multiplier=3.0, threshold_kind="geometric"),
  ],
)
def test_a_server_that_makes_the_noise_is_trusted(release):
  spent = server.server_epsilon(release, 10, _DELTA)
  assert spent.epsilon is None
  assert spent.explanation.endswith("it is trusted.")
  assert ("counts" in spent.explanation) == (flat.of(release).threshold_kind == "geometric")
  entries = flat.of(release)
  made_by_the_server = entries.update_noise_multiplier is not None and entries.update_sum is None
  assert ("updates" in spent.explanation) == made_by_the_server


def test_hardly_any_noise_is_no_pld_of_absurd_size():
  spent = server.server_epsilon(_release(0.01), 1000, 1e-5, 1000)
  assert spent.epsilon is None
  assert "too little for any epsilon" in spent.explanation
  assert "trusted" not in spent.explanation


def test_costs_grow_with_participations_and_with_replacing():
  release = _distributed()
  costs = [server.server_epsilon(release, 100, _DELTA, k).epsilon for k in (0, 1, 3, 10, 30)]
  assert costs == sorted(costs) and costs[0] == 0.0
  replaced = dataclasses.replace(release, relation="replace_one")
  for protocol in ({}, dict(protocol="helpers")):
    one, other = (
      server.server_epsilon(flat.changed(r, **protocol), 100, _DELTA, 4).epsilon
      for r in (release, replaced)
    )
    assert other > 1.9 * one
  # Twice the distance of a Gaussian.
  helpers = flat.changed(replaced, protocol="helpers")
  found = server.server_epsilon(helpers, 100, _DELTA, 4).epsilon
  assert found == pytest.approx(gaussian.epsilon(4 / _Z, _DELTA), rel=1e-3)
