"""Builds averages with differential privacy in which clients weigh by their own losses."""

import collections
from collections.abc import Callable, Sequence
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
from tff_superquantile import threshold
from tff_superquantile.algorithms import learning_process
from tff_superquantile.algorithms.private import private_sum
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers

SHARE_WEIGHT = 0.3  # Of whoever says nothing else.


class _NoisyMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """Divides a noisy sum of (weighted update, share) by the estimated sum of the shares."""

  def __init__(
    self,
    sum_factory: tff.aggregators.UnweightedAggregationFactory,
    share_sum_fn: Callable[[Any], tf.Tensor],
  ):
    self._sum_factory = sum_factory
    self._share_sum_fn = share_sum_fn

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    summed = self._sum_factory.create(value_type)

    output_type = summed.next.type_signature.result

    @tff.tensorflow.computation(output_type.result.member, output_type.measurements.member)
    def divide(noisy_sum, measured):
      divisor = self._share_sum_fn(noisy_sum)
      mean = tf.nest.map_structure(lambda u: u / tf.cast(divisor, u.dtype), noisy_sum[0])
      kept = {name: value for name, value in (measured or {}).items() if tf.nest.flatten(value)}
      return mean, collections.OrderedDict(kept, estimated_share_sum=divisor)

    @tff.federated_computation(
      summed.initialize.type_signature.result, summed.next.type_signature.parameter[1]
    )
    def next_fn(state, values):
      output = summed.next(state, values)
      mean, measurements = tff.federated_map(divide, (output.result, output.measurements))
      return tff.templates.MeasuredProcessOutput(output.state, mean, measurements)

    return tff.templates.AggregationProcess(summed.initialize, next_fn)


def build_private_weighted_fed_avg(
  model_fn: local_model.Model,
  share_fn: threshold.OwnShareFn,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  clip_norm: private_sum.ClipNorm,
  noise_multiplier: float,
  share_weight: float = SHARE_WEIGHT,
  noise_key: noise_source.NoiseKey = None,
  update_sum: sum_mechanism.SumMechanism | None = None,
  numbers: Sequence[secure_sums.Number] = (),
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging with differential privacy and weights by the clients' own losses.

  With `threshold.build_power_share` it is q-FFL, with `build_tilted_share` tilted ERM, with
  `build_proportional_share` PropFair. Client i has the share s_i = share_fn(F_i(w)) in [0, 1] and
  the update u_i. A round is

      v_i = s_i (clip(u_i, C sqrt(1 - k^2)), k C),
      (U, S) = sum_i v_i + N(0, (z_w C)^2 I),
      weights += server optimizer of U / D,    D = max(S / (k C), 2 z_w / k).

  Mechanism: (U, S) is the Gaussian mechanism of noise multiplier z_w, and D and the model follow
  from it without looking at the clients again.

  Sensitivity: |v_i|^2 = s_i^2 (|clip(u_i, C sqrt(1 - k^2))|^2 + k^2 C^2) <= C^2. And v_i follows
  from w, which is released, and from the data and the random draws of client i alone: no share is
  relative to the cohort's losses, and the weights are not normalised before they are summed. So
  setting one client's data to nothing (zero-out), and adding or removing a client, change sum_i v_i
  by one vector of norm C at most; replacing a client changes it by 2 C at most, the difference of
  two of them.

  Released: of a round's cohort (U, S) alone, the sum of the clipped updates weighted by the shares,
  and the sum of the shares; no loss, no share, no number of clients. `privacy.accounting` computes
  the cost of many rounds on sampled cohorts. The server is trusted with the sum before it adds the
  noise; with `update_sum` clients make the noise.

  The divisor: S / (k C) estimates the sum of the shares with a standard deviation of z_w / k. D is
  at least twice that, a constant. A step is at least a times as long as with the true sum W only if
  W >= 2 a z_w / k and the noise is below -2 (a - 1) standard deviations: 2.3 % for a = 2, 3e-5 for
  a = 3. Where W is less than the constant, there is too little to learn from, and steps are short.

  The choice of k: U / D has, to first order, the mean squared error
  (z_w / W)^2 (d / (1 - k^2) + 1 / k^2) relative to updates of norm C sqrt(1 - k^2) that agree, with
  d the number of weights. It is least at k^2 = 1 / (1 + sqrt(d)), and k = 0.3 is right for d = 100.
  More weights ask for less, but even k = 0 takes no more than 5 % of the updates' noise away, and
  its divisor would be noise.

  q-FedAvg divides updates by d_i = 1 + q L |u_i|^2 / F_i besides (`build_q_fed_avg`). This is left
  out, as its denominator is another sum over the clients, whose terms nothing bounds.

  With an adaptive clip norm a noisy count is released besides, and all is a Gaussian mechanism of
  noise multiplier (z_w^-2 + z_b^-2)^(-1/2): see `secure_sums.adaptive_clipping`.

  The metrics have `estimated_share_sum`, which is D, under `aggregator`, an adaptive `clip_norm`,
  which follows from the releases of earlier rounds, and nothing else of the cohort.

  With s_i = 1 (q = 0, t = 0) a round is DP-FedAvg that estimates its divisor.

  Args:
    model_fn: See `Options`. Only trainable weights are released.
    share_fn: From a client's loss, float32 [], to its share. A share above 1 counts as 1; a share
      below 0 or NaN as 0, like that of clients without examples or with a loss or update that is
      not finite.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    clip_norm: C, the l2 norm to which a client's update and its share are clipped together, or an
      `AdaptiveClipNorm`, with which C (1 - k^2)^(1/2) follows a quantile of the norms of the
      updates, in which each client counts by its share.
    noise_multiplier: z_w, the standard deviation of the noise over C.
    share_weight: k in (0, 1), the part of C that carries the share.
    noise_key: Key of the server's noise, 16 bytes, to be kept as secret as the noise and used for
      one run only, or a `BandedKey`; None for fresh entropy.
    update_sum: Built by `privacy.noise.sum_mechanism.build_sum_mechanism` with this clip norm and
      noise multiplier, for one entry more than the model has weights: each client makes its share
      of the noise; in rounds of more reports than shares of noise the sum is zero. None for noise
      that the server adds.
    numbers: Numbers that a round releases besides, which lower its noise multiplier as the count of
      an adaptive clip norm does; not with an `update_sum`.
    **options: See `Options`; `client_weighting`, `model_aggregator` and `metrics_aggregator` are
      not to be chosen here.

  Returns:
    A `tff.learning.templates.LearningProcess`. Rounds without any client, or in which all shares
    are zero, release noise like others.

  Raises:
    TypeError: If an option is given that is not to be chosen here.
    ValueError: If a number is out of its range.
  """
  checks.of_type("share_weight", share_weight, numbers_lib.Real, "a number")
  share_weight = checks.fraction("share_weight", share_weight)

  summed = private_sum.build_private_sum(
    lambda: local_model.describe(model_fn).weights_type.trainable,
    clip_norm,
    noise_multiplier,
    noise_key,
    update_sum,
    numbers=numbers,
    share_weight=share_weight,
  )

  def report(update: Any, share: tf.Tensor, client: threshold.Client) -> Any:
    share = tf.where(share > 0.0, tf.minimum(share, 1.0), 0.0)  # A NaN is not above 0.
    return summed.report_fn(update, share, client)

  aggregator = _NoisyMeanFactory(summed.factory, summed.share_sum_fn)
  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    private_sum.with_aggregator(options, aggregator),
    threshold=threshold.build_own_loss_weighting(share_fn),
    hooks=client_work.ClientHooks(report_fn=report),
    measure_cohort=False,
  )
