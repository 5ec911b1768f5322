"""The seeded Gaussian query against its law and against TensorFlow Privacy's own."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import signal
from scipy import stats
import tensorflow as tf
import tensorflow_privacy as tfp

from privacy import events
from tff_superquantile.secure_sums import seeded_gaussian_query

_Query = seeded_gaussian_query.SeededGaussianSumQuery
_ZEROS = {"a": tf.zeros([50, 200]), "b": (tf.zeros([10_000]), tf.zeros([], tf.float64))}
_KEY, _OTHER_KEY = bytes(range(16)), bytes(range(1, 17))
# Where TensorFlow's normal variables end, of uniform ones of at least 1e-7.
_END = math.sqrt(-2.0 * math.log(1e-7))


def _query(l2_norm_clip=1.0, stddev=1.0, key=_KEY, purpose="test"):
  return _Query(l2_norm_clip, stddev, key, purpose)


def _noise(query, structure, num_queries=1):
  """The noise of some queries in a row, each as a list of arrays."""
  state = query.initial_global_state()
  all_noise = []
  for _ in range(num_queries):
    noised, state, _ = query.get_noised_result(structure, state)
    all_noise.append([leaf.numpy() for leaf in tf.nest.flatten(noised)])
  return all_noise


@pytest.mark.parametrize("key", [_KEY, None])
def test_the_law_of_the_noise(key):
  shifted = tf.nest.map_structure(lambda t: t + 100, _ZEROS)
  query = _query(1.0, 2.5, key)
  noised, _, _ = query.get_noised_result(shifted, query.initial_global_state())
  tf.nest.assert_same_structure(noised, _ZEROS)
  for before, after in zip(tf.nest.flatten(_ZEROS), tf.nest.flatten(noised)):
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
  # Without a key the noise is another one each time.
  false_alarm = 1e-3 if key is not None else 1e-7
  low, high = np.sqrt(stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], 10_000) / 10_000)
  bound = 2.5 * stats.norm.isf(false_alarm / 2) / 100
  for leaf in (noised["a"], noised["b"][0]):
    assert stats.kstest(leaf.numpy().ravel(), "norm", (100, 2.5)).pvalue > false_alarm
    assert np.mean(leaf) == pytest.approx(100, abs=bound)
    assert low < np.sqrt(np.mean((leaf - 100.0) ** 2)) / 2.5 < high


def test_each_leaf_and_each_query_has_its_own_noise():
  draws = _noise(_query(), _ZEROS, 3) + _noise(_query(key=_OTHER_KEY), _ZEROS, 2)
  draws += _noise(_query(purpose="other"), _ZEROS, 2)
  long = [leaf.ravel() for leaves in draws for leaf in leaves if leaf.size > 1]
  correlations = np.corrcoef(long) - np.eye(len(long))
  assert np.abs(correlations).max() < 0.05
  assert len({float(leaves[2]) for leaves in draws}) == len(draws)
  # Twins of the same shape in one record, too.
  (twins,) = _noise(_query(), [tf.zeros([100])] * 2)
  assert abs(np.corrcoef(twins)[0, 1]) < 0.3


def test_the_noise_is_a_function_of_the_key_and_of_the_state():
  first = _noise(_query(), _ZEROS, 3)
  again = _noise(_query(), _ZEROS, 3)
  tf.nest.map_structure(np.testing.assert_array_equal, first, again)
  # Scaled by the deviation, added to whatever there is.
  scaled = _noise(_query(9.0, 3.0), tf.nest.map_structure(tf.ones_like, _ZEROS), 3)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(1 + 3 * a, b, atol=1e-5), first, scaled
  )
  # Resumed from a state, which holds 128 bits and nothing narrower.
  query = _query()
  state = query.initial_global_state()
  for _ in range(2):
    _, state, _ = query.get_noised_result(_ZEROS, state)
  assert (state.noise.dtype, state.noise.shape) == (tf.int64, [2])
  resumed, new_state, _ = _query(key=_OTHER_KEY).get_noised_result(_ZEROS, state)
  np.testing.assert_array_equal(resumed["a"], first[2][0])
  assert np.any(new_state.noise != state.noise)
  assert (float(new_state.l2_norm_clip), float(new_state.stddev)) == (1.0, 1.0)


def test_without_a_key_the_noise_never_repeats():
  query = _query(key=None)
  state = query.initial_global_state()
  draws = [query.get_noised_result(tf.zeros([3]), state)[0].numpy() for _ in range(20)]
  draws += [leaves[0] for leaves in _noise(query, tf.zeros([3]), 20)]
  assert len({tuple(draw) for draw in draws}) == 40


def test_the_event_and_clipping_are_those_of_tensorflow_privacy():
  ours, theirs = _query(2.0, 3.0), tfp.GaussianSumQuery(2.0, 3.0)
  state = ours.initial_global_state()
  *_, event = ours.get_noised_result(tf.constant(0.0), state)
  assert isinstance(event, dp_accounting.GaussianDpEvent)
  assert float(event.noise_multiplier) == 1.5
  for record in ([tf.ones([4]), tf.constant(-9.0)], [tf.ones([2]), tf.constant(0.5)]):
    clipped = ours.preprocess_record(ours.derive_sample_params(state), record)
    expected = theirs.preprocess_record(
      theirs.derive_sample_params(theirs.initial_global_state()), record
    )
    tf.nest.map_structure(np.testing.assert_array_equal, clipped, expected)
    assert tf.linalg.global_norm(clipped) <= 2.0 * (1 + 1e-6)


def test_within_a_normalized_query():
  query = tfp.NormalizedQuery(_query(), 4.0)
  (expected,), (next_expected,) = _noise(_query(), tf.zeros([5]), 2)
  (first,), (second,) = _noise(query, tf.zeros([5]), 2)
  np.testing.assert_allclose(first, expected / 4)
  np.testing.assert_allclose(second, next_expected / 4)


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_a_key_of_another_length_is_refused(length):
  with pytest.raises(ValueError, match=f"noise key of {length} bytes; expected 16"):
    _query(key=bytes(length))


# The normal variables, of full range.


def test_the_law_of_the_normal_variables():
  draws = seeded_gaussian_query.standard_normal([1000, 400], tf.constant([3, 4], tf.int64))
  assert draws.dtype == tf.float64 and draws.shape == [1000, 400]
  draws = draws.numpy()
  n = draws.size
  # Five standard deviations of each moment's estimate.
  for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
    assert np.mean(draws**power) == pytest.approx(moment, abs=5 * np.sqrt(variance / n)), power
  assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-3
  for first, second in ((draws[1:], draws[:-1]), (draws[:, 1:], draws[:, :-1])):
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / np.sqrt(n)
  assert seeded_gaussian_query.standard_normal([], tf.constant([3, 4], tf.int64)).shape == []


def test_tensorflows_normal_variables_end_where_a_client_could_be_seen():
  # Found by search: one pair of this seed comes of a uniform variable below 1e-7.
  seed = tf.constant([5, 7], tf.int64)
  pairs = tf.random.stateless_normal([500_000, 2], seed, dtype=tf.float64)
  radii = np.linalg.norm(pairs, axis=1)
  assert np.max(radii) == pytest.approx(_END, rel=1e-12)
  assert np.argmax(radii) == 399_784
  # With noise of z = 0.7, what a client adds takes one output in 10^5 beyond that end.
  assert stats.norm.sf(_END - 1.0 / 0.7) > 1e-5


def test_a_normal_variable_is_half_the_sum_of_four(monkeypatch):
  seed = tf.constant([5, 6], tf.int64)
  found = seeded_gaussian_query.standard_normal(tf.constant([30, 7]), seed).numpy()
  asked = []

  def largest(shape, seed, dtype):
    asked.append((tuple(np.asarray(shape)), dtype, seed))
    return tf.fill(shape, tf.constant(_END, dtype))

  of_each = tf.random.stateless_normal([4, 30, 7], seed, dtype=tf.float64).numpy()
  np.testing.assert_allclose(found, of_each.sum(axis=0) / 2, rtol=0, atol=1e-14)
  monkeypatch.setattr(tf.random, "stateless_normal", largest)
  end = seeded_gaussian_query.standard_normal(tf.constant([30, 7]), seed).numpy()
  ((shape, dtype, _),) = asked
  assert (shape, dtype) == ((4, 30, 7), tf.float64)
  # The end, up to which the accounting may rely on the noise.
  assert events.GAUSSIAN_SUPPORT <= end.min() == end.max() == pytest.approx(11.3554, abs=1e-4)


_STEP = 1e-3


def _law_of_one_draw():
  """(grid, masses) of Box and Muller's variable whose uniform one is at least 1e-7."""
  size = math.ceil(_END / _STEP)
  grid = np.arange(-size, size + 1) * _STEP
  # A normal variable, where the other one of the pair is not too large for both to be so far out.
  others = 1.0 - 2.0 * stats.norm.sf(np.sqrt(np.maximum(_END**2 - grid**2, 0.0)))
  masses = np.where(np.abs(grid) < _END, stats.norm.pdf(grid) * others * _STEP, 0.0)
  # Pairs beyond the end are on it, at the same angle.
  edges = np.append(grid - _STEP / 2, grid[-1] + _STEP / 2)
  angles = np.arcsin(np.clip(edges / _END, -1.0, 1.0)) / np.pi
  return grid, masses + 1e-7 * np.diff(angles)


def _density_over_normal(value):
  """Of half the sum of four such variables; tilted there, so that rounding does not hide it."""
  grid, masses = _law_of_one_draw()
  tilted = masses * np.exp(value / 2.0 * grid)
  total = tilted.sum()
  two = signal.fftconvolve(tilted / total, tilted / total)
  four = signal.fftconvolve(two, two)
  sums = np.arange(-4 * (len(grid) // 2), 4 * (len(grid) // 2) + 1) * _STEP
  index = np.argmin(np.abs(sums - 2.0 * value))
  density = 2.0 * four[index] / _STEP * total**4 * np.exp(-value / 2.0 * sums[index])
  return density / stats.norm.pdf(sums[index] / 2.0)


def test_one_draw_has_all_its_mass():
  _, masses = _law_of_one_draw()
  assert masses.sum() == pytest.approx(1.0, abs=1e-11)


@pytest.mark.parametrize("value", [0.0, 1.0, 2.0, 3.0, 4.0, 4.5, 5.0])
def test_up_to_five_standard_deviations_the_density_is_the_normal_one(value):
  assert _density_over_normal(value) == pytest.approx(1.0, abs=1e-3)
  assert _density_over_normal(-value) == pytest.approx(1.0, abs=1e-3)


def test_beyond_the_end_of_one_draw_there_is_as_much_as_there_should_be():
  ratios = [_density_over_normal(value) for value in (_END, 7.0, 8.0, 9.0, 10.0, 11.0, 11.3)]
  assert ratios == sorted(ratios, reverse=True) and ratios[-1] > 0.0
  assert ratios[0] > 0.99 and ratios[2] > 0.9 and ratios[-1] < 0.01
