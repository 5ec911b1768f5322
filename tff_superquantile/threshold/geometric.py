"""Builds a threshold with differential privacy that follows the losses from round to round."""

import collections
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from privacy import checks
from tff_superquantile.secure_sums import seeded_gaussian_query
from tff_superquantile.threshold import adaptive_theta
from tff_superquantile.threshold import process

# A record is 1/2 if the loss is below the estimate and -1/2 if not, which bounds a client's effect.
_SENSITIVITY = 0.5


class _SecureSignSumFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums records exactly, by secure sums of the numbers of positive and negative ones."""

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    @tff.tensorflow.computation(value_type)
    def count(record):
      return collections.OrderedDict(
        below=tf.cast(record > 0, tf.int32), above=tf.cast(record < 0, tf.int32)
      )

    @tff.tensorflow.computation(count.type_signature.result)
    def total(counts):
      return _SENSITIVITY * tf.cast(counts["below"] - counts["above"], tf.float32)

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, records):
      counts = tff.federated_secure_sum(tff.federated_map(count, records), max_input=1)
      return tff.templates.MeasuredProcessOutput(
        state, tff.federated_map(total, counts), tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def build_geometric_quantile(
  theta: adaptive_theta.Theta,
  noise_multiplier: float,
  expected_clients: float,
  initial_estimate: float,
  *,
  learning_rate: float = 0.2,
  sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  noise_key: Optional[bytes] = None,
) -> process.ThresholdProcess:
  """Builds the (1 - theta)-quantile of the losses, tracked by a private bit of each client.

  The estimator is `tensorflow_privacy.QuantileEstimatorQuery` (Andrew et al., 2021) with geometric
  updates. With beta the noisy fraction of losses that are not above the estimate, the estimate is
  multiplied by exp(-learning_rate (beta - (1 - theta))). In long runs the losses change little from
  round to round, and a bit in each round costs less privacy than a histogram.

  Guarantee: the sum of the bits with Gaussian noise, and all that is computed from it, is a
  Gaussian mechanism of noise multiplier `noise_multiplier` under zero-out adjacency and under
  addition or removal of a client. The server that adds the noise is trusted with the sum.

  Each client counts once, whatever its weight. NaN adds nothing to the sum and is never selected;
  other losses count as they are, infinite and negative ones, too.

  Args:
    theta: The tail fraction, in (0, 1]. For 1 the threshold is -inf, whatever the estimate. An
      `AdaptiveTheta` is refused: a noisy sum of signs does not tell the number of clients.
    noise_multiplier: z_q, the standard deviation of the noise over the sensitivity of 1/2.
    expected_clients: The divisor of the sum, q n with Poisson sampling.
    initial_estimate: The first estimate, in units of the loss, positive.
    learning_rate: The step size of the estimate's logarithm.
    sum_factory: Sums the bits, -1/2 and 1/2; None for secure sums of their numbers.
    noise_key: Key of the server's noise, 16 bytes, to be kept secret; None for fresh entropy.

  Returns:
    A `ThresholdProcess`, whose result is the estimate after the round's bits, float32.
    Measurements: `threshold`; `estimated_tail_size`, which is theta * expected_clients.

  Raises:
    ValueError: If a number is out of its range.
  """
  theta = adaptive_theta.check_theta(theta)
  if isinstance(theta, adaptive_theta.AdaptiveTheta):
    raise ValueError(
      f"Found theta = {theta} with the geometric threshold, which releases nothing that tells how"
      " many clients turned up; expected a number, or build_tree_quantile, whose histogram does."
    )
  stddev = _SENSITIVITY * checks.scale("noise_multiplier", noise_multiplier)
  for name, value in (
    ("expected_clients", expected_clients),
    ("initial_estimate", initial_estimate),
    ("learning_rate", learning_rate),
  ):
    checks.scale(name, value)
  noise = seeded_gaussian_query.SeededGaussianSumQuery(
    _SENSITIVITY, stddev, noise_key, "geometric threshold"
  )
  # The tracker adds no noise of its own: `noise` has added it to the sum that the tracker gets.
  tracker = tfp.QuantileEstimatorQuery(
    initial_estimate=initial_estimate,
    target_quantile=1.0 - theta,
    learning_rate=learning_rate,
    below_estimate_stddev=0.0,
    expected_num_records=expected_clients,
    geometric_update=True,
  )

  @tff.tensorflow.computation
  def initial_state():
    return collections.OrderedDict(
      tracker=tracker.initial_global_state(), noise=noise.initial_global_state()
    )

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type)
  def sample_params(state):
    return tracker.derive_sample_params(state["tracker"])

  @tff.tensorflow.computation(sample_params.type_signature.result, process.LOSS_TYPE)
  def record_at_client(params, loss):
    record = tracker.preprocess_record(params, loss)
    return tf.where(tf.math.is_nan(loss), 0.0, record)

  sum_process = (sum_factory or _SecureSignSumFactory()).create(process.LOSS_TYPE)

  @tff.tensorflow.computation(state_type, process.LOSS_TYPE)
  def at_server(state, total):
    noised, noise_state, _ = noise.get_noised_result(total, state["noise"])
    estimate, tracker_state, _ = tracker.get_noised_result(noised, state["tracker"])
    threshold = tf.constant(-np.inf, tf.float32) if theta == 1.0 else estimate
    new_state = collections.OrderedDict(tracker=tracker_state, noise=noise_state)
    measurements = collections.OrderedDict(
      threshold=threshold, estimated_tail_size=tf.constant(theta * expected_clients, tf.float32)
    )
    return new_state, threshold, measurements

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      collections.OrderedDict(
        query=tff.federated_eval(initial_state, tff.SERVER), sum=sum_process.initialize()
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(process.LOSS_TYPE, tff.CLIENTS)
  )
  def next_of_losses(state, losses):
    params = tff.federated_broadcast(tff.federated_map(sample_params, state["query"]))
    records = tff.federated_map(record_at_client, (params, losses))
    output = sum_process.next(state["sum"], records)
    new_query, threshold, measurements = tff.federated_map(
      at_server, (state["query"], output.result)
    )
    new_state = tff.federated_zip(collections.OrderedDict(query=new_query, sum=output.state))
    return tff.templates.MeasuredProcessOutput(new_state, threshold, measurements)

  def report_fn(loss, weight, client):
    del weight, client
    return loss  # The client makes a bit of it when it has learned the estimate.

  return process.ThresholdProcess(
    initialize, next_of_losses, report_fn, process.share_at_or_above, is_private=True
  )
