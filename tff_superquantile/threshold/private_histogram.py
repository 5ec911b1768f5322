"""Estimates the distribution of the clients' values by a private histogram, as an aggregation."""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy.noise import tree_mechanism
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.secure_sums import noisy_sum
from tff_superquantile.threshold import hierarchical_histogram


def scaled_counts(
  values: tf.Tensor, mechanism: tree_mechanism.TreeMechanism, max_value: float
) -> tf.Tensor:
  """Returns c x_i, int64 [..., d], of values float32 [...]: scaled hierarchical histograms."""
  return mechanism.scale * hierarchical_histogram.encode(values, mechanism.num_bins, max_value)


def noised_counts(
  values: tf.Tensor, seed: tf.Tensor, mechanism: tree_mechanism.TreeMechanism, max_value: float
) -> tf.Tensor:
  """Returns c x_i + xi_i, int64 [..., d], clients' reports before they are reduced modulo M.

  `values` are float32 [...], one of each client; NaN counts nowhere, but has noise like any other.
  `seed`, integers [2], is that of the noise of all clients.
  """
  counts = scaled_counts(values, mechanism, max_value)
  return counts + discrete_gaussian.sample(tf.shape(counts), mechanism.local_stddev, seed)


def node_counts(modular_sums: tf.Tensor, mechanism: tree_mechanism.TreeMechanism) -> tf.Tensor:
  """Returns the noisy counts, float64 [..., d], of sums modulo M, int64 [..., d].

  Sums in -offset..M - offset - 1 are recovered, also negative ones, as noise makes of small counts.
  """
  sums = tf.math.floormod(modular_sums + mechanism.offset, mechanism.modulus) - mechanism.offset
  return tf.cast(sums, tf.float64) / mechanism.scale


def decode(
  modular_sums: tf.Tensor, mechanism: tree_mechanism.TreeMechanism
) -> hierarchical_histogram.Cumulative:
  """Decodes sums modulo M, int64 [..., d], to the estimated distribution of the values."""
  counts = node_counts(modular_sums, mechanism)
  return hierarchical_histogram.decode_least_squares(counts, mechanism.num_bins)


class PrivateHistogramFactory(noisy_sum.NoisySumFactory):
  """Estimates the distribution of the clients' values with distributed differential privacy.

  Guarantee, for `mechanism` (see `privacy.noise.tree_mechanism`): the result post-processes a
  Gaussian mechanism of noise multiplier `mechanism.noise_multiplier`, under zero-out adjacency and
  under addition or removal of a client, whatever the number of reports: the server completes the
  clients' noise to that of `mechanism.num_shares` shares (see `noise.shares`). The server itself
  sees the secure sum, with the noise of the clients that report.

  Values are float32; a value outside [0, max_value] counts as the nearest end, NaN as no value. The
  result is an `OrderedDict` of `below` (float64 [b], see `hierarchical_histogram.Cumulative`),
  `total` (float64) and `is_valid` (bool). If more than `num_shares` clients report, `is_valid` is
  false and the rest is zero.
  """

  _mechanism: tree_mechanism.TreeMechanism

  def __init__(
    self,
    mechanism: tree_mechanism.TreeMechanism,
    max_value: float,
    *,
    noise_key: bytes | None = None,
  ):
    """Initializes a `PrivateHistogramFactory`.

    Args:
      mechanism: Built by `privacy.noise.tree_mechanism.build_tree_mechanism`.
      max_value: The upper end of the values; the lower end is 0.
      noise_key: See `noisy_sum.NoisySumFactory`.
    """
    self._max_value = checks.scale("max_value", max_value)
    super().__init__(
      mechanism,
      mechanism.num_nodes,
      0,
      mechanism.scale,
      noise_key=noise_key,
      purpose="histogram",
    )

  def check_value_type(self, value_type: tff.Type) -> None:
    if not value_type.is_equivalent_to(tff.TensorType(np.float32)):
      raise TypeError(f"Found values of type {value_type}; expected float32 or <float32,int64[2]>.")

  def encode(self, value: tf.Tensor) -> tf.Tensor:
    return scaled_counts(value, self._mechanism, self._max_value)

  def decode(self, sums: tf.Tensor, is_valid: tf.Tensor, value_type: tff.Type) -> Any:
    decoded = decode(sums, self._mechanism)
    decoded = tf.nest.map_structure(lambda t: tf.where(is_valid, t, tf.zeros_like(t)), decoded)
    return collections.OrderedDict(
      below=tf.ensure_shape(decoded.below, [self._mechanism.num_bins]),
      total=decoded.total,
      is_valid=is_valid,
    )
