"""Adds Gaussian noise with full tails to sums, from a secret key, as tensorflow_privacy does."""

import collections
from typing import Any, Optional

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_superquantile import noise_source

_NUM_DRAWS = 4


def standard_normal(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws standard normal variables, float64, a function of a seed, int64 [2].

  TensorFlow's normal variables end at 5.68, as their Box-Muller transform takes uniform variables
  of 1e-7 and more. A sum beyond that end would prove that a client added to it, with a probability
  above the usual deltas. Half the sum of four variables ends at 11.35, and `privacy.accounting`
  charges the mass beyond to delta. Holohan and Braghin (2021) advise the same against attacks on
  the lowest bits. Up to five standard deviations the density is normal to within a thousandth.
  """
  shape = tf.concat([[_NUM_DRAWS], shape], axis=0)
  draws = tf.random.stateless_normal(shape, seed, dtype=tf.float64)
  return tf.reduce_sum(draws, axis=0) / _NUM_DRAWS**0.5


class SeededGaussianSumQuery(tfp.GaussianSumQuery):
  """Adds noise of full range to a sum, from a secret key or from fresh entropy.

  With a key a run can be repeated, and a resumed run continues with the noise that it would have
  had. The key, or the state, suffices to subtract the noise: neither may leave the server.
  """

  _GlobalState = collections.namedtuple("_GlobalState", ["l2_norm_clip", "stddev", "noise"])

  def __init__(self, l2_norm_clip: float, stddev: float, key: Optional[bytes], purpose: str):
    """Initializes the query.

    Args:
      l2_norm_clip: The norm to which records are clipped.
      stddev: Standard deviation of the noise on the sum, noise multiplier times `l2_norm_clip`.
      key: 16 bytes; None for fresh entropy.
      purpose: Names the use of the noise; queries of one key need different purposes.
    """
    super().__init__(l2_norm_clip, stddev)
    self._source = noise_source.NoiseSource(key, purpose)

  def make_global_state(self, l2_norm_clip: float, stddev: float) -> Any:
    return self._GlobalState(
      tf.cast(l2_norm_clip, tf.float32),
      tf.cast(stddev, tf.float32),
      self._source.initial_state(),
    )

  def get_noised_result(self, sample_state: Any, global_state: Any) -> tuple[Any, Any, Any]:
    values = tf.nest.flatten(sample_state)
    seed, next_noise = self._source.draw(global_state.noise)
    seeds = noise_source.split(seed, len(values))
    stddev = tf.cast(global_state.stddev, tf.float64)
    noised = []
    for value, own_seed in zip(values, seeds):
      noise = stddev * standard_normal(tf.shape(value), own_seed)
      noised.append(tf.cast(tf.cast(value, tf.float64) + noise, value.dtype))
    new_state = global_state._replace(noise=next_noise)
    event = dp_accounting.GaussianDpEvent(global_state.stddev / global_state.l2_norm_clip)
    return tf.nest.pack_sequence_as(sample_state, noised), new_state, event
