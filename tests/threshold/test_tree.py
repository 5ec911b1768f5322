"""Private histograms and their quantiles through TFF, against numpy with Python's integers."""

import collections

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import tree_mechanism
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import private_histogram

pytestmark = pytest.mark.usefixtures("simulation_context")

_CLIENT = threshold_lib.Client()
_MAX_LOSS = 4.0
_KEY = bytes(range(16))
_LOSSES = np.random.default_rng(0).gamma(2.0, 0.6, size=20).astype(np.float32)


def _mechanism(z=0.5, num_bins=32, expected_clients=20, **kwargs):
  return tree_mechanism.build_tree_mechanism(z, num_bins, expected_clients, **kwargs)


def _exact_mechanism(num_bins=64, **kwargs):
  """Counts are off by less than a tenth of a client."""
  kwargs = {**dict(expected_clients=5, num_shares=7), **kwargs}
  return _mechanism(1e-3, num_bins, **kwargs)


def _seeds(num_clients, seed=0):
  return [client.seed for client in problems.clients(num_clients, seed)]


def _run(process, losses, state=None, seed=0):
  losses = [np.float32(loss) for loss in losses]
  weights = [np.float32(3 + i) for i in range(len(losses))]
  state = process.initialize() if state is None else state
  return process.next(state, losses, weights, problems.clients(len(losses), seed))


def _shares(process, losses, threshold):
  return [
    float(process.share_fn(tf.constant(loss, tf.float32), threshold, _CLIENT)) for loss in losses
  ]


def _state(threshold, noise=(1, 2)):
  """The state of a process, with that threshold."""
  noise = tf.constant(noise, tf.int64)
  return collections.OrderedDict(threshold=np.float32(threshold), noise=noise)


def _oracle(losses, mechanism, seed=0):
  """(below, total) from the same noise, summed by hand."""
  m = mechanism
  noise = problems.noise_of_the_server(m, m.num_entries, _KEY, "histogram", len(losses))
  sums = [int(number) for number in noise]
  for loss, client_seed in zip(losses, _seeds(len(losses), seed)):
    counts = private_histogram.scaled_counts(tf.constant(loss), m, _MAX_LOSS)
    counts += discrete_gaussian.sample(tf.shape(counts), m.local_stddev, client_seed)
    sums = [(s + int(count)) % m.modulus for s, count in zip(sums, counts.numpy())]
  signed = np.array([s if s < m.modulus - m.offset else s - m.modulus for s in sums]) / m.scale
  decoded = hierarchical_histogram.decode_least_squares(tf.constant(signed), m.num_bins)
  return decoded.below.numpy(), decoded.total.numpy()


def _quantile_index(below, total, theta):
  distances = np.round(np.abs(below - (1 - theta) * total), 9)
  nearest = np.flatnonzero(distances == distances.min())
  return (nearest[0] + nearest[-1]) // 2


@pytest.mark.parametrize("num_shares", [20, 31])
def test_against_numpy(num_shares):
  mechanism = _mechanism(num_shares=num_shares)
  factory = threshold_lib.PrivateHistogramFactory(mechanism, _MAX_LOSS, noise_key=_KEY)
  histogram = factory.create(tff.to_type((np.float32, tff.TensorType(np.int64, [2]))))
  process = threshold_lib.build_tree_quantile(0.3, mechanism, _MAX_LOSS, noise_key=_KEY)
  edges = hierarchical_histogram.bin_edges(32, _MAX_LOSS)
  for seed in (0, 1):
    below, total = _oracle(_LOSSES, mechanism, seed)
    assert abs(total - 20) < 10
    pairs = list(zip(_LOSSES, _seeds(len(_LOSSES), seed)))
    output = histogram.next(histogram.initialize(), pairs)
    np.testing.assert_allclose(output.result["below"], below, atol=1e-9)
    assert output.result["total"] == pytest.approx(total)
    assert output.result["is_valid"] and output.measurements == ()
    index = _quantile_index(below, max(total, 0.0), 0.3)
    output = _run(process, _LOSSES, seed=seed)
    assert output.result == output.measurements["threshold"] == edges[index]
    assert output.state["threshold"] == output.result
    tail_size = max(max(total, 0.0) - below[index], 0.3 * 20 / 2)
    assert output.measurements["estimated_tail_size"] == pytest.approx(tail_size, rel=1e-6)
    assert output.measurements["estimated_cohort_size"] == pytest.approx(max(total, 0.0), rel=1e-6)
    assert output.measurements["aborted"] == 0


def test_decode_recovers_the_whole_range():
  mechanism = _mechanism(num_bins=2)
  low, high = -mechanism.offset, mechanism.modulus - mechanism.offset - 1
  assert high == mechanism.scale * mechanism.num_shares + mechanism.offset
  for num in (low, -1, 0, 1, high):
    sums = np.array([num, 0]) % mechanism.modulus
    counts = private_histogram.node_counts(tf.constant(sums), mechanism)
    assert float(counts[0]) == pytest.approx(num / mechanism.scale)


def test_without_seeds_each_client_and_each_run_has_its_own_noise():
  process = threshold_lib.build_tree_quantile(0.3, _mechanism(), _MAX_LOSS)

  @tff.tensorflow.computation(np.float32)
  def report(loss):
    tf.random.set_seed(0)  # As a model may, for all clients alike.
    return process.report_fn(loss, loss, _CLIENT)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def reports(losses):
    return tff.federated_map(report, losses)

  all_reports = [*reports([np.float32(1.0)] * 3), *reports([np.float32(1.0)] * 3)]
  assert len({tuple(report["values"]) for report in all_reports}) == 6
  outputs = [
    process.next_of_reports(process.initialize(), reports(list(_LOSSES))) for _ in range(3)
  ]
  sizes = {float(output.measurements["estimated_cohort_size"]) for output in outputs}
  assert len(sizes) > 1


def test_with_seeds_runs_agree_whatever_the_weights_and_the_order():
  process = threshold_lib.build_tree_quantile(
    0.3, _mechanism(num_shares=25), _MAX_LOSS, noise_key=_KEY
  )
  assert process.is_private
  first = _run(process, _LOSSES)
  losses, clients, state = list(_LOSSES), problems.clients(20), process.initialize()
  second = process.next(state, losses, [np.float32(0.0)] * 20, clients)
  backwards = process.next(state, losses[::-1], [np.float32(9.0)] * 20, clients[::-1])
  assert first.measurements == second.measurements == backwards.measurements
  others = [_run(process, _LOSSES, seed=s).measurements["estimated_cohort_size"] for s in (1, 2)]
  assert len({first.measurements["estimated_cohort_size"], *others}) == 3


def _assert_selects(process, losses, expected):
  output = _run(process, losses)
  assert _shares(process, losses, output.result) == expected
  assert output.measurements["aborted"] == 0
  return output


def test_edge_cases():
  edges = hierarchical_histogram.bin_edges(64, _MAX_LOSS)
  by_theta = {
    theta: threshold_lib.build_tree_quantile(theta, _exact_mechanism(), _MAX_LOSS, noise_key=_KEY)
    for theta in (0.3, 0.4, 0.7, 1.0)
  }
  # On edges, and just below them.
  on_edges = edges[[3, 10, 20, 30, 40]]
  output = _assert_selects(by_theta[0.4], on_edges, [0, 0, 0, 1, 1])
  assert edges[20] < output.result <= edges[30] and output.result in edges
  assert output.measurements["estimated_cohort_size"] == pytest.approx(5, abs=0.1)
  assert output.measurements["estimated_tail_size"] == pytest.approx(2, abs=0.1)
  _assert_selects(by_theta[0.4], np.nextafter(on_edges, np.float32(0)), [0, 0, 0, 1, 1])
  # H is 0, 3, or 5 beyond the ties; 3.5 is nearest to 3.
  _assert_selects(by_theta[0.3], [1.0, 1.0, 1.0, 3.0, 3.0], [0, 0, 0, 1, 1])
  _assert_selects(by_theta[0.4], [1.0, 1.0, 1.0, 3.0, 3.0], [0, 0, 0, 1, 1])
  _assert_selects(by_theta[0.7], [0.0] * 5, [1] * 5)
  for theta in (0.3, 0.7):
    _assert_selects(by_theta[theta], [_MAX_LOSS] * 5, [1] * 5)
  # Beyond the ends.
  beyond = [np.inf, -np.inf, -2.0, 3.9, 1.0]
  output = _assert_selects(by_theta[0.4], beyond, [1, 0, 0, 1, 0])
  clipped = _run(by_theta[0.4], np.clip(beyond, 0, _MAX_LOSS))
  assert output.measurements == clipped.measurements
  _assert_selects(by_theta[0.7], [-1.0, -2.0, 0.0, -np.inf, -1.0], [1] * 5)
  # NaN is not counted, but reports.
  output = _assert_selects(by_theta[0.4], [*on_edges, np.nan, np.nan], [0, 0, 0, 1, 1, 0, 0])
  assert output.measurements["estimated_cohort_size"] == pytest.approx(5, abs=0.1)
  # Everybody.
  for losses in (on_edges, [0.0] * 5, [-1.0, -np.inf, np.inf, 0.0, 9.0]):
    output = _assert_selects(by_theta[1.0], losses, [1] * 5)
    assert output.result == 0.0
    assert (
      output.measurements["estimated_tail_size"] == (output.measurements["estimated_cohort_size"])
    )
  # Even if noise and isotonic regression leave the first bins empty, and thus tied.
  for seed in range(4):
    assert _run(by_theta[1.0], [_MAX_LOSS] * 5, seed=seed).result == 0.0
  assert _shares(by_theta[1.0], [np.nan], np.float32(0.0)) == [0]


def test_one_client():
  mechanism = _exact_mechanism(expected_clients=1, num_shares=1)
  process = threshold_lib.build_tree_quantile(0.7, mechanism, _MAX_LOSS)
  for loss in (0.0, 2.0, _MAX_LOSS):
    output = _assert_selects(process, [loss], [1])
    assert output.measurements["estimated_cohort_size"] == pytest.approx(1, abs=0.1)
  measurements = _run(process, []).measurements
  assert measurements["aborted"] == 0
  assert measurements["estimated_cohort_size"] == pytest.approx(0, abs=0.1)
  assert _run(process, [1.0, 2.0]).measurements["aborted"] == 1


@pytest.mark.parametrize("num_bins", [64, 8])
def test_rounds_of_more_reports_than_shares_keep_the_threshold(num_bins):
  process = threshold_lib.build_tree_quantile(0.4, _exact_mechanism(num_bins), _MAX_LOSS)
  losses = [0.1, 0.6, 2.2, 1.2, 3.3, 0.3, 1.9, 2.8]
  first = _run(process, losses[:5])
  assert first.result > 0.6
  for losses_of_round in (losses, losses * 2):
    output = _run(process, losses_of_round, first.state)
    assert output.result == output.state["threshold"] == first.result
    assert np.any(output.state["noise"] != first.state["noise"])
    assert output.measurements == dict(
      threshold=first.result, estimated_cohort_size=5.0, estimated_tail_size=2.0, aborted=1
    )
    # Before there is a threshold, everybody trains.
    output = _run(process, losses_of_round)
    assert output.result == 0.0 and output.measurements["aborted"] == 1
    assert _shares(process, [0.0, -1.0, 5.0], output.result) == [1, 1, 1]
  # Fewer do not matter: the server makes the shares that are missing.
  for losses_of_round in ([], losses[:1], losses[:4], losses[:7]):
    output = _run(process, losses_of_round, _state(77.0))
    assert output.result < 4 and output.measurements["aborted"] == 0
    size = output.measurements["estimated_cohort_size"]
    assert size == pytest.approx(len(losses_of_round), abs=0.1)
  # The factory on its own: zeros.
  factory = threshold_lib.PrivateHistogramFactory(_exact_mechanism(num_bins), _MAX_LOSS)
  histogram = factory.create(tff.to_type(np.float32))
  for losses_of_round in ([], losses):
    values = [np.float32(loss) for loss in losses_of_round]
    result = histogram.next(histogram.initialize(), values).result
    assert result["is_valid"] == (not losses_of_round)
    if losses_of_round:
      assert result["total"] == 0.0
      np.testing.assert_array_equal(result["below"], np.zeros(num_bins))


@pytest.mark.parametrize("num_bins", [16, 64])  # With and without interpolation.
def test_the_tail_size_has_a_floor(num_bins):
  mechanism = _exact_mechanism(num_bins, expected_clients=6)
  process = threshold_lib.build_tree_quantile(0.5, mechanism, _MAX_LOSS)
  measurements = _run(process, [np.nan] * 6).measurements
  assert measurements["estimated_tail_size"] == 0.5 * 6 / 2
  measurements = _run(process, [0.1, 0.2, 0.3, 2.0, 2.1, 2.2]).measurements
  assert measurements["estimated_tail_size"] == pytest.approx(3, abs=0.1)


def test_the_factory_alone():
  mechanism = _exact_mechanism(8)
  factory = threshold_lib.PrivateHistogramFactory(mechanism, 8.0)
  process = factory.create(tff.to_type(np.float32))
  assert isinstance(process, tff.templates.AggregationProcess)
  values = [np.float32(value) for value in (-1.0, 2.0, 2.5, np.nan, 7.0, np.inf)]
  result = process.next(process.initialize(), values).result
  np.testing.assert_allclose(result["below"], [0, 1, 1, 3, 3, 3, 3, 3], atol=0.1)
  assert result["total"] == pytest.approx(5, abs=0.1) and result["is_valid"]
  for bad_type in (
    np.float64,
    np.int32,
    tff.TensorType(np.float32, [1]),
    (np.float32, np.int64),
    (np.float32, tff.TensorType(np.int32, [2])),
    (np.float32, tff.TensorType(np.int64, [2]), np.float32),
  ):
    with pytest.raises(TypeError, match="expected float32 or <float32,int64"):
      factory.create(tff.to_type(bad_type))


def test_interpolation_without_noise():
  # Two clients in each of the bins 0 and 2 of 4, one in bin 3.
  losses = [0.1, 0.2, 2.2, 2.9, 3.5]
  mechanism = _mechanism(1e-5, 4, 5)
  for theta, expected in (
    (0.1, 3.5),  # 4.5 are below: half of bin 3
    (0.3, 2.75),  # 3.5: three quarters of bin 2
    (0.8, 0.5),  # 1: half of bin 0
  ):
    process = threshold_lib.build_tree_quantile(theta, mechanism, _MAX_LOSS)
    output = _run(process, losses)
    assert output.result == pytest.approx(expected, abs=0.01), theta
    # As a threshold within a bin says nothing of who is above it.
    assert output.measurements["estimated_tail_size"] == pytest.approx(5 * theta, abs=0.01)
  bins = threshold_lib.build_tree_quantile(0.35, mechanism, _MAX_LOSS, interpolate=False)
  assert _run(bins, losses).result == 3.0  # 3.25 is nearer to H(3) = 4 than to H = 2.


@pytest.mark.parametrize("num_bins", [2, 16])
def test_equal_losses_as_before_training_pass_an_interpolated_threshold(num_bins):
  mechanism = _mechanism(1e-5, num_bins, 5)
  process = threshold_lib.build_tree_quantile(0.2, mechanism, _MAX_LOSS)
  losses = [np.log(2.0)] * 5
  output = _run(process, losses)
  assert _shares(process, losses, output.result) == [1] * 5
  assert output.measurements["estimated_tail_size"] == pytest.approx(5, abs=0.01)


def test_with_nothing_but_noise_an_interpolated_threshold_does_not_leave_the_start():
  process = threshold_lib.build_tree_quantile(
    0.5, _exact_mechanism(16), _MAX_LOSS, interpolate=True
  )
  outputs = [_run(process, [np.nan] * 5, seed=seed) for seed in range(8)]
  empty = [o for o in outputs if o.measurements["estimated_cohort_size"] == 0]
  assert 0 < len(empty) < 8
  assert {float(output.result) for output in empty} == {0.0}


def test_losses_at_the_upper_end_pass_an_interpolated_threshold():
  for max_loss, num_bins in ((0.1, 2), (np.log(62), 16)):
    mechanism = _exact_mechanism(num_bins)
    process = threshold_lib.build_tree_quantile(0.01, mechanism, max_loss)
    for seed in range(5):
      threshold = _run(process, [max_loss, np.inf, 0.0, max_loss, 1e9], seed=seed).result
      assert threshold > 0.9 * max_loss * (1 - 1 / num_bins)
      assert _shares(process, [max_loss, np.inf, 1e9, 0.0], threshold) == [1, 1, 1, 0]


def test_a_short_key_is_refused():
  with pytest.raises(ValueError, match="noise key of 8 bytes; expected 16"):
    threshold_lib.build_tree_quantile(0.5, _mechanism(), _MAX_LOSS, noise_key=bytes(8))
