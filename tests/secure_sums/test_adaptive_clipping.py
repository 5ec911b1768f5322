"""Sums of updates that are clipped to an adaptive norm: against numpy, a client."""

import dataclasses
import functools

import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import secure_sums

pytestmark = pytest.mark.usefixtures("simulation_context")

_KEY = bytes(range(16))
_SIZES = (2, 3)
_VALUE_TYPE = tff.types.to_type(
  (tuple(tff.TensorType(np.float32, [size]) for size in _SIZES), np.float32)
)
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


@dataclasses.dataclass(frozen=True)
class _Lengths(secure_sums.Number):
  """The sum of s_i |u_i| and of all sums before it; a client claims to add what it likes."""

  name = "lengths"
  noise_multiplier = 1.5
  sensitivity = 2.0
  initial = 0.5

  def of_client(self, length, limit, share):
    return tf.where(length > 1e30, tf.constant(np.nan, length.dtype), share * length)

  def of_round(self, state, mean, share_sum):
    total = state + mean * share_sum
    return total, total


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_a_further_number_travels_with_its_own_noise(is_adaptive):
  z_w, z_b, gamma = 0.3, 2.0, 0.5
  number = _Lengths()
  in_noise = [z_w / z for z in ([z_b] if is_adaptive else []) + [number.noise_multiplier]]
  clip_norm = secure_sums.AdaptiveClipNorm(z_b, 0.7, gamma) if is_adaptive else 0.7
  factory = secure_sums.AdaptiveClippingSumFactory(
    clip_norm, z_w, lambda result: tf.constant(_EXPECTED), _KEY, numbers=[number]
  )
  process = factory.create(_VALUE_TYPE)
  of_key = secure_sums.GaussianSum(np.hypot(1.0, np.linalg.norm(in_noise)), z_w, _KEY, "updates")
  shapes = [*([size] for size in _SIZES), *([()] * len(in_noise))]
  state, total = process.initialize(), 0.5
  noises = problems.noise_of_rounds(of_key, shapes, 3)
  for clients, noise in zip((_EXTREME, [], _EXTREME[:3]), noises):
    norm = float(state["clip_norm"]) if is_adaptive else 0.7
    expected, next_norm = _round(norm, clients, noise[:6], z_w, z_b, gamma, 0.0)
    output = process.next(state, clients)
    state = output.state
    np.testing.assert_allclose(_flat(output.result), expected, rtol=1e-5, atol=1e-5)
    lengths = [np.linalg.norm(_flat(update).clip(-1e20, 1e20)) for update, _ in clients]
    # What is beyond the sensitivity is cut, and what is no number is nothing.
    added = [min(s * n, 2.0) * (n < 1e20) for n, (_, s) in zip(lengths, clients)]
    total += np.sum(added) + noise[-1] / z_w * number.noise_multiplier * number.sensitivity
    assert output.measurements["lengths"] == pytest.approx(total, rel=1e-5, abs=1e-5)
    if is_adaptive:
      assert state["clip_norm"] == pytest.approx(next_norm, rel=1e-5)
  assert set(state) == {"lengths", "sum", *(["clip_norm"] if is_adaptive else [])}


@pytest.mark.parametrize("norm,client", [(1e9, _client(3e38)), (1e-9, _client(0.0))])
def test_the_norm_stays_in_its_range(norm, client):
  process = _sum(*_SETTINGS[0])
  state = process.next(_starting_at(process, norm), [client] * 30).state
  assert state["clip_norm"] == np.float32(norm)
