"""Quantile errors against the golden numbers, which an independent implementation measured."""

import math

import numpy as np
import pytest
import tensorflow as tf

from paper import accounting
from paper.studies.private_quantile import quantile_error
from tff_superquantile.threshold import hierarchical_histogram

_EPSILONS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_DELTA = 1e-5
_NUM_CLIENTS = 256
# 1000 seeds, averaged over theta = 0.1 to 0.9, at the epsilons above.
_GOLDEN = {
  ("uniform", 64, "paper"): (0.281, 0.219, 0.132, 0.072, 0.032, 0.018),
  ("uniform", 64, "dyadic"): (0.152, 0.089, 0.050, 0.028, 0.013, 0.008),
  ("uniform", 64, "least_squares"): (0.066, 0.039, 0.022, 0.013, 0.008, 0.006),
  ("chi2(4)", 64, "least_squares"): (0.070, 0.041, 0.024, 0.015, 0.009, 0.007),
  ("uniform", 16, "least_squares"): (0.056, 0.036, 0.024, 0.020, 0.018, 0.018),
  ("uniform", 256, "least_squares"): (0.073, 0.042, 0.025, 0.015, 0.007, 0.005),
  ("uniform", 1024, "least_squares"): (0.078, 0.047, 0.028, 0.016, 0.008, 0.005),
}
# ceil(log2(c n + 2 t + 1)), by hand.
_BITS_NEEDED = (10, 10, 11, 12, 12, 13)


def _errors(distribution, num_bins, recipe, epsilon, num_seeds, bits=None):
  recipe = quantile_error.RECIPES[recipe]
  max_value, _ = quantile_error.DISTRIBUTIONS[distribution]
  mechanism = quantile_error.build_mechanism(recipe, epsilon, _DELTA, num_bins, _NUM_CLIENTS, bits)
  values = quantile_error.draw_values(distribution, num_seeds, _NUM_CLIENTS)
  sums = quantile_error.noised_sums(values, mechanism, max_value)
  return quantile_error.errors_of_sums(*sums, mechanism, recipe)


def _check(key, epsilon, golden, num_seeds):
  errors = _errors(*key, epsilon, num_seeds)
  standard_errors = errors.std(ddof=1) * math.hypot(num_seeds**-0.5, 1000**-0.5)
  # Half of the last digit, and what two samples of these sizes differ by.
  assert errors.mean() == pytest.approx(golden, abs=0.0005 + 4.0 * standard_errors), (key, epsilon)


@pytest.mark.parametrize("key", [key for key in _GOLDEN if key[1] == 64])
def test_golden_errors_of_64_bins(key):
  for index in (0, 2, 4):
    _check(key, _EPSILONS[index], _GOLDEN[key][index], num_seeds=100)


@pytest.mark.slow
@pytest.mark.parametrize("key", _GOLDEN)
def test_all_golden_errors(key):
  for epsilon, golden in zip(_EPSILONS, _GOLDEN[key]):
    _check(key, epsilon, golden, num_seeds=1000)


@pytest.mark.parametrize("recipe, factor, num_bins", [("paper", 4, 64), ("dyadic", 2, 16)])
def test_bound_holds_and_is_the_theorems(recipe, factor, num_bins):
  recipe = quantile_error.RECIPES[recipe]
  mechanism = quantile_error.build_mechanism(recipe, 5.0, _DELTA, num_bins, _NUM_CLIENTS, bits=20)
  values = quantile_error.draw_values("uniform", 100, _NUM_CLIENTS)
  true_counts, sums = quantile_error.noised_sums(values, mechanism, 1.0)
  bounds = quantile_error.error_bounds(sums, mechanism, recipe)

  # By hand: the least error that the noisy counts show, each the sum of the fewest nodes.
  nodes = sums / mechanism.scale
  levels, start = [], 0
  for size in (num_bins >> level for level in range(num_bins.bit_length() - 1)):
    levels.append(nodes[:, start : start + size])
    start += size
  estimated = []
  for j in range(1, num_bins + 1):
    left, parts = 0, []
    for level in reversed(range(len(levels))):
      while j - left >= 2**level:
        parts.append(levels[level][:, left >> level])
        left += 2**level
    assert len(parts) <= mechanism.num_levels
    estimated.append(np.sum(parts, axis=0))
  estimated = np.array(estimated).T / _NUM_CLIENTS
  least = np.mean([np.abs(estimated - 1 + k / 10).min(axis=1) for k in range(1, 10)], axis=0)
  # sigma / c of the theorem, for n clients.
  scale = mechanism.local_stddev / mechanism.scale
  levels_log = np.log2(num_bins) * np.log(4 * num_bins / 0.05)
  np.testing.assert_allclose(bounds - least, np.sqrt(factor * scale**2 / 256 * levels_log))

  errors = quantile_error.errors_of_sums(true_counts, sums, mechanism, recipe)
  assert np.mean(errors <= bounds) >= 0.95 and errors.mean() > 0.02 * bounds.mean()
  # The event of the proof, on all counts at once.
  true = np.cumsum(true_counts[:, :num_bins], axis=1)
  largest = np.abs(estimated - true / _NUM_CLIENTS).max(axis=1)
  assert np.mean(largest <= np.sqrt(2 * scale**2 / 256 * levels_log)) >= 0.95


def test_no_bound_where_the_theorem_does_not_hold():
  for name, bits in (("least_squares", 20), ("paper", 10)):
    recipe = quantile_error.RECIPES[name]
    mechanism = quantile_error.build_mechanism(recipe, 5.0, _DELTA, 64, _NUM_CLIENTS, bits=bits)
    sums = np.zeros([2, mechanism.num_entries], np.int64)
    assert np.isnan(quantile_error.error_bounds(sums, mechanism, recipe)).all()


def test_bits_that_are_needed():
  for epsilon, bits in zip(_EPSILONS, _BITS_NEEDED):
    arguments = (quantile_error.RECIPES["least_squares"], epsilon, _DELTA, 64, _NUM_CLIENTS)
    assert quantile_error.build_mechanism(*arguments).bits_per_entry == bits
    with pytest.raises(ValueError, match=f"bits = {bits - 1}"):
      quantile_error.build_mechanism(*arguments, bits=bits - 1)


def test_the_papers_recipe_wraps_at_10_bits():
  for epsilon, wraps in ((2.0, False), (5.0, True), (10.0, True)):
    few, many = (_errors("uniform", 64, "paper", epsilon, 60, bits).mean() for bits in (10, 20))
    assert (few > 2.0 * many) == wraps, epsilon
  assert few == pytest.approx(0.25, abs=0.02)


def test_errors_by_the_definition():
  values = quantile_error.draw_values("uniform", 3, 50)
  encoded = hierarchical_histogram.encode(tf.constant(values), 8, 1.0)
  counts = tf.reduce_sum(encoded, axis=1).numpy()
  recipe = quantile_error.RECIPES["least_squares"]
  mechanism = quantile_error.build_mechanism(recipe, 1.0, _DELTA, 8, 50)
  # Without any noise, so the nearest edge is what is left of the error.
  errors = quantile_error.errors_of_sums(counts, counts * mechanism.scale, mechanism, recipe)
  edges = hierarchical_histogram.bin_edges(8, 1.0)[:-1]
  for row, error in zip(values, errors):
    below = np.array([np.mean(row < edge) for edge in edges])
    expected = [np.abs(below - (1.0 - theta)).min() for theta in quantile_error.THETAS]
    assert error == pytest.approx(np.mean(expected))


def test_noise_multipliers():
  # rho + 2 sqrt(rho ln(1 / delta)) = epsilon
  rho = 0.5 / quantile_error.noise_multiplier(3.0, 1e-5, "zcdp") ** 2
  assert rho + 2.0 * math.sqrt(rho * math.log(1e5)) == pytest.approx(3.0)
  assert quantile_error.noise_multiplier(1.0, 1e-5, "rdp") == pytest.approx(4.05, rel=0.01)


def test_through_tff(simulation_context):
  recipe = quantile_error.RECIPES["least_squares"]
  mechanism = quantile_error.build_mechanism(recipe, 2.0, _DELTA, 64, _NUM_CLIENTS)
  values = quantile_error.draw_values("uniform", 10, _NUM_CLIENTS)
  errors = quantile_error.errors_in_tff(values, mechanism, 1.0)
  assert errors.mean() == pytest.approx(0.013, abs=0.005)


def test_the_papers_tree():
  # Noise for c L instead of c sqrt(L); any modulus, decoded around zero.
  tree = accounting.build_tree(2.0, 64, 100, 100, bits=5)
  assert (tree.scale, tree.modulus, tree.offset, tree.sensitivity) == (2, 32, 16, "paper")
  assert tree.local_stddev == pytest.approx(2.0 * 2 * 6 / 10)
  free = accounting.build_tree(2.0, 64, 100, 100)
  assert free.modulus > 2 * 100 and free.offset == free.modulus // 2
