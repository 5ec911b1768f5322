"""Builds federated averaging with differential privacy, of all clients or by private shares."""

from collections.abc import Sequence
import numbers as numbers_lib
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import Unpack

from privacy import checks
from privacy.noise import sum_mechanism
from tff_superquantile import client_work
from tff_superquantile import noise_source
from tff_superquantile import secure_sums
from tff_superquantile.algorithms import learning_process
from tff_superquantile.algorithms.private import private_sum
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import Client
from tff_superquantile.threshold import ThresholdProcess

# The measurements of a private threshold that estimate the sum of the shares.
_DIVISORS = ("estimated_tail_size", "estimated_share_sum")


def build_private_fed_avg(
  model_fn: local_model.Model,
  threshold: ThresholdProcess | None,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  clip_norm: private_sum.ClipNorm,
  noise_multiplier: float,
  expected_clients: float,
  mean_share: float = 1.0,
  noise_key: noise_source.NoiseKey = None,
  update_sum: sum_mechanism.SumMechanism | None = None,
  numbers: Sequence[secure_sums.Number] = (),
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging by shares that follow from a private release of the losses.

  With `threshold.build_histogram_weighting` of `build_semi_variance_share` it is Semi-VRed, with
  `build_rank_share` GIFAIR; with a private quantile it is superquantile aggregation, which
  `build_private_superquantile_fed_avg` builds from theta; without a threshold it is DP-FedAvg. With
  s_i the share of client i and u_i its update, a round is

      T      the release of the threshold, noise multiplier z_q,
      U = sum_i s_i clip(u_i, C) + N(0, (z_w C)^2 I),    s_i = share_fn(F_i, T),
      weights += server optimizer of U / D.

  Mechanism: T is that of the threshold, and given T, U is the Gaussian mechanism of noise
  multiplier z_w. The divisor D is the threshold's private estimate of the sum of the shares, a
  function of T with a positive lower bound (without a threshold it is `expected_clients`). The
  exact sum, by which the paper divides, would reveal the clients that took part.

  Sensitivity: given T, s_i follows from client i's own loss, and s_i is in [0, 1], so that
  |s_i clip(u_i, C)| <= C and no client changes another's term. So setting one client's data to
  nothing (zero-out), and adding or removing a client, change the sum by one vector of norm C at
  most; replacing a client changes it by 2 C at most.

  Released: of a round's cohort T and U, and nothing else. Together they are a Gaussian mechanism of
  noise multiplier (z_q^-2 + z_w^-2)^(-1/2), or with an adaptive clip norm, which releases a noisy
  count besides, (z_q^-2 + z_w^-2 + z_b^-2)^(-1/2); `privacy.accounting` computes the cost of many
  rounds on sampled cohorts. The server is trusted with the sum of updates before it adds the noise.
  With `update_sum` clients make the noise, and the server sees the sum with the noise of the
  clients that report (`DistributedGaussianSumFactory`).

  The metrics hold nothing else of the cohort: `client_work` has the threshold's measurements alone,
  and `aggregator` an adaptive `clip_norm`, which follows from earlier rounds' releases.

  Args:
    model_fn: See `Options`. A model with non-trainable weights that clients change is not
      supported: only trainable weights are released.
    threshold: A private `ThresholdProcess`; None for shares of 1.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    clip_norm: C, to which the l2 norm of a client's update (not its gradient) is clipped, or an
      `AdaptiveClipNorm`, with which C follows a quantile of the norms of the updates, in which each
      client counts by its share.
    noise_multiplier: z_w, the update's noise multiplier: the standard deviation of the noise on the
      sum of updates over C, elsewhere called `update_noise_multiplier`.
    expected_clients: q n, the expected size of a cohort.
    mean_share: About the mean share of a client, in (0, 1], by which an adaptive clip norm scales
      its steps. It is a constant, and a rough one will do.
    noise_key: Key of the server's noise, 16 bytes, to be kept as secret as the noise and used for
      one run only, or a `BandedKey`; None for fresh entropy.
    update_sum: Built by `privacy.noise.sum_mechanism.build_sum_mechanism` with this clip norm and
      noise multiplier: each client makes its share of the noise, the server adds those that a
      cohort lacks; in rounds of more reports than shares the sum is zero. None for noise that the
      server adds.
    numbers: Numbers that a round releases besides, which lower its noise multiplier as the count of
      an adaptive clip norm does; not with an `update_sum`.
    **options: See `Options`; `client_weighting`, `model_aggregator` and `metrics_aggregator` are
      not to be chosen here.

  Returns:
    A `tff.learning.templates.LearningProcess`. Rounds without any client, or in which all shares
    are zero, release noise like others.

  Raises:
    TypeError: If an option is given that is not to be chosen here.
    ValueError: If the threshold is not private, or a number is out of its range.
  """
  checks.of_type("expected_clients", expected_clients, numbers_lib.Real, "a positive number")
  expected_clients = checks.positive("expected_clients", expected_clients)
  summed = private_sum.build_private_sum(
    lambda: local_model.describe(model_fn).weights_type.trainable,
    clip_norm,
    noise_multiplier,
    noise_key,
    update_sum,
    numbers=numbers,
    expected_share_sum=mean_share * expected_clients,
  )
  checks.of_type(
    "threshold", threshold, (ThresholdProcess, type(None)), "a private ThresholdProcess, or None"
  )
  if threshold is not None and not threshold.is_private:
    raise ValueError(
      "Found a threshold that shows the server the losses; expected a private one, such as"
      " build_tree_quantile or build_geometric_quantile."
    )

  def divisor(measurements: Any) -> tf.Tensor:
    if threshold is None:
      return tf.constant(expected_clients, tf.float32)
    (name,) = (name for name in _DIVISORS if name in measurements["threshold"])
    return measurements["threshold"][name]

  def report(update: Any, share: tf.Tensor, client: Client) -> Any:
    return summed.report_fn(update, share, client)

  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    private_sum.with_aggregator(options, summed.factory),
    threshold=threshold,
    hooks=client_work.ClientHooks(report_fn=report),
    divisor_fn=divisor,
    measure_cohort=False,
  )
