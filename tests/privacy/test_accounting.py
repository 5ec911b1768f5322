"""Accounting against the numbers of an independent audit, and what it refuses."""

import dataclasses
import math
import time

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from privacy import accounting
from privacy import statements
from privacy import sum_mechanism
from privacy import tree_mechanism

_DELTA = 1 / 2500
_ROUNDS = 1000
_RUN = dict(population=2500, clients_per_round=100, num_rounds=_ROUNDS)
_GOLDEN_Z = {3: 1.7310, 5: 1.2447, 10: 0.8719, 15: 0.7348, 20: 0.6578}


def _release(threshold=3.0, update=2.0, sampling="poisson", **kwargs):
  return accounting.Release(2500, 100, threshold, update, sampling, **kwargs)


@pytest.mark.parametrize("epsilon", _GOLDEN_Z)
def test_golden_noise_by_rdp(epsilon):
  release = accounting.calibrate(epsilon, _DELTA, rho_ratio=None, **_RUN)
  assert release.effective_noise_multiplier == pytest.approx(_GOLDEN_Z[epsilon], rel=0.01)
  assert release.threshold_noise_multiplier is None
  assert epsilon * (1 - 1e-4) < accounting.epsilon(release, _ROUNDS, _DELTA).epsilon <= epsilon


@pytest.mark.parametrize("epsilon,z", [(3, 2.068), (5, 1.434), (10, 0.964)])
def test_golden_noise_at_a_small_delta(epsilon, z):
  release = accounting.calibrate(epsilon, 1e-5, rho_ratio=0, **_RUN)
  assert release.effective_noise_multiplier == pytest.approx(z, rel=0.01)


@pytest.mark.parametrize(
  "epsilon,z", [(3, 1.5957), (5, 1.1632), (10, 0.8264), (15, 0.7004), (20, 0.6290)]
)
def test_golden_noise_by_pld_is_less(epsilon, z):
  # A hundredth more noise is enough, a hundredth less is not.
  costs = [
    accounting.epsilon(_release(None, factor * z), _ROUNDS, _DELTA, "pld").epsilon
    for factor in (1.01, 0.99)
  ]
  assert costs[0] < epsilon < costs[1]
  # 4 to 8 % less noise.
  assert 0.92 < z / _GOLDEN_Z[epsilon] < 0.96


def test_calibrate_by_pld():
  release = accounting.calibrate(3, _DELTA, rho_ratio=None, accountant="pld", **_RUN)
  assert release.effective_noise_multiplier == pytest.approx(1.5957, rel=0.01)
  spent = accounting.epsilon(release, _ROUNDS, _DELTA, "pld")
  assert 2.999 < spent.epsilon <= 3
  assert spent.rdp_order is None


@pytest.mark.parametrize(
  "epsilon,ratio,z_q,z_w",
  [
    (3, 0.5, 2.998, 2.120),
    (5, 0.5, 2.156, 1.524),
    (10, 0.5, 1.510, 1.068),
    (20, 0.5, 1.139, 0.806),
    (3, 0.1, 5.741, 1.815),
    (10, 0.1, 2.892, 0.914),
  ],
)
def test_golden_split(epsilon, ratio, z_q, z_w):
  found = accounting.split_noise(_GOLDEN_Z[epsilon], ratio)
  assert found == pytest.approx((z_q, z_w), rel=1e-3)
  assert (found[1] / found[0]) ** 2 == pytest.approx(ratio)
  cost = accounting.epsilon(_release(z_q, z_w), _ROUNDS, _DELTA).epsilon
  assert cost == pytest.approx(epsilon, rel=0.01)


def test_calibrate_splits():
  release = accounting.calibrate(3, _DELTA, rho_ratio=0.5, **_RUN)
  assert release.threshold_noise_multiplier == pytest.approx(2.998, rel=0.01)
  assert release.update_noise_multiplier == pytest.approx(2.120, rel=0.01)
  assert 2.999 < accounting.epsilon(release, _ROUNDS, _DELTA).epsilon <= 3


def test_calibrate_is_quick():
  accounting.calibrate(3.1, 3e-4, rho_ratio=0.4, **_RUN)  # What Python and SciPy load lazily.
  start = time.process_time()
  accounting.calibrate(4.2, _DELTA, rho_ratio=0.3, num_bins=64, **_RUN)
  assert time.process_time() - start < 3.0


@pytest.mark.parametrize(
  "kind", [float, np.float32, np.float64, np.array, lambda x: int(x), np.int64, np.float16]
)
def test_any_kind_of_number_costs_the_same(kind):
  # dp_accounting itself drops all but the last Gaussian here unless it gets Python's floats.
  release = accounting.Release(kind(2500), kind(100), kind(3), kind(2))
  assert all(
    type(getattr(release, name)) is float
    for name in ("clients_per_round", "threshold_noise_multiplier", "update_noise_multiplier")
  )
  assert type(release.population) is int
  spent = accounting.epsilon(release, kind(1000), kind(4) / 10000)
  assert spent.epsilon == pytest.approx(3.175, abs=1e-3 if kind is not np.float16 else 0.01)


def test_the_trap_that_floats_avoid():
  gaussians = [dp_accounting.GaussianDpEvent(np.float32(z)) for z in (3.0, 2.0)]
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.04, dp_accounting.ComposedDpEvent(gaussians)), _ROUNDS
  )
  try:
    found = rdp.RdpAccountant().compose(event).get_epsilon(_DELTA)
  except (TypeError, ValueError, dp_accounting.UnsupportedEventError):
    return  # Refused: good.
  # As of dp_accounting 0.4.3 and 0.6.0. If it is 3.175 some day, our float() may go.
  assert found == pytest.approx(1.457, abs=2e-3)


def test_events_hold_floats_only():
  def leaves(event):
    if isinstance(event, dp_accounting.GaussianDpEvent):
      yield event.noise_multiplier
    for inner in [*getattr(event, "events", ()), getattr(event, "event", None)]:
      if inner is not None:
        yield from leaves(inner)

  for sampling in accounting.SAMPLINGS:
    event = accounting.run_event(_release(np.float32(3), np.array(2), sampling), 10)
    values = list(leaves(event))
    assert len(values) == 2
    assert all(type(value) is float for value in values)


@pytest.mark.parametrize("epsilon,separate", [(3, 3.21), (10, 13.3), (20, 30.3)])
def test_joint_composition_costs_more_than_separate(epsilon, separate):
  # Threshold and weights, composed as if each had a sample of its own.
  def wrong(z):
    orders = [1.5 + i / 20 for i in range(20)] + [2.5 + i / 2 for i in range(9)]
    accountant = rdp.RdpAccountant(orders)
    for multiplier in accounting.split_noise(z, 0.5):
      event = dp_accounting.GaussianDpEvent(multiplier)
      accountant.compose(dp_accounting.PoissonSampledDpEvent(0.04, event), _ROUNDS)
    return accountant.get_epsilon(_DELTA)

  z = optimize.brentq(lambda z: wrong(z) - epsilon, 0.5, 2.0, xtol=1e-4)
  joint = accounting.epsilon(_release(*accounting.split_noise(z, 0.5)), _ROUNDS, _DELTA)
  assert joint.epsilon == pytest.approx(separate, rel=0.01)
  assert joint.epsilon > epsilon


def test_epsilon_depends_on_the_effective_noise_only():
  z = 1.5
  costs = [
    accounting.epsilon(_release(*accounting.split_noise(z, ratio)), _ROUNDS, _DELTA).epsilon
    for ratio in (None, 0.01, 0.5, 3.0)
  ]
  np.testing.assert_allclose(costs, costs[0], rtol=1e-9)


def test_replace_one_of_dp_accounting_is_without_the_factor():
  # google/differential-privacy#378. If this fails, round_event must not divide by it any more.
  accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
  accountant.compose(dp_accounting.GaussianDpEvent(1.0))
  assert accountant.get_epsilon(1e-5) == pytest.approx(4.7285, abs=1e-3)


@pytest.mark.parametrize("kind,factor", [("tree", math.sqrt(2)), ("geometric", 2)])
def test_fixed_cohorts_are_accounted_for_replacing_a_client(kind, factor):
  release = _release(sampling="fixed_size", threshold_kind=kind)
  event = accounting.round_event(release)
  assert isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)
  assert (event.source_dataset_size, event.sample_size) == (2500, 100)
  multipliers = [gaussian.noise_multiplier for gaussian in event.event.events]
  assert multipliers == pytest.approx([3 / factor, 1.0])
  assert release.neighboring_relation == "replace one client"
  # Everybody in every round: without amplification, a Gaussian of what is left.
  everybody = accounting.Release(100, 100, 3, 2, "fixed_size", threshold_kind=kind)
  z = ((factor / 3) ** 2 + 1) ** -0.5
  expected = rdp.RdpAccountant().compose(dp_accounting.GaussianDpEvent(z), 5).get_epsilon(1e-5)
  # Our orders for sampling without replacement are fewer.
  assert expected <= accounting.epsilon(everybody, 5, 1e-5).epsilon < 1.01 * expected


def test_noise_for_poisson_cohorts_is_too_little_for_fixed_ones():
  release = _release(None, 1.731)
  assert accounting.epsilon(release, _ROUNDS, _DELTA).epsilon == pytest.approx(3, rel=0.01)
  fixed = dataclasses.replace(release, sampling="fixed_size")
  # There are data for which it is 9.00.
  assert accounting.epsilon(fixed, _ROUNDS, _DELTA).epsilon > 9.0


def test_calibrate_fixed_cohorts_and_none():
  for sampling in ("fixed_size", "none"):
    release = accounting.calibrate(3, _DELTA, rho_ratio=0.5, sampling=sampling, **_RUN)
    assert release.sampling == sampling
    assert 2.99 < accounting.epsilon(release, _ROUNDS, _DELTA).epsilon <= 3
  assert accounting.epsilon(_release(sampling="none"), 1, 1e-5).epsilon == pytest.approx(
    accounting.epsilon(accounting.Release(2500, 2500, 3, 2), 1, 1e-5).epsilon
  )


@pytest.mark.parametrize("threshold_kind", ["tree", "geometric"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibrate_leaves_room_for_the_tree(threshold_kind, accountant):
  num_bins = 1024 if threshold_kind == "tree" else None
  release = accounting.calibrate(
    2.0,
    1e-5,
    rho_ratio=0.5,
    num_bins=num_bins,
    threshold_kind=threshold_kind,
    accountant=accountant,
    **_RUN,
  )
  assert (release.tree is None) == (threshold_kind == "geometric")
  assert 1.999 < accounting.epsilon(release, _ROUNDS, 1e-5, accountant).epsilon <= 2.0
  if release.tree is not None:
    assert release.tree.noise_multiplier == release.threshold_noise_multiplier
    assert release.tree.local_stddev >= tree_mechanism.MIN_LOCAL_STDDEV
    # A tree that is attached later is fine too.
    later = accounting.calibrate(
      2.0, 1e-5, rho_ratio=0.5, threshold_kind=threshold_kind, accountant=accountant, **_RUN
    )
    tree = accounting.tree_for(later, 64, _ROUNDS, 1e-5)
    later = dataclasses.replace(later, tree=tree)
    assert accounting.epsilon(later, _ROUNDS, 1e-5, accountant).epsilon <= 2.0


def test_discrete_noise_costs_what_the_formula_says():
  # With 2 clients of noise 1.5 at least tau is not negligible any more.
  tree = tree_mechanism.build_tree_mechanism(2.0, 4, 100, min_clients=1, max_clients=2500, scale=1)
  tree = dataclasses.replace(tree, local_stddev=2.0 * math.sqrt(2), min_clients=1)
  coarse = dataclasses.replace(tree, local_stddev=1.0, min_clients=8)
  assert tree.scale == 1
  release = _release(2.0, 2.0, "none")
  plain = accounting.epsilon(release, 10, 1e-5)
  with_tree = accounting.epsilon(dataclasses.replace(release, tree=coarse), 10, 1e-5)
  tau = tree_mechanism.discreteness_slack(1.0, 2500)
  orders = rdp.RdpAccountant().orders
  curve = 10 * orders * (2 / (2 * 2.0**2)) + 10 * (2 * orders - 1) * tau * 2 / (orders - 1)
  expected = rdp.compute_epsilon(orders, curve, 1e-5)
  assert with_tree.epsilon == pytest.approx(expected[0])
  assert with_tree.rdp_order == expected[1]
  assert with_tree.epsilon > plain.epsilon + 1e-4
  by_pld = accounting.epsilon(dataclasses.replace(release, tree=coarse), 10, 1e-5, "pld").epsilon
  assert by_pld > accounting.epsilon(release, 10, 1e-5, "pld").epsilon + 1e-4


def test_slack_of_the_default_noise_is_negligible():
  release = accounting.calibrate(3, _DELTA, rho_ratio=0.5, num_bins=64, **_RUN)
  bare = dataclasses.replace(release, tree=None)
  more = accounting.epsilon(release, _ROUNDS, _DELTA).epsilon
  less = accounting.epsilon(bare, _ROUNDS, _DELTA).epsilon
  # Discrete noise, and delta for rounds that abort.
  assert 0 <= more - less < 5e-4


def test_a_sum_of_updates_whose_noise_the_clients_make():
  limits = accounting.cohort_bounds(2500, 100, _ROUNDS, _DELTA)
  update_sum = sum_mechanism.build_sum_mechanism(
    2.0, 1.0, 210, min_clients=limits[0], max_clients=limits[1]
  )
  release = _release(threshold_kind="geometric")
  distributed = dataclasses.replace(release, update_sum=update_sum)
  assert distributed.cohort_limits == limits
  assert distributed.neighboring_relation.startswith("zero-out")
  assert 0 < accounting.abort_probability(distributed, _ROUNDS) <= 1e-3 * _DELTA
  cost, plain = (accounting.epsilon(r, _ROUNDS, _DELTA).epsilon for r in (distributed, release))
  assert plain <= cost < plain + 1e-3
  assert accounting.server_epsilon(distributed, _ROUNDS, _DELTA).epsilon is None
  # Without a threshold the server sees noisy sums only, everything with its noise.
  alone = dataclasses.replace(distributed, threshold_noise_multiplier=None)
  assert accounting.server_epsilon(alone, _ROUNDS, _DELTA).epsilon == pytest.approx(
    accounting.server_epsilon(_release(2.0, None), _ROUNDS, _DELTA).epsilon, rel=1e-4
  )
  with pytest.raises(ValueError, match="update_sum"):
    _release(3.0, 2.1, update_sum=update_sum)
  with pytest.raises(ValueError, match="update_sum"):
    _release(3.0, None, update_sum=update_sum)
  calibrated = accounting.calibrate(
    3, _DELTA, rho_ratio=0.01, threshold_kind="geometric", distributed_updates=True, **_RUN
  )
  update_sum = sum_mechanism.build_sum_mechanism(
    calibrated.update_noise_multiplier, 1.0, 210, min_clients=limits[0], max_clients=limits[1]
  )
  calibrated = dataclasses.replace(calibrated, update_sum=update_sum)
  assert 2.999 < accounting.epsilon(calibrated, _ROUNDS, _DELTA).epsilon <= 3


@pytest.mark.parametrize(
  "num_entries,sampling,is_shown",
  [
    (20_000, "poisson", False),
    (20_001, "poisson", True),
    (20_001, "fixed_size", False),
  ],
)
def test_noise_on_many_numbers_shows_the_size_of_a_poisson_cohort(num_entries, sampling, is_shown):
  update_sum = sum_mechanism.build_sum_mechanism(
    2.0, 1.0, num_entries, min_clients=100, max_clients=100
  )
  release = _release(None, 2.0, sampling, update_sum=update_sum)
  assert release.shows_cohort_size is is_shown
  said = " ".join(statements.guarantee(release))
  assert ("NOT a guarantee" in said) is is_shown
  assert ("another number of clients than 100" in said) is (sampling == "fixed_size")


def test_meter():
  release = _release()
  meter = accounting.Meter(release, _DELTA)
  assert meter.epsilon(0) == 0.0
  assert meter.spent(0) == accounting.Spent(0.0, _DELTA, 0, "rdp")
  values = [meter.epsilon(t) for t in (1, 10, 100, 1000)]
  assert values == sorted(values)
  for t, value in zip((1, 10, 100, 1000), values):
    event = accounting.run_event(release, t)
    assert value == pytest.approx(rdp.RdpAccountant().compose(event).get_epsilon(_DELTA))
  assert accounting.run_event(release, 0) == dp_accounting.NoOpDpEvent()
  start = time.process_time()
  for t in range(100):
    meter.epsilon(t)
  assert time.process_time() - start < 1.0


def test_server_golden():
  release = accounting.calibrate(3, _DELTA, rho_ratio=0.5, num_bins=64, **_RUN)
  spent = accounting.server_epsilon(release, _ROUNDS, _DELTA, 60)
  assert spent.epsilon == pytest.approx(11.4, rel=0.01)
  # Which is how often a client takes part, but for one in a thousand.
  assert accounting.server_epsilon(release, _ROUNDS, _DELTA).participations == 60
  assert stats.binom.sf(60, _ROUNDS, 0.04) <= 1e-3 < stats.binom.sf(59, _ROUNDS, 0.04)
  assert "trusted with the updates" in spent.explanation
  more = accounting.server_epsilon(release, _ROUNDS, _DELTA, _ROUNDS)
  assert more.epsilon > 2 * spent.epsilon
  assert "all of" not in more.explanation
  assert accounting.server_epsilon(release, 0, _DELTA).epsilon == 0.0
  assert accounting.server_epsilon(release, _ROUNDS, _DELTA, 0).epsilon == 0.0
  everybody = _release(sampling="none")
  assert accounting.server_epsilon(everybody, 10, _DELTA).participations == 10
  with pytest.raises(ValueError, match="participations = 11"):
    accounting.server_epsilon(release, 10, _DELTA, 11)


def test_server_knows_the_gaussian_mechanism_exactly():
  # One round: Balle and Wang (2018).
  epsilon = accounting.server_epsilon(_release(2.0), 10, 1e-5, 1).epsilon
  delta = stats.norm.cdf(0.25 - 2 * epsilon) - math.exp(epsilon) * stats.norm.cdf(
    -0.25 - 2 * epsilon
  )
  assert delta == pytest.approx(1e-5, rel=1e-3)
  fixed = accounting.server_epsilon(_release(2.0 * math.sqrt(2), 2.0, "fixed_size"), 10, 1e-5, 1)
  assert fixed.epsilon == pytest.approx(epsilon, rel=1e-6)
  # Hardly any noise: no PLD of absurd size.
  assert accounting.server_epsilon(_release(0.01), 1000, 1e-5, 1000).epsilon > 1e6


@pytest.mark.parametrize(
  "release",
  [
    _release(threshold_kind="geometric"),
    _release(None),
    _release(3, None, "none", threshold_kind="geometric"),
  ],
)
def test_a_server_that_makes_the_noise_is_trusted(release):
  spent = accounting.server_epsilon(release, 10, _DELTA)
  assert spent.epsilon is None
  assert "is trusted" in spent.explanation


@pytest.mark.parametrize(
  "population,clients,rounds,delta",
  [(2500, 100, 1000, 4e-4), (300, 60, 20, 1e-3), (100, 100, 10, 1e-5), (10_000, 500, 3000, 1e-5)],
)
def test_cohort_bounds_are_exact_and_tight(population, clients, rounds, delta):
  low, high = accounting.cohort_bounds(population, clients, rounds, delta)
  assert 1 <= low <= clients <= high <= population

  def outside(low, high):
    # Of the cohort with or without a given client.
    return max(
      stats.binom.cdf(low - 1, n, clients / population)
      + stats.binom.sf(high - n_with, n, clients / population)
      for n, n_with in ((population, 0), (population - 1, 1))
    )

  if clients < population:
    assert rounds * outside(low, high) <= 1e-3 * delta
    half = 0.5e-3 * delta / rounds
    assert stats.binom.cdf(low, population - 1, clients / population) > half
    assert stats.binom.sf(high - 2, population - 1, clients / population) > half
  else:
    assert (low, high) == (clients, clients)
  for sampling in ("fixed_size", "none"):
    found = accounting.cohort_bounds(population, clients, rounds, delta, sampling)
    assert found == (clients, clients)


def test_everybody_takes_part():
  tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100, max_clients=100)
  release = accounting.Release(100, 100, 3, 2, tree=tree)
  assert accounting.abort_probability(release, 10) == 0.0
  accounting.epsilon(release, 10, 1e-5)


def test_cohort_bounds_by_simulation():
  low, high = accounting.cohort_bounds(200, 50, 1, 0.9)  # 9e-4 in all.
  sizes = np.random.default_rng(1).binomial(200, 0.25, 200_000)
  assert np.mean((sizes < low) | (sizes > high)) < 9e-4 + 4 * math.sqrt(9e-4 / 200_000)


def test_cohorts_that_are_empty_too_often():
  with pytest.raises(ValueError, match="empty with probability.*geometric"):
    accounting.cohort_bounds(1000, 10, 100, 1e-5)
  with pytest.raises(ValueError, match="empty"):
    accounting.calibrate(
      3, 1e-5, population=1000, clients_per_round=10, num_rounds=100, rho_ratio=0.5, num_bins=64
    )


def test_limits_that_cohorts_exceed_too_often():
  tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100)  # For cohorts of fixed size.
  release = _release(tree=tree)
  assert accounting.abort_probability(release, _ROUNDS) == 1.0
  with pytest.raises(ValueError, match="cohort_bounds"):
    accounting.epsilon(release, _ROUNDS, _DELTA)
  fixed = _release(sampling="fixed_size", tree=tree)
  assert accounting.abort_probability(fixed, _ROUNDS) == 0.0
  accounting.epsilon(fixed, 10, _DELTA)


def test_aborts_are_a_part_of_delta():
  tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100, min_clients=60, max_clients=150)
  release = _release(tree=tree)
  spent = accounting.epsilon(release, 1, _DELTA)
  outside = stats.binom.cdf(59, 2499, 0.04) + stats.binom.sf(149, 2499, 0.04)
  assert spent.abort_probability == pytest.approx(outside)
  assert spent.delta == _DELTA
  bare = dataclasses.replace(release, tree=None)
  assert spent.epsilon == pytest.approx(
    accounting.epsilon(bare, 1, _DELTA - outside).epsilon, abs=1e-6
  )


def test_default_delta_and_its_warning():
  assert accounting.default_delta(100) == 1e-5
  assert accounting.default_delta(100_000) == pytest.approx(1e5**-1.1)
  assert accounting.delta_warning(1e-5, 2500) is None
  assert "one client chosen at random" in accounting.delta_warning(1 / 2500, 2500)
  assert accounting.delta_warning(1e-2, 2500) is not None


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(clients_per_round=2501), "at most 1"),
    (dict(clients_per_round=0), "positive"),
    (dict(population=0), "at least 1"),
    (dict(population=10.5), "whole"),
    (dict(update_noise_multiplier=-1), "= -1; expected a positive"),
    (dict(update_noise_multiplier=0), "positive"),
    (dict(update_noise_multiplier=math.nan), "finite"),
    (dict(update_noise_multiplier="much"), "'much'; expected a number"),
    (dict(threshold_noise_multiplier=-0.5), "threshold_noise_multiplier = -0.5"),
    (dict(threshold_noise_multiplier=math.inf), "finite"),
    (dict(threshold_noise_multiplier=None, update_noise_multiplier=None), "neither"),
    (dict(sampling="shuffle"), "poisson, fixed_size, none"),
    (dict(sampling="fixed_size", clients_per_round=10.5), "whole"),
    (dict(threshold_kind="exact"), "tree, geometric"),
    (dict(tree=tree_mechanism.build_tree_mechanism(2.9, 64, 100)), "at least that noise"),
    (
      dict(tree=tree_mechanism.build_tree_mechanism(3.0, 64, 101), sampling="fixed_size"),
      "at least 101 clients",
    ),
    (
      dict(tree=tree_mechanism.build_tree_mechanism(3, 64, 100), threshold_kind="geometric"),
      "tree threshold",
    ),
  ],
)
def test_releases_that_are_refused(changes, message):
  fields = dict(
    population=2500, clients_per_round=100, threshold_noise_multiplier=3, update_noise_multiplier=2
  )
  with pytest.raises(ValueError, match=message):
    accounting.Release(**{**fields, **changes})


@pytest.mark.parametrize(
  "call,message",
  [
    (lambda: accounting.Meter(_release(), 0.0), "delta = 0"),
    (lambda: accounting.Meter(_release(), 1.0), "delta = 1"),
    (lambda: accounting.Meter(_release(), 1e-5, "zcdp"), "rdp, pld"),
    (lambda: accounting.Meter(_release(sampling="fixed_size"), 1e-5, "pld"), "expected 'rdp'"),
    (lambda: accounting.Meter(_release(), 1e-5).epsilon(-1), "num_rounds = -1"),
    (lambda: accounting.calibrate(0, 1e-5, rho_ratio=1, **_RUN), "epsilon = 0"),
    (lambda: accounting.calibrate(3, 2, rho_ratio=1, **_RUN), "delta = 2"),
    (lambda: accounting.calibrate(3, 1e-5, rho_ratio=-1, **_RUN), "rho_ratio = -1"),
    (lambda: accounting.calibrate(1e-9, 1e-5, rho_ratio=1, **_RUN), "no noise reaches"),
    (lambda: accounting.calibrate(1e9, 1e-5, rho_ratio=1, **_RUN), "no noise is little enough"),
    (lambda: accounting.calibrate(3, 1e-5, rho_ratio=1, num_bins=63, **_RUN), "power of two"),
    (lambda: accounting.calibrate(3, 1e-5, rho_ratio=0, num_bins=64, **_RUN), "without a tree"),
    (lambda: accounting.default_delta(0), "population = 0"),
  ],
)
def test_nonsense_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 50, 1000])
def test_calibrate_over_a_wide_range(epsilon):
  release = accounting.calibrate(epsilon, 1e-6, rho_ratio=0.2, **_RUN)
  assert 0.97 * epsilon < accounting.epsilon(release, _ROUNDS, 1e-6).epsilon <= epsilon


def test_next_to_nothing_is_not_negative():
  # Rounding makes these divergences negative in dp_accounting, which then raises an error.
  release = accounting.Release(10**6, 1, None, 1e6)
  assert accounting.epsilon(release, 10, 1e-6).epsilon == 0.0
