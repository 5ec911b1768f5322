"""Poisson cohorts: each client by itself with the same chance, the same for the same round."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from privacy import cohorts as kinds
from tff_superquantile.simulation import cohorts

_CLIENTS = tuple(f"client_{i}" for i in range(20))
# Of a test with fixed seeds: if it fails, it fails always.
_FALSE_ALARM = 1e-6


def _members(num_clients, clients_per_round, num_rounds, seed=0):
  """Who takes part: bool [rounds, clients]."""
  kind = kinds.Poisson(num_clients, clients_per_round)
  sample = cohorts.build_sampler(kind, range(num_clients), seed)
  member = np.zeros([num_rounds, num_clients], bool)
  for round_num in range(num_rounds):
    member[round_num, sample(round_num)] = True
  return member


@given(
  num_clients=st.integers(1, 50),
  data=st.data(),
  seed=st.integers(0, 2**63),
  round_num=st.integers(0, 10**6),
)
def test_cohort_holds_different_clients_in_their_order(num_clients, data, seed, round_num):
  clients = [f"c{i}" for i in range(num_clients)]
  expected = data.draw(st.floats(1e-3, num_clients))
  cohort = cohorts.build_sampler(kinds.Poisson(num_clients, expected), clients, seed)(round_num)
  assert isinstance(cohort, list)
  assert cohort == [client for client in clients if client in set(cohort)]


@pytest.mark.parametrize("seed", [0, bytes(range(16))])
@pytest.mark.parametrize("num_clients,expected", [(40, 8.0), (25, 0.5), (10, 9.0), (30, 7.3)])
def test_sizes_are_binomial(num_clients, expected, seed):
  num_rounds = 4000
  sizes = _members(num_clients, expected, num_rounds, seed).sum(axis=1)
  q = expected / num_clients
  bound = stats.norm.isf(_FALSE_ALARM / 2)
  variance = num_clients * q * (1 - q)
  assert abs(sizes.mean() - expected) < bound * np.sqrt(variance / num_rounds)
  fourth = stats.binom(num_clients, q).stats(moments="k") + 3.0
  assert abs(sizes.var() / variance - 1.0) < bound * np.sqrt((fourth - 1.0) / num_rounds)
  # The whole law, sizes that are rare put together.
  probabilities = stats.binom(num_clients, q).pmf(np.arange(num_clients + 1))
  counts = np.bincount(sizes, minlength=num_clients + 1)
  common = num_rounds * probabilities >= 10
  observed = np.append(counts[common], counts[~common].sum())
  law = num_rounds * np.append(probabilities[common], probabilities[~common].sum())
  keep = law > 1e-9
  assert stats.chisquare(observed[keep], law[keep]).pvalue > _FALSE_ALARM


@pytest.mark.parametrize("seed", [0, bytes(range(16))])
def test_clients_are_chosen_alike_and_independently(seed):
  num_rounds, n, q = 8000, 6, 0.3
  member = _members(n, n * q, num_rounds, seed)
  # All 2^n cohorts, with the chances of independent choices.
  codes = member @ (1 << np.arange(n))
  sizes = np.array([bin(code).count("1") for code in range(2**n)])
  law = num_rounds * q**sizes * (1 - q) ** (n - sizes)
  assert stats.chisquare(np.bincount(codes, minlength=2**n), law).pvalue > _FALSE_ALARM


def test_rounds_are_independent():
  num_rounds = 8000
  member = _members(5, 2.0, num_rounds)
  for lag, client in itertools.product((1, 2), range(5)):
    table = np.histogram2d(member[:-lag, client], member[lag:, client], bins=2)[0]
    assert stats.chi2_contingency(table)[1] > _FALSE_ALARM


def test_everybody_takes_part_where_everybody_is_expected():
  sample = cohorts.build_sampler(kinds.Poisson(size=len(_CLIENTS)), _CLIENTS, seed=0)
  assert all(sample(round_num) == list(_CLIENTS) for round_num in range(200))
