"""Cohorts, helpers, coins and clients' seeds from a secret key; cohorts that are cut at random."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from privacy import cohorts as kinds
from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds

_CLIENTS = tuple(f"client_{i}" for i in range(20))
_KEY, _OTHER_KEY = bytes(range(16)), bytes(range(1, 17))
# Of a test with fixed seeds: if it fails, it fails always.
_FALSE_ALARM = 1e-6


def _poisson(seed, clients_per_round=5.0, clients=_CLIENTS, **kwargs):
  kind = kinds.Poisson(len(clients), clients_per_round)
  return cohorts.build_sampler(kind, clients, seed, **kwargs)


def _assert_probabilities(counts, trials, probabilities):
  """Each count is binomial, or a sum of coins of several probabilities."""
  counts, expected = np.asarray(counts, float), np.asarray(probabilities) * trials
  stddev = np.sqrt(np.maximum(expected * (1 - np.asarray(probabilities)), 1e-9))
  bound = stats.norm.isf(_FALSE_ALARM / 2 / counts.size)
  assert np.abs((counts - expected) / stddev).max() < bound


# Keys in place of seeds.


@pytest.mark.parametrize(
  "build",
  [
    lambda seed: cohorts.build_sampler(kinds.FixedSize(size=5), _CLIENTS, seed),
    _poisson,
  ],
  ids=["fixed_size", "poisson"],
)
def test_keys_and_seeds_give_cohorts_of_their_own_that_repeat(build):
  rounds = range(1, 40)
  # Nor is a key the number that it spells.
  numbers = [int.from_bytes(_KEY, order) for order in ("big", "little")]
  for seed in (_KEY, _OTHER_KEY, *numbers, 0):
    sample = build(seed)
    np.random.seed(1)
    drawn = [sample(r) for r in rounds]
    np.random.seed(2)  # Nobody's global state matters.
    assert drawn == [build(seed)(r) for r in reversed(rounds)][::-1]
    assert all(cohort == list(dict.fromkeys(cohort)) for cohort in drawn)
  histories = {
    tuple(map(tuple, map(build(seed), rounds))) for seed in (_KEY, _OTHER_KEY, *numbers, 0)
  }
  assert len(histories) == 5
  by_key = build(_KEY)
  assert len({tuple(by_key(r)) for r in rounds}) > 25


def test_purposes_rounds_keys_and_seeds_have_streams_of_their_own():
  arguments = [
    (key, purpose, round_num)
    for key in (_KEY, _OTHER_KEY, bytes(16), bytes([*bytes(15), 1]), 0, 1, 256)
    for purpose in ("cohort", "helpers", "coin of client_1", "coin of client_11")
    for round_num in (0, 1, 11, 256)
  ]
  draws = {args: tuple(seeds.generator(*args).integers(2**63, size=2)) for args in arguments}
  assert draws[0, "cohort", 0] == tuple(seeds.generator(0, "cohort").integers(2**63, size=2))
  assert len({number for draw in draws.values() for number in draw}) == 2 * len(arguments)
  assert draws == {a: tuple(seeds.generator(*a).integers(2**63, size=2)) for a in arguments}


# Cohorts that are cut.


@given(
  data=st.data(),
  key=st.binary(min_size=16, max_size=16),
  round_num=st.integers(0, 10**6),
)
def test_a_cut_cohort_is_a_part_of_the_uncut_one_in_its_order(data, key, round_num):
  expected = data.draw(st.floats(0.5, 20.0))
  most = data.draw(st.integers(1, 20))
  uncut = _poisson(key, expected)(round_num)
  cut = _poisson(key, expected, max_clients=most)(round_num)
  assert len(cut) == min(most, len(uncut))
  assert cut == [client for client in uncut if client in set(cut)]


def test_each_member_is_equally_likely_to_be_cut():
  num_rounds, most = 6000, 12
  uncut_of, cut_of = _poisson(_KEY, 14.0), _poisson(_KEY, 14.0, max_clients=most)
  stays, chances, variances = np.zeros(20), np.zeros(20), np.zeros(20)
  pairs, num_pairs = 0, []
  for round_num in range(num_rounds):
    uncut, cut = uncut_of(round_num), set(cut_of(round_num))
    if len(uncut) <= most:
      continue
    chance = most / len(uncut)
    for client in uncut:
      index = _CLIENTS.index(client)
      stays[index] += client in cut
      chances[index] += chance
      variances[index] += chance * (1 - chance)
    # Two neighbours together, as a sample without replacement has it.
    num_pairs.append(chance * (most - 1) / (len(uncut) - 1))
    pairs += uncut[0] in cut and uncut[1] in cut
  bound = stats.norm.isf(_FALSE_ALARM / 2 / 20)
  assert np.abs((stays - chances) / np.sqrt(variances)).max() < bound
  num_pairs = np.array(num_pairs)
  assert len(num_pairs) > 3000
  deviation = (pairs - num_pairs.sum()) / np.sqrt((num_pairs * (1 - num_pairs)).sum())
  assert abs(deviation) < bound


# Helpers.


@pytest.mark.parametrize("seed", [_KEY, 3])
def test_helpers_are_others_and_make_up_the_number_of_shares(seed):
  sample = _poisson(seed, 6.0, max_clients=12)
  help_out = cohorts.build_helpers_sampler(_CLIENTS, 12, seed)
  seen = set()
  for round_num in range(300):
    cohort = sample(round_num)
    helpers = help_out(round_num, cohort)
    assert len(helpers) + len(cohort) == 12 == len({*helpers, *cohort})
    assert {*helpers} <= {*_CLIENTS}
    assert helpers == help_out(round_num, cohort)
    seen.add(tuple(helpers))
  assert len(seen) > 290
  assert help_out(1, _CLIENTS[:12]) == []
  assert sorted(cohorts.build_helpers_sampler(_CLIENTS, 20, seed)(1, [])) == sorted(_CLIENTS)


def test_all_others_are_equally_likely_to_help():
  help_out, cohort = cohorts.build_helpers_sampler(_CLIENTS, 8, _KEY), _CLIENTS[5:8]
  counts = dict.fromkeys(_CLIENTS, 0)
  for round_num in range(4000):
    for client in help_out(round_num, cohort):
      counts[client] += 1
  assert all(counts.pop(client) == 0 for client in cohort)
  _assert_probabilities(list(counts.values()), 4000, np.full(17, 5 / 17))


# Coins.


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_a_coin_has_its_probability_and_is_each_clients_own_in_each_round(probability):
  toss = cohorts.build_coin(probability, _KEY)
  tosses = np.array([[toss(r, client) for client in _CLIENTS[:8]] for r in range(2500)])
  assert tosses.dtype == bool
  _assert_probabilities(tosses.sum(axis=0), 2500, np.full(8, probability))
  again, other = cohorts.build_coin(probability, _KEY), cohorts.build_coin(probability, _OTHER_KEY)
  assert [again(0, client) for client in _CLIENTS[:8]] == tosses[0].tolist()
  if not 0.0 < probability < 1.0:
    return
  assert (tosses[:100] != [[other(r, c) for c in _CLIENTS[:8]] for r in range(100)]).any()
  for first, second in itertools.combinations(range(8), 2):
    table = np.histogram2d(tosses[:, first], tosses[:, second], bins=2)[0]
    assert stats.chi2_contingency(table)[1] > _FALSE_ALARM
  table = np.histogram2d(tosses[1:].ravel(), tosses[:-1].ravel(), bins=2)[0]
  assert stats.chi2_contingency(table)[1] > _FALSE_ALARM


# Seeds of clients.


def test_clients_seeds_of_a_key_are_of_128_bits():
  words = np.array(
    [seeds.client_seed(_KEY, r, f"client_{i}") for r in range(40) for i in range(500)]
  )
  assert words.dtype == np.int64 and words.shape == (20_000, 2)
  for word in words.T:
    assert len(np.unique(word)) == 20_000
    assert len(np.unique(word >> 32)) > 19_900  # High halves: by chance 0.05 pairs are the same.
  bits = np.unpackbits(words.view(np.uint8), axis=1)
  assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(20_000)
  # Those of a public seed are what they were: not negative.
  of_seed = np.array([seeds.client_seed(0, r, f"client_{i}") for r in range(9) for i in range(99)])
  assert of_seed.dtype == np.int64 and of_seed.min() >= 0


def test_clients_seeds_depend_on_key_round_and_client():
  arguments = [
    (key, round_num, client)
    for key in (_KEY, _OTHER_KEY, 0, int.from_bytes(_KEY, "big"))
    for round_num in (1, 11)
    for client in ("1", "11", "1:1", "é")
  ]
  client_seeds = [tuple(seeds.client_seed(*args)) for args in arguments]
  assert len({word for seed in client_seeds for word in seed}) == 2 * len(client_seeds)
  assert client_seeds == [tuple(seeds.client_seed(*args)) for args in arguments]
