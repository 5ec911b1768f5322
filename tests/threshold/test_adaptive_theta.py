"""The tail fraction from how many turned up: the rule, and thresholds at it against numpy."""

import collections
import dataclasses
import functools

import numpy as np
import problems
import pytest
import tensorflow as tf

from paper import smoothed
from privacy.noise import tree_mechanism
from tff_superquantile import noise_source
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import private_histogram

pytestmark = pytest.mark.usefixtures("simulation_context")

_CLIENT = threshold_lib.Client()
_MAX_LOSS = 4.0
_KEY = bytes(range(16))
_NUM_SHARES = 220
_RULE = threshold_lib.AdaptiveTheta(5, 0.2, 0.8)
_EXACT = {
  "quantile": threshold_lib.build_exact_quantile,
  "reweighting": threshold_lib.build_exact_reweighting,
  "smoothed": functools.partial(threshold_lib.build_exact_reweighting, smoothing=0.3),
}


def _clip_rule(wanted, low, high, n):
  if n <= 0 or wanted >= high * n:
    return high
  return low if wanted <= low * n else wanted / n


def _losses(n, seed=0):
  return np.random.default_rng([seed, n]).gamma(2.0, 0.6, size=n).astype(np.float32)


# The rule.


def test_rule_by_brute_force():
  for wanted in (1, 2, 5, 50):
    for low, high in ((0.1, 1.0), (0.25, 0.25), (1e-3, 0.5), (1.0, 1.0)):
      rule = threshold_lib.AdaptiveTheta(wanted, low, high)
      for n in (-3.0, 0, 0.3, 1, *range(2, 120), 1e6):
        assert float(rule.at(n)) == pytest.approx(_clip_rule(wanted, low, high, n), rel=1e-12)


def test_rule_of_tensors_and_its_monotone_tail():
  sizes = np.arange(1, 200)
  theta = _RULE.at(tf.constant(sizes)).numpy()
  assert theta.dtype == np.float64 and np.all(np.diff(theta) <= 0)
  tails = theta * sizes
  assert np.all(np.diff(tails) >= -1e-9)
  wanted = (sizes * 0.8 >= 5) & (sizes * 0.2 <= 5)
  np.testing.assert_allclose(tails[wanted], 5)
  assert np.all(tails[sizes * 0.8 < 5] < 5) and np.all(tails[sizes * 0.2 > 5] > 5)


def test_it_is_frozen_plain_data():
  rule = threshold_lib.AdaptiveTheta(np.int64(5), np.float64(0.2), 1)
  assert rule == threshold_lib.AdaptiveTheta(5, 0.2, 1.0)
  assert [type(value) for value in dataclasses.astuple(rule)] == [int, float, float]
  with pytest.raises(dataclasses.FrozenInstanceError):
    rule.min_theta = 0.5


# Where the server sees the losses.


def _run(process, losses, weights=None):
  losses = np.asarray(losses, np.float32)
  weights = np.ones_like(losses) if weights is None else np.asarray(weights, np.float32)
  output = process.next(
    process.initialize(), list(losses), list(weights), problems.clients(len(losses))
  )
  shares = [float(process.share_fn(loss, output.result, _CLIENT)) for loss in losses]
  return output, np.array(shares)


@pytest.mark.parametrize("weighted", [False, True])
def test_exact_against_numpy(weighted):
  for name, build in _EXACT.items():
    process = build(_RULE)
    for n in (1, 2, 4, 5, 6, 7, 10, 24, 25, 26, 60):
      theta, losses = _clip_rule(5, 0.2, 0.8, n), _losses(n)
      weights = np.random.default_rng(n).integers(1, 50, n) if weighted else np.ones(n)
      output, shares = _run(process, losses, weights)
      assert output.measurements["theta"] == np.float32(theta)
      expected = superquantile.quantile(losses, theta, weights)
      assert output.measurements["threshold"] == np.float32(expected)
      assert output.measurements["loss_superquantile"] == pytest.approx(
        superquantile.superquantile(losses, theta, weights), rel=1e-5
      )
      if name == "quantile":
        np.testing.assert_array_equal(shares, losses >= np.float32(expected))
        continue
      pi = shares * weights / np.sum(shares * weights)
      if name == "reweighting":
        expected = superquantile.dual_weights(losses, theta, weights)
      else:
        expected = smoothed.dual_weights(losses, theta, 0.3, weights)
      np.testing.assert_allclose(pi, expected, atol=2e-5)


def test_as_many_are_in_the_tail_as_are_wanted():
  process = threshold_lib.build_threshold("exact", threshold_lib.AdaptiveTheta(7, 0.1, 1.0))
  for n in (*range(1, 10), 13, 21, 49, 63, 70, 71, 90):
    _, shares = _run(process, _losses(n))
    assert shares.sum() == min(n, max(7, np.ceil(n / 10))), n


def test_only_clients_whose_loss_counts_have_turned_up():
  process = threshold_lib.build_exact_quantile(threshold_lib.AdaptiveTheta(2, 0.1, 1.0))
  losses, weights = [3.0, np.nan, 1.0, 9.0, 2.0, np.nan, 0.5], [1, 1, 1, 0, 1, 0, 1]
  output, _ = _run(process, losses, weights)
  assert output.measurements["theta"] == np.float32(2 / 4) and output.result == 2.0


@pytest.mark.parametrize("build", _EXACT.values(), ids=_EXACT)
def test_without_anybody_theta_is_at_its_largest_and_nobody_passes(build):
  process = build(_RULE)
  for losses in ([], [np.nan, np.nan]):
    output, _ = _run(process, losses)
    assert output.measurements["theta"] == np.float32(0.8)
    assert np.isposinf(output.measurements["threshold"])
    assert float(process.share_fn(np.float32(1.0), output.result, _CLIENT)) == 0.0


@pytest.mark.parametrize("theta", [0.1, 1 / 3, 1.0])
@pytest.mark.parametrize("build", _EXACT.values(), ids=_EXACT)
def test_a_range_of_one_is_a_fixed_theta(build, theta):
  fixed, adaptive = build(theta), build(threshold_lib.AdaptiveTheta(4, theta, theta))
  for n in (1, 3, 17, 30):
    expected, expected_shares = _run(fixed, _losses(n))
    output, shares = _run(adaptive, _losses(n))
    np.testing.assert_allclose(shares, expected_shares, rtol=1e-6)
    measurements = dict(output.measurements)
    assert measurements.pop("theta") == np.float32(theta)
    assert measurements == expected.measurements  # Which have no theta.


# From a private histogram.


def _mechanism(z=1e-3, num_bins=64, expected_clients=20):
  return tree_mechanism.build_tree_mechanism(z, num_bins, expected_clients, num_shares=_NUM_SHARES)


def _build_tree(theta, mechanism, **kwargs):
  return threshold_lib.build_tree_quantile(theta, mechanism, _MAX_LOSS, noise_key=_KEY, **kwargs)


def _summed_report(mechanism, losses, seed=0):
  """One report that stands for those of all clients: their sum modulo M and their number.

  Clients without a loss make the shares of noise that are missing, so that the server makes none.
  """
  num_helpers = max(0, _NUM_SHARES - len(losses))
  losses = np.append(losses, np.full(num_helpers, np.nan))
  counts = private_histogram.noised_counts(
    tf.constant(losses, tf.float32), tf.constant([seed, 1], tf.int64), mechanism, _MAX_LOSS
  )
  values = np.int32(np.sum(counts.numpy(), axis=0) % mechanism.modulus)
  return collections.OrderedDict(values=values, num_reports=np.int64(len(losses)))


def _tree_run(process, reports, threshold=None):
  """A round, the first one or one after a threshold."""
  state = process.initialize()
  if threshold is not None:
    state["threshold"] = np.float32(threshold)
  return process.next_of_reports(state, reports)


def test_theta_is_a_function_of_the_released_histogram():
  mechanism = _mechanism(z=0.7)
  process = _build_tree(_RULE, mechanism)
  edges, thetas = hierarchical_histogram.bin_edges(64, _MAX_LOSS), set()
  for seed in range(6):
    report = _summed_report(mechanism, _losses(14, seed), seed)
    below, total = private_histogram.decode(tf.constant(report["values"]), mechanism)
    total = max(float(total), 0.0)
    theta = _clip_rule(5, 0.2, 0.8, total)
    measured = _tree_run(process, [report]).measurements
    assert measured["theta"] == np.float32(theta)
    distances = np.round(np.abs(below - (1 - theta) * total), 9)
    nearest = np.flatnonzero(distances == distances.min())
    if np.ptp(below.numpy()[nearest]) < 1e-9:
      nearest = [(nearest[0] + nearest[-1]) // 2]
    # Else as far above as below, for the rounding of theta to decide.
    assert measured["threshold"] in edges[nearest]
    thetas.add(float(measured["theta"]))
  assert len(thetas) > 3  # Though 14 reported each time.


def test_how_many_reported_changes_the_noise_of_the_server_and_nothing_else():
  # The same histogram from cohorts of other sizes, with what the server adds to each, and as if all
  # shares were there already.
  mechanism = _mechanism(z=0.7)
  process = _build_tree(_RULE, mechanism)
  report = _summed_report(mechanism, _losses(12))
  source = noise_source.NoiseSource(_KEY, "histogram")
  seed, _ = source.draw(source.initial_state())
  thetas = set()
  for num_reports in (0, 2, 13, 200, _NUM_SHARES):
    report["num_reports"] = np.int64(num_reports)
    output = _tree_run(process, [report])
    complete = collections.OrderedDict(report, num_reports=np.int64(_NUM_SHARES))
    if num_reports < _NUM_SHARES:
      stddev = tf.constant(mechanism.local_stddev * np.sqrt(_NUM_SHARES - num_reports))
      complete["values"] = report["values"] + discrete_gaussian.sample(
        [mechanism.num_nodes], stddev, seed
      )
      complete["values"] = np.int32(complete["values"] % mechanism.modulus)
    expected = _tree_run(process, [complete])
    assert output.measurements == expected.measurements and output.result == expected.result
    thetas.add(float(output.measurements["theta"]))
  assert len(thetas) > 1
  assert set(output.measurements) == {
    *("threshold", "estimated_cohort_size", "estimated_tail_size", "aborted", "theta")
  }


@pytest.mark.parametrize("num_bins", [16, 64])
@pytest.mark.parametrize("theta", [0.3, 1.0])
def test_a_range_of_one_is_a_fixed_theta_of_the_tree(theta, num_bins):
  mechanism = _mechanism(z=0.7, num_bins=num_bins)
  fixed = _build_tree(theta, mechanism)
  adaptive = _build_tree(threshold_lib.AdaptiveTheta(4, theta, theta), mechanism)
  # The second has a tail below its floor, the last one aborts.
  cohorts = [_losses(30), np.full(20, np.nan), _losses(8), _losses(_NUM_SHARES + 1)]
  for seed, losses in enumerate(cohorts):
    report = _summed_report(mechanism, losses, seed)
    expected = _tree_run(fixed, [report], 0.7)
    output = _tree_run(adaptive, [report], 0.7)
    measurements = dict(output.measurements)
    assert measurements.pop("theta") == np.float32(theta)
    assert measurements == expected.measurements and output.result == expected.result
    assert measurements["aborted"] == (len(losses) > _NUM_SHARES)


def test_the_divisor_is_at_least_half_of_what_is_expected():
  # Of 20 expected clients 5 are wanted, and at least 0.5 * 20 of them taken in the second.
  for rule, expected in (
    (threshold_lib.AdaptiveTheta(5, 0.1, 1.0), 5.0),
    (threshold_lib.AdaptiveTheta(5, 0.5, 1.0), 10.0),
    (threshold_lib.AdaptiveTheta(50, 0.1, 0.3), 6.0),
  ):
    mechanism = _mechanism()
    process = _build_tree(rule, mechanism)
    for losses in ([np.nan] * 3, [0.3, np.nan], [0.3, 0.2]):
      measured = _tree_run(process, [_summed_report(mechanism, losses)]).measurements
      assert measured["theta"] == pytest.approx(rule.max_theta)
      assert measured["estimated_tail_size"] == pytest.approx(expected / 2)
    # Aborted: as in a round of as many as expected.
    output = _tree_run(process, [_summed_report(mechanism, _losses(_NUM_SHARES + 1))], 2.5)
    assert output.result == 2.5 and output.measurements["aborted"] == 1
    assert output.measurements["theta"] == np.float32(expected / 20)
    assert output.measurements["estimated_tail_size"] == pytest.approx(expected)


def test_everybody_passes_where_fewer_turn_up_than_are_wanted():
  rule = threshold_lib.AdaptiveTheta(40, 0.1, 1.0)
  mechanism = _mechanism(z=0.3)
  process = _build_tree(rule, mechanism)
  for seed in range(4):
    output = _tree_run(process, [_summed_report(mechanism, np.full(12, 3.9), seed)])
    assert output.result == 0.0 and output.measurements["theta"] == 1.0


# What cannot adapt.


def test_the_geometric_threshold_refuses():
  with pytest.raises(ValueError, match="releases nothing that tells how many .* build_tree"):
    threshold_lib.build_geometric_quantile(_RULE, 1.0, 10, 1.0)
