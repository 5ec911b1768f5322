"""Estimates the distribution of the clients' values by a private histogram, as an aggregation."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy.noise import tree_mechanism
from tff_superquantile.secure_sums import noisy_sum
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import process


def scaled_counts(
  values: tf.Tensor, mechanism: tree_mechanism.TreeMechanism, max_value: float
) -> tf.Tensor:
  """Returns c x_i, int64 [..., d], of values float32 [...]: scaled hierarchical histograms."""
  return mechanism.scale * hierarchical_histogram.encode(values, mechanism.num_bins, max_value)


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
    """Takes parameters of `tree_mechanism`, the upper end of the values, and the noise's key."""
    self._max_value = checks.scale("max_value", max_value)
    super().__init__(
      mechanism,
      mechanism.num_entries,
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


# From (the last result, what `PrivateHistogramFactory` returns) to (result, measurements).
HistogramFn = Callable[[Any, Any], tuple[Any, collections.OrderedDict[str, tf.Tensor]]]


def build_histogram_process(
  factory: PrivateHistogramFactory,
  server_fn: HistogramFn,
  share_fn: process.ShareFn,
  initial_result: Any,
) -> process.ThresholdProcess:
  """Builds a process whose clients report their losses to a private histogram, and nothing else.

  Guarantee: that of `factory`. The state, the result and the measurements of a round follow from
  one private histogram and from earlier ones, without looking at the clients again.

  `server_fn` is a TensorFlow function of (the last round's result, the decoded histogram) to
  (result for the clients, measurements); see `ThresholdProcess` for those it must have. The state
  is the last result, at first `initial_result` (numpy), and that of the server's source of noise.
  """
  histogram = factory.create_of_reports(process.LOSS_TYPE)

  @tff.tensorflow.computation
  def first():
    return tf.constant(initial_result)

  at_server = tff.tensorflow.computation(
    server_fn, first.type_signature.result, histogram.next.type_signature.result.result.member
  )

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      collections.OrderedDict(
        threshold=tff.federated_eval(first, tff.SERVER), noise=histogram.initialize()
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result, histogram.next.type_signature.parameter[1]
  )
  def next_of_reports(state, reports):
    output = histogram.next(state["noise"], reports)
    result, measurements = tff.federated_map(at_server, (state["threshold"], output.result))
    new_state = tff.federated_zip(collections.OrderedDict(threshold=result, noise=output.state))
    return tff.templates.MeasuredProcessOutput(new_state, result, measurements)

  def report_fn(loss, weight, client):
    del weight
    return factory.report(loss, client.seed)

  return process.ThresholdProcess(initialize, next_of_reports, report_fn, share_fn, is_private=True)
