"""Builds superquantile aggregation with differential privacy; for theta = 1 it is DP-FedAvg."""

import numbers
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import Unpack

from privacy import checks
from privacy.noise import sum_mechanism
from tff_superquantile import client_work
from tff_superquantile.algorithms import learning_process
from tff_superquantile.algorithms import private_sum
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import AdaptiveTheta
from tff_superquantile.threshold import Client
from tff_superquantile.threshold import Theta
from tff_superquantile.threshold import ThresholdFn
from tff_superquantile.threshold import adaptive_theta
from tff_superquantile.threshold import exact


def build_private_superquantile_fed_avg(
  model_fn: local_model.Model,
  theta: Theta,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: Optional[optimizers.OptimizerOrKerasFn] = None,
  *,
  threshold: Optional[ThresholdFn],
  clip_norm: private_sum.ClipNorm,
  noise_multiplier: float,
  expected_clients: float,
  noise_key: Optional[bytes] = None,
  update_sum: Optional[sum_mechanism.SumMechanism] = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds superquantile aggregation whose every release by the server is differentially private.

  A round is that of `build_superquantile_fed_avg` with a private threshold and private weights:

      U = sum over the tail of clip(update, C) + N(0, (z_w C)^2 I),
      weights += server optimizer of U / D,

  where clients below the threshold add zero, and z_w is the update's noise multiplier. The sum has
  l2-sensitivity C under zero-out adjacency and under addition or removal of a client, because
  clients weigh the same and nothing else of the cohort is used: the divisor D is the threshold's
  private estimate of the tail size, at least theta * expected_clients / 2 (for theta = 1 without a
  threshold it is `expected_clients`; for an adaptive theta, half of the tail that it wants of
  `expected_clients`). The exact size of the tail, by which the paper divides, would reveal the
  clients that took part.

  Guarantee: a round releases, of its cohort, the private threshold and U, a Gaussian mechanism of
  noise multiplier (z_q^-2 + z_w^-2)^(-1/2), or with an adaptive clip norm a noisy count besides,
  (z_q^-2 + z_w^-2 + z_b^-2)^(-1/2); `privacy.accounting` computes the cost of many rounds on
  sampled cohorts. The server is trusted with the sum of updates before it adds the noise. With
  `update_sum` clients make the noise, and the server sees the sum with the noise of the clients
  that report (`DistributedGaussianSumFactory`).

  The metrics hold nothing else of the cohort: `client_work` has the threshold's measurements alone,
  and `aggregator` an adaptive `clip_norm`, which follows from earlier rounds' releases.

  Args:
    model_fn: See `Options`. A model with non-trainable weights that clients change is not
      supported: only trainable weights are released.
    theta: The tail fraction, in (0, 1], or with `build_tree_quantile` an `AdaptiveTheta`, for which
      the noisy histogram estimates the number of clients, at no cost in privacy.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    threshold: A function of theta that returns a private `ThresholdProcess`, such as a partial of
      `build_tree_quantile` or `build_geometric_quantile`; None for none, with theta = 1: DP-FedAvg.
    clip_norm: C, to which the l2 norm of a client's update (not its gradient) is clipped, or an
      `AdaptiveClipNorm`, with which C follows a quantile of the norms of the clients that train.
    noise_multiplier: z_w, the update's noise multiplier: the standard deviation of the noise on the
      sum of updates over C, elsewhere called `update_noise_multiplier`.
    expected_clients: q n, the expected size of a cohort.
    noise_key: Key of the server's noise, 16 bytes, to be kept as secret as the noise and used for
      one run only; None for fresh entropy.
    update_sum: Built by `privacy.noise.sum_mechanism.build_sum_mechanism` with this clip norm and
      noise multiplier: each client makes its share of the noise, the server adds those that a
      cohort lacks; in rounds of more reports than shares the sum is zero. None for noise that the
      server adds.
    **options: See `Options`; `client_weighting`, `model_aggregator` and `metrics_aggregator` are
      not to be chosen here.

  Returns:
    A `tff.learning.templates.LearningProcess`. Rounds without any client, or with an empty tail,
    release noise like others.

  Raises:
    TypeError: If an option is given that is not to be chosen here.
    ValueError: If the threshold is not private.
  """
  theta = adaptive_theta.check_theta(theta)
  checks.of_type("expected_clients", expected_clients, numbers.Real, "a positive number")
  expected_clients = checks.positive("expected_clients", expected_clients)
  summed = private_sum.build_private_sum(
    lambda: local_model.describe(model_fn).weights_type.trainable,
    clip_norm,
    noise_multiplier,
    noise_key,
    update_sum,
    expected_share_sum=float(adaptive_theta.of_round(theta, expected_clients)) * expected_clients,
  )
  options = private_sum.with_aggregator(options, summed.factory)
  if threshold is None and isinstance(theta, AdaptiveTheta):
    raise ValueError(
      f"Found theta = {theta} without a threshold, where nothing tells how many clients turned up;"
      " expected build_tree_quantile."
    )
  if threshold is None and theta != 1.0:
    raise ValueError(f"Found theta = {theta} without a threshold; expected one, or theta = 1.")
  threshold_process = None
  if threshold is not None:
    threshold_process = exact.build_threshold(threshold, theta)
    if not threshold_process.is_private:
      raise ValueError(
        "Found a threshold that shows the server the losses; expected a private one, such as"
        " build_tree_quantile or build_geometric_quantile."
      )

  def divisor(measurements: Any) -> tf.Tensor:
    if threshold_process is None:
      return tf.constant(expected_clients, tf.float32)
    return measurements["threshold"]["estimated_tail_size"]

  def report(update: Any, weight: tf.Tensor, client: Client) -> Any:
    # The weight is 1, or 0 where the update is zero.
    return summed.report_fn(update, weight, client)

  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    threshold=threshold_process,
    hooks=client_work.ClientHooks(report_fn=report),
    divisor_fn=divisor,
    measure_cohort=False,
  )
