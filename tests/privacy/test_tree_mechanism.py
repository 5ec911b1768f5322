"""The parameters of the private histogram against their formulas, and what is refused."""

import math
import pathlib
import subprocess
import sys

import dp_accounting
from dp_accounting import rdp
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from privacy import tree_mechanism

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_build = tree_mechanism.build_tree_mechanism


def _z_of_epsilon(epsilon, delta=1e-5):
  return dp_accounting.calibrate_dp_mechanism(
    rdp.RdpAccountant,
    dp_accounting.GaussianDpEvent,
    epsilon,
    delta,
    dp_accounting.ExplicitBracketInterval(0.1, 100),
  )


def test_golden_mechanism():
  mechanism = _build(2.0, 64, 100, min_clients=100, max_clients=100)
  assert mechanism.scale == 4
  assert mechanism.local_stddev == pytest.approx(1.95959, abs=1e-5)
  assert (mechanism.modulus, mechanism.offset) == (645, 122)
  assert (mechanism.num_levels, mechanism.num_nodes) == (6, 126)
  assert (mechanism.bits_per_entry, mechanism.bits_per_client) == (10, 1260)
  assert mechanism.rho == 0.125
  assert mechanism.sensitivity == "l2"
  # s / c = z sqrt(L) with the clients that were promised, more with more of them.
  assert mechanism.count_stddev(100) == pytest.approx(2 * math.sqrt(6))
  assert mechanism.count_stddev(400) == pytest.approx(4 * math.sqrt(6))
  for number in ("64 bins", "times 4", "modulo 645", "126 numbers of 10 bits", "1260 bits"):
    assert number in mechanism.describe()


@pytest.mark.parametrize(
  "epsilon,bits", [(0.25, 10), (0.5, 10), (1, 11), (2, 11), (5, 12), (10, 13)]
)
def test_golden_bits(epsilon, bits):
  z = _z_of_epsilon(epsilon)
  mechanism = _build(z, 64, 256, max_clients=256)
  assert mechanism.bits_per_entry == bits
  with_bits = _build(z, 64, 256, max_clients=256, bits=bits)
  assert (with_bits.modulus, with_bits.offset) == (2**bits, mechanism.offset)
  with pytest.raises(
    ValueError, match=f"bits = {bits - 1}; 256 clients.* {mechanism.modulus}, {bits} bits"
  ):
    _build(z, 64, 256, max_clients=256, bits=bits - 1)


def test_defaults_and_bits_of_a_power_of_two():
  mechanism = _build(2.0, 64, 100)
  assert (mechanism.min_clients, mechanism.max_clients) == (100, 160)
  # A modulus of exactly 2^k takes k bits.
  assert _build(2.0, 64, 100, bits=13).bits_per_entry == 13
  # Dropouts: the noise of 81 clients is what was promised, with a scale that 81 ask for.
  fewer = _build(2.0, 64, 100, min_clients=81)
  assert fewer.local_stddev * 9 == pytest.approx(2.0 * fewer.scale * math.sqrt(6))


# Deterministic: the runs with a rounding of their own are below.
@hypothesis.settings(derandomize=True)
@hypothesis.given(
  st.floats(1e-3, 1e3), st.integers(1, 12), st.integers(1, 10**5), st.floats(0, 1), st.floats(1, 2)
)
def test_formulas(z, num_levels, expected, low, high):
  min_clients, max_clients = max(1, int(low * expected)), int(high * expected)
  m = _build(z, 2**num_levels, expected, min_clients=min_clients, max_clients=max_clients)
  assert m.local_stddev >= 1.5
  assert m.local_stddev * math.sqrt(min_clients) / (m.scale * math.sqrt(num_levels)) == (
    pytest.approx(z)
  )
  assert m.scale == 1 or m.local_stddev * (m.scale - 1) / m.scale < 1.5 * (1 + 1e-12)
  # Nothing wraps: 0..c n_max is widened by t on both sides, t the least of a union bound.
  t, variance = m.offset, m.local_stddev**2 * max_clients
  assert m.modulus == m.scale * max_clients + 2 * t + 1
  log_failure = math.log(2 * m.num_nodes) - t**2 / (2 * variance)
  assert log_failure <= math.log(1e-6) + 1e-9
  assert math.log(2 * m.num_nodes) - (t - 1) ** 2 / (2 * variance) > math.log(1e-6) - 1e-9
  assert m.num_nodes == sum(2**level for level in range(1, num_levels + 1))
  assert 2 ** (m.bits_per_entry - 1) < m.modulus <= 2**m.bits_per_entry


@pytest.mark.parametrize(
  "z,num_bins,clients", [(0.5, 64, 54), (0.5, 8, 27), (0.75, 32, 245), (3.0, 64, 216)]
)
def test_the_default_scale_is_large_enough_despite_rounding(z, num_bins, clients):
  # c sigma_1 / sqrt(k) is 1.5 exactly here, and in floating point one bit below.
  assert _build(z, num_bins, clients).local_stddev >= 1.5


@pytest.mark.parametrize("z", [0.3, 1.0, 7.5])
def test_rho(z):
  assert _build(z).rho == pytest.approx(1 / (2 * z * z))
  assert _build(rho=1 / (2 * z * z)).noise_multiplier == pytest.approx(z)
  assert _build(rho=0.125) == _build(2.0)


@pytest.mark.parametrize("number", [2, np.float32(2.0), np.float64(2.0), np.array(2.0)])
def test_the_noise_multiplier_becomes_a_python_float(number):
  # Otherwise dp_accounting drops the other mechanism of the round.
  for value in (_build(number).noise_multiplier, _build(number).rho, _build(rho=number).rho):
    assert type(value) is float
  assert type(tree_mechanism.check_positive("z", number)) is float
  assert _build(number) == _build(2.0)


def test_the_papers_recipe():
  # Noise for c L instead of c sqrt(L); any modulus, decoded around zero.
  paper = _build(2.0, 64, 100, sensitivity="paper", bits=5)
  assert (paper.scale, paper.modulus, paper.offset, paper.sensitivity) == (2, 32, 16, "paper")
  assert paper.local_stddev == pytest.approx(2.0 * 2 * 6 / 10)
  free = _build(2.0, 64, 100, sensitivity="paper")
  assert free.modulus > 2 * 160 and free.offset == free.modulus // 2


@pytest.mark.parametrize(
  "arguments,message",
  [
    (dict(num_bins=48), "num_bins = 48"),
    (dict(num_bins=1), "num_bins = 1"),
    (dict(num_bins=0), "num_bins = 0"),
    (dict(num_bins=8.5), "num_bins = 8.5"),
    (dict(noise_multiplier=0.0), "noise_multiplier = 0.0"),
    (dict(noise_multiplier=-1), "noise_multiplier = -1.0"),
    (dict(noise_multiplier=float("nan")), "noise_multiplier = nan"),
    (dict(noise_multiplier=float("inf")), "noise_multiplier = inf"),
    (dict(noise_multiplier=None, rho=0.0), "rho = 0.0"),
    (dict(noise_multiplier=None, rho=float("nan")), "rho = nan"),
    (dict(noise_multiplier=None), "neither of noise_multiplier and rho"),
    (dict(rho=0.125), "both or neither of noise_multiplier and rho"),
    (dict(scale=3), r"scale = 3, .* 1\.47; expected at least 1\.5.* larger scale"),
    (dict(scale=0), "scale = 0"),
    (dict(scale=4.5), "scale = 4.5"),
    (dict(bits=9), "bits = 9; 160 clients with 64 bins and noise multiplier 2 need .* 10 bits"),
    (dict(min_clients=101), "min_clients = 101, expected_clients = 100"),
    (dict(min_clients=0), "min_clients = 0"),
    (dict(max_clients=99), "max_clients = 99"),
    (dict(sensitivity="l1"), "sensitivity = 'l1'"),
    (dict(failure_probability=0.0), "failure_probability = 0.0"),
    (dict(failure_probability=1.0), "failure_probability = 1.0"),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    _build(**{**dict(noise_multiplier=2.0), **arguments})


def test_discreteness_slack():
  for stddev, num_clients in ((0.3, 2), (0.5, 7), (1.0, 100)):
    direct = 0.0
    for k in range(1, num_clients):
      direct += 10 * math.exp(-2 * math.pi**2 * stddev**2 * k / (k + 1))
    assert tree_mechanism.discreteness_slack(stddev, num_clients) == pytest.approx(direct)
  assert tree_mechanism.discreteness_slack(0.2, 1) == 0.0  # One share is exact.
  assert 0.0 < tree_mechanism.discreteness_slack(1.5, 10**5) < 1e-8
  assert tree_mechanism.discreteness_slack(0.3, 100) > 1.0


def test_tensorflow_is_not_imported():
  code = "import sys, privacy.tree_mechanism; print(sorted(sys.modules))"
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
  )
  assert "'privacy.tree_mechanism'" in done.stdout and "'tensorflow" not in done.stdout
