"""Sums of updates that are clipped to an adaptive norm: against numpy, their noise, a client."""

import functools

from helpers import problems
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import secure_sums

pytestmark = pytest.mark.usefixtures("simulation_context")

_KEY = bytes(range(16))
_SIZES = (2, 3)
_VALUE_TYPE = tff.types.to_type(
  (tuple(tff.TensorType(np.float32, [size]) for size in _SIZES), np.float32)
)
_FALSE_ALARM = 1e-7
# z_w, z_b, gamma and k; each sum is built once for all tests.
_SETTINGS = ((0.3, 2.0, 0.5, 0.0), (0.5, 0.8, 0.8, 0.0), (0.1, 1.5, 0.3, 0.6))
_EXPECTED = 10.0  # N, where it is a constant.


@functools.cache
def _sum(z_w, z_b, gamma, k=0.0):
  def share_sum(result):
    return tf.maximum(result[1] / k, 2.0 * z_w / k) if k else tf.constant(_EXPECTED)

  clip_norm = secure_sums.AdaptiveClipNorm(z_b, 1.0, gamma)
  factory = secure_sums.AdaptiveClippingSumFactory(clip_norm, z_w, share_sum, _KEY, k)
  return factory.create(_VALUE_TYPE)


@pytest.fixture(scope="module", autouse=True)
def forgotten_sums():
  """TensorFlow's functions end before Python does."""
  yield
  _sum.cache_clear()


def _client(update, share=1.0):
  vector = np.zeros(sum(_SIZES), np.float32)
  vector[: len(np.atleast_1d(update))] = update
  return tuple(np.split(vector, np.cumsum(_SIZES)[:-1])), np.float32(share)


def _flat(result):
  return np.concatenate([np.ravel(part).astype(np.float64) for part in tf.nest.flatten(result)])


def _noise_of_rounds(z_w, z_b, k, num_rounds):
  """The server's noise of each round, from its key, of standard deviation z_w."""
  of_key = secure_sums.GaussianSum(np.hypot(1.0, z_w / z_b), z_w, _KEY, "updates")
  shapes = [*([size] for size in _SIZES), *([()] if k else []), ()]
  return problems.noise_of_rounds(of_key, shapes, num_rounds)


def _round(norm, clients, noise, z_w, z_b, gamma, k):
  """(result, next norm) by hand, in double precision."""
  g = max(gamma, 1.0 - gamma)
  total, count = np.zeros(sum(_SIZES) + bool(k)), 0.0
  limit = norm * np.sqrt(1.0 - k**2)
  for update, share in clients:
    vector = _flat(update)
    length = np.sqrt(np.sum(vector**2))
    clipped = vector * min(1.0, limit / max(length, 1e-300)) / norm
    total += float(share) * np.append(clipped, [k] if k else [])
    count += float(share) * (float(length <= limit) - gamma)
  total += noise[: len(total)]
  # z_b g is the deviation of the count's noise.
  count += noise[-1] / z_w * z_b * g
  divisor = max(total[-1] / k, 2.0 * z_w / k) if k else _EXPECTED
  total[: sum(_SIZES)] *= norm
  return total, norm * np.exp(-0.2 * np.clip(count / divisor, -gamma, 1.0 - gamma))


# Nothing, exactly the first norm, a float beyond it, the largest, and those that send nothing.
_EXTREME = [
  *(_client(0.0), _client([0.6, 0.8]), _client(1.0), _client(np.nextafter(np.float32(1), 2))),
  *(_client([3e38] * 5), _client([0.0] * 5, 0.0), _client([3e38] * 5, 0.0), _client(1e-40)),
  *(_client([-5.0, 0.0, 2.0], 0.25), _client(0.01, 0.7)),
]


@pytest.mark.parametrize("z_w,z_b,gamma,k", _SETTINGS)
def test_rounds_against_numpy_with_the_noise_of_the_key(z_w, z_b, gamma, k):
  process = _sum(z_w, z_b, gamma, k)
  state, norm = process.initialize(), 1.0
  cohorts = [_EXTREME, [], _EXTREME[:3] * 5, _EXTREME[4:5] * 12, _EXTREME[5:7], _EXTREME]
  for clients, noise in zip(cohorts, _noise_of_rounds(z_w, z_b, k, len(cohorts))):
    expected, next_norm = _round(norm, clients, noise, z_w, z_b, gamma, k)
    output = process.next(state, clients)
    state = output.state
    assert output.measurements["clip_norm"] == pytest.approx(norm, rel=1e-5)
    np.testing.assert_allclose(_flat(output.result), expected, rtol=1e-5, atol=1e-5 * norm)
    norm = float(state["clip_norm"])  # So that a norm is within C here if it is there.
    assert norm == pytest.approx(next_norm, rel=1e-5)


def _starting_at(process, norm):
  return {**process.initialize(), "clip_norm": np.float32(norm)}


def _moved(process, clients):
  """(U / C, B) of a round, of next to no noise."""
  state = process.initialize()
  output = process.next(state, clients)
  count = -np.log(float(output.state["clip_norm"]) / float(state["clip_norm"])) / 0.2 * _EXPECTED
  return _flat(output.result) / float(state["clip_norm"]), count


def test_no_client_adds_more_than_the_sensitivities():
  g = 0.8
  process = _sum(1e-6, 1e-6, g)
  others = [_client(0.5), _client(2.0)]
  without = _moved(process, others)
  added = []
  for client in _EXTREME + [_client(-7.0)]:
    update, count = _moved(process, [*others, client])
    added.append((update - without[0], count - without[1]))
    assert np.linalg.norm(added[-1][0]) <= 1.0 + 1e-4 and abs(added[-1][1]) <= g + 1e-4
    if client[1] == 0.0:  # One that sends nothing is as one that is not there.
      np.testing.assert_allclose(added[-1][0], 0.0, atol=1e-4)
      assert added[-1][1] == pytest.approx(0.0, abs=1e-4)
  assert max(np.linalg.norm(update) for update, _ in added) == pytest.approx(1.0, abs=1e-4)
  assert max(abs(count) for _, count in added) == pytest.approx(g, abs=1e-4)
  # Replacing a client.
  updates, counts = (np.array(part) for part in zip(*added))
  most = [np.max(np.linalg.norm(updates[:, None] - updates[None], axis=-1)), np.ptp(counts)]
  assert most == pytest.approx([2.0, 1.0], abs=1e-3)


def test_the_noise_of_both_releases():
  z_w, z_b, gamma, k = _SETTINGS[0]
  process = _sum(z_w, z_b, gamma, k)
  state, updates, counts = process.initialize(), [], []
  for _ in range(200):
    before = float(state["clip_norm"])
    output = process.next(state, [])
    state = output.state
    updates.append(_flat(output.result) / before)
    counts.append(-np.log(float(state["clip_norm"]) / before) / 0.2 * _EXPECTED)
  # Of a client's most, 1 and g.
  for sample, stddev in ((np.ravel(updates), z_w), (np.array(counts), z_b * gamma)):
    low, high = stats.chi2.ppf([_FALSE_ALARM / 2, 1 - _FALSE_ALARM / 2], sample.size)
    assert low < np.sum((sample / stddev) ** 2) < high
    assert stats.kstest(sample / stddev, "norm").pvalue > _FALSE_ALARM
  bound = stats.norm.isf(_FALSE_ALARM / 2) / np.sqrt(len(counts))
  assert abs(np.corrcoef(np.array(updates)[:, 0], counts)[0, 1]) < bound


@pytest.mark.parametrize("z_w,z_b,gamma,k", _SETTINGS)
def test_the_norm_finds_the_quantile_of_those_that_train(z_w, z_b, gamma, k):
  # Half of the clients of each round train, twice as many as N; or clients count by their shares,
  # and those of smaller shares have longer updates.
  rng = np.random.default_rng(3)
  process = _sum(z_w, z_b, gamma, k)
  state, log_norms = _starting_at(process, 3.0), []
  shares = np.tile([1.0, 0.5 if k else 0.0], 20)
  longer = np.where(shares < 1.0, 2.0, 0.0)
  for _ in range(100):
    clients = map(_client, rng.lognormal(longer, 1.0), shares)
    state = process.next(state, list(clients)).state
    log_norms.append(np.log(float(state["clip_norm"]) * np.sqrt(1.0 - k**2)))
  rank = np.average(stats.norm.cdf(np.mean(log_norms[40:]) - longer), weights=shares)
  assert rank == pytest.approx(gamma, abs=0.04)


@pytest.mark.parametrize("norm,client", [(1e9, _client(3e38)), (1e-9, _client(0.0))])
def test_the_norm_stays_in_its_range(norm, client):
  process = _sum(*_SETTINGS[0])
  state = process.next(_starting_at(process, norm), [client] * 30).state
  assert state["clip_norm"] == np.float32(norm)
