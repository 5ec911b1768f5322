"""Draws integer noise with the law of the discrete Gaussian, in a TensorFlow graph."""

from collections.abc import Sequence
import math
from typing import NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

# Beyond this many standard deviations lies less than 1e-31 of the mass.
_HALF_WIDTH = 12.0
# Noise is drawn from a table with 24 numbers for each unit of stddev, here 400 MB.
_MAX_STDDEV = 2.0**21
# A uniform number of float64 is a multiple of 2^-52 in [0, 1).
_UNIFORM_BITS = 52
# The guide of a table has 2 to 4 cells an entry, and at least 2^10, 8 kB. That of a table with more
# than 2^19 entries would not fit a processor's cache.
_MIN_GUIDE_BITS = 10
_MAX_GUIDE_BITS = 20


def check_stddev(stddev: float) -> float:
  """Returns a standard deviation as it is if noise of it can be drawn.

  Raises:
    ValueError: If stddev is not positive, or so large that the table would fill the memory.
  """
  if not 0.0 < stddev <= _MAX_STDDEV:
    raise ValueError(
      f"Found stddev = {stddev} of discrete noise; expected a positive number of at most"
      f" {_MAX_STDDEV:g}: take a smaller noise multiplier."
    )
  return stddev


def support(stddev: float) -> int:
  """Returns the largest absolute value of `sample`."""
  return math.ceil(_HALF_WIDTH * stddev)


def probabilities(stddev: float) -> np.ndarray:
  """Returns N_Z(0, stddev^2): P(x) proportional to exp(-x^2 / (2 stddev^2)) for integer x.

  Args:
    stddev: sigma, the square root of the variance proxy, not necessarily an integer. (For small
      sigma the variance is less than sigma^2: 0.215 for sigma^2 = 1/4.)

  Returns:
    float64 [2 k + 1], the probabilities of -k..k with k = `support(stddev)`.

  Raises:
    ValueError: See `check_stddev`.
  """
  check_stddev(stddev)
  values = np.arange(-support(stddev), support(stddev) + 1)
  unnormalised = np.exp(-0.5 * (values / stddev) ** 2)
  return unnormalised / unnormalised.sum()


class _Guide(NamedTuple):
  """Finds most uniform numbers in a table without a search, by their first bits.

  The numbers u = m / 2^52 with the same first bits are a cell. In most cells is at most one entry
  of the table, b / 2^52 rounded up, so that the result is a or, from m = b on, a + 1. Both are the
  upper bits of m + shift of the cell, with shift = (a + 1) 2^width - b.

  Attributes:
    width: The number of bits of m that are not the cell's.
    shifts: int64 [2^(52 - width)], one a cell; where a cell has more entries the result is below
      every value of the noise.
  """

  width: int
  shifts: np.ndarray


def _build_guide(table: np.ndarray, smallest: int) -> Optional[_Guide]:
  """Builds the guide of a table.

  Args:
    table: float64 [n], non-decreasing.
    smallest: What a number below all entries results in; each entry up to the number adds one.

  Returns:
    The guide; None for tables too large for one.
  """
  bits = max((2 * table.size - 1).bit_length(), _MIN_GUIDE_BITS)
  if bits > _MAX_GUIDE_BITS:
    return None
  width = _UNIFORM_BITS - bits
  # u >= entry if and only if m >= bound. The scaling is exact.
  bounds = np.ceil(np.ldexp(table, _UNIFORM_BITS)).astype(np.int64)
  starts = np.arange(2**bits, dtype=np.int64) << width
  first = np.searchsorted(bounds, starts, side="right")
  last = np.searchsorted(bounds, starts + (2**width - 1), side="right")
  ends = starts + 2**width
  bound = np.minimum(np.append(bounds, ends[-1])[first], ends)
  shifts = ((smallest + first + 1) << width) - bound
  return _Guide(width, np.where(last - first <= 1, shifts, -(2**62)))


def _invert(table: np.ndarray, smallest: int, uniform: tf.Tensor) -> tf.Tensor:
  """Returns smallest + the number of the table's entries up to each uniform number.

  Args:
    table: float64 [n], non-decreasing.
    smallest: The result below all of the table; negative.
    uniform: float64 [k], multiples of 2^-52 in [0, 1).

  Returns:
    int64 [k].
  """

  def search(numbers: tf.Tensor) -> tf.Tensor:
    return tf.searchsorted(table, numbers, side="right", out_type=tf.int64) + smallest

  guide = _build_guide(table, smallest)
  if guide is None:
    return search(uniform)
  width = tf.constant(guide.width, tf.int64)
  multiples = tf.cast(uniform * 2.0**_UNIFORM_BITS, tf.int64)
  shifts = tf.gather(guide.shifts, tf.bitwise.right_shift(multiples, width))
  found = tf.bitwise.right_shift(multiples + shifts, width)
  missing = tf.where(found < smallest)
  return tf.tensor_scatter_nd_update(found, missing, search(tf.gather_nd(uniform, missing)))


def sample(
  shape: Union[Sequence[int], tf.Tensor], stddev: Union[float, tf.Tensor], seed: tf.Tensor
) -> tf.Tensor:
  """Draws independent discrete Gaussian noise, a function of the seed.

  It inverts the distribution function by a table in float64. Each probability is off by less than
  1e-15 and values rarer than 2^-53 do not occur. This simulates the mechanism of Canonne, Kamath
  and Steinke (2020), whose exact sampler needs rational arithmetic. A deployment that must
  withstand an adversary who exploits floating point replaces this function by their sampler.

  Args:
    shape: The shape of the noise.
    stddev: sigma, see `probabilities`; or a tensor, float64 [], not negative, 0 for no noise.
    seed: An integer tensor [2].

  Returns:
    int64 of that shape, in [-support(stddev), support(stddev)].

  Raises:
    ValueError: If stddev is a number that `check_stddev` refuses.
  """
  uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
  numbers = tf.reshape(uniform, [-1])
  # The last step of the distribution is left out, so that rounding in the sum leads to no index
  # beyond the table.
  if tf.is_tensor(stddev):
    largest = tf.cast(tf.math.ceil(_HALF_WIDTH * stddev), tf.int64)
    values = tf.cast(tf.range(-largest, largest + 1), tf.float64)
    # Without noise zero is the only value, whatever the divisor.
    unnormalised = tf.exp(-0.5 * (values / tf.maximum(stddev, 1e-9)) ** 2)
    distribution = tf.cumsum(unnormalised / tf.reduce_sum(unnormalised))
    index = tf.searchsorted(distribution[:-1], numbers, side="right", out_type=tf.int64)
    noise = index - largest
  else:
    noise = _invert(np.cumsum(probabilities(stddev))[:-1], -support(stddev), numbers)
  return tf.reshape(noise, tf.shape(uniform))
