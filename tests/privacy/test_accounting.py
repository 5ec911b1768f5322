"""Accounting against the numbers of an independent audit, and what it refuses."""

import dataclasses
import math

import dp_accounting
from dp_accounting import rdp
from helpers import flat
from helpers import gaussian
import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from privacy import accounting
from privacy import checks
from privacy import events
from privacy import releases
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism

_DELTA = 1 / 2500
_ROUNDS = 1000


def _release(threshold=3.0, update=2.0, sampling="poisson", **kwargs):
  return flat.release(2500, 100, threshold, update, sampling, **kwargs)


@pytest.mark.parametrize(
  "kind", [float, np.float32, np.float64, np.array, lambda x: int(x), np.int64, np.float16]
)
def test_any_kind_of_number_costs_the_same(kind):
  # dp_accounting itself drops all but the last Gaussian here unless it gets Python's floats.
  release = flat.release(kind(2500), kind(100), kind(3), kind(2))
  assert all(
    type(getattr(flat.of(release), name)) is float
    for name in ("clients_per_round", "threshold_noise_multiplier", "update_noise_multiplier")
  )
  assert type(flat.of(release).population) is int
  tolerance = 1e-3 if kind is not np.float16 else 0.01
  for accountant, expected in (("rdp", 3.175), ("pld", 2.8205)):
    spent = accounting.epsilon(release, kind(1000), kind(4) / 10000, accountant)
    assert spent.epsilon == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("epsilon,separate", [(3, 3.21), (10, 13.3), (20, 30.3)])
def test_joint_composition_costs_more_than_separate(epsilon, separate):
  # Threshold and weights, composed as if each had a sample of its own.
  def wrong(z):
    orders = 0.01 + np.array([1.5 + i / 20 for i in range(20)] + [2.5 + i / 2 for i in range(9)])
    curves = [events.poisson_sampled(0.04, one, orders) for one in flat.split_noise(z, 0.5)]
    return rdp.compute_epsilon(orders, _ROUNDS * sum(curves), _DELTA)[0]

  z = optimize.brentq(lambda z: wrong(z) - epsilon, 0.5, 2.0, xtol=1e-4)
  joint = accounting.epsilon(_release(*flat.split_noise(z, 0.5)), _ROUNDS, _DELTA, "rdp")
  assert joint.epsilon == pytest.approx(separate, rel=0.01)
  assert joint.epsilon > epsilon


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_epsilon_depends_on_the_effective_noise_only(accountant):
  z = 1.5
  costs = [
    accounting.epsilon(_release(*flat.split_noise(z, ratio)), _ROUNDS, _DELTA, accountant).epsilon
    for ratio in (None, 0.01, 0.5, 3.0)
  ]
  np.testing.assert_allclose(costs, costs[0], rtol=1e-9)


def test_replace_one_of_dp_accounting_is_without_the_factor():
  # google/differential-privacy#378. If this fails, round_event must not divide by it any more.
  accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
  accountant.compose(dp_accounting.GaussianDpEvent(1.0))
  assert accountant.get_epsilon(1e-5) == pytest.approx(4.7285, abs=1e-3)


@pytest.mark.parametrize("kind,factor", [("tree", math.sqrt(2)), ("geometric", 2)])
def test_fixed_cohorts_are_accounted_for_replacing_a_client_by_rdp(kind, factor):
  release = _release(sampling="fixed_size", threshold_kind=kind, relation="replace_one")
  event = events.round_event(release)
  assert isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)
  assert (event.source_dataset_size, event.sample_size) == (2500, 100)
  multipliers = [inner.noise_multiplier for inner in event.event.events]
  assert multipliers == pytest.approx([3 / factor, 1.0])
  assert release.neighboring_relation == "replace one client's data"
  # Everybody in every round: without amplification, a Gaussian of what is left.
  everybody = flat.release(
    100, 100, 3, 2, "fixed_size", threshold_kind=kind, relation="replace_one"
  )
  z = ((factor / 3) ** 2 + 1) ** -0.5
  expected = rdp.RdpAccountant().compose(dp_accounting.GaussianDpEvent(z), 5).get_epsilon(1e-5)
  # Our orders for sampling without replacement are fewer.
  assert expected <= accounting.epsilon(everybody, 5, 1e-5, "rdp").epsilon < 1.01 * expected


@pytest.mark.parametrize("kind,factor", [("tree", math.sqrt(2)), ("geometric", 2)])
@pytest.mark.parametrize("relation", releases.RELATIONS)
def test_a_fixed_cohort_of_everybody_is_a_gaussian_by_pld(kind, factor, relation):
  everybody = flat.release(100, 100, 3, 2, "fixed_size", threshold_kind=kind, relation=relation)
  z = 6 / math.sqrt(13)
  if relation == "replace_one":
    z = ((factor / 3) ** 2 + 1) ** -0.5
  epsilon = accounting.epsilon(everybody, 5, 1e-5).epsilon
  assert gaussian.delta(epsilon, math.sqrt(5) / z) == pytest.approx(1e-5, rel=1e-3)


def test_removing_a_client_from_fixed_cohorts_costs_less_than_replacing_it():
  zero_out, replaced = (
    _release(sampling="fixed_size", relation=relation) for relation in releases.RELATIONS
  )
  assert zero_out == _release(sampling="fixed_size")
  assert "still in the list and counted" in zero_out.neighboring_relation
  costs = [accounting.epsilon(r, 100, _DELTA, "pld").epsilon for r in (zero_out, replaced)]
  assert 1.2 * costs[0] < costs[1]
  # RDP accounts for both as for the latter.
  by_rdp = [accounting.epsilon(r, 100, _DELTA, "rdp").epsilon for r in (zero_out, replaced)]
  assert by_rdp[0] == by_rdp[1] > costs[1]


@pytest.mark.parametrize("relation", releases.RELATIONS)
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize(
  "population,size,z,rounds", [(10, 9, 1, 1), (10, 9, 1, 100), (2, 1, 1, 1), (100, 99, 5, 30)]
)
def test_fixed_cohorts_cost_at_most_what_no_sampling_costs(
  population, size, z, rounds, accountant, relation
):
  fixed, none = (
    accounting.epsilon(
      flat.release(population, size, 2 * z, z, sampling, relation=relation),
      rounds,
      1e-5,
      accountant,
    ).epsilon
    for sampling in ("fixed_size", "none")
  )
  assert 0.5 * none < fixed <= none * (1 + 1e-6)


def test_replacing_a_client_of_poisson_cohorts():
  release = _release(relation="replace_one")
  zero_out = _release()
  cost = accounting.epsilon(release, 100, _DELTA)
  assert cost.accountant == "pld"
  assert cost.epsilon > accounting.epsilon(zero_out, 100, _DELTA).epsilon
  # Replacing is removing and adding: the data of a client that is not there are the way.
  group = flat.release(2500, 100, 3 / 2, 2 / 2)
  assert cost.epsilon < accounting.epsilon(group, 100, _DELTA).epsilon
  with pytest.raises(ValueError, match="^Found poisson sampling with relation = 'replace_one'"):
    accounting.epsilon(release, 100, _DELTA, "rdp")
  assert accounting.epsilon_or_none(release, 100, _DELTA, "rdp") is None


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_discrete_noise_costs_what_the_formula_says(accountant):
  # With noise of 1 on a client tau is not negligible any more.
  num_shares, rounds = 100, 10
  coarse = tree_mechanism.build_tree_mechanism(2.0, 4, 100, num_shares=num_shares)
  scale = math.floor(math.sqrt((num_shares - 2) / 2) / 2.0)
  coarse = dataclasses.replace(coarse, scale=scale, local_stddev=1.0)
  delivered = shares.delivered_noise_multiplier(1.0, scale * math.sqrt(2), num_shares)
  release = flat.release(2500, 100, delivered, 2.0, "none")
  plain = accounting.epsilon(release, rounds, 1e-5, accountant).epsilon
  with_tree = accounting.epsilon(flat.changed(release, tree=coarse), rounds, 1e-5, accountant)
  # Each of the six nodes, in each round.
  slack = rounds * 6 * shares.slack(1.0, num_shares)
  assert slack > 1e-4
  if accountant == "rdp":
    orders = np.array([1 + x / 100 for x in range(1, 6400)])
    curve = rounds * orders / (2 * release.effective_noise_multiplier**2)
    curve = curve + slack * (2 * orders - 1) / (orders - 1)
    expected = rdp.compute_epsilon(orders, curve, 1e-5)
    assert with_tree.epsilon == pytest.approx(expected[0], rel=1e-3)
    assert with_tree.epsilon >= expected[0]
  else:
    mu = math.sqrt(rounds) / release.effective_noise_multiplier
    expected = gaussian.epsilon(mu, math.exp(-slack) * 1e-5) + 2 * slack
    assert with_tree.epsilon == pytest.approx(expected, rel=1e-4)
  assert with_tree.epsilon > plain + 1e-4


def test_round_slack_counts_every_number():
  tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100, num_shares=140)
  update_sum = sum_mechanism.build_sum_mechanism(2.0, 1.0, 210, 140)

  def assert_slack(release, expected):
    assert events.round_slack(release) == pytest.approx(expected, rel=1e-9, abs=0)

  per_node = shares.slack(tree.local_stddev, 140)
  per_entry = shares.slack(update_sum.local_stddev, 140)
  assert_slack(_release(tree=tree), 126 * per_node)
  assert_slack(_release(update_sum=update_sum), 210 * per_entry)
  assert_slack(_release(tree=tree, update_sum=update_sum), 126 * per_node + 210 * per_entry)
  # Of little noise it shows how many clients there are, unless helpers make what is missing.
  tree, update_sum = (dataclasses.replace(m, local_stddev=1.0) for m in (tree, update_sum))
  coarse = _release(0.01, 0.01, tree=tree, update_sum=update_sum)
  helpers = flat.changed(coarse, protocol="helpers")
  assert_slack(coarse, 336 * shares.slack(1.0, 140))
  assert_slack(helpers, 336 * shares.slack(1.0, 140, "helpers"))
  assert 0 < events.round_slack(helpers) < events.round_slack(coarse)


def test_cohorts_that_are_cut_often_cost_more():
  costs = []
  for num_shares in (100, 120, 140, 160):
    tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100, num_shares=num_shares)
    release = _release(tree=tree)
    overflow = stats.binom.sf(num_shares - 1, 2499, 0.04)
    assert release.overflow_probability == pytest.approx(overflow)
    (weight, bare), (rest, full) = release.mixture()
    assert (weight, rest) == pytest.approx((1 - overflow, overflow))
    assert full.is_replaced and full.replace_one and not bare.is_replaced
    assert full.probability == bare.probability == 0.04
    costs.append(accounting.epsilon(release, _ROUNDS, _DELTA, "pld").epsilon)
  assert costs == sorted(costs, reverse=True)
  plain = accounting.epsilon(_release(), _ROUNDS, _DELTA, "pld").epsilon
  assert costs[0] > 2 * plain
  assert plain < costs[-2] < 1.001 * plain  # With the limit that is taken.
  # Nothing is cut with cohorts of fixed size.
  tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100)
  assert _release(sampling="fixed_size", tree=tree).overflow_probability == 0.0


def test_expected_cohorts_that_are_no_whole_number_by_rdp():
  # Next to no room, so that cohorts are cut often; those that are count as of two clients.
  tree = tree_mechanism.build_tree_mechanism(3.0, 4, 2, num_shares=2)
  release = flat.release(20, 1.5, 3, 2, tree=tree)
  overflow = stats.binom.sf(1, 19, 0.075)
  orders = np.arange(2.0, 65.0)

  def curve(event, relation):
    return rdp.RdpAccountant(list(orders), relation).compose(event).rdp

  relations = dp_accounting.NeighboringRelation
  gaussian, apart = (
    dp_accounting.ComposedDpEvent(
      [dp_accounting.GaussianDpEvent(3 / first), dp_accounting.GaussianDpEvent(2 / second)]
    )
    for first, second in ((1.0, 1.0), (math.sqrt(2), 2.0))
  )
  bare = curve(dp_accounting.PoissonSampledDpEvent(0.075, gaussian), relations.ADD_OR_REMOVE_ONE)
  full = curve(dp_accounting.SampledWithoutReplacementDpEvent(20, 2, apart), relations.REPLACE_ONE)
  mixed = np.logaddexp(
    np.log(1 - overflow) + (orders - 1) * bare, np.log(overflow) + (orders - 1) * full
  )
  expected, _ = rdp.compute_epsilon(orders, 5 * mixed / (orders - 1), 1e-5)
  assert accounting.epsilon(release, 5, 1e-5, "rdp").epsilon == pytest.approx(expected, rel=0.01)


def test_meter():
  release = _release()
  meter = accounting.Accountant(release, _DELTA)
  assert meter.epsilon(0) == 0.0
  assert meter.spent(0) == accounting.Spent(0.0, _DELTA, 0, "pld")
  assert accounting.Accountant(release, _DELTA, "rdp").spent(0) == accounting.Spent(
    0.0, _DELTA, 0, "rdp"
  )
  values = [meter.epsilon(t) for t in (1, 10, 100, 1000)]
  assert values == sorted(values)
  by_rdp = accounting.Accountant(release, _DELTA, "rdp")
  for t, value in zip((1, 10, 100, 1000), values):
    event = dp_accounting.SelfComposedDpEvent(events.round_event(release), t)
    found = by_rdp.spent(t)
    assert found.rdp_order > 1 and found.accountant == "rdp"
    # dp_accounting's own orders are among ours.
    expected = rdp.RdpAccountant().compose(event).get_epsilon(_DELTA)
    assert 0.99 * expected < found.epsilon <= expected * (1 + 1e-9)
    assert value <= found.epsilon


def test_the_tightest_accountant_takes_the_smaller_bound():
  # Noise of the clients, which does not end.
  summed = sum_mechanism.build_sum_mechanism(2.0, 1.0, 10, 2500)
  tiny = _release(None, 2.0, update_sum=summed)
  for release, rounds, delta in (
    (_release(), 100, _DELTA),
    (_release(), 3, 1e-12),
    (_release(None, 30.0, "none"), 5, 1e-5),
    (_release(sampling="fixed_size"), 10, 1e-6),
    (_release(0.5, 0.5), 2, 1e-5),
    (_release(None, 2.0), 1000, 1e-14),
    (tiny, 10, 1e-305),  # Too small for PLD.
  ):
    found = accounting.epsilon(release, rounds, delta)
    by = {name: accounting.epsilon_or_none(release, rounds, delta, name) for name in ("rdp", "pld")}
    values = {name: value for name, value in by.items() if value is not None}
    for name in values:
      assert accounting.epsilon(release, rounds, delta, name).accountant == name
    assert found.epsilon == min(values.values())
    assert found.epsilon == values[found.accountant]
    assert (found.rdp_order is None) == (found.accountant == "pld")
  with pytest.raises(ValueError, match="^Found delta = 1e-305, too small .* expected 'rdp'"):
    accounting.epsilon(tiny, 10, 1e-305, "pld")


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_epsilon_at_most_is_that_of_the_next_stage_or_less(accountant):
  planned = 30
  meter, by_rdp = (
    accounting.Accountant(flat.release(100, 100, None, 20.0), 1e-5, name)
    for name in (accountant, "rdp")
  )
  less_by_rdp = 0
  for t in range(1, planned + 1):
    end = t if accountant == "rdp" else next(end for end in range(3, 31, 3) if end >= t)
    expected = meter.epsilon(end)
    if accountant == "tightest":
      less_by_rdp += by_rdp.epsilon(t) < expected
      expected = min(expected, by_rdp.epsilon(t))
    assert meter.epsilon_at_most(t, planned) == expected
  assert (less_by_rdp > 0) == (accountant == "tightest")
  # Of a run without a plan each round is an end.
  assert meter.epsilon_at_most(3, 0) == meter.epsilon(3) > 0


def test_default_delta_and_its_warning():
  assert accounting.default_delta(100) == 1e-5
  assert accounting.default_delta(100_000) == pytest.approx(1e5**-1.1)
  assert accounting.delta_warning(1e-5, 2500) is None
  assert "one client chosen at random" in accounting.delta_warning(1 / 2500, 2500)
  assert accounting.delta_warning(1e-2, 2500) is not None
  # 1 / n, which times n is a little less than 1 in double precision.
  assert 1 / 49 * 49 < 1 and accounting.delta_warning(1 / 49, 49) is not None


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(threshold_noise_multiplier=None, update_noise_multiplier=None), "neither"),
    (dict(sampling="fixed_size", clients_per_round=10.5), "whole"),
    (dict(protocol="helpers", sampling="fixed_size"), "helpers with fixed_size sampling"),
    (dict(protocol="helpers", sampling="none"), "helpers with none sampling"),
    (dict(protocol="private_coin"), "contacted = None with the protocol private_coin"),
    (dict(contacted=500), "contacted = 500 with the protocol complement"),
    (dict(protocol="helpers", contacted=500), "contacted = 500 with the protocol helpers"),
    (dict(protocol="private_coin", contacted=99), "between these"),
    (dict(protocol="private_coin", contacted=2501), "between these"),
    (dict(protocol="private_coin", contacted=-1), "at least 1"),
    (
      dict(tree=tree_mechanism.build_tree_mechanism(3.0, 64, 99), sampling="fixed_size"),
      "99 shares of noise and cohorts of 100",
    ),
    (
      dict(tree=tree_mechanism.build_tree_mechanism(3.0, 64, 2501)),
      "2501 shares of noise and a population of 2500",
    ),
    (
      dict(update_sum=sum_mechanism.build_sum_mechanism(2.0, 1.0, 10, 2501)),
      "2501 shares of noise and a population of 2500",
    ),
    (
      dict(tree=tree_mechanism.build_tree_mechanism(3, 64, 100), threshold_kind="geometric"),
      "tree threshold",
    ),
    (
      dict(
        tree=tree_mechanism.build_tree_mechanism(3, 64, 100),
        threshold_noise_multiplier=None,
      ),
      "tree threshold",
    ),
  ],
)
def test_releases_that_are_refused(changes, message):
  fields = dict(
    population=2500, clients_per_round=100, threshold_noise_multiplier=3, update_noise_multiplier=2
  )
  with pytest.raises(ValueError, match=message) as error:
    flat.release(**{**fields, **changes})
  assert str(error.value).startswith("Found ")


def test_a_thousandth_less_noise_than_is_claimed_is_refused():
  tree = tree_mechanism.build_tree_mechanism(3.0, 64, 100, num_shares=140)
  update_sum = sum_mechanism.build_sum_mechanism(2.0, 1.0, 10, 140)
  for name, mechanism, sensitivity in (
    ("tree", tree, tree.scale * math.sqrt(6)),
    ("update_sum", update_sum, update_sum.sensitivity),
  ):
    delivered = shares.delivered_noise_multiplier(mechanism.local_stddev, sensitivity, 140)
    flat.release(2500, 100, delivered, delivered, **{name: mechanism})
    claimed = 1.001 * delivered
    with pytest.raises(ValueError, match="whose noise gives"):
      flat.release(2500, 100, claimed, claimed, **{name: mechanism})


def test_the_largest_whole_number():
  assert checks.whole("n", 2**53, 1) == 2**53
  with pytest.raises(ValueError, match=r"expected at most 2\^53"):
    checks.whole("n", 2**53 + 2, 1)


def test_an_epsilon_beyond_double_precision_is_refused_by_pld():
  mixture = flat.release(100, 100, None, 0.1, "none").mixture()
  with pytest.raises(ValueError, match="^Found an epsilon of about .* too large .* or 'rdp'"):
    accounting.pld_epsilon(mixture, 14, 1e-5)
  # By RDP it is known, of noise that does not end.
  summed = sum_mechanism.build_sum_mechanism(0.1, 1.0, 10, 100)
  release = flat.release(100, 100, None, 0.1, "none", update_sum=summed)
  assert accounting.epsilon(release, 14, 1e-5).epsilon > 700


def test_next_to_nothing_is_not_negative():
  # Rounding makes these divergences negative in dp_accounting, which then raises an error.
  release = flat.release(10**6, 1, None, 1e6)
  for accountant in accounting.ACCOUNTANTS:
    assert accounting.epsilon(release, 10, 1e-6, accountant).epsilon == 0.0


# The server's noise is half the sum of four normal variables that TensorFlow ends at this.
_END_OF_A_DRAW = math.sqrt(-2 * math.log(1e-7))


@pytest.mark.parametrize(
  "threshold,kind,update_sum,ends",
  [
    (None, "tree", False, [0.25]),
    (0.5, "geometric", False, [0.5, 0.25]),
    (0.5, "tree", False, [0.25]),  # The clients make the tree's noise.
    (0.5, "geometric", True, [0.5]),
    (0.5, "tree", True, []),
  ],
)
def test_the_end_of_the_servers_noise_is_a_part_of_delta(threshold, kind, update_sum, ends):
  summed = sum_mechanism.build_sum_mechanism(0.25, 1.0, 10, 2500) if update_sum else None
  release = _release(threshold, 0.25, threshold_kind=kind, update_sum=summed)
  assert events.GAUSSIAN_SUPPORT <= 2 * _END_OF_A_DRAW < events.GAUSSIAN_SUPPORT + 0.01
  # At each of its ends, in each of the rounds in which a client is in the sample.
  expected = sum(50 * 0.04 * 2 * stats.norm.sf(events.GAUSSIAN_SUPPORT - 1 / z) for z in ends)
  for accountant in ("rdp", "pld"):
    spent = accounting.epsilon(release, 50, 1e-5, accountant)
    assert spent.tail_probability == pytest.approx(expected, rel=1e-9, abs=0)
    assert spent.delta == 1e-5
  # Replacing a client gets to the end sooner.
  replaced = dataclasses.replace(release, relation="replace_one")
  expected = sum(0.04 * 2 * stats.norm.sf(events.GAUSSIAN_SUPPORT - 2 / z) for z in ends)
  assert events.tail_probability(replaced) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("sampling,accountant", [("none", "pld"), ("cyclic", "tightest")])
def test_what_is_set_aside_for_the_noises_end_is_not_spent_twice(sampling, accountant):
  release = flat.release(2500, 2500, None, 0.153, sampling)
  spent = accounting.epsilon(release, 1, 1e-5, accountant)
  assert 1e-6 < spent.tail_probability < 5e-6
  rest = 1e-5 - spent.tail_probability
  assert gaussian.delta(spent.epsilon, 1 / 0.153) == pytest.approx(rest, rel=1e-3)


def test_rdp_has_only_the_rest_of_delta():
  release = _release(None, 0.2, "none")
  tail = accounting.epsilon(release, 10, 1e-5, "rdp").tail_probability
  orders = 1 + np.geomspace(1e-3, 10, 1000)
  # Nearly all of this delta is set aside.
  expected, _ = rdp.compute_epsilon(orders, 10 * orders / (2 * 0.2**2), 0.01 * tail)
  found = accounting.epsilon(release, 10, 1.01 * tail, "rdp").epsilon
  assert expected * (1 - 1e-6) <= found < 1.01 * expected


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_noise_that_ends_too_early_is_refused(accountant):
  too_little = _release(None, 0.1)
  message = "^Found noise multipliers as small as 0.1, so little noise that .*expected more noise"
  with pytest.raises(ValueError, match=message):
    accounting.epsilon(too_little, _ROUNDS, _DELTA, accountant)
  assert accounting.epsilon_or_none(too_little, _ROUNDS, _DELTA, accountant) is None
  # A smaller delta refuses more.
  little = _release(None, 0.2)
  tail = accounting.epsilon(little, 10, _DELTA, "rdp").tail_probability
  accounting.epsilon(little, 10, 1.001 * tail, "rdp")
  with pytest.raises(ValueError, match="a released number gives a client away"):
    accounting.epsilon(little, 10, 0.999 * tail, accountant)
  with pytest.raises(ValueError, match="a released number gives a client away"):
    accounting.epsilon(little, 10, tail, accountant)  # Nothing is left.
  # Clients' noise has no such end.
  summed = sum_mechanism.build_sum_mechanism(0.1, 1.0, 10, 2500)
  by_clients = _release(None, 0.1, update_sum=summed)
  assert accounting.epsilon(by_clients, _ROUNDS, _DELTA, "rdp").tail_probability == 0.0


def test_no_output_beyond_the_end_has_more_probability_than_is_set_aside():
  # Exactly, for the noise as it is drawn, at a single number that one client moves by 1 / z.
  step = 0.01
  draw = np.exp(-0.5 * (step * np.arange(-567, 568)) ** 2)
  draw /= draw.sum()
  sum_of_two = np.convolve(draw, draw)
  noise = np.convolve(sum_of_two, sum_of_two)  # On a grid of step / 2.
  assert noise @ (0.5 * step * (np.arange(len(noise)) - len(noise) // 2)) ** 2 == (
    pytest.approx(1, abs=1e-5)
  )
  for z in (0.125, 0.15, 0.2, 0.5):
    shift = round(2 / (z * step))
    impossible_without = noise[len(noise) - shift :].sum()
    release = flat.release(100, 100, None, z, "none")
    tail = accounting.epsilon(release, 1, 0.5, "rdp").tail_probability
    assert impossible_without <= tail
