"""The tracked quantile against TFF's process and against its recursion with known noise."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_superquantile import threshold as threshold_lib
from tff_superquantile.secure_sums import gaussian_sum

pytestmark = pytest.mark.usefixtures("simulation_context")

_CLIENT = threshold_lib.Client()
_TINY = 1e-6
_KEY, _OTHER_KEY = bytes(range(16)), bytes(range(1, 17))


def _process(theta=0.3, noise_multiplier=_TINY, expected_clients=10.0, initial=2.0, **kwargs):
  kwargs = {**dict(noise_key=_KEY), **kwargs}
  return threshold_lib.build_geometric_quantile(
    theta, noise_multiplier, expected_clients, initial, **kwargs
  )


def _rounds(process, rounds, state=None):
  """The thresholds of rounds, whose losses are given, and the last state."""
  state = process.initialize() if state is None else state
  thresholds = []
  for losses in rounds:
    losses = [np.float32(loss) for loss in losses]
    output = process.next(state, losses, losses, problems.clients(len(losses)))
    state = output.state
    assert list(output.measurements) == ["threshold", "estimated_tail_size"]
    assert output.measurements["threshold"] == output.result
    thresholds.append(float(output.result))
  return thresholds, state


def _losses(num_rounds, num_clients=10, seed=0):
  return np.random.default_rng(seed).gamma(2.0, size=[num_rounds, num_clients])


def test_equals_tffs_process_when_noise_is_negligible(learning_rate=0.7):
  rounds = [*_losses(4), [9.0] * 10, [0.1] * 7]
  query = tfp.QuantileEstimatorQuery(
    initial_estimate=2.0,
    target_quantile=0.7,
    learning_rate=learning_rate,
    below_estimate_stddev=_TINY / 2,
    expected_num_records=10.0,
    geometric_update=True,
  )
  tffs = tff.aggregators.PrivateQuantileEstimationProcess(query)
  state, expected = tffs.initialize(), []
  for losses in rounds:
    state = tffs.next(state, [np.float32(loss) for loss in losses])
    expected.append(float(tffs.report(state)))
  for noise_key in (_KEY, None):
    process = _process(learning_rate=learning_rate, noise_key=noise_key)
    np.testing.assert_allclose(_rounds(process, rounds)[0], expected, rtol=1e-5)
  assert len(set(expected)) == len(expected)


def test_the_noise_in_the_sum():
  z, expected_clients = 3.0, 40.0
  of_key = gaussian_sum.GaussianSum(0.5, z / 2, _KEY, "geometric threshold")
  noise = np.ravel(problems.noise_of_rounds(of_key, [[]], 1000))
  assert np.std(noise) == pytest.approx(z / 2, rel=0.08)
  assert np.mean(noise) == pytest.approx(0.0, abs=0.2)
  # The process has this noise and no other.
  rounds = _losses(6, 40)
  estimate, expected = 2.0, []
  for losses, noise_of_round in zip(rounds, noise):
    below = np.sum(np.where(losses <= estimate, 0.5, -0.5)) + noise_of_round
    below = np.clip(below / expected_clients + 0.5, 0.0, 1.0)
    estimate *= np.exp(-0.2 * (below - 0.7))
    expected.append(estimate)
  process = _process(0.3, z, expected_clients)
  np.testing.assert_allclose(_rounds(process, rounds)[0], expected, rtol=1e-5)
  # The query, which moves the estimate, adds none.
  own = _process(0.3, z, expected_clients, noise_key=None).initialize()
  assert own["tracker"].below_estimate_state.numerator_state.stddev == 0.0


def test_nan_adds_nothing_and_infinity_counts():
  process = _process()
  assert process.is_private
  (some,), _ = _rounds(process, [[1.0, 3.0, 5.0]])
  assert _rounds(process, [[1.0, np.nan, 3.0, 5.0, np.nan]])[0][0] == some
  assert _rounds(process, [[-np.inf, 3.0, np.inf]])[0][0] == some
  # Nobody: half are below, says the shifted count.
  for losses in ([], [np.nan]):
    assert _rounds(process, [losses])[0][0] == pytest.approx(2.0 * np.exp(-0.2 * (0.5 - 0.7)))
  share_fn = process.share_fn
  for loss, expected in ((np.nan, 0), (1.9, 0), (2.0, 1), (np.inf, 1), (-np.inf, 0)):
    assert float(share_fn(tf.constant(loss, tf.float32), np.float32(2.0), _CLIENT)) == expected


def test_a_loss_at_the_estimate_is_below_it():
  (at,), _ = _rounds(_process(), [[2.0] * 10])
  assert at == pytest.approx(2.0 * np.exp(-0.2 * (1.0 - 0.7)))
  (above,), _ = _rounds(_process(), [[2.001] * 10])
  assert above == pytest.approx(2.0 * np.exp(-0.2 * (0.0 - 0.7)))


def test_theta_1_selects_everybody():
  process = _process(1.0, 1.0)
  thresholds, state = _rounds(process, _losses(2))
  assert thresholds == [-np.inf, -np.inf]
  assert np.isfinite(state["tracker"].current_estimate)
  shares = [
    float(process.share_fn(tf.constant(loss), np.float32(-np.inf), _CLIENT))
    for loss in (-np.inf, -5.0, 0.0, np.inf, np.nan)
  ]
  assert shares == [1, 1, 1, 1, 0]
