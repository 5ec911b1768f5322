"""Shares that follow from a client's own loss: against numpy, and at the ends of their range."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf

from tff_superquantile import threshold

_MAX_LOSS = 4.0
_LOSSES = np.float32([-3e38, -1.0, 0.0, 1e-30, 0.3, 2.0, 4.0, 4.1, 1e30, 3e38])


def _shares(share_fn):
  return np.array([share_fn(tf.constant(loss)).numpy() for loss in _LOSSES], np.float64)


def _capped():
  return np.minimum(_LOSSES.astype(np.float64), _MAX_LOSS)


@pytest.mark.parametrize("q", [0.0, 0.5, 3.0, 1e9])
def test_power(q):
  expected = (np.maximum(_capped(), 0.0) / _MAX_LOSS) ** q
  shares = _shares(threshold.build_power_share(q, _MAX_LOSS))
  np.testing.assert_allclose(shares, expected, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 20.0, 1e9])
def test_tilted(temperature):
  expected = np.exp(temperature * (_capped() - _MAX_LOSS))
  shares = _shares(threshold.build_tilted_share(temperature, _MAX_LOSS))
  np.testing.assert_allclose(shares, expected, rtol=1e-4, atol=1e-37)


@pytest.mark.parametrize("utility_bound", [4.2, 5.0, 1e9])
def test_proportional(utility_bound):
  expected = (utility_bound - _MAX_LOSS) / (utility_bound - _capped())
  shares = _shares(threshold.build_proportional_share(utility_bound, _MAX_LOSS))
  np.testing.assert_allclose(shares, expected, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize(
  "share_fn",
  [
    threshold.build_power_share(2.0, 1e-9),
    threshold.build_power_share(2.0, 1e9),
    threshold.build_tilted_share(1e9, 1e9),
    threshold.build_proportional_share(4.0 + 1e-12, 4.0),
    threshold.build_proportional_share(1e9, 1e9 - 1.0),
  ],
)
def test_shares_are_from_zero_to_one_and_grow_with_the_loss(share_fn):
  shares = _shares(share_fn)
  assert np.all((0.0 <= shares) & (shares <= 1.0)) and np.all(np.diff(shares) >= 0.0)
  assert shares[-1] == 1.0


def test_the_server_learns_nothing():
  process = threshold.build_own_loss_weighting(threshold.build_power_share(1.0, _MAX_LOSS))
  assert problems.sums(process.next) == (0, 0, 0)
  assert str(process.next.type_signature.result.result.member) == "<>"
  assert str(process.next.type_signature.result.measurements.member) == "<>"
