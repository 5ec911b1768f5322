"""The discrete noise against its law."""

import math

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tff_superquantile.secure_sums import discrete_gaussian

_STDDEVS = (0.5, 1.0, 1.5, 1.95959, 3.3, 25.5)


def _law(stddev):
  """{x: P(x)}, summed much farther out than the implementation does."""
  values = range(-100 - 40 * math.ceil(stddev), 101 + 40 * math.ceil(stddev))
  masses = {x: math.exp(-(x**2) / (2 * stddev**2)) for x in values}
  total = math.fsum(masses.values())
  return {x: mass / total for x, mass in masses.items()}


def _sample(shape, stddev, *seed):
  return discrete_gaussian.sample(shape, stddev, tf.constant(seed, tf.int64)).numpy()


@pytest.mark.parametrize("stddev", _STDDEVS)
def test_probabilities(stddev):
  probabilities = discrete_gaussian.probabilities(stddev)
  width = discrete_gaussian.support(stddev)
  law = _law(stddev)
  assert probabilities.shape == (2 * width + 1,)
  expected = [law[x] for x in range(-width, width + 1)]
  np.testing.assert_allclose(probabilities, expected, rtol=1e-12, atol=0)
  assert 1 - math.fsum(expected) < 1e-15


@pytest.mark.parametrize("stddev", _STDDEVS)
def test_frequencies(stddev):
  noise = _sample([500, 400], stddev, 11, 3)
  assert noise.dtype == np.int64 and noise.shape == (500, 400)
  assert np.abs(noise).max() <= discrete_gaussian.support(stddev)
  law = _law(stddev)
  # Rare values are counted with the rarest of the common ones, so that chi-square holds.
  common = sorted((x for x, p in law.items() if p * noise.size >= 10), key=law.get)[1:]
  observed = [np.sum(noise == x) for x in common]
  expected = [noise.size * law[x] for x in common]
  observed, expected = (
    observed + [noise.size - sum(observed)],
    expected + [noise.size - sum(expected)],
  )
  assert stats.chisquare(observed, expected).pvalue > 1e-3
  # Independent along both axes.
  for other in (noise[1:], noise[:, 1:]):
    first = noise[: other.shape[0], : other.shape[1]]
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.01


def test_the_noise_is_a_function_of_the_seed():
  first = _sample([1000], 3.3, 5, 6)
  np.testing.assert_array_equal(first, _sample([1000], 3.3, 5, 6))
  for seed in ((5, 7), (6, 6), (6, 5), (5, 6 + 2**40), (-5, 6)):
    other = _sample([1000], 3.3, *seed)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.15
  assert _sample([], 3.3, 5, 6).shape == ()


@pytest.mark.parametrize("stddev", _STDDEVS)
def test_a_deviation_that_is_a_tensor_gives_the_same(stddev):
  as_tensor = _sample([100_000], tf.constant(stddev, tf.float64), 11, 3)
  assert as_tensor.dtype == np.int64
  # The tables' sums may be rounded otherwise, which a value in 10^10 would show.
  np.testing.assert_array_equal(as_tensor, _sample([100_000], stddev, 11, 3))


def test_no_deviation_is_no_noise():
  zeros = _sample([100, 3], tf.constant(0.0, tf.float64), 11, 3)
  assert zeros.dtype == np.int64 and zeros.shape == (100, 3) and not zeros.any()
  # Nor is next to none.
  assert not _sample([1000], tf.constant(1e-6, tf.float64), 11, 3).any()


def _oracle(stddev, uniform):
  """The noise by a search of the table, as it always was: saved runs repeat themselves by it."""
  table = np.cumsum(discrete_gaussian.probabilities(stddev))[:-1]
  return np.searchsorted(table, uniform, side="right") - discrete_gaussian.support(stddev)


def _extreme_multiples(stddev):
  """Integers m < 2^52 next to the steps of the distribution, both ends, and powers of two."""
  table = np.cumsum(discrete_gaussian.probabilities(stddev))
  powers = 2 ** np.arange(53)
  centres = np.concatenate([np.floor(table * 2.0**52).astype(np.int64), powers, 2**52 - powers])
  multiples = np.unique(centres[:, np.newaxis] + np.arange(-2, 4))
  return multiples[(multiples >= 0) & (multiples < 2**52)]


_MANY_STDDEVS = (1e-4, 0.05, 0.2, *_STDDEVS, 2.218, 9.99, 100.0, 1113.38, 11_111.1)


@pytest.mark.parametrize("stddev", _MANY_STDDEVS)
def test_the_guide_finds_what_a_search_finds(stddev):
  table = np.cumsum(discrete_gaussian.probabilities(stddev))[:-1]
  smallest = -discrete_gaussian.support(stddev)
  guide = discrete_gaussian._build_guide(table, smallest)
  assert guide is not None and guide.shifts.nbytes <= max(1000, 6 * table.nbytes)
  uniform = np.concatenate(
    [
      _extreme_multiples(stddev) * 2.0**-52,
      tf.random.stateless_uniform([100_000], [4, 5], dtype=tf.float64).numpy(),
    ]
  )

  def invert(uniform):
    return discrete_gaussian._invert(table, smallest, uniform)

  expected = _oracle(stddev, uniform)
  signature = [tf.TensorSpec([None], tf.float64)]
  # XLA takes seconds to read a large table.
  for jit_compile in (False, True)[: 1 + (stddev < 5000.0)]:
    function = tf.function(
      invert, input_signature=signature, autograph=False, jit_compile=jit_compile
    )
    np.testing.assert_array_equal(function(uniform), expected)


@pytest.mark.parametrize("stddev", [0.5, 25.5, 1113.38, 60_000.0])
def test_the_noise_is_the_inverse_of_the_distribution(stddev):
  for seed in ((1, 2), (-(2**62), 2**63 - 1)):
    uniform = tf.random.stateless_uniform([70, 31], seed, dtype=tf.float64)
    np.testing.assert_array_equal(_sample([70, 31], stddev, *seed), _oracle(stddev, uniform))


def test_codes_increase_wherever_the_exponent_changes():
  multiples = _extreme_multiples(1113.38)
  codes = discrete_gaussian._codes(tf.constant(multiples * 2.0**-52)).numpy()
  assert np.all(np.diff(codes) > 0)
  np.testing.assert_array_equal(
    codes, discrete_gaussian._codes_of_multiples(multiples.astype(np.float64))
  )
  # As many bits for either end, the least number and the largest.
  assert codes[0] == -(53 * 2**52) + 1 and codes[-1] == -codes[0]


def test_a_table_without_a_guide_is_searched():
  table = np.cumsum(discrete_gaussian.probabilities(60_000.0))[:-1]
  assert discrete_gaussian._build_guide(table, -discrete_gaussian.support(60_000.0)) is None
  # Two entries without a number between them, or too near to one another for a guide.
  for near in ([0.3, 0.3], [0.3, 0.3 + 2.0**-50]):
    assert discrete_gaussian._build_guide(np.array(near), -1) is None
    uniform = np.array([0.0, 0.25, near[0], near[1], 0.75])
    found = discrete_gaussian._invert(np.array(near), -1, tf.constant(uniform))
    np.testing.assert_array_equal(found, np.searchsorted(near, uniform, side="right") - 1)
