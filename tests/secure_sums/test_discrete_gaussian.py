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


@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("stddev", [*_STDDEVS, 300.0])
def test_frequencies(stddev, is_tensor):
  noise = _sample([500, 400], tf.constant(stddev, tf.float64) if is_tensor else stddev, 11, 3)
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


@pytest.mark.parametrize("stddev", [2.2, 3.3, 300.0, tf.constant(3.3, tf.float64)])
def test_the_noise_is_a_function_of_the_seed(stddev):
  first = _sample([1001], stddev, 5, 6)
  np.testing.assert_array_equal(first, _sample([1001], stddev, 5, 6))
  for seed in ((5, 7), (6, 6), (6, 5), (5, 6 + 2**40), (-5, 6)):
    other = _sample([1001], stddev, *seed)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.15
  assert _sample([], stddev, 5, 6).shape == () and _sample([0], stddev, 5, 6).shape == (0,)


def test_no_deviation_is_no_noise():
  zeros = _sample([100, 3], tf.constant(0.0, tf.float64), 11, 3)
  assert zeros.dtype == np.int64 and zeros.shape == (100, 3) and not zeros.any()
  # Nor is next to none.
  assert not _sample([1000], tf.constant(1e-6, tf.float64), 11, 3).any()


def _words(monkeypatch, words):
  words = np.asarray(words)
  monkeypatch.setattr(
    discrete_gaussian, "_words", lambda size, seed, dtype: tf.constant(words[:size], dtype)
  )


def _alias(masses):
  """The table, whose parts add up to the masses."""
  own, other = discrete_gaussian._alias(masses)
  size = 2**62 // own.size
  assert own.min() >= 0 and own.max() <= size
  sums = own.copy()
  np.add.at(sums, other, size - own)
  np.testing.assert_array_equal(sums[: masses.size], masses)
  assert not sums[masses.size :].any()
  return own, other


@pytest.mark.parametrize("stddev", [1e-4, 0.05, *_STDDEVS, 2.218, 100.0, 1113.38])
def test_masses_and_their_alias_table(stddev):
  law, width = discrete_gaussian.probabilities(stddev), discrete_gaussian.support(stddev)
  masses = discrete_gaussian._masses(law)
  for of_law in (masses, discrete_gaussian._masses(np.outer(law[:64], law[:64]).ravel())):
    assert sum(map(int, of_law)) == 2**62 and of_law.min() >= 0
    _alias(of_law)
  exact = _law(stddev)
  expected = [exact[x] for x in range(-width, width + 1)]
  np.testing.assert_allclose(masses / 2.0**62, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("most_cells", [2**17, 0])
@pytest.mark.parametrize(
  "masses", [[2**62], [2**61, 2**61], [2**61, 0, 0, 2**61], [3, 2**62 - 10, 0, 7], [2**60] * 4]
)
def test_a_word_chooses_by_the_masses(monkeypatch, masses, most_cells):
  """Words at all ends of the table's parts, against integers of Python."""
  monkeypatch.setattr(discrete_gaussian, "_MOST_CELLS", most_cells)
  masses, values = np.array(masses), np.arange(len(masses)) - 2
  own, other = _alias(masses)
  size, bits = 2**62 // own.size, own.size.bit_length() - 1
  expected, words = [], []
  for cell in range(own.size):
    for number in {0, own[cell] - 1, own[cell], own[cell] + 1, size - 1}:
      if 0 <= number < size:
        expected.append(values[cell if number < own[cell] else other[cell]])
        words.append(((int(number) - size // 2) << (bits + 2)) + cell)
  if not most_cells:
    words = [*range(20), *(2**62 - 1 - n for n in range(20)), -1, -(2**62), 2**61, 2**61 - 1]
    ends = [sum(map(int, masses[: i + 1])) for i in range(len(masses))]
    expected = [next(v for v, end in zip(values, ends) if w % 2**62 < end) for w in words]
  _words(monkeypatch, words)
  chosen = discrete_gaussian._choose(values, masses, len(words), None)
  np.testing.assert_array_equal(chosen, expected)


@pytest.mark.parametrize("stddev", [180.0, 411.7])
def test_blocks_have_the_law(monkeypatch, stddev):
  """All words, each once; and the law of what blocks leave."""
  law, left = discrete_gaussian.probabilities(stddev), []
  bits = (law.size // 1024).bit_length() - 1
  words = np.arange(2**16) + (np.arange(2**bits) << (32 - bits))[:, np.newaxis]
  _words(monkeypatch, words.astype(np.uint32).astype(np.int32).ravel())

  def choose(values, masses, size, seed):
    assert np.all(seed != (1, 2))
    left.append(masses[: law.size] / 2.0**62)
    np.testing.assert_array_equal(values[: law.size], 7 + np.arange(law.size))
    return tf.fill([size], np.int64(-1))

  monkeypatch.setattr(discrete_gaussian, "_choose", choose)
  masses = discrete_gaussian._masses(law)
  drawn = discrete_gaussian._choose_by_blocks(7, masses, words.size, np.array([1, 2])).numpy()
  assert np.mean(drawn < 0) < 0.05
  shares = np.bincount(drawn[drawn >= 0] - 7, minlength=law.size) / words.size
  shares += np.mean(drawn < 0) * left[0]
  np.testing.assert_allclose(shares, masses / 2.0**62, rtol=1e-13, atol=2.0**-61)
