"""Weighted isotonic regression in a TensorFlow graph."""

import tensorflow as tf


def isotonic_regression(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """The non-decreasing sequence that is nearest to `values` in weighted least squares.

  Pools adjacent violators: neighbouring blocks that are out of order have equal values in the
  solution, so they are merged into their weighted mean until none are left. Here a pass merges all
  of them at once, in time linear in n; noise needs a few passes.

  Args:
    values: float64 [..., n].
    weights: float64, broadcastable to `values`, positive.

  Returns:
    float64 [..., n], the argmin over non-decreasing x of sum_i weights_i (x_i - values_i)^2.
  """
  shape = tf.shape(values)
  weights = tf.reshape(tf.broadcast_to(weights, shape), [-1])
  weighted = tf.reshape(values, [-1]) * weights
  # All sequences lie end to end; no block crosses the start of one.
  starts_sequence = tf.equal(tf.range(tf.size(values)) % shape[-1], 0)

  def pool(starts_block, changed):
    del changed
    block = tf.cumsum(tf.cast(starts_block, tf.int32)) - 1
    num_blocks = block[-1] + 1
    block_weights = tf.math.unsorted_segment_sum(weights, block, num_blocks)
    means = tf.math.unsorted_segment_sum(weighted, block, num_blocks) / block_weights
    means = tf.gather(means, block)
    previous = tf.concat([means[:1], means[:-1]], axis=0)
    # Within a block neighbours are equal, so only the first of a block can be in order.
    in_order = tf.logical_and(starts_block, means > previous)
    starts_next = tf.logical_or(starts_sequence, in_order)
    return starts_next, tf.reduce_any(tf.not_equal(starts_next, starts_block)), means

  def step(starts_block, changed, means):
    del means
    return pool(starts_block, changed)

  everywhere = tf.fill(tf.shape(weights), True)
  *_, means = tf.while_loop(
    lambda starts_block, changed, means: changed,
    step,
    (everywhere, tf.constant(True), tf.zeros_like(weighted)),
  )
  return tf.reshape(means, shape)
