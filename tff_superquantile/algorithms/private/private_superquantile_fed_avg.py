"""Builds superquantile aggregation with differential privacy; for theta = 1 it is DP-FedAvg."""

from collections.abc import Sequence

import tensorflow_federated as tff
from typing_extensions import Unpack

from privacy.noise import sum_mechanism
from tff_superquantile import noise_source
from tff_superquantile import secure_sums
from tff_superquantile.algorithms import learning_process
from tff_superquantile.algorithms.private import private_fed_avg
from tff_superquantile.algorithms.private import private_sum
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import AdaptiveTheta
from tff_superquantile.threshold import Theta
from tff_superquantile.threshold import ThresholdFn
from tff_superquantile.threshold import adaptive_theta
from tff_superquantile.threshold import exact


def build_private_superquantile_fed_avg(
  model_fn: local_model.Model,
  theta: Theta,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  threshold: ThresholdFn | None,
  clip_norm: private_sum.ClipNorm,
  noise_multiplier: float,
  expected_clients: float,
  noise_key: noise_source.NoiseKey = None,
  update_sum: sum_mechanism.SumMechanism | None = None,
  numbers: Sequence[secure_sums.Number] = (),
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds superquantile aggregation whose every release by the server is differentially private.

  A round is that of `build_superquantile_fed_avg` with a private threshold and private weights:

      U = sum over the tail of clip(update, C) + N(0, (z_w C)^2 I),
      weights += server optimizer of U / D,

  where clients below the threshold add zero, and z_w is the update's noise multiplier. This is
  `build_private_fed_avg` with shares of 0 and 1, which states the guarantee. The divisor D is the
  threshold's private estimate of the tail size, at least theta * expected_clients / 2 (for
  theta = 1 without a threshold it is `expected_clients`; for an adaptive theta, half of the tail
  that it wants of `expected_clients`).

  Args:
    model_fn: See `build_private_fed_avg`.
    theta: The tail fraction, in (0, 1], or with `build_tree_quantile` an `AdaptiveTheta`, for which
      the noisy histogram estimates the number of clients, at no cost in privacy.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    threshold: A function of theta that returns a private `ThresholdProcess`, such as a partial of
      `build_tree_quantile` or `build_geometric_quantile`; None for none, with theta = 1: DP-FedAvg.
    clip_norm: See `build_private_fed_avg`.
    noise_multiplier: See `build_private_fed_avg`.
    expected_clients: See `build_private_fed_avg`.
    noise_key: See `build_private_fed_avg`.
    update_sum: See `build_private_fed_avg`.
    numbers: See `build_private_fed_avg`.
    **options: See `build_private_fed_avg`.

  Returns:
    A `tff.learning.templates.LearningProcess`. Rounds without any client, or with an empty tail,
    release noise like others.

  Raises:
    TypeError: If an option is given that is not to be chosen here.
    ValueError: If the threshold is not private.
  """
  theta = adaptive_theta.check_theta(theta)
  if threshold is None and isinstance(theta, AdaptiveTheta):
    raise ValueError(
      f"Found theta = {theta} without a threshold, where nothing tells how many clients turned up;"
      " expected build_tree_quantile."
    )
  if threshold is None and theta != 1.0:
    raise ValueError(f"Found theta = {theta} without a threshold; expected one, or theta = 1.")
  return private_fed_avg.build_private_fed_avg(
    model_fn,
    None if threshold is None else exact.build_threshold(threshold, theta),
    client_optimizer_fn,
    server_optimizer_fn,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    expected_clients=expected_clients,
    mean_share=float(adaptive_theta.of_round(theta, expected_clients)),
    noise_key=noise_key,
    update_sum=update_sum,
    numbers=numbers,
    **options,
  )
