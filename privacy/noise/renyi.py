"""Renyi divergences of a Gaussian mechanism on a Poisson sample, at orders that are not whole.

    D_alpha = log(A) / (alpha - 1),    A = E[(1 - q + q e^((2 x - 1) / (2 z^2)))^alpha],

x normal with deviation z (Mironov, Talwar, Zhang 2019, section 3.3). The ratio u of the second
summand to the first is 1 at x_0 = z^2 log((1 - q) / q) + 1/2. Below it, (1 + u)^alpha is a binomial
series in u, and above it one in 1 / u. Beyond alpha the coefficients alternate. But for a factor
their magnitudes are Gamma(i - alpha) / i!, which are moments of a measure on [0, 1] (a beta
integral), as the means of u^i are. So are their products, the magnitudes of the terms: they fall,
and ever more slowly, so that what follows a positive term sums to minus half the next one or less.
The sum up to a positive term, less that half, is an upper bound.

dp_accounting has these orders, too. But where x_0 is within a few z of 0, terms fall as
i^-(alpha + 2) only. Version 0.6.0 adds their magnitudes, stops at 1,000, and with a warning leaves
out the orders, up to 2.3, whose last term is not below e^-30 of the sum. That costs up to 0.5 % of
an epsilon up to 10, 5 % of one up to 30, and 25 % of one up to 100.
"""

import math

import numpy as np
from scipy import special

# Terms beyond the order, an even number. A is at most 1e-9 of itself too large (found: 6e-10).
_TERMS = 300


def poisson_sampled(probability: float, noise_multiplier: float, orders: np.ndarray) -> np.ndarray:
  """Bounds D_alpha of one round from above, float [n], add-or-remove and zero-out, up to rounding.

  `probability` is q in (0, 1), `noise_multiplier` z; the orders alpha > 1, [n], are not whole.
  """
  q, z = probability, noise_multiplier
  alpha, ceiling = orders[:, np.newaxis], np.ceil(orders)[:, np.newaxis]
  i = np.arange(float(ceiling.max()) + _TERMS + 2.0)
  magnitudes = np.cumsum(np.log(np.abs(alpha - i[:-1]) / i[1:]), axis=1)
  binomials = np.concatenate([np.zeros_like(alpha), magnitudes], axis=1)
  signs = np.where((i <= ceiling) | ((i - ceiling) % 2 == 0), 1.0, -1.0)
  signs *= np.select([i <= ceiling + _TERMS, i == ceiling + _TERMS + 1], [1.0, 0.5])
  middle = z * z * (math.log1p(-q) - math.log(q)) + 0.5

  def terms(power: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Returns the logs of the terms' magnitudes: those of e^(power ...), on one side of x_0."""
    sampled = power * math.log(q) + (alpha - power) * math.log1p(-q)
    gaussian = (power * power - power) / (2.0 * z * z)
    logs: np.ndarray = binomials + sampled + gaussian + special.log_ndtr(room)
    return logs

  both = np.stack([terms(i, (middle - i) / z), terms(alpha - i, (alpha - i - middle) / z)])
  sums: np.ndarray = special.logsumexp(both, b=np.stack([signs, signs]), axis=(0, 2))
  return sums / (orders - 1.0)
