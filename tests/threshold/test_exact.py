"""Exact thresholds through TFF's runtime, against the numpy definitions."""

from helpers import problems
import numpy as np
import pytest

from paper import smoothed
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_CLIENT = threshold_lib.Client()
_RNG = np.random.default_rng(5)
_LOSSES = {
  "untied": _RNG.normal(size=23),
  "tied": _RNG.integers(0, 4, size=23).astype(float),
  "one": np.array([1.5]),
  "equal": np.full(7, 2.0),
  "negative": -_RNG.uniform(1, 9, size=10),
}


def _run(process, losses, weights):
  output = process.next(
    process.initialize(),
    list(losses.astype(np.float32)),
    list(weights.astype(np.float32)),
    problems.clients(len(losses)),
  )
  shares = [float(process.share_fn(np.float32(loss), output.result, _CLIENT)) for loss in losses]
  return output, np.array(shares)


def _weights(losses, weighted):
  size = len(losses)
  return np.random.default_rng(1).integers(1, 50, size=size) if weighted else np.ones(size)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("theta", [0.1, 0.33, 0.5, 1.0])
def test_exact_quantile(theta, weighted):
  process = threshold_lib.build_exact_quantile(theta)
  for losses in _LOSSES.values():
    losses = losses.astype(np.float32).astype(float)
    weights = _weights(losses, weighted).astype(float)
    output, shares = _run(process, losses, weights)
    expected = superquantile.quantile(losses, theta, weights)
    assert output.result == np.float32(expected)
    np.testing.assert_array_equal(shares, losses >= expected)
    assert output.measurements["threshold"] == np.float32(expected)
    assert output.measurements["loss_mean"] == pytest.approx(
      np.average(losses, weights=weights), rel=1e-6, abs=1e-6
    )
    assert output.measurements["loss_superquantile"] == pytest.approx(
      superquantile.superquantile(losses, theta, weights), rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize(
  "smoothing, weighted", [(0.0, False), (0.0, True), (0.01, True), (0.5, True), (20.0, True)]
)
@pytest.mark.parametrize("theta", [0.1, 0.33, 0.5, 1.0])
def test_exact_reweighting_gives_the_dual_weights(theta, smoothing, weighted):
  process = threshold_lib.build_exact_reweighting(theta, smoothing)
  for losses in _LOSSES.values():
    losses = losses.astype(np.float32).astype(float)
    weights = _weights(losses, weighted).astype(float)
    _, shares = _run(process, losses, weights)
    pi = shares * weights / np.sum(shares * weights)
    if smoothing:
      expected = smoothed.dual_weights(losses, theta, smoothing, weights)
    else:
      expected = superquantile.dual_weights(losses, theta, weights)
    np.testing.assert_allclose(pi, expected, atol=2e-5 if smoothing else 1e-6)


def test_losses_of_weight_zero_are_not_counted():
  losses, weights = np.array([9.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 1.0, 1.0, 1.0])
  for value in (9.0, np.nan, np.inf):
    losses[0] = value
    output, _ = _run(threshold_lib.build_exact_quantile(0.5), losses, weights)
    assert output.result == 3.0
    assert output.measurements["loss_mean"] == pytest.approx(2.5)


def test_with_nothing_to_count_nobody_passes():
  for build in (
    threshold_lib.build_exact_quantile,
    threshold_lib.build_exact_reweighting,
    lambda theta: threshold_lib.build_exact_reweighting(theta, 0.5),
  ):
    process = build(0.5)
    output, _ = _run(process, np.array([np.nan, 1.0]), np.zeros(2))
    assert np.isposinf(output.measurements["threshold"])
    assert float(process.share_fn(np.float32(100.0), output.result, _CLIENT)) == 0.0


def test_the_order_of_reports_does_not_matter():
  losses, weights = _LOSSES["tied"], _weights(_LOSSES["tied"], weighted=True).astype(float)
  process = threshold_lib.build_exact_quantile(0.3)
  results = set()
  for seed in range(5):
    order = np.random.default_rng(seed).permutation(len(losses))
    results.add(float(_run(process, losses[order], weights[order])[0].result))
  assert len(results) == 1


def test_bad_arguments():
  with pytest.raises(ValueError, match="threshold = 'tre'"):
    threshold_lib.build_threshold("tre", 0.5)
  with pytest.raises(TypeError, match="ThresholdProcess"):
    threshold_lib.build_threshold(lambda theta: theta, 0.5)
