"""Tracks a quantile of the losses from round to round by a private bit of each client."""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from privacy import checks
from tff_superquantile import noise_source
from tff_superquantile import superquantile
from tff_superquantile.secure_sums import gaussian_sum
from tff_superquantile.threshold import process

# A record is 1/2 if the loss is below the estimate and -1/2 if not, which bounds a client's effect.
_SENSITIVITY = 0.5
_SUM = tf.TensorSpec([], tf.float32)
# How many losses are below the estimate, and not below it.
_COUNTS = tff.types.to_type(collections.OrderedDict(below=np.int32, above=np.int32))
# The weight of a round in the mean of the noisy sums over rounds.
_GAIN_OF_MEAN = 0.1
# From the estimate, the next one, the noisy sum and theta m to the threshold and its tail's size.
_AtServerFn = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, float], tuple[tf.Tensor, tf.Tensor]]


def _build_server(
  query: tfp.QuantileEstimatorQuery,
  is_geometric: bool,
  noise: gaussian_sum.GaussianSum,
  theta: float,
  expected_clients: float,
  at_server_fn: _AtServerFn,
  learning_rate_fn: Callable[[tf.Tensor], tf.Tensor] | None,
) -> tuple[tff.Computation, tff.Computation]:
  """Builds the server's half of `build_tracker`: the first state, and a round of counts."""

  @tff.tensorflow.computation
  def initial_state():
    state = collections.OrderedDict(
      tracker=query.initial_global_state(), noise=noise.initial_state(_SUM)
    )
    if noise.is_correlated:
      state["mean"] = tf.constant(-_SENSITIVITY * expected_clients, tf.float32)
    if learning_rate_fn is not None:
      state["round_num"] = tf.constant(0)
    return state

  @tff.tensorflow.computation(initial_state.type_signature.result, _COUNTS)
  def at_server(state, counts):
    total = _SENSITIVITY * tf.cast(counts["below"] - counts["above"], tf.float32)
    tracker = state["tracker"]
    before = tracker.current_estimate
    if learning_rate_fn is not None:
      tracker = tracker._replace(learning_rate=learning_rate_fn(state["round_num"]))
    noise_state, noised = noise.add_noise(state["noise"], noise.steps(total), _SUM)
    new_state, about = collections.OrderedDict(), noised
    if noise.is_correlated:
      # The query cuts the fraction below to [0, 1], and later noise cannot cancel what is cut off.
      below = noised / expected_clients + 0.5
      step = tracker.learning_rate * (below - tracker.target_quantile)
      after = before * tf.exp(-step) if is_geometric else before - step
      tracker = tracker._replace(current_estimate=after)
      about = state["mean"] + _GAIN_OF_MEAN * (noised - state["mean"])
      new_state["mean"] = about
    else:
      after, tracker, _ = query.get_noised_result(noised, tracker)
    threshold, tail_size = at_server_fn(before, after, about, theta * expected_clients)
    if theta == 1.0:
      threshold = tf.constant(-np.inf, tf.float32)
    new_state = collections.OrderedDict(tracker=tracker, noise=noise_state, **new_state)
    if learning_rate_fn is not None:
      new_state["round_num"] = state["round_num"] + 1
    measurements = collections.OrderedDict(threshold=threshold, estimated_tail_size=tail_size)
    return new_state, threshold, measurements

  return initial_state, at_server


def build_tracker(
  name: str,
  theta: float,
  noise_multiplier: float,
  expected_clients: float,
  initial_estimate: float,
  noise_key: noise_source.NoiseKey,
  at_server_fn: _AtServerFn,
  *,
  is_geometric: bool,
  learning_rate: float = 1.0,
  learning_rate_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> process.ThresholdProcess:
  """Builds a threshold that moves by the noisy sum of one bit a client.

  Guarantee: the sum of the bits with Gaussian noise, and all that is computed from it, is a
  Gaussian mechanism of noise multiplier `noise_multiplier` under zero-out adjacency and under
  addition or removal of a client: a client's record is -1/2, 1/2, or 0 without a loss, so that the
  sum has sensitivity 1/2, and the noise has standard deviation noise_multiplier / 2. The server
  that adds the noise is trusted with the sum.

  TensorFlow Privacy's query moves the estimate by the noisy sum of the records, or its logarithm if
  `is_geometric`. Noise that is correlated over rounds moves it without the query, which would cut
  noise off.

  `at_server_fn` takes the estimate that the bits were made with, the next one and the noisy sum of
  the records (with noise that is correlated over rounds its mean over the last ten rounds or so, in
  which most of the noise cancels), float32 [] each, and theta m to (the round's threshold, the
  estimated size of its tail, positive). `learning_rate_fn` takes a round's number, int32 [] from 0,
  to its learning rate. Both are TensorFlow functions. The threshold's `name` is that of the use of
  the noise; the other arguments are those of `build_geometric_quantile`.
  """
  theta = superquantile.check_theta(theta)
  stddev = _SENSITIVITY * checks.scale("noise_multiplier", noise_multiplier)
  expected_clients = checks.scale("expected_clients", expected_clients)
  query = tfp.QuantileEstimatorQuery(
    initial_estimate=initial_estimate,
    target_quantile=1.0 - theta,
    learning_rate=checks.scale("learning_rate", learning_rate),
    below_estimate_stddev=0.0,
    expected_num_records=expected_clients,
    geometric_update=is_geometric,
  )
  noise = gaussian_sum.GaussianSum(_SENSITIVITY, stddev, noise_key, f"{name} threshold")

  initial_state, at_server = _build_server(
    query, is_geometric, noise, theta, expected_clients, at_server_fn, learning_rate_fn
  )

  @tff.tensorflow.computation(initial_state.type_signature.result)
  def sample_params(state):
    return query.derive_sample_params(state["tracker"])

  @tff.tensorflow.computation(sample_params.type_signature.result, process.LOSS_TYPE)
  def count_at_client(params, loss):
    record = tf.where(tf.math.is_nan(loss), 0.0, query.preprocess_record(params, loss))
    return collections.OrderedDict(
      below=tf.cast(record > 0, tf.int32), above=tf.cast(record < 0, tf.int32)
    )

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(process.LOSS_TYPE, tff.CLIENTS)
  )
  def next_of_losses(state, losses):
    params = tff.federated_broadcast(tff.federated_map(sample_params, state))
    bits = tff.federated_map(count_at_client, (params, losses))
    counts = tff.federated_secure_sum(bits, max_input=1)
    new_state, threshold, measurements = tff.federated_map(at_server, (state, counts))
    return tff.templates.MeasuredProcessOutput(new_state, threshold, measurements)

  def report_fn(loss, weight, client):
    del weight, client
    return loss  # The client makes a bit of it when it has learned the estimate.

  return process.ThresholdProcess(
    initialize, next_of_losses, report_fn, process.share_at_or_above, is_private=True
  )


def build_geometric_quantile(
  theta: float,
  noise_multiplier: float,
  expected_clients: float,
  initial_estimate: float,
  *,
  learning_rate: float = 0.2,
  noise_key: noise_source.NoiseKey = None,
) -> process.ThresholdProcess:
  """Builds the (1 - theta)-quantile of the losses, tracked by a private bit of each client.

  The estimator is `tensorflow_privacy.QuantileEstimatorQuery` (Andrew et al., 2021) with geometric
  updates. With beta the noisy fraction of losses that are not above the estimate, the estimate is
  multiplied by exp(-learning_rate (beta - (1 - theta))). In long runs the losses change little from
  round to round, and a bit in each round costs less privacy than a histogram.

  Guarantee: see `build_tracker`, a Gaussian mechanism of `noise_multiplier`.

  Each client counts once, whatever its weight. NaN adds nothing to the sum and is never selected;
  other losses count as they are, infinite and negative ones, too.

  Args:
    theta: The tail fraction, in (0, 1]. For 1 the threshold is -inf, whatever the estimate.
    noise_multiplier: z_q, the standard deviation of the noise over the sensitivity of 1/2.
    expected_clients: The divisor of the sum, q n with Poisson sampling.
    initial_estimate: The first estimate, in units of the loss, positive.
    learning_rate: The step size of the estimate's logarithm.
    noise_key: Secret key of the server's noise, 16 bytes, or a `BandedKey`; None for fresh entropy.

  Returns:
    A `ThresholdProcess`, whose result is the estimate after the round's bits, float32.
    Measurements: `threshold`; `estimated_tail_size`, which is theta * expected_clients.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range.
  """

  def at_server(before, after, noised, tail_size):
    del before, noised
    return after, tf.constant(tail_size, tf.float32)

  return build_tracker(
    "geometric",
    theta,
    noise_multiplier,
    expected_clients,
    checks.scale("initial_estimate", initial_estimate),
    noise_key,
    at_server,
    is_geometric=True,
    learning_rate=learning_rate,
  )
