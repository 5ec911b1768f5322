"""Diurnal cohorts: sizes that swing over the day, clients with hours of their own."""

import numpy as np
import pytest

from tff_superquantile.simulation import cohorts

# Half the swing of the expected size over its mean, for an amplitude of 1: the resultant length of
# the mixture of time zones, cos and sin at 15 degrees an hour, and exp(-s^2 / 2) for the habits.
_ZONES = np.sum([0.47, 0.29, 0.07, 0.17] * np.exp(1j * np.pi / 12 * np.arange(4)))
_RESULTANT = abs(_ZONES) * np.exp(-((2 * np.pi * 1.5 / 24) ** 2) / 2)


def _members(num_clients, clients_per_round, num_rounds, seed=0):
  """Who takes part: bool [rounds, clients]."""
  sample = cohorts.build_diurnal_sampler(range(num_clients), clients_per_round, seed)
  member = np.zeros([num_rounds, num_clients], bool)
  for round_num in range(num_rounds):
    member[round_num, sample(round_num)] = True
  return member


def test_the_mean_size_over_days_is_what_was_asked_for():
  num_rounds, expected = 240 * 24, 30.0
  sizes = _members(200, expected, num_rounds).sum(axis=1)
  # The variance within a round is below that of a Poisson variable; days are whole.
  assert abs(sizes.mean() - expected) < 5 * np.sqrt(expected / num_rounds)


def test_sizes_swing_as_documented():
  num_days, expected = 400, 100.0
  sizes = _members(2000, expected, num_days * 24).sum(axis=1)
  by_hour = sizes.reshape(num_days, 24).mean(axis=0)
  # The first harmonic of the day is all there is to it.
  angles = 2 * np.pi * np.arange(24) / 24
  harmonic = np.mean(by_hour * np.exp(-1j * angles)) * 2 / expected
  # The clients' phases are a draw: the resultant of 2000 of them is off by a hundredth or so.
  assert abs(harmonic) == pytest.approx(0.9 * _RESULTANT, abs=0.03)
  fitted = expected * (1 + np.real(harmonic * np.exp(1j * angles)))
  np.testing.assert_allclose(by_hour, fitted, atol=5 * np.sqrt(2 * expected / num_days))
  ratio = by_hour.max() / by_hour.min()
  assert 7.0 < ratio < 12.0
  assert 0.15 < by_hour.min() / expected < 0.25 and 1.7 < by_hour.max() / expected < 1.9


def test_clients_keep_their_hours_and_take_part_alike():
  num_days, n = 400, 60
  member = _members(n, 20, 24 * num_days)
  days = member.reshape(num_days, 24, n)
  angles = 2 * np.pi * np.arange(24) / 24
  # Of the first and of the last 200 days: where in the day a client is.
  first, last = (
    np.tensordot(np.exp(1j * angles), half.mean(axis=0), axes=1)
    for half in (days[:200], days[200:])
  )
  differences = np.angle(first / last) * 24 / (2 * np.pi)
  assert np.abs(differences).max() < 1.5  # Hours.
  hours = np.angle(first + last) * 24 / (2 * np.pi)
  assert np.std(hours) > 1.2 and hours.min() < -0.5 and hours.max() > 3.0
  # Each as often as every other, over days.
  rates = member.mean(axis=0)
  np.testing.assert_allclose(rates, 1 / 3, atol=5 * np.sqrt(2 / 9 / len(member)))


def test_clients_are_independent_given_the_hour():
  member = _members(12, 4, 24 * 1000).reshape(1000, 24, 12)
  residuals = (member - member.mean(axis=0)).reshape(-1, 12)
  correlations = np.corrcoef(residuals.T)[~np.eye(12, dtype=bool)]
  assert np.abs(correlations).max() < 5 / np.sqrt(len(residuals))
