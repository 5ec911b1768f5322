"""Draws integer noise with the law of the discrete Gaussian, in a TensorFlow graph."""

from collections.abc import Sequence
import math
from typing import Union

import numpy as np
import tensorflow as tf

# Beyond this many standard deviations lies less than 1e-31 of the mass.
_HALF_WIDTH = 12.0
# Noise is drawn from a table with 24 numbers for each unit of stddev, here 400 MB.
_MAX_STDDEV = 2.0**21


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
  if tf.is_tensor(stddev):
    largest = tf.cast(tf.math.ceil(_HALF_WIDTH * stddev), tf.int64)
    values = tf.cast(tf.range(-largest, largest + 1), tf.float64)
    # Without noise zero is the only value, whatever the divisor.
    unnormalised = tf.exp(-0.5 * (values / tf.maximum(stddev, 1e-9)) ** 2)
    distribution = tf.cumsum(unnormalised / tf.reduce_sum(unnormalised))
  else:
    distribution = tf.constant(np.cumsum(probabilities(stddev)))
    largest = support(stddev)
  uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
  # The last step is left out, so that rounding in the sum leads to no index beyond the table.
  index = tf.searchsorted(
    distribution[:-1], tf.reshape(uniform, [-1]), side="right", out_type=tf.int64
  )
  return tf.reshape(index, tf.shape(uniform)) - largest
