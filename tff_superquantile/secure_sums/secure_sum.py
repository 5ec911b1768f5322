"""Sums integer vectors so that the server sees only the sum and the number of reports."""

import collections
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.secure_sums import discrete_gaussian

# The modulus of the number of reports, which cannot reach it.
_MAX_REPORTS = 2**31 - 1


class ModularSum:
  """Sums values modulo M, which clients reduce, by TFF's secure modular sum.

  It calls the intrinsic of `tff.aggregators.SecureModularSumFactory` directly, because the factory
  takes one modulus for all, and the number of reports could wrap modulo M. A sum that does not wrap
  would show how often the clients' values wrapped, which the noise does not hide.
  """

  def __init__(self, modulus: int, smallest: int, largest: int):
    # The sum is right modulo M, whatever the range.
    self._modulus = np.int64(modulus)
    self._needs_no_division = -modulus <= smallest and largest < modulus

  def at_client(self, values: tf.Tensor) -> tf.Tensor:
    if not self._needs_no_division:
      return tf.math.floormod(values, self._modulus)
    # A division of integers takes three times as long. The bits of the sign are those of -1 or 0.
    signs = tf.bitwise.right_shift(values, tf.constant(63, tf.int64))
    return values + tf.bitwise.bitwise_and(signs, self._modulus)

  def sum(self, reports: tff.Value) -> tff.Value:
    moduli = collections.OrderedDict(values=self._modulus, num_reports=np.int64(_MAX_REPORTS))
    return tff.backends.mapreduce.federated_secure_modular_sum(reports, moduli)


def complete(
  sums: tf.Tensor, num_reports: tf.Tensor, local_stddev: float, num_shares: int, seed: tf.Tensor
) -> tf.Tensor:
  """Adds the shares of noise that a cohort lacks, so that the sum does not show their number.

  Guarantee: see the theorem of `noise.shares`. The sum of the shares of `num_reports` clients and
  of one draw of N_Z(0, (num_shares - num_reports) local_stddev^2) has one law for all numbers of
  reports up to `num_shares`; for more, nothing is added. The sums, int64 [d], are not decoded yet,
  and the seed, int64 [2], is that of the added noise.
  """
  discrete_gaussian.check_stddev(local_stddev * math.sqrt(num_shares))
  missing = tf.cast(tf.maximum(num_shares - num_reports, 0), tf.float64)
  noise = discrete_gaussian.sample(tf.shape(sums), local_stddev * tf.sqrt(missing), seed)
  return sums + noise
