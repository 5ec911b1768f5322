"""The Gaussian mechanism of distance mu, exactly, from the two tails of its law."""

import numpy as np
from scipy import optimize
from scipy import special


def delta(epsilon, mu):
  """The least delta of an epsilon: Balle and Wang (2018), theorem 8."""
  return special.ndtr(mu / 2 - epsilon / mu) - np.exp(
    epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
  )


def epsilon(mu, of_delta):
  """The least epsilon of a delta."""
  if mu <= 0 or delta(0.0, mu) <= of_delta:
    return 0.0
  most = 50 + mu * mu + 20 * mu
  return optimize.brentq(lambda e: delta(e, mu) - of_delta, 0.0, most, xtol=1e-12)
