"""The parameters of the private histogram against their formulas, and what is refused."""

import math

import hypothesis
from hypothesis import strategies as st
import pytest

from privacy.noise import tree_mechanism

_build = tree_mechanism.build_tree_mechanism


def test_golden_mechanism():
  mechanism = _build(2.0, 64, 100)
  assert mechanism.scale == 5
  # sqrt((2^2 5^2 6 + 2) / 100)
  assert mechanism.local_stddev == pytest.approx(2.45357, abs=1e-5)
  assert (mechanism.modulus, mechanism.offset) == (807, 153)
  assert (mechanism.num_levels, mechanism.num_entries) == (6, 126)
  assert (mechanism.bits_per_entry, mechanism.bits_per_client) == (10, 1260)
  assert mechanism.sensitivity == "l2"
  # s / c = z sqrt(L), and a little for being discrete.
  assert mechanism.count_stddev == pytest.approx(math.sqrt(4 * 6 + 2 / 25))
  for number in ("64 bins", "times 5", "modulo 807", "126 numbers of 10 bits", "1260 bits"):
    assert number in mechanism.describe()


# Deterministic: the runs with a rounding of their own are below.
@hypothesis.settings(derandomize=True)
@hypothesis.given(st.floats(1e-3, 1e3), st.integers(1, 12), st.integers(1, 10**5), st.floats(1, 2))
def test_formulas(z, num_levels, expected, room):
  num_shares = int(room * expected)
  m = _build(z, 2**num_levels, expected, num_shares=num_shares)
  assert m.local_stddev >= 2
  # Two units of variance on each integer are not counted as noise.
  variance = m.local_stddev**2 * num_shares - 2
  assert math.sqrt(variance) / (m.scale * math.sqrt(num_levels)) == pytest.approx(z)
  # No smaller scale would do.
  smaller = ((m.scale - 1) * z) ** 2 * num_levels
  assert m.scale == 1 or math.sqrt((smaller + 2) / num_shares) < 2 * (1 + 1e-12)
  # Nothing wraps: 0..c K is widened by t on both sides, t the least of a union bound.
  t, variance = m.offset, m.local_stddev**2 * num_shares
  assert m.modulus == m.scale * num_shares + 2 * t + 1
  log_failure = math.log(2 * m.num_entries) - t**2 / (2 * variance)
  assert log_failure <= math.log(1e-6) + 1e-9
  assert math.log(2 * m.num_entries) - (t - 1) ** 2 / (2 * variance) > math.log(1e-6) - 1e-9
  assert m.num_entries == sum(2**level for level in range(1, num_levels + 1))
  assert 2 ** (m.bits_per_entry - 1) < m.modulus <= 2**m.bits_per_entry


@pytest.mark.parametrize(
  "z,num_bins,clients", [(0.5, 64, 54), (0.5, 8, 27), (0.75, 32, 245), (3.0, 64, 216)]
)
def test_the_default_scale_is_large_enough_despite_rounding(z, num_bins, clients):
  assert _build(z, num_bins, clients).local_stddev >= 2


def test_noise_whose_sums_do_not_fit_is_refused():
  with pytest.raises(ValueError, match=r"1e-09 needs sums modulo .* at most 2\^53"):
    _build(1e-9, expected_clients=10**6)
