"""The private distribution of one number a client against numpy, brute force and simulation."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy import accounting
from privacy.evaluation import query as query_lib
from tff_superquantile import analytics
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.threshold import private_histogram

pytestmark = pytest.mark.usefixtures("simulation_context")

_KEY = bytes(range(16))
_query = functools.lru_cache(query_lib.Query)


def _of_counts(query, counts):
  """The distribution of exact counts, without noise."""
  below = np.concatenate([[0.0], np.cumsum(counts)])
  result = dict(below=below[:-1], total=below[-1], is_valid=True)
  return analytics.PrivateDistribution.of_result(query, result)


def _draws(query, values, repeats):
  """Releases of the same values: the sum of all shares is one discrete Gaussian."""
  tree = query.mechanism
  sums = private_histogram.scaled_counts(tf.constant(values, tf.float32), tree, query.upper)
  shape = [repeats, tree.num_entries]
  stddev = tree.local_stddev * math.sqrt(tree.num_shares)
  noise = discrete_gaussian.sample(shape, stddev, tf.constant([1, 2], tf.int64))
  decoded = private_histogram.decode(tf.reduce_sum(sums, axis=0) + noise, tree)
  for below, total in zip(decoded.below.numpy(), decoded.total.numpy()):
    result = dict(below=below, total=total, is_valid=True)
    yield analytics.PrivateDistribution.of_result(query, result)


def test_estimates_of_exact_counts_against_numpy():
  query = _query(300, 1.0, lower=-2.0, upper=6.0, num_bins=16)
  rng = np.random.default_rng(0)
  for _ in range(5):
    counts = rng.integers(0, 30, 16) * rng.integers(0, 2, 16)
    counts[5] += 1
    estimates = _of_counts(query, counts)
    # Very many numbers, spread evenly over each bin.
    left = np.repeat(query.edges[:-1], 2000 * counts)
    spread = np.concatenate([(np.arange(2000 * c) + 0.5) / (2000 * c) for c in counts if c])
    numbers = left + 0.5 * spread
    assert estimates.num_clients.value == counts.sum()
    np.testing.assert_allclose(estimates.counts, counts)
    assert estimates.mean.value == pytest.approx(numbers.mean(), abs=1e-3)
    for p in (0.05, 0.31, 0.5, 0.9):
      # Between two bins with clients any number is a quantile.
      lowest, highest = (np.quantile(numbers, p + shift) for shift in (-1e-3, 1e-3))
      assert lowest - 0.02 <= estimates.quantile(p).value <= highest + 0.02
      tail = np.sort(numbers)[-round(p * len(numbers)) :]
      assert estimates.tail_mean(p).value == pytest.approx(tail.mean(), abs=2e-3)


def test_the_whole_way_with_little_noise():
  values = np.random.default_rng(1).normal(10.0, 3.0, 400)
  values[::40] = np.nan
  known = values[~np.isnan(values)]
  asked = dict(epsilon=20, delta=1e-5, lower=-5.0, upper=20.0, num_bins=128, noise_key=_KEY)
  report = analytics.private_distribution(values, **asked)
  assert report.num_clients.value == pytest.approx(390, abs=5)
  for p in (0.1, 0.5, 0.9):
    assert report.quantile(p).value == pytest.approx(np.quantile(known, p), abs=0.25)
  assert report.tail_mean(0.1).value == pytest.approx(np.sort(known)[-39:].mean(), abs=0.3)
  assert report.mean.value == pytest.approx(known.mean(), abs=0.1)
  again = analytics.private_distribution(values, **asked)
  np.testing.assert_array_equal(report.below, again.below)


def test_computation_over_clients():
  query = _query(6, 20.0, 1e-3, num_bins=8)
  compute = analytics.build_private_distribution(query)
  assert compute.type_signature.parameter == tff.FederatedType(np.float32, tff.CLIENTS)
  values = [np.float32(v) for v in (-np.inf, 0.3, np.nan, 0.9, 1e30)]
  first, second = compute(values), compute(values)
  report = analytics.PrivateDistribution.of_result(query, first)
  error = 6 * report.num_clients.standard_error
  assert report.num_clients.value == pytest.approx(4, abs=error) and error < 7
  assert not np.array_equal(first["below"], second["below"])  # Each call has noise of its own.
  with pytest.raises(ValueError, match="more reports than the 6 clients"):
    analytics.PrivateDistribution.of_result(query, compute([np.float32(0.5)] * 7))


@pytest.mark.parametrize("kind", ["beta", "fractions"])
def test_standard_errors_cover(kind):
  """Two standard errors around the estimate hold the truth in about 95 % of the releases."""
  rng = np.random.default_rng(2)
  values = rng.beta(4, 12, 500)
  if kind == "fractions":  # Errors k / m of clients with m examples.
    sizes = rng.integers(40, 200, 500)
    values = rng.binomial(sizes, values) / sizes
  query = _query(500, 2.0, 1e-5)
  repeats = 60
  misses = dict.fromkeys(("number", "p50", "p90", "mean", "tail"), 0)
  below_one = dict.fromkeys(misses, 0)
  for report in _draws(query, values, repeats):
    estimates = dict(
      number=(report.num_clients, 500),
      p50=(report.quantile(0.5), np.quantile(values, 0.5)),
      p90=(report.quantile(0.9), np.quantile(values, 0.9)),
      mean=(report.mean, values.mean()),
      tail=(report.tail_mean(0.1), np.sort(values)[-50:].mean()),
    )
    for name, (estimate, truth) in estimates.items():
      misses[name] += abs(estimate.value - truth) > 2 * estimate.standard_error
      below_one[name] += abs(estimate.value - truth) <= estimate.standard_error
  # Of 60 with probability 0.05 more than 9 miss once in 600 times.
  assert max(misses.values()) <= 9, misses
  # Nor are they much too large: 68 % would be 41; those of tails are before isotonic regression.
  assert all(25 <= below_one[name] <= 52 for name in ("number", "p50", "p90", "mean")), below_one


def test_nothing_is_estimated_from_no_clients():
  query = _query(300, 1.0, lower=-2.0, upper=6.0, num_bins=16)
  result = dict(below=np.zeros(16), total=-3.0, is_valid=True)
  report = analytics.PrivateDistribution.of_result(query, result)
  assert report.num_clients.value == 0.0 and report.num_clients.standard_error > 1
  assert all(math.isnan(v) for e in (report.quantile(0.5), report.mean) for v in e)


def test_budget_is_spent_and_not_more():
  query = _query(500, 2.0, 1e-5)
  cost = accounting.epsilon(query.release, 1, 1e-5).epsilon
  assert 1.99 < cost <= 2.0
  assert any("(2, 1e-05)" in sentence for sentence in query.guarantee)
  assert query_lib.Query(500, 1.0).delta == accounting.default_delta(500)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(epsilon=1e6), "expected a smaller epsilon"),
    (dict(lower=1.0), "lower < upper"),
    (dict(lower=1e9, upper=1e9 + 1), "too narrow"),
    (dict(values=[]), r"shape \(0,\)"),
    (dict(values=[[0.5]]), r"shape \(1, 1\)"),
    (dict(noise_key=b"short"), "noise key of 5 bytes"),
  ],
)
def test_refuses(arguments, message):
  options = dict(values=[0.1, 0.2], epsilon=1.0, lower=0.0, upper=1.0, num_bins=8)
  options.update(arguments)
  with pytest.raises(ValueError, match=message):
    analytics.private_distribution(options.pop("values"), **options)
