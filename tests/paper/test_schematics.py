"""The drawn polytope and superquantile are those of the formulas."""

import numpy as np
import pytest

from paper.statements import schematics
from tff_superquantile import superquantile


def test_the_drawn_polytope_has_the_corners_that_attain_every_maximum():
  rng = np.random.default_rng(0)
  for theta in (0.2, 0.4, 0.5, 0.8):
    corners = schematics.corners(theta)
    assert np.allclose(corners.sum(axis=1), 1) and corners.max() <= 1 / (3 * theta) + 1e-9
    for losses in rng.normal(size=(50, 3)):
      assert (corners @ losses).max() == pytest.approx(superquantile.superquantile(losses, theta))


def test_the_drawn_superquantile_is_the_mean_of_the_tail():
  draws = np.random.default_rng(0).gamma(3.0, size=200_000)
  quantile, mean = schematics.tail_mean(0.2)
  assert quantile == pytest.approx(np.quantile(draws, 0.8), rel=0.01)
  assert mean == pytest.approx(superquantile.superquantile(draws, 0.2), rel=0.01)
