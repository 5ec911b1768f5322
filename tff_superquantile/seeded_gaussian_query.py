"""The Gaussian mechanism of tensorflow_privacy with noise that a seed determines."""

import collections
from typing import Any

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp


class SeededGaussianSumQuery(tfp.GaussianSumQuery):
  """`tfp.GaussianSumQuery` whose noise is a function of a seed and the number of the query.

  So that a run can be repeated, and a resumed one continues with the noise it would have had. Who
  knows the seed can subtract the noise: it must not leave the server that adds it.
  """

  _GlobalState = collections.namedtuple(
    "_GlobalState", ["l2_norm_clip", "stddev", "seed", "num_queries"]
  )

  def __init__(self, l2_norm_clip: float, stddev: float, seed: int):
    """Initializes the query.

    Args:
      l2_norm_clip: The norm to which records are clipped.
      stddev: Standard deviation of the noise on the sum.
      seed: Of the noise, in 0..2^63 - 1.
    """
    super().__init__(l2_norm_clip, stddev)
    self._seed = seed

  def make_global_state(self, l2_norm_clip: float, stddev: float) -> Any:
    return self._GlobalState(
      tf.cast(l2_norm_clip, tf.float32),
      tf.cast(stddev, tf.float32),
      tf.constant(self._seed, tf.int64),
      tf.constant(0, tf.int64),
    )

  def get_noised_result(self, sample_state: Any, global_state: Any) -> tuple[Any, Any, Any]:
    seed = tf.stack([global_state.seed, global_state.num_queries])
    noised = []
    for index, value in enumerate(tf.nest.flatten(sample_state)):
      own_seed = tf.random.experimental.stateless_fold_in(seed, index)
      noise = tf.random.stateless_normal(tf.shape(value), own_seed)
      noised.append(value + tf.cast(global_state.stddev * noise, value.dtype))
    new_state = global_state._replace(num_queries=global_state.num_queries + 1)
    event = dp_accounting.GaussianDpEvent(global_state.stddev / global_state.l2_norm_clip)
    return tf.nest.pack_sequence_as(sample_state, noised), new_state, event
