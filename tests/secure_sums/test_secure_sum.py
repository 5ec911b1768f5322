"""Shares of noise, completed by the server: the sum has one law for all numbers of reports."""

import collections

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import shares
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.secure_sums import noisy_sum

_NUM_SHARES = 7
_NUM_ENTRIES = 60_000
_STDDEV = shares.MIN_STDDEV


def _seed(*numbers):
  return tf.constant(numbers, tf.int64)


def _shares_of_clients(num_clients):
  noise = np.zeros(_NUM_ENTRIES, np.int64)
  for client in range(num_clients):
    noise += discrete_gaussian.sample([_NUM_ENTRIES], _STDDEV, _seed(1, client)).numpy()
  return noise


def _completed(num_clients, seed=(2, 3)):
  return noisy_sum.complete(
    tf.constant(_shares_of_clients(num_clients)),
    tf.constant(num_clients, tf.int64),
    _STDDEV,
    _NUM_SHARES,
    _seed(*seed),
  ).numpy()


def _law():
  """{x: P(x)} of the discrete Gaussian of all shares, by its definition."""
  values = np.arange(-200, 201)
  masses = np.exp(-(values**2) / (2.0 * _NUM_SHARES * _STDDEV**2))
  return values, masses / masses.sum()


@pytest.mark.parametrize("num_clients", [0, 1, _NUM_SHARES - 1, _NUM_SHARES])
def test_the_total_has_the_law_of_all_shares(num_clients):
  noise = _completed(num_clients)
  assert noise.dtype == np.int64 and noise.shape == (_NUM_ENTRIES,)
  variance = _NUM_SHARES * _STDDEV**2
  # The sample variance of a normal law is off by sqrt(2 / n), relatively.
  assert np.var(noise) == pytest.approx(variance, rel=5 * np.sqrt(2 / _NUM_ENTRIES))
  assert np.mean(noise) == pytest.approx(0, abs=5 * np.sqrt(variance / _NUM_ENTRIES))
  values, law = _law()
  common = law * _NUM_ENTRIES >= 10
  observed = np.array([np.sum(noise == value) for value in values[common]])
  expected = law[common] * _NUM_ENTRIES
  observed = np.append(observed, _NUM_ENTRIES - observed.sum())
  expected = np.append(expected, _NUM_ENTRIES - expected.sum())
  assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("more", [0, 1, 2, 100])
def test_with_all_shares_and_beyond_nothing_is_added(more):
  sums = tf.constant([[3, -1], [2**40, 0]], tf.int64)
  num_reports = tf.constant(_NUM_SHARES + more, tf.int64)
  completed = noisy_sum.complete(sums, num_reports, _STDDEV, _NUM_SHARES, _seed(1, 2))
  np.testing.assert_array_equal(completed, sums)


def test_what_is_added_follows_from_the_seed_and_the_number_that_is_missing():
  first = _completed(0)
  np.testing.assert_array_equal(first, _completed(0))
  assert abs(np.corrcoef(first, _completed(0, (2, 4)))[0, 1]) < 0.03
  stddev = tf.constant(_STDDEV * np.sqrt(5.0))
  expected = discrete_gaussian.sample([_NUM_ENTRIES], stddev, _seed(2, 3))
  np.testing.assert_array_equal(_completed(2) - _shares_of_clients(2), expected)


@pytest.mark.usefixtures("simulation_context")
@pytest.mark.parametrize("modulus", [1, 2, 7, 2**20 + 1, 2**61])
def test_clients_send_remainders_and_the_server_gets_one(modulus):
  values = np.array([-(2**62), -modulus - 1, -modulus, -1, 0, 1, modulus - 1, modulus, 2**62])
  spec = collections.OrderedDict(values=tff.TensorType(np.int64, [9]), num_reports=np.int64)

  @tff.federated_computation(tff.FederatedType(spec, tff.CLIENTS))
  def sum_reports(reports):
    return noisy_sum._secure_sum(reports, np.int64(modulus))

  total = sum_reports([collections.OrderedDict(values=values, num_reports=1)] * 3)
  assert total["num_reports"] == 3
  np.testing.assert_array_equal(total["values"], 3 * (values % modulus) % modulus)
