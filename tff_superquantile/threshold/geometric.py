"""Builds a threshold with differential privacy that follows the losses from round to round."""

import tensorflow as tf

from privacy import checks
from tff_superquantile import noise_source
from tff_superquantile.threshold import adaptive_theta
from tff_superquantile.threshold import process
from tff_superquantile.threshold import quantile_tracker


def build_geometric_quantile(
  theta: adaptive_theta.Theta,
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

  Guarantee: see `quantile_tracker.build_tracker`, a Gaussian mechanism of `noise_multiplier`.

  Each client counts once, whatever its weight. NaN adds nothing to the sum and is never selected;
  other losses count as they are, infinite and negative ones, too.

  Args:
    theta: The tail fraction, in (0, 1]. For 1 the threshold is -inf, whatever the estimate. An
      `AdaptiveTheta` is refused: a noisy sum of signs does not tell the number of clients.
    noise_multiplier: z_q, the standard deviation of the noise over the sensitivity of 1/2.
    expected_clients: The divisor of the sum, q n with Poisson sampling.
    initial_estimate: The first estimate, in units of the loss, positive.
    learning_rate: The step size of the estimate's logarithm.
    noise_key: Secret key of the server's noise, 16 bytes, or a `BandedKey`; None for fresh entropy.

  Returns:
    A `ThresholdProcess`, whose result is the estimate after the round's bits, float32.
    Measurements: `threshold`; `estimated_tail_size`, which is theta * expected_clients.
  """

  def at_server(before, after, noised, tail_size):
    del before, noised
    return after, tf.constant(tail_size, tf.float32)

  return quantile_tracker.build_tracker(
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
