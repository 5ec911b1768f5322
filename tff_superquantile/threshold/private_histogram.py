"""The private histogram as a TFF aggregation: noise at the clients, a secure sum, decoding."""

import collections
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import tree_mechanism
from tff_superquantile.threshold import discrete_gaussian
from tff_superquantile.threshold import hierarchical_histogram

_VALUE_TYPE = tff.TensorType(np.float32)
_SEEDED_VALUE_TYPE = tff.types.to_type((_VALUE_TYPE, tff.TensorType(np.int64, [2])))

# The number of reports has a modulus of its own, that it cannot reach.
_MAX_REPORTS = 2**31 - 1

_DECODERS = {
  "least_squares": hierarchical_histogram.decode_least_squares,
  "dyadic": hierarchical_histogram.decode_dyadic,
}


def noised_counts(
  values: tf.Tensor, seed: tf.Tensor, mechanism: tree_mechanism.TreeMechanism, max_value: float
) -> tf.Tensor:
  """c x_i + xi_i: what each client would send if there were no modulus.

  Args:
    values: float32 [...], one a client; NaN counts nowhere, but has noise like any other.
    seed: An integer tensor [2], of the noise of all of them.
    mechanism: The parameters.
    max_value: The upper end of the values.

  Returns:
    int64 [..., d].
  """
  encoded = hierarchical_histogram.encode(values, mechanism.num_bins, max_value)
  noise = discrete_gaussian.sample(tf.shape(encoded), mechanism.local_stddev, seed)
  return mechanism.scale * encoded + noise


def decode(
  modular_sums: tf.Tensor, mechanism: tree_mechanism.TreeMechanism, decoder: str = "least_squares"
) -> hierarchical_histogram.Cumulative:
  """From sums modulo M, int64 [..., d], to the estimated distribution of the values.

  Sums in -offset..M - offset - 1 are recovered: negative ones, too, which noise makes of small
  counts.
  """
  sums = tf.math.floormod(modular_sums + mechanism.offset, mechanism.modulus) - mechanism.offset
  return _DECODERS[decoder](tf.cast(sums, tf.float64) / mechanism.scale, mechanism.num_bins)


class _ModularSum:
  """Sums modulo M of values that clients reduce, by TFF's secure modular sum."""

  def __init__(self, mechanism: tree_mechanism.TreeMechanism):
    self._modulus = np.int64(mechanism.modulus)

  def at_client(self, counts: tf.Tensor) -> tf.Tensor:
    return tf.math.floormod(counts, self._modulus)

  def sum(self, reports: tff.Value) -> tff.Value:
    # What `tff.aggregators.SecureModularSumFactory` calls; that takes one modulus for all.
    moduli = collections.OrderedDict(counts=self._modulus, num_reports=np.int64(_MAX_REPORTS))
    return tff.backends.mapreduce.federated_secure_modular_sum(reports, moduli)

  def at_server(self, counts: tf.Tensor, num_reports: tf.Tensor) -> tf.Tensor:
    del num_reports
    return counts


class _IntegerSum:
  """The same by TFF's secure sum, of values that are shifted to be positive and never wrap.

  Wrapped values must not be summed this way: the sum would show how often values wrapped, which the
  noise does not hide.
  """

  def __init__(self, mechanism: tree_mechanism.TreeMechanism):
    self._modulus = np.int64(mechanism.modulus)
    # Noise is within it without exception, so that nothing is ever clipped.
    self._shift = discrete_gaussian.support(mechanism.local_stddev)
    self._max_input = np.int64(mechanism.scale + 2 * self._shift)

  def at_client(self, counts: tf.Tensor) -> tf.Tensor:
    return counts + self._shift

  def sum(self, reports: tff.Value) -> tff.Value:
    max_input = collections.OrderedDict(counts=self._max_input, num_reports=np.int64(1))
    return tff.federated_secure_sum(reports, max_input)

  def at_server(self, counts: tf.Tensor, num_reports: tf.Tensor) -> tf.Tensor:
    return tf.math.floormod(counts - self._shift * num_reports, self._modulus)


_SUMS = {"modular": _ModularSum, "integer": _IntegerSum}


class PrivateHistogramFactory(tff.aggregators.UnweightedAggregationFactory):
  """Estimates the distribution of the clients' values with distributed differential privacy.

  Guarantee, for `mechanism` (see `privacy.tree_mechanism`): the server's view, which is the secure
  sum, and with it everything computed from it, is a Gaussian mechanism of noise multiplier
  `mechanism.noise_multiplier` under zero-out adjacency, when at least `mechanism.min_clients`
  clients add their noise. Outside of it: how many clients report, which the server of a secure sum
  knows.

  The created process aggregates values of type float32, or <float32, int64[2]>: a value and the
  seed of this client's noise in this round. Without seeds, noise comes from each client's own
  source of entropy, as it must where clients are real. Seeds make a simulation reproducible; who
  knows a client's seed knows its noise.

  A value outside [0, max_value] counts as the nearest end, NaN as no value at all. The result is an
  `OrderedDict` of `below` (float64 [b], see `hierarchical_histogram.Cumulative`), `total` (float64)
  and `is_valid` (bool): false, with zeros for the rest, if fewer than `min_clients` reported, as
  there is not enough noise then, or more than `max_clients`, as the sum may have wrapped then. No
  state, and no measurements.
  """

  def __init__(
    self,
    mechanism: tree_mechanism.TreeMechanism,
    max_value: float,
    *,
    decoder: str = "least_squares",
    secure_sum: str = "modular",
  ):
    """Initializes a `PrivateHistogramFactory`.

    Args:
      mechanism: Built by `privacy.tree_mechanism.build_tree_mechanism`.
      max_value: The upper end of the values; the lower end is 0.
      decoder: "least_squares" (least squares on the tree, then isotonic regression), or "dyadic",
        the paper's, for reproduction.
      secure_sum: "modular", the secure sum of values modulo M; or "integer", for platforms that
        have no other: `tff.federated_secure_sum` of values that are shifted so as to be
        non-negative and never wrap, a few bits more.

    Raises:
      ValueError: If an argument isn't one of its documented values.
    """
    for name, value, known in (
      ("decoder", decoder, _DECODERS),
      ("secure_sum", secure_sum, _SUMS),
    ):
      if value not in known:
        raise ValueError(f"Found {name} = {value!r}; expected one of {sorted(known)}.")
    if not 0.0 < max_value < np.inf:
      raise ValueError(f"Found {max_value} for the upper end of the values; expected it positive.")
    self._mechanism = mechanism
    self._max_value = float(max_value)
    self._decoder = decoder
    self._secure_sum = _SUMS[secure_sum](mechanism)

  def report(self, value: tf.Tensor, seed: Optional[tf.Tensor] = None) -> tf.Tensor:
    """What a client sends: a TensorFlow function of its value.

    Args:
      value: float32 [].
      seed: An integer tensor [2], of the noise; None for the client's own entropy.

    Returns:
      An `OrderedDict` of `counts`, int64 [d], and `num_reports`, which is 1.
    """
    if seed is None:
      # Not tf.random.uniform: a seed set for the graph would give all clients the same noise.
      seed = tf.raw_ops.NonDeterministicInts(shape=tf.constant([2], tf.int64), dtype=tf.int64)
    counts = noised_counts(value, seed, self._mechanism, self._max_value)
    counts = tf.ensure_shape(self._secure_sum.at_client(counts), [self._mechanism.num_nodes])
    return collections.OrderedDict(counts=counts, num_reports=tf.constant(1, tf.int64))

  def create_of_reports(self) -> tff.templates.AggregationProcess:
    """Builds the process whose clients have called `report` themselves."""
    mechanism, secure_sum = self._mechanism, self._secure_sum
    report_type = tff.types.to_type(
      collections.OrderedDict(
        counts=tff.TensorType(np.int64, [mechanism.num_nodes]), num_reports=np.int64
      )
    )

    @tff.tensorflow.computation(report_type)
    def decode_at_server(summed):
      num_reports = summed["num_reports"]
      is_valid = tf.logical_and(
        num_reports >= mechanism.min_clients, num_reports <= mechanism.max_clients
      )
      modular_sum = secure_sum.at_server(summed["counts"], num_reports)
      decoded = decode(modular_sum, mechanism, self._decoder)
      decoded = tf.nest.map_structure(lambda t: tf.where(is_valid, t, tf.zeros_like(t)), decoded)
      return collections.OrderedDict(
        below=tf.ensure_shape(decoded.below, [mechanism.num_bins]),
        total=decoded.total,
        is_valid=is_valid,
      )

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(report_type, tff.CLIENTS)
    )
    def next_fn(state, reports):
      result = tff.federated_map(decode_at_server, secure_sum.sum(reports))
      return tff.templates.MeasuredProcessOutput(state, result, tff.federated_value((), tff.SERVER))

    return tff.templates.AggregationProcess(initialize, next_fn)

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Builds the process; see `tff.aggregators.UnweightedAggregationFactory`."""
    if not any(t.is_equivalent_to(value_type) for t in (_VALUE_TYPE, _SEEDED_VALUE_TYPE)):
      raise TypeError(f"Found values of type {value_type}; expected float32 or <float32,int64[2]>.")
    of_reports = self.create_of_reports()

    @tff.tensorflow.computation(value_type)
    def report(argument):
      if isinstance(value_type, tff.TensorType):
        return self.report(argument)
      return self.report(argument[0], argument[1])

    @tff.federated_computation(
      of_reports.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      return of_reports.next(state, tff.federated_map(report, values))

    return tff.templates.AggregationProcess(of_reports.initialize, next_fn)
