"""Builds the private mean of DP-FedAvg as an aggregation factory, for any learning process."""

import dataclasses
import numbers as numbers_lib
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import shares
from privacy.noise import sum_mechanism
from tff_superquantile import noise_source
from tff_superquantile.algorithms.private import private as private_lib
from tff_superquantile.client_work import local_update
from tff_superquantile.threshold import Client


class _DpMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """See `dp_mean_factory`."""

  def __init__(self, private: private_lib.Private, secure: bool):
    self._private, self._secure = private, secure
    # Whatever is wrong is told before a model is built.
    self._sum(tff.TensorType(np.float32, [1]))

  def _sum(self, value_type: tff.Type) -> private_lib.PrivateSum:
    private, clip_norm = self._private, self._private.clip_norm
    if self._secure and isinstance(clip_norm, float):
      specs = tf.nest.flatten(tff.types.type_to_tf_tensor_specs(value_type))
      num_entries = sum(spec.shape.num_elements() for spec in specs)
      most = shares.cohort_limit(sys.maxsize, private.cohort_size)
      update_sum = sum_mechanism.build_sum_mechanism(
        private.noise_multiplier, clip_norm, num_entries, most
      )
      private = dataclasses.replace(private, update_sum=update_sum)
    return private.build_sum(lambda: value_type, private.cohort_size)

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    summed, divisor = self._sum(value_type), self._private.cohort_size

    @tff.tensorflow.computation(value_type)
    def report(value):
      finite, _ = local_update.zero_unless_finite(value)
      return summed.report_fn(finite, tf.constant(1.0), Client())

    process = summed.factory.create(report.type_signature.result)

    @tff.tensorflow.computation(process.next.type_signature.result.result.member)
    def mean(total):
      return tf.nest.map_structure(lambda t: t / tf.cast(divisor, t.dtype), total)

    @tff.federated_computation(
      process.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      output = process.next(state, tff.federated_map(report, values))
      return tff.templates.MeasuredProcessOutput(
        output.state, tff.federated_map(mean, output.result), output.measurements
      )

    return tff.templates.AggregationProcess(process.initialize, next_fn)


def dp_mean_factory(
  clip_norm: private_lib.ClipNorm,
  noise_multiplier: float,
  expected_clients: float,
  *,
  secure: bool = False,
  noise_key: noise_source.NoiseKey = None,
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds the differentially private mean of the clients' updates (DP-FedAvg).

  With u_i the update of client i, C the clip norm and m the expected clients, a round gives

      (sum_i clip(u_i, C) + N(0, (z C)^2 I)) / m.

  It is a `model_aggregator` for `tff.learning.algorithms.build_unweighted_fed_avg` and for the
  processes of this project, and stands where `tff.aggregators.DifferentiallyPrivateFactory` does.

  Guarantee: the mean is the Gaussian mechanism of noise multiplier z, whatever the updates are, if
  one client's data are set to nothing (zero-out), or a client comes or goes; z / 2 if a client's
  data are replaced. m is a constant, so that the size of a cohort is not told. The sums are exact:
  of integers on a grid (`secure_sums.gaussian_sum`), so that no rounding tells of a client. An
  update that is not finite counts as zero. With an adaptive norm, a noisy count is released
  besides, whose z_b is `count_noise_multiplier`, and z is (z^-2 + z_b^-2)^(-1/2) in all. Accounting
  of many rounds is `privacy.accounting`'s; the rounds' cohorts must be sampled as it says there. A
  process's own metrics are not covered: release none, or sum them privately.

  Args:
    clip_norm: C, the largest l2 norm of an update, or an `AdaptiveClipNorm`.
    noise_multiplier: z, standard deviation of the noise on the sum over C.
    expected_clients: m, the (expected) number of clients in a round.
    secure: Whether the clients make the noise and one secure sum modulo an integer is all that the
      server gets (`secure_sums.DistributedGaussianSumFactory`); it completes the noise where
      fewer than m + 4 sqrt(m) clients report, and gives zeros where more do. Not with an adaptive
      norm. Otherwise the server adds the noise to the exact sum, and is trusted with that.
    noise_key: Key of the server's noise, 16 bytes, to be kept secret and used for one run only, or
      a `BandedKey`; None for fresh entropy.

  Returns:
    A `tff.aggregators.UnweightedAggregationFactory` of structures of float tensors. Measurements
    are `clip_norm` if it adapts, and else empty.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range, or the clip norm adapts in secure sums.
  """
  if secure and not isinstance(clip_norm, numbers_lib.Real):
    raise ValueError(
      f"Found clip_norm = {clip_norm} with secure sums, whose modulus follows from a fixed norm;"
      " expected a number, or secure=False."
    )
  private = private_lib.Private(
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    expected_clients=expected_clients,
    noise_key=noise_key,
  )
  return _DpMeanFactory(private, secure)
