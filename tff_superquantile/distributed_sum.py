"""The private sum of vectors as a TFF aggregation: noise at the clients, a secure sum, decoding."""

from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from privacy import sum_mechanism
from tff_superquantile import discrete_gaussian
from tff_superquantile import noise_source
from tff_superquantile import secure_sum as secure_sum_lib


class DistributedGaussianSumFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums the clients' vectors with distributed differential privacy.

  Guarantee, for `mechanism` (see `privacy.sum_mechanism`): the result is a post-processing of a
  Gaussian mechanism of noise multiplier `mechanism.noise_multiplier`, under zero-out adjacency and
  under addition or removal of a client, whatever the number of reports and of entries: the server
  completes the clients' noise to that of `mechanism.num_shares` shares (see `privacy.shares`). The
  server itself sees the secure sum, with the noise of those who report.

  What `tff.learning.ddp_secure_aggregator` is for, in one step instead of six nested ones, without
  rotating vectors: a few bits more an entry. Values are structures of float32 tensors; they are
  clipped to `mechanism.clip_norm` in l2 norm, all tensors together. The result is their sum with
  noise, or zeros if more than `num_shares` reported. The state is that of the server's source of
  noise. No measurements.
  """

  def __init__(
    self,
    mechanism: sum_mechanism.SumMechanism,
    *,
    secure_sum: str = "modular",
    noise_key: Optional[bytes] = None,
  ):
    """Initializes a `DistributedGaussianSumFactory`.

    Args:
      mechanism: Built by `privacy.sum_mechanism.build_sum_mechanism`.
      secure_sum: See `secure_sum.build_secure_sum`.
      noise_key: Of the server's noise, 16 bytes, to be kept secret; None for fresh entropy.

    Raises:
      ValueError: If `secure_sum` isn't one of its documented values, or the key of another length.
    """
    self._source = noise_source.NoiseSource(noise_key, "sum of updates")
    self._mechanism = mechanism
    largest = mechanism.largest_entry + discrete_gaussian.support(mechanism.local_stddev)
    self._secure_sum = secure_sum_lib.build_secure_sum(
      secure_sum, mechanism.modulus, -largest, largest
    )

  def report(self, value: Any, seed: Optional[tf.Tensor] = None) -> Any:
    """What a client sends: a TensorFlow function of its value.

    Args:
      value: A structure of float32 tensors with `mechanism.num_entries` numbers.
      seed: An integer tensor [2], of the noise; None for the client's own entropy.

    Returns:
      See `secure_sum.report`.
    """
    mechanism = self._mechanism
    vector = tf.concat([tf.reshape(v, [-1]) for v in tf.nest.flatten(value)], axis=0)
    vector = tf.clip_by_norm(tf.cast(vector, tf.float64), mechanism.clip_norm)
    rounded = tf.cast(tf.round(vector * mechanism.scale), tf.int64)
    if seed is None:
      seed = noise_source.fresh_seed()
    noise = discrete_gaussian.sample([mechanism.num_entries], mechanism.local_stddev, seed)
    return secure_sum_lib.report(
      self._secure_sum, tf.ensure_shape(rounded, [mechanism.num_entries]) + noise
    )

  def create_of_reports(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Builds the process whose clients have called `report` on a `value_type` themselves."""
    mechanism, secure_sum, source = self._mechanism, self._secure_sum, self._source
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(specs)]
    if sum(sizes) != mechanism.num_entries:
      raise ValueError(
        f"Found values of {sum(sizes)} numbers; expected {mechanism.num_entries}, for which the"
        " mechanism was built."
      )

    report_type = secure_sum_lib.report_type(mechanism.num_entries)

    @tff.tensorflow.computation
    def initial_state():
      return source.initial_state()

    @tff.tensorflow.computation(initial_state.type_signature.result, report_type)
    def decode_at_server(state, summed):
      num_reports = summed["num_reports"]
      seed, next_state = source.draw(state)
      sums = secure_sum_lib.complete(
        secure_sum.at_server(summed["values"], num_reports),
        num_reports,
        mechanism.local_stddev,
        mechanism.num_shares,
        seed,
      )
      half = mechanism.modulus // 2
      sums = tf.math.floormod(sums + half, mechanism.modulus) - half
      is_valid = num_reports <= mechanism.num_shares
      vector = tf.where(is_valid, tf.cast(sums, tf.float64) / mechanism.scale, 0.0)
      parts = [
        tf.cast(tf.reshape(part, spec.shape), spec.dtype)
        for part, spec in zip(tf.split(vector, sizes), tf.nest.flatten(specs))
      ]
      return next_state, tf.nest.pack_sequence_as(specs, parts)

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

  def factory_of_reports(
    self, value_type: tff.Type
  ) -> tff.aggregators.UnweightedAggregationFactory:
    """`create_of_reports(value_type)` as a factory, for who wants one."""
    return _FactoryOfReports(self.create_of_reports(value_type))

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Builds the process; see `tff.aggregators.UnweightedAggregationFactory`."""
    of_reports = self.create_of_reports(value_type)

    @tff.tensorflow.computation(value_type)
    def report(value):
      return self.report(value)

    @tff.federated_computation(
      of_reports.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      return of_reports.next(state, tff.federated_map(report, values))

    return tff.templates.AggregationProcess(of_reports.initialize, next_fn)


class _FactoryOfReports(tff.aggregators.UnweightedAggregationFactory):
  """Returns a process that is there already."""

  def __init__(self, process: tff.templates.AggregationProcess):
    self._process = process

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    expected = self._process.next.type_signature.parameter[1].member
    if not expected.is_equivalent_to(value_type):
      raise TypeError(f"Found values of type {value_type}; expected {expected}.")
    return self._process
