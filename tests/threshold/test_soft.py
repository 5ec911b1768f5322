"""Weightings relative to the cohort's losses, exact and by a private histogram: against numpy."""

import functools

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf

from privacy.noise import tree_mechanism
from tff_superquantile import threshold

_LARGEST = float(np.finfo(np.float32).max)
_MAX_LOSS, _NUM_BINS, _EXPECTED, _NUM_SHARES = 4.0, 8, 6, 12
_SHARES = {
  "semi_variance": functools.partial(threshold.build_semi_variance_share, 0.7),
  "rank": functools.partial(threshold.build_rank_share, 0.6),
}


_EXPECTED_SHARES = {
  "semi_variance": functools.partial(problems.semi_variance_shares, beta=0.7),
  "rank": functools.partial(problems.rank_shares, strength=0.6),
}


def _share_of(relative, losses, weights):
  """The shares of losses, relative to themselves with weights."""
  losses = tf.constant(losses, tf.float32)
  summary = relative.summarize(losses, tf.constant(weights, tf.float64))
  return relative.share(losses, summary).numpy().astype(np.float64)


@pytest.mark.parametrize("name", _SHARES)
@pytest.mark.parametrize(
  "losses",
  [
    [0.3, 2.0, 1.0, 2.0, 0.1],
    [1.5],
    [2.0, 2.0, 2.0],
    [0.0, 0.0],
    [0.0, 1e-30, 3.0],
    [-1.0, 0.0, 1.0],
    [_LARGEST, _LARGEST, -_LARGEST, 0.0],
  ],
  ids=str,
)
def test_shares_against_brute_force(name, losses):
  weights = np.arange(1.0, len(losses) + 1.0)
  expected = _EXPECTED_SHARES[name](np.array(losses), weights)
  shares = _share_of(_SHARES[name](), losses, weights)
  np.testing.assert_allclose(shares, expected, rtol=1e-6, atol=1e-7)
  assert np.all((0.0 <= shares) & (shares <= 1.0)) and shares.max() > 0.5


@pytest.mark.parametrize(
  "build, strength",
  [(threshold.build_semi_variance_share, 1e9), (threshold.build_rank_share, 1.0)],
)
def test_the_strongest_shares_are_from_zero_to_one_and_grow_with_the_loss(build, strength):
  losses = np.sort(np.random.default_rng(0).gamma(2.0, size=1000)).astype(np.float32)
  shares = _share_of(build(strength), losses, np.ones(1000))
  assert np.all((0.0 <= shares) & (shares <= 1.0)) and np.all(np.diff(shares) >= 0.0)
  assert shares[-1] > 0.99 and shares[0] < 1e-3


@pytest.mark.parametrize("build", _SHARES.values())
def test_no_strength_is_no_difference(build):
  shares = _share_of(build.func(0.0), [0.1, 3.0, 1e30], np.ones(3))
  np.testing.assert_array_equal(shares, np.ones(3))


def _gradient(objective, values):
  """Central differences."""
  step = 1e-6
  return np.array(
    [
      (objective(values + e) - objective(values - e)) / (2 * step)
      for e in step * np.eye(len(values))
    ]
  )


_VALUES, _ALPHA = np.array([0.2, 1.1, 0.7, 2.6]), np.array([0.1, 0.4, 0.2, 0.3])


def test_ranks_are_the_gradient_of_the_mean_and_the_spread():
  def objective(values, strength=0.6):
    spread = np.abs(values[:, np.newaxis] - values[np.newaxis])
    return _ALPHA @ values + strength * _ALPHA @ spread @ _ALPHA / 2.0

  gradient = 1.6 * _ALPHA * _share_of(threshold.build_rank_share(0.6), _VALUES, _ALPHA)
  np.testing.assert_allclose(gradient, _gradient(objective, _VALUES), atol=1e-6)


def test_the_whole_gradient_of_the_semi_variance_is_that_of_a_larger_beta():
  beta = 0.5

  def objective(values):
    mean = _ALPHA @ values
    return mean + beta * _ALPHA @ np.maximum(values - mean, 0.0) ** 2

  s = _ALPHA @ np.maximum(_VALUES - _ALPHA @ _VALUES, 0.0)
  larger = beta / (1.0 - 2.0 * beta * s)
  assert larger > 1.5 * beta
  gradient = _ALPHA * _share_of(threshold.build_semi_variance_share(larger), _VALUES, _ALPHA)
  expected = _gradient(objective, _VALUES)
  np.testing.assert_allclose(gradient / gradient.sum(), expected / expected.sum(), atol=1e-6)
  assert expected.sum() == pytest.approx(1.0)


def _shares_of(process, result, losses):
  """The shares that clients of these losses compute."""
  return np.array(
    [process.share_fn(tf.constant(loss, tf.float32), result, None).numpy() for loss in losses]
  )


@pytest.fixture(scope="module")
def exact(simulation_context):
  return {name: threshold.build_relative_weighting(build()) for name, build in _SHARES.items()}


@pytest.mark.parametrize("name", _SHARES)
def test_exact_weighting_leaves_out_what_does_not_count(exact, name):
  process = exact[name]
  losses = [0.5, np.nan, 3.0, 1.0, 2.0]
  output = process.next(
    process.initialize(), losses, [1.0, 5.0, 2.0, 0.0, 1.0], problems.clients(5)
  )
  counted, weights = np.array([0.5, 3.0, 2.0]), np.array([1.0, 2.0, 1.0])
  expected = _EXPECTED_SHARES[name](counted, weights)
  np.testing.assert_allclose(_shares_of(process, output.result, counted), expected, rtol=1e-6)
  pi = weights * expected
  measured = output.measurements
  assert measured["loss_mean"] == pytest.approx(2.125) and measured["loss_max"] == 3.0
  assert measured["effective_clients"] == pytest.approx(pi.sum() ** 2 / (pi**2).sum(), rel=1e-5)
  # Infinite losses count as the largest number; nobody is no error.
  output = process.next(process.initialize(), [np.inf, 1.0], [1.0, 1.0], problems.clients(2))
  shares = _shares_of(process, output.result, [np.inf, 1.0])
  assert shares[0] > shares[1] >= 0.0 and np.all(np.isfinite(shares))
  output = process.next(process.initialize(), [np.nan], [1.0], problems.clients(1))
  assert output.measurements["effective_clients"] == 0.0


# AAggFF-D.


def test_ftrl_against_the_equations(simulation_context):
  num_clients, decision_step = 7, 3.0
  process = threshold.build_ftrl(num_clients, decision_step)
  rounds = [
    ([0, 3, 4], [1.0, 2.0, 0.1]),
    ([1, 0], [0.0, 5.0]),
    ([2], [7.0]),
    ([5, 6], [0.0, 0.0]),
    (range(7), [0.1, 0.2, 0.3, 3e38, 0.5, 0.6, 3e38]),
    ([3, 1], [-1.0, 1.0]),
  ]
  state = process.initialize()
  for (cohort, losses), p in zip(rounds, problems.mixing_coefficients(rounds, 7, decision_step)):
    clients = [threshold.Client(np.zeros(2, np.int64), np.int32(i)) for i in cohort]
    output = process.next(state, losses, [1.0] * len(losses), clients)
    state = output.state
    np.testing.assert_allclose(output.result, np.log(p / p[list(cohort)].max()), atol=2e-6)


# By a private histogram.


@functools.cache
def _histogram(name, z=1e-6, **kwargs):
  mechanism = tree_mechanism.build_tree_mechanism(z, _NUM_BINS, _EXPECTED, num_shares=_NUM_SHARES)
  return threshold.build_histogram_weighting(
    _SHARES[name](), mechanism, _MAX_LOSS, noise_key=bytes(range(16)), **kwargs
  )


@pytest.mark.parametrize("name", _SHARES)
def test_histogram_weighting_against_numpy(name, simulation_context):
  process, state = _histogram(name), _histogram(name).initialize()
  np.testing.assert_array_equal(state["threshold"], np.ones(_NUM_BINS))
  hostile = [-np.inf, -1.0, 0.0, 4.0, 1e30, np.inf, np.nan]
  for losses in ([0.1, 3.9, 2.0, 2.1], [1.0] * 9, hostile, [3.3]):
    output = process.next(state, losses, [1.0] * len(losses), problems.clients(len(losses)))
    state = output.state
    counted = [loss for loss in losses if not np.isnan(loss)]
    shares_of = _EXPECTED_SHARES[name]
    expected = problems.shares_by_histogram(shares_of, counted, _MAX_LOSS, _NUM_BINS)
    shares = _shares_of(process, output.result, losses)
    np.testing.assert_allclose(shares[~np.isnan(losses)], expected, atol=1e-4)
    assert np.all(shares[np.isnan(losses)] == 0.0)
    measured = output.measurements
    assert measured["estimated_cohort_size"] == pytest.approx(len(counted), abs=1e-3)
    divisor = expected.mean() * max(len(counted), _EXPECTED / 2.0)
    assert measured["estimated_share_sum"] == pytest.approx(divisor, abs=1e-3)
    assert measured["aborted"] == 0


@pytest.mark.parametrize("name", _SHARES)
def test_too_many_reports_keep_the_shares(name, simulation_context):
  process = _histogram(name)
  first = process.next(process.initialize(), [0.1, 3.0], [1.0] * 2, problems.clients(2))
  count = _NUM_SHARES + 1
  output = process.next(first.state, [1.0] * count, [1.0] * count, problems.clients(count))
  np.testing.assert_array_equal(output.result, first.result)
  assert output.measurements == dict(
    estimated_cohort_size=_EXPECTED, estimated_share_sum=_EXPECTED, aborted=1
  )


@pytest.mark.parametrize("name", _SHARES)
def test_noise_gives_shares_and_a_divisor_that_are_in_their_range(name, simulation_context):
  process = _histogram(name, z=3.0)
  assert process.is_private
  state = process.initialize()
  for round_num in range(6):
    losses = [] if round_num % 2 else [0.2, 1.0, 3.0]
    output = process.next(
      state, losses, [1.0] * len(losses), problems.clients(len(losses), round_num)
    )
    state, shares = output.state, output.result
    assert np.all((0.0 <= shares) & (shares <= 1.0)) and np.all(np.diff(shares) >= 0.0)
    divisor, size = (output.measurements[f"estimated_{n}"] for n in ("share_sum", "cohort_size"))
    size = max(size, _EXPECTED / 2.0)
    assert size * shares.min() - 1e-5 <= divisor <= size * shares.max() + 1e-5 and divisor > 0.0
