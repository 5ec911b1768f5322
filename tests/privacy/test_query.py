"""The cost of several releases over the same clients."""

import math

import flat
import pytest

from privacy import accounting
from privacy.evaluation import query as query_lib

_QUERY = query_lib.Query(500, 1.0, 1e-5)


def test_several_releases_compose_as_rounds_without_sampling():
  for number in (1, 2, 5):
    found = query_lib.composed_epsilon([_QUERY] * number, 1e-5)
    expected = accounting.epsilon(_QUERY.release, number, 1e-5, "pld").epsilon
    assert found == pytest.approx(expected, rel=1e-2)
    assert 0.99 * math.sqrt(number) < found < number + 1e-2


def test_other_noise_composes_by_the_sum_of_inverse_variances():
  z = flat.of(_QUERY.release).threshold_noise_multiplier
  less = query_lib.Query(500, 2.0, 1e-5, num_bins=16)
  together = 1 / math.hypot(1 / z, 1 / flat.of(less.release).threshold_noise_multiplier)
  release = flat.changed(_QUERY.release, threshold_noise_multiplier=together, tree=None)
  expected = accounting.epsilon(release, 1, 1e-5, "pld").epsilon
  found = query_lib.composed_epsilon([_QUERY, less], 1e-5)
  assert found == pytest.approx(expected, rel=1e-6)
  assert 2.0 < found < 3.0
