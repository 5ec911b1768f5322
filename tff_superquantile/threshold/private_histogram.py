"""The private histogram as a TFF aggregation: noise at the clients, a secure sum, decoding."""

import collections
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy import tree_mechanism
from tff_superquantile import discrete_gaussian
from tff_superquantile import noise_source
from tff_superquantile import secure_sum as secure_sum_lib
from tff_superquantile.threshold import hierarchical_histogram

_VALUE_TYPE = tff.TensorType(np.float32)
_SEEDED_VALUE_TYPE = tff.types.to_type((_VALUE_TYPE, tff.TensorType(np.int64, [2])))

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


class PrivateHistogramFactory(tff.aggregators.UnweightedAggregationFactory):
  """Estimates the distribution of the clients' values with distributed differential privacy.

  Guarantee, for `mechanism` (see `privacy.tree_mechanism`): the result is a post-processing of a
  Gaussian mechanism of noise multiplier `mechanism.noise_multiplier`, under zero-out adjacency and
  under addition or removal of a client, whatever the number of reports: the server completes the
  clients' noise to that of `mechanism.num_shares` shares (see `privacy.shares`). The server itself
  sees the secure sum, with the noise of those who report.

  The created process aggregates values of type float32, or <float32, int64[2]>: a value and the
  seed of this client's noise in this round. Without seeds, noise comes from each client's own
  source of entropy, as it must where clients are real. Seeds make a simulation reproducible; who
  knows a client's seed knows its noise.

  A value outside [0, max_value] counts as the nearest end, NaN as no value at all. The result is an
  `OrderedDict` of `below` (float64 [b], see `hierarchical_histogram.Cumulative`), `total` (float64)
  and `is_valid` (bool): false, with zeros for the rest, if more than `num_shares` reported, whose
  noise would tell that they are more, and whose sum may have wrapped. The state is that of the
  server's source of noise. No measurements.
  """

  def __init__(
    self,
    mechanism: tree_mechanism.TreeMechanism,
    max_value: float,
    *,
    decoder: str = "least_squares",
    secure_sum: str = "modular",
    noise_key: Optional[bytes] = None,
  ):
    """Initializes a `PrivateHistogramFactory`.

    Args:
      mechanism: Built by `privacy.tree_mechanism.build_tree_mechanism`.
      max_value: The upper end of the values; the lower end is 0.
      decoder: "least_squares" (least squares on the tree, then isotonic regression), or "dyadic",
        the paper's, for reproduction.
      secure_sum: See `secure_sum.build_secure_sum`.
      noise_key: Of the server's noise, 16 bytes, to be kept secret; None for fresh entropy.

    Raises:
      ValueError: If an argument isn't one of its documented values.
    """
    if decoder not in _DECODERS:
      raise ValueError(f"Found decoder = {decoder!r}; expected one of {sorted(_DECODERS)}.")
    self._mechanism = mechanism
    self._max_value = checks.scale("max_value", max_value)
    self._decoder = decoder
    self._source = noise_source.NoiseSource(noise_key, "histogram")
    # The noise is within its support without exception, so that nothing is ever clipped.
    support = discrete_gaussian.support(mechanism.local_stddev)
    self._secure_sum = secure_sum_lib.build_secure_sum(
      secure_sum, mechanism.modulus, -support, mechanism.scale + support
    )

  def report(self, value: tf.Tensor, seed: Optional[tf.Tensor] = None) -> tf.Tensor:
    """What a client sends: a TensorFlow function of its value.

    Args:
      value: float32 [].
      seed: An integer tensor [2], of the noise; None for the client's own entropy.

    Returns:
      See `secure_sum.report`.
    """
    if seed is None:
      seed = noise_source.fresh_seed()
    counts = noised_counts(value, seed, self._mechanism, self._max_value)
    counts = tf.ensure_shape(counts, [self._mechanism.num_nodes])
    return secure_sum_lib.report(self._secure_sum, counts)

  def create_of_reports(self) -> tff.templates.AggregationProcess:
    """Builds the process whose clients have called `report` themselves."""
    mechanism, secure_sum, source = self._mechanism, self._secure_sum, self._source
    report_type = secure_sum_lib.report_type(mechanism.num_nodes)

    @tff.tensorflow.computation
    def initial_state():
      return source.initial_state()

    @tff.tensorflow.computation(initial_state.type_signature.result, report_type)
    def decode_at_server(state, summed):
      num_reports = summed["num_reports"]
      seed, next_state = source.draw(state)
      counts = secure_sum_lib.complete(
        secure_sum.at_server(summed["values"], num_reports),
        num_reports,
        mechanism.local_stddev,
        mechanism.num_shares,
        seed,
      )
      is_valid = num_reports <= mechanism.num_shares
      decoded = decode(counts, mechanism, self._decoder)
      decoded = tf.nest.map_structure(lambda t: tf.where(is_valid, t, tf.zeros_like(t)), decoded)
      result = collections.OrderedDict(
        below=tf.ensure_shape(decoded.below, [mechanism.num_bins]),
        total=decoded.total,
        is_valid=is_valid,
      )
      return next_state, result

    @tff.federated_computation
    def initialize():
      return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(report_type, tff.CLIENTS)
    )
    def next_fn(state, reports):
      next_state, result = tff.federated_map(decode_at_server, (state, secure_sum.sum(reports)))
      return tff.templates.MeasuredProcessOutput(
        next_state, result, tff.federated_value((), tff.SERVER)
      )

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
