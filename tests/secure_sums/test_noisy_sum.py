"""The private sum of vectors through TFF, against numpy with Python's integers."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import sum_mechanism
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.secure_sums import noisy_sum

pytestmark = pytest.mark.usefixtures("simulation_context")

_SHAPES = ((3, 2), (), (4,))
_NUM_ENTRIES = 11
_TYPE = tff.to_type(tuple(tff.TensorType(np.float32, shape) for shape in _SHAPES))


_NUM_SHARES = 6
_KEY = bytes(range(16))


def _mechanism(z=1.0, clip_norm=0.7, num_entries=_NUM_ENTRIES, num_shares=_NUM_SHARES):
  return sum_mechanism.build_sum_mechanism(z, clip_norm, num_entries, num_shares)


def _structure(vector):
  """A vector as tensors of `_SHAPES`."""
  sizes = [int(np.prod(shape)) for shape in _SHAPES]
  parts = np.split(np.asarray(vector, np.float32), np.cumsum(sizes)[:-1])
  return tuple(part.reshape(shape) for part, shape in zip(parts, _SHAPES))


def _vector(structure):
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(structure)])


def _values(num_clients, scale=1.0, seed=0):
  return np.random.default_rng(seed).normal(scale=scale, size=[num_clients, _NUM_ENTRIES])


def _clipped(values, clip_norm):
  values = np.float64(np.float32(values))
  norms = np.linalg.norm(values, axis=-1, keepdims=True)
  return values * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))


def _seed(client, run=0):
  return tf.constant([run, client], tf.int64)


def _noise(mechanism, client, run=0):
  noise = discrete_gaussian.sample(
    [mechanism.num_entries], mechanism.local_stddev, _seed(client, run)
  )
  return noise.numpy()


def _noise_of_the_server(mechanism, num_clients, round_num=1):
  return problems.noise_of_the_server(
    mechanism, mechanism.num_entries, _KEY, "sum of updates", num_clients, round_num
  )


def _integers(factory, mechanism, value, client=0):
  """round(s clip(x)), from what a client reports with the same noise as for zeros."""
  report = factory.report(value, _seed(client))["values"].numpy()
  zero = factory.report(tf.nest.map_structure(np.zeros_like, value), _seed(client))["values"]
  half = mechanism.modulus // 2
  return (report - zero.numpy() + half) % mechanism.modulus - half


def _sum(factory, values, run=0, value_type=_TYPE, structure=_structure):
  process = factory.create_of_reports(value_type)
  reports = [factory.report(structure(v), _seed(i, run)) for i, v in enumerate(values)]
  output = process.next(process.initialize(), reports)
  assert output.measurements == ()
  return output.result


@pytest.mark.parametrize("num_clients", [0, 1, 5, 6])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e6, 1e30])
def test_against_numpy(scale, num_clients):
  mechanism = _mechanism()
  values = _values(num_clients, scale)
  summed = _sum(noisy_sum.DistributedGaussianSumFactory(mechanism, noise_key=_KEY), values)
  assert [np.shape(part) for part in summed] == list(_SHAPES)
  assert all(np.asarray(part).dtype == np.float32 for part in summed)
  clipped = _clipped(values, mechanism.clip_norm)
  noise = _noise_of_the_server(mechanism, num_clients)
  noise = noise + sum(_noise(mechanism, client) for client in range(num_clients))
  exact = np.round(clipped * mechanism.scale).sum(axis=0) + noise
  np.testing.assert_allclose(
    _vector(summed), exact / mechanism.scale, rtol=1e-6, atol=1.01 / mechanism.scale
  )
  # Each client rounds by half a step at most.
  error = _vector(summed) - clipped.sum(axis=0) - noise / mechanism.scale
  assert np.abs(error).max() <= (0.5 * num_clients + 1e-3) / mechanism.scale


def test_values_of_client_entropy():
  mechanism = _mechanism(z=1e-3)
  factory = noisy_sum.DistributedGaussianSumFactory(mechanism)
  process = factory.create(_TYPE)
  assert isinstance(process, tff.templates.AggregationProcess)
  values = _values(5)
  results = [
    _vector(process.next(process.initialize(), [_structure(v) for v in values]).result)
    for _ in range(3)
  ]
  assert len({tuple(result) for result in results}) == 3  # Other noise each time.
  expected = _clipped(values, mechanism.clip_norm).sum(axis=0)
  atol = (6 * mechanism.local_stddev * np.sqrt(_NUM_SHARES) + 2.5) / mechanism.scale
  for result in results:
    np.testing.assert_allclose(result, expected, atol=atol)


@pytest.mark.parametrize("num_entries", [1, 2, 11, 200])
def test_rounding_adds_half_a_root_of_the_entries_to_the_sensitivity(num_entries):
  mechanism = _mechanism(clip_norm=0.3, num_entries=num_entries)
  factory = noisy_sum.DistributedGaussianSumFactory(mechanism)
  bound = mechanism.scale * mechanism.clip_norm + np.sqrt(num_entries) / 2
  rng = np.random.default_rng(num_entries)
  largest = 0.0
  for trial in range(40):
    vector = rng.normal(size=num_entries) * 10.0 ** rng.uniform(-3, 3)
    if trial % 2:
      # As many entries as fit just above half a step away from an integer: all are rounded up.
      radius = mechanism.scale * mechanism.clip_norm * (1 - 1e-6) / np.sqrt(num_entries)
      entry = np.floor(radius - 0.5 - rng.integers(0, 2)) + 0.5 + 1e-3
      vector = rng.choice([-1, 1], num_entries) * entry / mechanism.scale
    steps = _integers(factory, mechanism, (vector.astype(np.float32),), trial)
    norm = np.linalg.norm(steps.astype(np.float64))
    assert norm <= bound
    assert np.abs(steps).max() <= mechanism.scale * mechanism.clip_norm + 0.5
    largest = max(largest, norm)
  # The bound is needed: rounding does take norms above s C.
  assert largest > mechanism.scale * mechanism.clip_norm - 1


@pytest.mark.parametrize("z", [1e-8, 2.2e-7, 1e-3, 1.0, 20.0])
def test_nothing_wraps_with_all_clients_in_one_coordinate(z):
  mechanism = _mechanism(z=z)
  factory = noisy_sum.DistributedGaussianSumFactory(mechanism)
  process = factory.create_of_reports(_TYPE)
  for sign in (1, -1):
    value = np.zeros(_NUM_ENTRIES)
    value[7] = sign * 1e6
    for run in range(3):
      reports = [factory.report(_structure(value), _seed(i, run)) for i in range(6)]
      assert reports[0]["values"].dtype == ("int64" if z == 1e-8 else "int32")
      result = _vector(process.next(process.initialize(), reports).result)
      noise = sum(_noise(mechanism, client, run) for client in range(6)).astype(np.float64)
      noise[7] += sign * 6 * np.round(mechanism.scale * mechanism.clip_norm)
      np.testing.assert_allclose(result, noise / mechanism.scale, rtol=1e-6)
  assert mechanism.modulus // 2 > 6 * (mechanism.scale * mechanism.clip_norm - 0.5)


def test_more_reports_than_shares_give_zeros_and_fewer_do_not():
  mechanism = _mechanism()
  factory = noisy_sum.DistributedGaussianSumFactory(mechanism)
  for num_clients, is_valid in ((0, True), (1, True), (6, True), (7, False), (9, False)):
    result = _vector(_sum(factory, _values(num_clients)))
    assert np.any(result != 0) == is_valid
    assert np.all(np.isfinite(result))


def test_with_a_key_the_servers_noise_repeats_and_goes_on_from_a_state():
  mechanism = _mechanism()

  def rounds(key):
    factory = noisy_sum.DistributedGaussianSumFactory(mechanism, noise_key=key)
    process = factory.create_of_reports(_TYPE)
    states, results = [process.initialize()], []
    for _ in range(3):
      output = process.next(states[-1], [])
      states.append(output.state)
      results.append(tuple(_vector(output.result)))
    again = [tuple(_vector(process.next(state, []).result)) for state in states[:-1]]
    return results, again

  # With nobody there, the result is the server's shares alone.
  expected = [_noise_of_the_server(mechanism, 0, r) / mechanism.scale for r in (1, 2, 3)]
  for found in rounds(_KEY):
    np.testing.assert_allclose(found, expected, rtol=1e-6)
  # Without a key nothing repeats, from the same state neither.
  assert len({result for _ in range(2) for drawn in rounds(None) for result in drawn}) == 12


def test_a_factory_of_reports():
  factory = noisy_sum.DistributedGaussianSumFactory(_mechanism())
  process = factory.create_of_reports(_TYPE)
  of_reports = noisy_sum.FactoryOfReports(process)
  report_type = process.next.type_signature.parameter[1].member
  assert of_reports.create(report_type).next.type_signature == process.next.type_signature
  with pytest.raises(TypeError, match="Found values of type"):
    of_reports.create(_TYPE)


def test_wrong_arguments_are_refused():
  mechanism = _mechanism(num_entries=10)
  factory = noisy_sum.DistributedGaussianSumFactory(mechanism)
  for create in (factory.create, factory.create_of_reports):
    with pytest.raises(ValueError, match="values of 11 numbers; expected 10"):
      create(_TYPE)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    factory.report(_structure(np.zeros(11)), _seed(0))
  with pytest.raises(ValueError, match="noise key of 15 bytes; expected 16"):
    noisy_sum.DistributedGaussianSumFactory(mechanism, noise_key=_KEY[1:])
