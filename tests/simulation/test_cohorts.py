"""Cohorts: uniform, without replacement, the same for the same seed and round, and no others."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from privacy import cohorts as kinds
from tff_superquantile.simulation import cohorts

_CLIENTS = tuple(f"client_{i}" for i in range(20))


def _build(sampling, clients, size, seed, **own):
  return cohorts.build_sampler(kinds.of(sampling, len(clients), size, **own), clients, seed)


@given(
  num_clients=st.integers(1, 50),
  data=st.data(),
  seed=st.integers(0, 2**63),
  round_num=st.integers(0, 10**6),
)
def test_cohort_holds_that_many_different_clients(num_clients, data, seed, round_num):
  clients = [f"c{i}" for i in range(num_clients)]
  size = data.draw(st.integers(1, num_clients))
  cohort = _build("fixed_size", clients, size, seed)(round_num)
  assert isinstance(cohort, list) and len(cohort) == size
  assert len(set(cohort)) == size and set(cohort) <= set(clients)


def test_every_client_and_every_pair_is_equally_likely():
  num_rounds, size, n = 20_000, 3, 6
  sample = _build("fixed_size", range(n), size, seed=0)
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


@pytest.mark.parametrize("num_clients,size", [(12, 3), (11, 3), (7, 7), (7, 3), (5, 2), (9, 1)])
def test_groups_take_turns(num_clients, size):
  clients = [f"c{i}" for i in range(num_clients)]
  sample = _build("cyclic", clients, size, seed=4)
  num_groups = -(-num_clients // size)
  rounds = [sample(round_num) for round_num in range(1, 10 * num_groups + 1)]
  assert rounds == 10 * rounds[:num_groups]  # So that no client comes sooner, ever.
  assert sorted(sum(rounds[:num_groups], [])) == sorted(clients)  # Each once.
  sizes = [len(cohort) for cohort in rounds]
  assert max(sizes) <= size and max(sizes) - min(sizes) <= 1
  # The groups do not depend on the order of the clients, and do on the seed.
  again = _build("cyclic", clients[::-1], size, seed=4)
  assert [again(round_num) for round_num in range(1, len(rounds) + 1)] == rounds
  seeds_differ = {tuple(_build("cyclic", clients, size, s)(1)) for s in range(20)}
  assert len(seeds_differ) > 1 or size == num_clients


@pytest.mark.parametrize("separation", [1, 4, 6])
def test_spaced_clients_wait(separation):
  clients = [f"c{i}" for i in range(240)]
  sample = _build("spaced", clients, 20, 1, separation=separation)
  backwards = _build("spaced", clients, 20, 1, separation=separation)
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


@pytest.mark.parametrize(
  "sampling, size, message, own",
  [
    *(("fixed_size", size, "clients_per_round", {}) for size in (0, -1, 2.5, 21)),
    *(("poisson", size, "clients_per_round", {}) for size in (0, -1, np.nan, 21)),
    ("cyclic", 21, "clients_per_round = 21 of population = 20", {}),
    ("spaced", 5, "separation = 5 with 5 of 20 clients.*expected 1 to 4", {"separation": 5}),
  ],
)
def test_impossible_cohorts_are_refused(sampling, size, message, own):
  with pytest.raises(ValueError, match=message):
    _build(sampling, _CLIENTS, size, 0, **own)


@pytest.mark.parametrize("sampling", ["fixed_size", "poisson", "cyclic"])
def test_cohorts_of_nobody_are_refused(sampling):
  with pytest.raises(ValueError, match="population = 0"):
    _build(sampling, [], 1, seed=0)


def test_cohorts_without_secret_sampling_are_the_accountants_alone():
  with pytest.raises(NotImplementedError, match="accountant"):
    _build("none", _CLIENTS, 5, seed=0)


def test_who_is_there_follows_the_hour_as_documented():
  num_clients, num_days = 1000, 40
  sample = _build("spaced", range(num_clients), num_clients, 0, separation=1)
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
