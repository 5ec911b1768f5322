"""Draws integer noise with the law of the discrete Gaussian, in a TensorFlow graph."""

from collections.abc import Sequence
import math

import numpy as np
import tensorflow as tf

from tff_superquantile import noise_source

# Beyond this many standard deviations lies less than 1e-31 of the mass.
_HALF_WIDTH = 12.0
# Noise is drawn from a table with 24 numbers for each unit of stddev, here 400 MB.
_MAX_STDDEV = 2.0**21
# All probabilities are multiples of 2^-62.
_MASS_BITS = 62
# With more values blocks of them are drawn, whose table stays in the cache.
_MOST_VALUES = 2**12
# Bits of a word that choose a block.
_BLOCK_BITS = 16
# An alias table of more cells, here 4 MB, is no quicker than a search.
_MOST_CELLS = 2**17


def check_stddev(stddev: float) -> float:
  """Returns a standard deviation if it is positive and its table does not fill the memory.

  Args:
    stddev: That of discrete noise, in integers.

  Returns:
    The same number.

  Raises:
    ValueError: If it is not positive, or too large.
  """
  if not 0.0 < stddev <= _MAX_STDDEV:
    raise ValueError(
      f"Found stddev = {stddev} of discrete noise; expected a positive number of at most"
      f" {_MAX_STDDEV:g}: take a smaller noise multiplier."
    )
  return stddev


def support(stddev: float) -> int:
  """Returns the largest absolute value of `sample`.

  Args:
    stddev: A number, in integers.

  Returns:
    An integer.
  """
  return math.ceil(_HALF_WIDTH * stddev)


def probabilities(stddev: float) -> np.ndarray:
  """Returns N_Z(0, stddev^2): P(x) proportional to exp(-x^2 / (2 stddev^2)) for integer x.

  Args:
    stddev: The square root of the variance proxy, not necessarily an integer. (For small sigma the
      variance is less than sigma^2: 0.215 for sigma^2 = 1/4.)

  Returns:
    The probabilities of -k..k with k = `support(stddev)`, float64 [2 k + 1].

  Raises:
    ValueError: If `stddev` is refused by `check_stddev`.
  """
  check_stddev(stddev)
  values = np.arange(-support(stddev), support(stddev) + 1)
  unnormalised = np.exp(-0.5 * (values / stddev) ** 2)
  return unnormalised / unnormalised.sum()


def _masses(law: np.ndarray) -> np.ndarray:
  """Returns probabilities as integers with the sum 2^62; what rounding leaves is the largest's."""
  masses = np.rint(np.ldexp(law, _MASS_BITS)).astype(np.int64)
  masses[np.argmax(law)] += 2**_MASS_BITS - masses.sum()
  return masses


def _alias(masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Builds Walker's table of integer masses with the sum 2^62, int64 [n]: exactly, in integers.

  Its cells, a power of two, have one size and two values at most. Returns how much of each cell is
  the value of the same position, and the position of the other value. Values of less mass than a
  cell leave room in theirs, and those of more fill it, in their order; who gives more than it has
  in excess is itself filled up by the next.
  """
  bits = (masses.size - 1).bit_length()
  size = 2 ** (_MASS_BITS - bits)
  excess = np.append(masses, np.zeros(2**bits - masses.size, np.int64)) - size
  (small,), (large,) = np.nonzero(excess < 0), np.nonzero(excess >= 0)
  rooms, surplus = np.append(0, np.cumsum(-excess[small])), np.cumsum(excess[large])
  own, other = size + np.minimum(excess, 0), np.arange(2**bits)
  other[small] = large[np.searchsorted(surplus, rooms[:-1], side="right")]
  # A room that is begun is filled by one value alone.
  own[large] -= rooms[np.searchsorted(rooms, surplus)] - surplus
  other[large[:-1]] = large[1:]
  return own, other


def _words(size: tf.Tensor, seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Draws integers of which all bits are random."""
  return tf.raw_ops.StatelessRandomUniformFullInt(shape=[size], seed=seed, dtype=dtype)


def _choose(values: np.ndarray, masses: np.ndarray, size: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws from int64 [n] by integer masses with the sum 2^62: each by 62 bits of a word.

  More than `_MOST_CELLS` values are to be consecutive, so that the graph need not hold them.
  """
  words = _words(size, seed, tf.int64)
  if masses.size > _MOST_CELLS:
    numbers = tf.bitwise.bitwise_and(words, np.int64(2**_MASS_BITS - 1))
    places = tf.searchsorted(np.cumsum(masses), numbers, side="right", out_type=tf.int64)
    return places + values[0]
  own, other = _alias(masses)
  bits = (own.size - 1).bit_length()
  cell_size, cells = 2 ** (_MASS_BITS - bits), np.arange(2**bits)
  # The last bits choose a cell. The first ones are a number in [-cell_size / 2, cell_size / 2);
  # the shift makes it 2 cell for the cell's own value, and from there on 2 cell + 1.
  shifts = (2 * cells + 1) * cell_size + cell_size // 2 - own
  numbers = tf.bitwise.right_shift(words, np.int64(64 - _MASS_BITS + bits))
  numbers += tf.gather(shifts, tf.bitwise.bitwise_and(words, np.int64(2**bits - 1)))
  both = np.stack([np.resize(values, 2**bits), np.resize(values, 2**bits)[other]], axis=1)
  return tf.gather(both.ravel(), tf.bitwise.right_shift(numbers, np.int64(_MASS_BITS - bits)))


def _choose_by_blocks(
  smallest: int, masses: np.ndarray, size: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
  """Draws from smallest, smallest + 1, ... by many integer masses as `_choose`: most by 32 bits.

  A word's last bits choose one of 2^16 cells. Most cells are of a block of 2^k neighbours, as many
  as the least of these allows, and k other bits choose one of them. The other cells have the masses
  that are left, for which there is another word.
  """
  bits = (masses.size // 1024).bit_length() - 1
  width = 2**bits
  blocks = np.append(masses, np.zeros(-masses.size % width, np.int64)).reshape([-1, width])
  cell_bits = _MASS_BITS - _BLOCK_BITS
  counts = (blocks.min(axis=1) << bits) >> cell_bits
  left = (blocks - (counts << cell_bits >> bits)[:, np.newaxis]).ravel()
  middles = np.repeat(np.arange(counts.size) * width + width // 2 + smallest, counts)
  middles = np.resize(middles, 2**_BLOCK_BITS).astype(np.int32)
  words = _words(size, seed, tf.int32)
  cells = tf.bitwise.bitwise_and(words, 2**_BLOCK_BITS - 1)
  drawn = tf.gather(middles, cells) + tf.bitwise.right_shift(words, 32 - bits)
  others = tf.where(cells >= counts.sum())
  more = noise_source.for_purpose(seed, "what blocks leave")
  values = smallest + np.arange(left.size)
  rest = tf.cast(_choose(values, _masses(left / left.sum()), tf.size(others), more), tf.int32)
  return tf.cast(tf.tensor_scatter_nd_update(drawn, others, rest), tf.int64)


def _draw(stddev: float, size: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws noise, int64 [size], by the table that suits its deviation."""
  law, smallest = probabilities(stddev), -support(stddev)
  if law.size > _MOST_VALUES:
    return _choose_by_blocks(smallest, _masses(law), size, seed)
  values = np.arange(smallest, -smallest + 1)
  if law.size**2 <= _MOST_VALUES:  # Two numbers a word.
    pairs = np.stack(np.meshgrid(values, values), axis=-1).astype(np.int32).view(np.int64).ravel()
    drawn = _choose(pairs, _masses(np.outer(law, law).ravel()), (size + 1) // 2, seed)
    return tf.cast(tf.reshape(tf.bitcast(drawn, tf.int32), [-1])[:size], tf.int64)
  return _choose(values, _masses(law), size, seed)


def _draw_and_reject(stddev: tf.Tensor, size: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws noise, int64 [size], without a table: discrete Laplace noise, of which some stays.

  A difference of two geometric numbers is x with a probability proportional to exp(-|x| / stddev),
  and stays with exp(-(|x| / stddev - 1)^2 / 2). For stddev >= 2, as in `complete`, three in four
  stay, and fewer than are needed, which is an error, with a probability of less than 1e-20.
  """
  uniform = tf.random.stateless_uniform([3, 2 * size + 100], seed, dtype=tf.float64)
  scale = tf.maximum(stddev, 1e-9)  # Without noise zero is the only value, and stays.
  geometric = tf.floor(-scale * tf.math.log(1.0 - uniform[:2]))
  laplace = geometric[0] - geometric[1]
  stays = uniform[2] < tf.exp(-0.5 * ((tf.abs(laplace) - stddev) / scale) ** 2)
  return tf.cast(tf.boolean_mask(laplace, stays)[:size], tf.int64)


def sample(
  shape: Sequence[int] | tf.Tensor, stddev: float | tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
  """Draws independent discrete Gaussian noise, a function of the seed.

  Each probability is off by less than 1e-15. Of a number it is that of `probabilities`, rounded to
  a multiple of 2^-62 (or that of a pair is) and drawn exactly, as random bits choose among
  integers. Of a tensor it is that of `_draw_and_reject` in float64. This simulates the mechanism of
  Canonne, Kamath and Steinke (2020), whose exact sampler needs rational arithmetic. A deployment
  that must withstand an adversary who exploits floating point replaces this function by theirs.

  Args:
    shape: Of the result.
    stddev: A number, see `probabilities`, for noise in [-support(stddev), support(stddev)]; or a
      tensor, float64 [], not negative, 0 for no noise.
    seed: int64 [2].

  Returns:
    The noise, int64 of the shape.

  Raises:
    ValueError: If a number is refused by `check_stddev`.
  """
  size = tf.reduce_prod(shape) if tf.is_tensor(shape) else math.prod(shape)
  draw = _draw_and_reject if tf.is_tensor(stddev) else _draw
  return tf.reshape(draw(stddev, size, seed), shape)
