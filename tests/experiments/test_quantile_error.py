"""Quantile errors against the golden numbers, which an independent implementation measured."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tff_superquantile.experiments.studies import quantile_error
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


def test_six_times_more_accurate_than_published():
  paper, ours = (
    _errors("uniform", 64, recipe, 1.0, 100).mean() for recipe in ("paper", "least_squares")
  )
  assert paper / ours > 5.0


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
