"""Renyi divergences at orders that are not whole, against quadrature."""

from helpers import flat
import numpy as np
import pytest
from scipy import special

from privacy import accounting
from privacy import events

_ORDERS = np.array([1.1, 1.4, 1.9, 2.3, 3.7, 10.9])


def _quadrature(q, z, orders):
  """D_alpha by the trapezoidal rule, which converges exponentially for such functions."""
  x, step = np.linspace(-12.0 * z, orders.max() + 12.0 * z, 40_001, retstep=True)
  ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2.0 * x - 1.0) / (2.0 * z * z))
  density = -x * x / (2.0 * z * z) - np.log(z * np.sqrt(2.0 * np.pi)) + np.log(step)
  return special.logsumexp(orders[:, np.newaxis] * ratio + density, axis=1) / (orders - 1.0)


@pytest.mark.parametrize("z", [0.1, 0.5, 0.976, 2.0, 50.0])
@pytest.mark.parametrize("q", [1e-6, 0.04, 0.5, 0.999, 1.0 - 1e-15])
def test_is_the_integral_from_above(q, z):
  found = (_ORDERS - 1.0) * events.poisson_sampled(q, z, _ORDERS)
  exact = (_ORDERS - 1.0) * _quadrature(q, z, _ORDERS)
  assert (found >= exact - 1e-14 * (1.0 + exact)).all()
  assert (found <= exact + 1e-9 * (1.0 + exact)).all()


@pytest.mark.parametrize("z", [0.3, 0.9, 3.0])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.5])
def test_fits_between_the_whole_orders(q, z):
  # (alpha - 1) D_alpha is convex in alpha. The whole orders are dp_accounting's.
  orders, curve = events.round_curve(flat.release(1000, 1000 * q, None, z))
  steps = np.diff((orders - 1.0) * curve) / np.diff(orders)
  assert (np.diff(steps) >= -1e-8 * (1.0 + steps[1:])).all()


@pytest.mark.parametrize("sampling", flat.SAMPLED)
@pytest.mark.parametrize("clients", [1, 50, 99, 100])
def test_every_order_has_an_answer_and_nothing_is_logged(sampling, clients, caplog, recwarn):
  for z in (0.15, 0.5, 5.0, 1e3):
    release = flat.release(100, clients, None, z, sampling)
    orders, curve = events.round_curve(release)
    assert np.isfinite(curve).all() and (curve > 0.0).all() and (orders > 1.0).all()
    accounting.epsilon(release, 100, 1e-3, accounting.RDP)
  assert not caplog.records and not recwarn.list
