"""The exact sum with Gaussian noise: against numpy, its grid, and the law of its noise."""

import fractions
import math

import numpy as np
import pytest
from scipy import signal
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from privacy import events
from privacy.noise import banded
from tff_superquantile import noise_source
from tff_superquantile.secure_sums import gaussian_sum

_ZEROS = {
  "a": tf.zeros([50, 200], tf.float64),
  "b": (tf.zeros([10_000], tf.float64), tf.zeros([], tf.float64)),
}
_KEY, _OTHER_KEY = bytes(range(16)), bytes(range(1, 17))
_K = 2**30
# Where TensorFlow's normal variables end, of uniform ones of at least 1e-7.
_END = math.sqrt(-2.0 * math.log(1e-7))


def _sum(sensitivity=1.0, stddev=1.0, key=_KEY, purpose="test"):
  return gaussian_sum.GaussianSum(sensitivity, stddev, key, purpose)


def _noise(summed, structure, num_rounds=1):
  """What some rounds in a row release of an S, each as a list of arrays."""
  state = summed.initial_state()
  all_noise = []
  for _ in range(num_rounds):
    state, noised = summed.add_noise(state, structure, structure)
    all_noise.append([leaf.numpy() for leaf in tf.nest.flatten(noised)])
  return all_noise


# What clients report.


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_report_is_the_vector_truncated_to_the_grid(dtype):
  rng = np.random.default_rng(0)
  vector = [rng.normal(size=(4, 3)), rng.normal(size=5), rng.normal()]
  factor, sensitivity = 0.07, 0.9
  vector = [np.asarray(v, dtype) for v in vector]
  report = _sum(sensitivity).report([tf.constant(v) for v in vector], factor)
  for integers, v in zip(report, vector):
    assert integers.dtype == tf.int32
    expected = np.trunc(v.astype(np.float64) * (factor * ((_K - 1) / sensitivity)))
    np.testing.assert_array_equal(integers, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 100, 48_670])
def test_no_report_is_longer_than_the_sensitivity(size):
  rng = np.random.default_rng(size)
  vectors = [np.ones(size), *rng.normal(size=[3, size]), 1e30 * rng.normal(size=size)]
  vectors += [np.eye(1, size)[0], np.full(size, 3e38), np.full(size, 1e-30)]
  for vector in vectors:
    vector = vector.astype(np.float32)
    norm = tf.linalg.global_norm([tf.constant(vector, tf.float64)])
    report = _sum(0.3).report(tf.constant(vector), 0.3 / norm).numpy()
    squares = sum(int(t) ** 2 for t in report)  # Of Python's integers, which are exact.
    assert squares <= _K**2
    assert squares >= (_K - 2 * math.sqrt(size) - 3) ** 2


# What the server releases.


def test_the_release_lies_on_the_grid_whatever_the_sum():
  summed = _sum(0.7, 3.1)
  low = 2**30 + 1
  for steps in (0, 1, -low, 2**52 + 1, -(2**52) + 1):
    noise, zero = [], []
    for start, released in ((steps, noise), (0, zero)):
      (leaves,) = _noise(summed, tf.fill([1000], tf.constant(start, tf.float64)))
      # Back to whole numbers: g (S + R) / g is the integer again, but for a product's last bit.
      released += [
        round(fractions.Fraction(float(x)) * _K / fractions.Fraction(0.7)) for x in leaves[0]
      ]
    slack = 2 if abs(steps) > 2**40 else 0
    assert all(abs(a - b - steps) <= slack for a, b in zip(noise, zero))
  # Noise of less than a step is none.
  ((released,),) = _noise(_sum(1.0, 1e-12), tf.fill([100], tf.constant(5.0, tf.float64)))
  np.testing.assert_array_equal(released, 5.0 / _K)


def test_the_types_of_the_vectors_come_back():
  steps = [tf.zeros([3], tf.float64), tf.zeros([], tf.float64)]
  like = [tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.bfloat16)]
  _, released = _sum().add_noise(_sum().initial_state(), steps, like)
  assert [(t.dtype, t.shape) for t in released] == [(s.dtype, s.shape) for s in like]


@pytest.mark.usefixtures("simulation_context")
@pytest.mark.parametrize("num_clients", [0, 1, 7])
def test_a_round_against_numpy(num_clients):
  value_type = tff.types.to_type(
    (tff.TensorType(np.float32, [3]), (tff.TensorType(np.float64, [2]), np.float32))
  )
  summed = _sum(2.0, 1.5)
  process = summed.create_of_reports(value_type)
  rng = np.random.default_rng(num_clients)
  vectors = [(rng.normal(size=3), (rng.normal(size=2), rng.normal())) for _ in range(num_clients)]
  reports = [tf.nest.map_structure(np.asarray, summed.report(v, 0.1)) for v in vectors]
  state, expected_state = process.initialize(), summed.initial_state()
  for _ in range(2):
    output = process.next(state, reports)
    state = output.state
    zeros = tuple(tf.zeros(size, tf.float64) for size in ([3], [2], []))
    total = [
      np.sum([tf.nest.flatten(r)[i] for r in reports], axis=0) + z for i, z in enumerate(zeros)
    ]
    expected_state, expected = summed.add_noise(expected_state, total, zeros)
    leaves = tf.nest.flatten(output.result)
    assert [np.asarray(f).dtype for f in leaves] == [np.float32, np.float64, np.float32]
    for f, e in zip(leaves, expected):
      np.testing.assert_array_equal(f, tf.cast(e, np.asarray(f).dtype))
    np.testing.assert_array_equal(state, expected_state)


@pytest.mark.parametrize("key", [_KEY, None])
def test_the_law_of_the_noise(key):
  summed = _sum(1.0, 2.5, key)
  shifted = tf.nest.map_structure(lambda t: t + 100.0 * _K, _ZEROS)
  _, noised = summed.add_noise(summed.initial_state(), shifted, _ZEROS)
  tf.nest.assert_same_structure(noised, _ZEROS)
  # Without a key the noise is another one each time.
  false_alarm = 1e-3 if key is not None else 1e-7
  low, high = np.sqrt(stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], 10_000) / 10_000)
  bound = 2.5 * stats.norm.isf(false_alarm / 2) / 100
  for leaf in (noised["a"], noised["b"][0]):
    assert stats.kstest(leaf.numpy().ravel(), stats.norm(100, 2.5).cdf).pvalue > false_alarm
    assert np.mean(leaf) == pytest.approx(100, abs=bound)
    assert low < np.sqrt(np.mean((leaf - 100.0) ** 2)) / 2.5 < high


def test_each_leaf_and_each_round_has_its_own_noise():
  draws = _noise(_sum(), _ZEROS, 3) + _noise(_sum(key=_OTHER_KEY), _ZEROS, 2)
  draws += _noise(_sum(purpose="other"), _ZEROS, 2)
  long = [leaf.ravel() for leaves in draws for leaf in leaves if leaf.size > 1]
  correlations = np.corrcoef(long) - np.eye(len(long))
  assert np.abs(correlations).max() < 0.05
  assert len({float(leaves[2]) for leaves in draws}) == len(draws)
  # Twins of the same shape in one record, too.
  (twins,) = _noise(_sum(), [tf.zeros([100], tf.float64)] * 2)
  assert abs(np.corrcoef(twins)[0, 1]) < 0.3


def test_the_noise_is_a_function_of_the_key_and_of_the_state():
  first = _noise(_sum(), _ZEROS, 3)
  again = _noise(_sum(), _ZEROS, 3)
  tf.nest.map_structure(np.testing.assert_array_equal, first, again)
  # Scaled by the deviation, added to whatever there is.
  scaled = _noise(_sum(9.0, 3.0), tf.nest.map_structure(tf.ones_like, _ZEROS), 3)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(9.0 / _K + 3 * a, b, rtol=0, atol=2e-8), first, scaled
  )
  # Resumed from a state, which holds 128 bits and nothing narrower.
  state = _sum().initial_state()
  for _ in range(2):
    state, _ = _sum().add_noise(state, _ZEROS, _ZEROS)
  assert (state.dtype, state.shape) == (tf.int64, [2])
  new_state, resumed = _sum(key=_OTHER_KEY).add_noise(state, _ZEROS, _ZEROS)
  np.testing.assert_array_equal(resumed["a"], first[2][0])
  assert np.any(new_state != state)


def test_without_a_key_the_noise_never_repeats():
  summed, zeros = _sum(key=None), tf.zeros([3], tf.float64)
  state = summed.initial_state()
  draws = [summed.add_noise(state, zeros, zeros)[1].numpy() for _ in range(20)]
  draws += [leaves[0] for leaves in _noise(summed, zeros, 20)]
  assert len({tuple(draw) for draw in draws}) == 40


# The normal variables, of full range.


def test_the_law_of_the_normal_variables():
  draws = gaussian_sum.standard_normal([1000, 400], tf.constant([3, 4], tf.int64))
  assert draws.dtype == tf.float64 and draws.shape == [1000, 400]
  draws = draws.numpy()
  n = draws.size
  # Five standard deviations of each moment's estimate.
  for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
    assert np.mean(draws**power) == pytest.approx(moment, abs=5 * np.sqrt(variance / n)), power
  assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-3
  for first, second in ((draws[1:], draws[:-1]), (draws[:, 1:], draws[:, :-1])):
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / np.sqrt(n)
  assert gaussian_sum.standard_normal([], tf.constant([3, 4], tf.int64)).shape == []


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
  normal = gaussian_sum.standard_normal(tf.constant([30, 7]), seed).numpy()
  asked = []

  def largest(shape, seed, dtype):
    asked.append((tuple(np.asarray(shape)), dtype, seed))
    return tf.fill(shape, tf.constant(_END, dtype))

  of_each = tf.random.stateless_normal([4, 30, 7], seed, dtype=tf.float64).numpy()
  np.testing.assert_allclose(normal, of_each.sum(axis=0) / 2, rtol=0, atol=1e-14)
  monkeypatch.setattr(tf.random, "stateless_normal", largest)
  end = gaussian_sum.standard_normal(tf.constant([30, 7]), seed).numpy()
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


# Noise that is correlated over rounds.


def test_banded_noise_is_the_filter_of_independent_noise():
  c = banded.checked(banded.optimal(4, banded.Participation(12, 4)))
  like = (tf.TensorSpec([2, 3], tf.float64), tf.TensorSpec([], tf.float64))
  zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, tf.float64), like)
  plain, correlated = _sum(0.5, 1.5), _sum(0.5, 1.5, noise_source.BandedKey(_KEY, c))
  assert correlated.is_correlated and not plain.is_correlated
  independents, by_hand = [], []
  states = plain.initial_state(), correlated.initial_state(like)
  kept = None
  for round_num in range(12):
    first, independent = plain.add_noise(states[0], zeros, like)
    second, noise = correlated.add_noise(states[1], zeros, like)
    states = first, second
    flat, z = (np.concatenate([np.ravel(leaf) for leaf in n]) for n in (noise, independent))
    independents.append(z)
    np.testing.assert_array_equal(flat * (_K / 0.5), np.round(flat * (_K / 0.5)))
    by_hand.append(flat)
    kept = second if round_num == 5 else kept
  # Rounding of each z to the grid passes through the filter.
  expected = signal.lfilter([1.0], c, independents, axis=0)
  np.testing.assert_allclose(by_hand, expected, atol=4 * 0.5 / _K)
  # A run that goes on from a kept state goes on with the same noise.
  for round_num in range(6, 12):
    kept, noise = correlated.add_noise(kept, zeros, like)
    flat = np.concatenate([np.ravel(leaf) for leaf in noise])
    np.testing.assert_array_equal(flat, by_hand[round_num])


def test_a_banded_key_with_one_band_is_its_key():
  banded_sum = _sum(key=noise_source.BandedKey(_KEY, (1.0,)))
  assert not banded_sum.is_correlated
  for released, expected in zip(_noise(banded_sum, _ZEROS)[0], _noise(_sum(), _ZEROS)[0]):
    np.testing.assert_array_equal(released, expected)


@pytest.mark.parametrize(
  "key,coefficients,error,words",
  [
    (None, (1.0, 0.5), TypeError, "noise_key"),
    (_KEY[:8], (1.0, 0.5), ValueError, "8 bytes; expected 16"),
    (_KEY, (2.0, 0.5), ValueError, "begin with 2; expected 1"),
    (_KEY, (1.0, math.nan), ValueError, "not all finite"),
    (_KEY, (), ValueError, "shape"),
  ],
)
def test_bad_banded_keys(key, coefficients, error, words):
  with pytest.raises(error, match=words):
    noise_source.BandedKey(key, coefficients)
