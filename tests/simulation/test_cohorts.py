"""Cohorts: uniform, without replacement, the same for the same seed and round, and no others."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds

_CLIENTS = tuple(f"client_{i}" for i in range(20))


@given(
  num_clients=st.integers(1, 50),
  data=st.data(),
  seed=st.integers(0, 2**63),
  round_num=st.integers(0, 10**6),
)
def test_cohort_holds_that_many_different_clients(num_clients, data, seed, round_num):
  clients = [f"c{i}" for i in range(num_clients)]
  size = data.draw(st.integers(1, num_clients))
  cohort = cohorts.build_fixed_size_sampler(clients, size, seed)(round_num)
  assert isinstance(cohort, list) and len(cohort) == size
  assert len(set(cohort)) == size and set(cohort) <= set(clients)


_builders = pytest.mark.parametrize(
  "build", [cohorts.build_fixed_size_sampler, cohorts.build_poisson_sampler]
)


@_builders
def test_same_seed_and_round_give_the_same_cohort_in_any_order_of_asking(build):
  first = build(_CLIENTS, 5, seed=3)
  second = build(list(_CLIENTS), 5, seed=3)
  forwards = [first(round_num) for round_num in range(1, 30)]
  backwards = [second(round_num) for round_num in reversed(range(1, 30))][::-1]
  assert forwards == backwards
  assert forwards == [first(round_num) for round_num in range(1, 30)]


@_builders
def test_global_random_state_neither_matters_nor_changes(build):
  sample = build(_CLIENTS, 5, seed=0)
  np.random.seed(1)
  before = sample(1)
  state = np.random.get_state()[1].tolist()
  np.random.seed(1)
  assert np.random.get_state()[1].tolist() == state
  np.random.seed(2)
  assert sample(1) == before


@_builders
def test_rounds_and_seeds_differ(build):
  samples = [build(_CLIENTS, 10, seed) for seed in range(10)]
  drawn = {tuple(sample(round_num)) for sample in samples for round_num in range(10)}
  assert len(drawn) == 100
  # Nor is one seed's history another's, shifted by some rounds.
  assert samples[0](1) != samples[1](0)


def test_every_client_and_every_pair_is_equally_likely():
  num_rounds, size, n = 20_000, 3, 6
  sample = cohorts.build_fixed_size_sampler(range(n), size, seed=0)
  together = np.zeros([n, n])
  for round_num in range(num_rounds):
    member = np.zeros(n)
    member[sample(round_num)] = 1
    together += np.outer(member, member)
  together /= num_rounds
  # Probabilities of a uniform subset; the tolerance is five standard deviations.
  alone, pair = size / n, size * (size - 1) / (n * (n - 1))
  tolerance = 5 * np.sqrt(0.25 / num_rounds)
  np.testing.assert_allclose(np.diag(together), alone, atol=tolerance)
  np.testing.assert_allclose(together[~np.eye(n, dtype=bool)], pair, atol=tolerance)


def test_everybody_may_take_part():
  cohort = cohorts.build_fixed_size_sampler(_CLIENTS, len(_CLIENTS), seed=0)(1)
  assert sorted(cohort) == sorted(_CLIENTS)


@pytest.mark.parametrize("size", [0, -1, 21, 10_000, float("nan"), float("inf")])
def test_impossible_sizes_are_refused(size):
  builders = [cohorts.build_poisson_sampler]
  if np.isfinite(size):
    builders.append(cohorts.build_fixed_size_sampler)
  for build in builders:
    with pytest.raises(ValueError, match=f"clients_per_round = {size} with 20"):
      build(_CLIENTS, size, seed=0)
    with pytest.raises(ValueError, match="with 0 training clients"):
      build([], 1, seed=0)


def test_purposes_rounds_and_seeds_have_streams_of_their_own():
  keys = [(s, p, r) for s in (0, 1, 256) for p in ("cohort", "batches") for r in (0, 1, 256)]
  draws = {key: tuple(seeds.generator(*key).integers(2**31, size=4)) for key in keys}
  assert len(set(draws.values())) == len(keys)
  assert draws == {key: tuple(seeds.generator(*key).integers(2**31, size=4)) for key in keys}
  assert draws[0, "cohort", 0] == tuple(seeds.generator(0, "cohort").integers(2**31, size=4))


@pytest.mark.parametrize("num_clients,size", [(12, 3), (11, 3), (7, 7), (5, 2), (9, 1)])
def test_groups_take_turns(num_clients, size):
  clients = [f"c{i}" for i in range(num_clients)]
  sample = cohorts.build_cyclic_sampler(clients, size, seed=4)
  num_groups = -(-num_clients // size)
  rounds = [sample(round_num) for round_num in range(1, 10 * num_groups + 1)]
  assert rounds == 10 * rounds[:num_groups]  # So that no client comes sooner, ever.
  assert sorted(sum(rounds[:num_groups], [])) == sorted(clients)  # Each once.
  sizes = [len(cohort) for cohort in rounds]
  assert max(sizes) <= size and max(sizes) - min(sizes) <= 1
  # The groups do not depend on the order of the clients, and do on the seed.
  again = cohorts.build_cyclic_sampler(clients[::-1], size, seed=4)
  assert [again(round_num) for round_num in range(1, len(rounds) + 1)] == rounds
  seeds_differ = {tuple(cohorts.build_cyclic_sampler(clients, size, s)(1)) for s in range(20)}
  assert len(seeds_differ) > 1 or size == num_clients


@pytest.mark.parametrize("separation", [1, 4, 6])
def test_spaced_clients_wait(separation):
  clients = [f"c{i}" for i in range(240)]
  sample = cohorts.build_spaced_sampler(clients, 20, separation, seed=1)
  backwards = cohorts.build_spaced_sampler(clients, 20, separation, seed=1)
  rounds = [sample(round_num) for round_num in range(1, 200)]
  assert rounds == [backwards(round_num) for round_num in range(199, 0, -1)][::-1]
  last, distances = {}, []
  for round_num, cohort in enumerate(rounds):
    assert len(set(cohort)) == len(cohort) <= 20
    for client in cohort:
      distances.append(round_num - last.get(client, -1000))
      last[client] = round_num
  assert min(distances) >= separation and len(last) == 240
  if separation == 6:  # By day hardly anybody is there, and cohorts are smaller.
    sizes = np.reshape([len(cohort) for cohort in rounds[: 8 * 24]], [8, 24]).mean(axis=0)
    assert sizes.max() == 20 > sizes.min()


def test_who_is_there_follows_the_hour_as_documented():
  num_clients, num_days = 1000, 40
  sample = cohorts.build_spaced_sampler(range(num_clients), num_clients, 1, seed=0)
  sizes = np.array([len(sample(round_num)) for round_num in range(num_days * 24)])
  by_hour = sizes.reshape(num_days, 24).mean(axis=0) / num_clients
  # The resultant of the mixture of time zones, at 15 degrees an hour, and of the habits.
  zones = np.sum([0.47, 0.29, 0.07, 0.17] * np.exp(1j * np.pi / 12 * np.arange(4)))
  swing = abs(zones) * np.exp(-((2 * np.pi * 1.5 / 24) ** 2) / 2)
  angles = 2 * np.pi * np.arange(24) / 24
  harmonic = 4 * np.mean(by_hour * np.exp(-1j * angles))
  assert abs(harmonic) == pytest.approx(swing, abs=0.03)  # Phases are a draw.
  fitted = 0.5 * (1 + np.real(harmonic * np.exp(1j * angles)))
  np.testing.assert_allclose(by_hour, fitted, atol=5 * 0.5 / np.sqrt(num_clients * num_days))


def test_impossible_turns_are_refused():
  with pytest.raises(ValueError, match="clients_per_round = 21 of population = 20"):
    cohorts.build_cyclic_sampler(_CLIENTS, 21, seed=0)
  with pytest.raises(ValueError, match="separation = 5 with 5 of 20 clients.*expected 1 to 4"):
    cohorts.build_spaced_sampler(_CLIENTS, 5, 5, seed=0)
