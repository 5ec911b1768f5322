"""The parameters of the distributed sum of updates: its noise, its modulus, what it refuses."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from privacy.noise import shares
from privacy.noise import sum_mechanism


@st.composite
def _mechanisms(draw):
  arguments = dict(
    noise_multiplier=draw(st.floats(0.01, 1e3)),
    clip_norm=draw(st.floats(1e-6, 1e6)),
    num_entries=draw(st.one_of(st.integers(1, 50), st.integers(1, 10**7))),
    num_shares=draw(st.integers(1, 6000)),
  )
  return arguments, sum_mechanism.build_sum_mechanism(**arguments)


@given(_mechanisms())
def test_formulas(pair):
  _, m = pair
  sensitivity = m.scale * m.clip_norm + math.sqrt(m.num_entries) / 2
  assert m.sensitivity == pytest.approx(sensitivity)
  # Two units of variance on each integer are not counted as noise.
  z = math.sqrt(m.local_stddev**2 * m.num_shares - 2) / sensitivity
  assert z == pytest.approx(m.noise_multiplier, rel=1e-12)
  assert m.local_stddev >= shares.MIN_STDDEV == 2
  # What the sum's being discrete costs is nothing beside the mechanism, in all coordinates.
  assert shares.slack(m.local_stddev, m.num_shares) * m.num_entries < 1e-8
  # Rounding costs a hundredth at most.
  assert math.sqrt(m.num_entries) / 2 <= 0.01 * (1 + 1e-12) * m.scale * m.clip_norm
  bits = m.bits_per_client / m.num_entries
  assert bits == math.ceil(math.log2(m.modulus)) and 2**bits >= m.modulus


@given(_mechanisms())
def test_nothing_wraps_but_with_a_small_chance(pair):
  _, m = pair
  assert m.modulus % 2 == 1
  half = m.modulus // 2  # Sums are decoded into -half..half.
  # All clients at the clip norm in one and the same coordinate, rounded.
  signal = m.num_shares * math.floor(m.scale * m.clip_norm + 0.5)
  margin = half - signal
  stddev = m.local_stddev * math.sqrt(m.num_shares)
  # Discrete Gaussians are sub-Gaussian.
  assert 2 * m.num_entries * math.exp(-0.5 * (margin / stddev) ** 2) <= 1e-6 * (1 + 1e-9)
  # And the modulus is no larger than that takes, up to rounding up.
  t = stddev * math.sqrt(2 * math.log(2 * m.num_entries / 1e-6))
  assert m.modulus <= 2 * (m.num_shares * (m.scale * m.clip_norm + 1.5) + t + 1) + 1


@given(_mechanisms(), st.floats(1e-3, 1e3))
def test_units_do_not_matter(pair, factor):
  arguments, m = pair
  scaled = sum_mechanism.build_sum_mechanism(
    **{**arguments, "clip_norm": factor * arguments["clip_norm"]}
  )
  assert scaled.local_stddev == m.local_stddev and scaled.modulus == m.modulus
  assert scaled.scale * factor == pytest.approx(m.scale, rel=1e-12)


def test_by_hand():
  m = sum_mechanism.build_sum_mechanism(1.0, 2.0, 100, 25)
  # 50 sqrt(100) steps in C; rounding adds 5; sqrt((500 + 5)^2 + 2) / sqrt(25).
  assert m.scale == 250.0 and m.local_stddev == pytest.approx(math.sqrt(505**2 + 2) / 5)
  t = math.ceil(math.sqrt(505**2 + 2) * math.sqrt(2 * math.log(200 / 1e-6)))
  assert m.modulus == 2 * (25 * 501 + t) + 1
  assert stats.norm.sf(t / 505) * 200 < 1e-6
  # Little noise: as many steps as it takes for 2 at a client.
  m = sum_mechanism.build_sum_mechanism(1e-3, 2.0, 100, 25)
  assert m.scale == pytest.approx(math.sqrt(4 * 25 - 2) / 1e-3 / 2) and m.local_stddev >= 2


_ARGUMENTS = dict(noise_multiplier=1.0, clip_norm=1.0, num_entries=10, num_shares=9)


@pytest.mark.parametrize(
  "changes",
  [
    dict(noise_multiplier=1e-9, num_shares=10**6),
    dict(noise_multiplier=1e9, num_entries=10**12),
  ],
)
def test_noise_whose_sums_do_not_fit_is_refused(changes):
  with pytest.raises(ValueError, match=r"needs sums modulo .* at most 2\^53"):
    sum_mechanism.build_sum_mechanism(**{**_ARGUMENTS, **changes})


def test_other_kinds_of_numbers_are_converted():
  m = sum_mechanism.build_sum_mechanism(np.float32(1.5), 2, np.int64(10), np.int64(9))
  assert [type(value) for value in dataclasses.astuple(m)] == [
    *(float, float, int, int, float, float, int),
  ]
