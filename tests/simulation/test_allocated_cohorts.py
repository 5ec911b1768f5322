"""Allocated cohorts: each client once in each block of rounds, by the key alone, in any order."""

import numpy as np
import pytest
from scipy import stats

from privacy import cohorts as kinds
from tff_superquantile.simulation import cohorts

_KEY = bytes(range(16))
_ROUNDS = range(1, 26)


def _members(num_clients, size, num_rounds, seed=_KEY, **kwargs):
  """Who takes part: bool [rounds, clients]."""
  sample = cohorts.build_sampler(kinds.Allocated(size=size), range(num_clients), seed, **kwargs)
  member = np.zeros([num_rounds, num_clients], bool)
  for round_num in range(num_rounds):
    member[round_num, sample(1 + round_num)] = True
  return member


@pytest.mark.parametrize("num_clients,size,length", [(40, 8, 5), (10, 3, 4), (7, 7, 1), (5, 1, 5)])
def test_each_client_takes_part_once_in_each_block(num_clients, size, length):
  member = _members(num_clients, size, 6 * length)
  assert (member.reshape(6, length, num_clients).sum(axis=1) == 1).all()
  # After any number of rounds clients differ by one at most, and the mean is that of the sampling.
  counts = np.cumsum(member, axis=0)
  assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()
  assert kinds.Allocated(num_clients, size).mean_size() == num_clients / length


def test_rounds_are_uniform_and_independent_of_others_and_of_other_blocks():
  length, blocks = 3, 6000
  member = _members(4, 2, 2 * blocks)  # Blocks of two.
  places = member.reshape(blocks, 2, 4).argmax(axis=1)
  codes = places @ (1 << np.arange(4))
  assert stats.chisquare(np.bincount(codes, minlength=16)).pvalue > 1e-6
  table = np.histogram2d(places[:-1, 0], places[1:, 0], bins=2)[0]
  assert stats.chi2_contingency(table)[1] > 1e-6
  three = _members(6, 2, length * blocks).reshape(blocks, length, 6).argmax(axis=1)
  assert stats.chisquare(np.bincount(three[:, 5], minlength=3)).pvalue > 1e-6


def test_a_resumed_run_draws_the_same_and_another_key_others():
  sample = cohorts.build_sampler(kinds.Allocated(size=5), range(50), _KEY)
  drawn = [sample(round_num) for round_num in _ROUNDS]
  again = cohorts.build_sampler(kinds.Allocated(size=5), range(50), _KEY)
  assert [again(round_num) for round_num in reversed(_ROUNDS)] == drawn[::-1]
  other = cohorts.build_sampler(kinds.Allocated(size=5), range(50), bytes(16))
  assert [other(round_num) for round_num in _ROUNDS] != drawn


def test_a_round_may_be_empty_and_a_full_one_is_cut():
  member = _members(3, 1, 300)
  assert (~member.any(axis=1)).any()
  free, cut = _members(60, 20, 300), _members(60, 20, 300, max_clients=21)
  assert cut.sum(axis=1).max() == 21 < free.sum(axis=1).max()
  assert (cut <= free).all() and (cut == free)[free.sum(axis=1) <= 21].all()


def test_the_first_block_begins_with_the_first_round():
  sample = cohorts.build_sampler(kinds.Allocated(size=5), range(20), _KEY)
  first = np.concatenate([sample(round_num) for round_num in range(1, 5)])
  np.testing.assert_array_equal(np.sort(first), np.arange(20))
  with pytest.raises(ValueError, match="Found round 0 of an allocated sampling"):
    sample(0)
