"""Draws integer noise with the law of the discrete Gaussian, in a TensorFlow graph."""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Beyond this many standard deviations lies less than 1e-31 of the mass.
_HALF_WIDTH = 12.0
# Noise is drawn from a table with 24 numbers for each unit of stddev, here 400 MB.
_MAX_STDDEV = 2.0**21
# A uniform number of float64 is a multiple of 2^-52 in [0, 1).
_UNIFORM_BITS = 52
# A guide has at most 106 * 2^14 cells, 14 MB.
_MAX_GUIDE_BITS = 14


def check_stddev(stddev: float) -> float:
  """Returns a standard deviation if it is positive and its table does not fill the memory."""
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

  They are float64 [2 k + 1], of -k..k with k = `support(stddev)`. stddev is the square root of the
  variance proxy, not necessarily an integer. (For small sigma the variance is less than sigma^2:
  0.215 for sigma^2 = 1/4.)
  """
  check_stddev(stddev)
  values = np.arange(-support(stddev), support(stddev) + 1)
  unnormalised = np.exp(-0.5 * (values / stddev) ** 2)
  return unnormalised / unnormalised.sum()


class _Guide(NamedTuple):
  """Finds uniform numbers in a table without a search, by the first bits of their codes.

  Numbers of the same first bits of the code (see `_codes`) are a cell, which has at most one entry
  of the table. The result is a before that entry's code b and a + 1 from it on: the first bits of
  code + shift, with shift = (a + 1) 2^width - b. The width is in bits; shifts are int64 [cells],
  from the cell of the least code on.
  """

  width: int
  first_cell: int
  shifts: np.ndarray


def _codes(uniform: tf.Tensor) -> tf.Tensor:
  """Returns increasing codes of multiples of 2^-52 in [0, 1), int64, fine towards both ends.

  The bits of a float64 are an integer that grows like a logarithm. So equal steps of the code of u
  are equal factors of u where it is small, and of 1 - u where that is. All is exact: w is an odd
  multiple of 2^-53.
  """
  w = uniform + 0.5 ** (_UNIFORM_BITS + 1)
  return tf.bitcast(w, tf.int64) - tf.bitcast(1.0 - w, tf.int64)


def _codes_of_multiples(multiples: np.ndarray) -> np.ndarray:
  """Returns `_codes(multiples / 2^52)`, in numpy: a graph may be under construction."""
  w = np.ldexp(2.0 * multiples + 1.0, -_UNIFORM_BITS - 1)
  return w.view(np.int64) - (1.0 - w).view(np.int64)


def _build_guide(table: np.ndarray, smallest: int) -> _Guide | None:
  """Builds the guide of a table as in `_invert`; None if it would be too large."""
  # With fewer bits, cells about u = 1/2 would be wider than the entries are apart.
  least_bits = (table.size // 64).bit_length()
  if least_bits > _MAX_GUIDE_BITS:
    return None
  # u = m / 2^52 >= entry if and only if m >= bound. The scaling is exact.
  bounds = np.ceil(np.ldexp(table, _UNIFORM_BITS))
  # Every number reaches the entries 0, which very little noise has, and none those beyond 1.
  smallest += int(np.sum(bounds <= 0.0))
  bounds = bounds[(bounds > 0.0) & (bounds < 2.0**_UNIFORM_BITS)]
  codes, codes_before = _codes_of_multiples(bounds), _codes_of_multiples(bounds - 1.0)
  for bits in range(least_bits, _MAX_GUIDE_BITS + 1):
    width = _UNIFORM_BITS - bits
    # No number lies between two codes, so an entry may be moved to where its cell begins.
    entries = np.maximum(codes >> width << width, codes_before + 1)
    first_cell = -((_UNIFORM_BITS + 1) << bits)
    starts = np.arange(first_cell, -first_cell, dtype=np.int64) << width
    ends = starts + 2**width
    a = np.searchsorted(entries, starts, side="right")
    if np.all(np.searchsorted(entries, ends, side="left") - a <= 1):
      b = np.minimum(np.append(entries, ends[-1])[a], ends)
      return _Guide(width, first_cell, ((smallest + a + 1) << width) - b)
  return None


def _invert(table: np.ndarray, smallest: int, uniform: tf.Tensor) -> tf.Tensor:
  """Returns smallest + the number of the table's entries up to each uniform number, int64 [k].

  The table is float64 [n], non-decreasing and not negative; the uniform numbers are float64 [k],
  multiples of 2^-52 in [0, 1).
  """
  guide = _build_guide(table, smallest)
  if guide is None:
    return tf.searchsorted(table, uniform, side="right", out_type=tf.int64) + smallest
  width = tf.constant(guide.width, tf.int64)
  codes = _codes(uniform)
  cells = tf.bitwise.right_shift(codes, width) - guide.first_cell
  return tf.bitwise.right_shift(codes + tf.gather(guide.shifts, cells), width)


def sample(
  shape: Sequence[int] | tf.Tensor, stddev: float | tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
  """Draws independent discrete Gaussian noise, int64 of a shape, a function of the seed [2].

  It inverts the distribution function by a table in float64. Each probability is off by less than
  1e-15 and values rarer than 2^-53 do not occur. This simulates the mechanism of Canonne, Kamath
  and Steinke (2020), whose exact sampler needs rational arithmetic. A deployment that must
  withstand an adversary who exploits floating point replaces this function by their sampler.

  stddev is a number, see `probabilities`; or a tensor, float64 [], not negative, 0 for no noise.
  The noise is in [-support(stddev), support(stddev)].
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
