"""The paper's accounting reproduces the paper's noise, and what that noise is really worth."""

import math

from helpers import flat
import numpy as np
import pytest

from paper import accounting as paper
from paper import real_costs
from privacy import accounting

_DELTA = 1 / 2500
_RUN = dict(population=2500, clients_per_round=100, num_rounds=1000)


@pytest.mark.parametrize(
  "epsilon,z", [(3, 2.0907), (5, 1.3741), (10, 0.9235), (15, 0.7348), (20, 0.6659)]
)
def test_golden_noise(epsilon, z):
  assert paper.calibrate_noise(epsilon, _DELTA, **_RUN) == pytest.approx(z, rel=1e-3)


def test_what_the_noise_really_costs():
  cost = real_costs.real_cost(flat.release(2500, 100, None, 1.731), 1000, _DELTA)
  # 3 by RDP, less by PLD.
  assert cost.poisson == pytest.approx(2.664, rel=0.01)
  assert cost.fixed_size_at_least == pytest.approx(9.00, rel=0.01)
  assert cost.fixed_size == pytest.approx(11.38, rel=0.01)


def test_rho_of_the_weights_is_upside_down_as_typeset():
  assert paper.update_rho(2.0) == 0.125
  assert paper.update_rho(2.0, as_typeset=True) == 2.0
  # Noise for epsilon 3 by the typeset formula: 1 / z in place of z.
  release = flat.release(2500, 100, None, 1 / 1.731)
  cost = accounting.epsilon(release, 1000, _DELTA, accounting.RDP).epsilon
  assert cost == pytest.approx(28.7, rel=0.01)


def test_rho_of_the_threshold():
  # Much noise a client: psi vanishes.
  rho = paper.threshold_rho(scale=3, num_bins=64, local_stddev=5.0, num_clients=100)
  assert rho == pytest.approx(0.5 * (3 * 6 / (10 * 5.0)) ** 2)
  # Little: the smaller of the two forms.
  psi = 10 * sum(math.exp(-2 * math.pi**2 * 0.4**2 * i / (i + 1)) for i in range(1, 100))
  shift = 6 / (10 * 0.4)
  expected = 0.5 * min(shift**2 + psi * 64, (shift + psi * math.sqrt(128)) ** 2)
  assert paper.threshold_rho(1, 64, 0.4, 100) == pytest.approx(expected)


def test_subsampled_rdp():
  curve = paper.subsampled_rdp(0.125, 0.04)
  assert curve.shape == (255,)
  # Order 2 is exact: log(1 + q^2 (e^(2 rho) - 1)).
  assert curve[0] == pytest.approx(math.log1p(0.04**2 * math.expm1(0.25)))
  assert np.all(np.diff(curve) > 0)
  np.testing.assert_allclose(paper.subsampled_rdp(0.125, 1.0), 0.125 * np.arange(2, 257))


def test_calibrate_with_a_threshold():
  release = paper.calibrate(3, _DELTA, rho_ratio=0.5, num_bins=64, **_RUN)
  assert flat.of(release).sampling == "fixed_size"
  assert flat.of(release).tree.sensitivity == "paper"
  assert flat.of(release).update_noise_multiplier == pytest.approx(
    2.0907 * math.sqrt(1.5), rel=1e-3
  )
  # Twice and a half the noise that the sensitivity needs, at 64 bins.
  z = 2.0907 * math.sqrt(3)
  scale = flat.of(release).tree.scale
  # But for the two units of variance that make noise discrete.
  expected = math.sqrt((z * scale * 6) ** 2 - 2) / (scale * math.sqrt(6))
  assert flat.of(release).threshold_noise_multiplier == pytest.approx(expected, rel=1e-3)
  assert expected > 0.99 * z * math.sqrt(6)
  assert paper.epsilon(release, 1000, _DELTA) == pytest.approx(3, abs=1e-3)
  assert paper.epsilon(release, 0, _DELTA) == 0.0
  fed_avg = paper.calibrate(3, _DELTA, rho_ratio=None, **_RUN)
  assert [part.flag for part in fed_avg.parts] == ["update_noise_multiplier"]
  assert paper.epsilon(fed_avg, 1000, _DELTA) == pytest.approx(3, abs=1e-3)


def test_a_threshold_needs_bins():
  with pytest.raises(ValueError, match="num_bins"):
    paper.calibrate(3, _DELTA, rho_ratio=0.5, **_RUN)


@pytest.mark.parametrize("epsilon", [1e-9, 1e9])
def test_out_of_reach(epsilon):
  with pytest.raises(ValueError, match="no noise reaches"):
    paper.calibrate_noise(epsilon, _DELTA, **_RUN)
