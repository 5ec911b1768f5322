"""Makes a learning process private: `Private`, and the noisy sum of what its clients report."""

import collections
from collections.abc import Callable
import dataclasses
import math
import numbers as numbers_lib
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy.noise import sum_mechanism
from tff_superquantile import client_work
from tff_superquantile import noise_source
from tff_superquantile.client_work import local_model
from tff_superquantile.secure_sums import adaptive_clipping
from tff_superquantile.secure_sums import gaussian_sum
from tff_superquantile.secure_sums import noisy_sum
from tff_superquantile.threshold import Client
from tff_superquantile.threshold import ThresholdProcess

# The norm to which updates are clipped: a number, or the rule by which it adapts.
ClipNorm: TypeAlias = float | adaptive_clipping.AdaptiveClipNorm

SHARE_WEIGHT = 0.3  # Of whoever says nothing else.
# Options that a private process chooses: other weights would multiply a client's influence.
_FIXED = ("client_weighting", "metrics_aggregator", "model_aggregator")
# The least divisor, in standard deviations of the noise on the estimated sum of the shares.
_LEAST_DIVISOR = 2.0
# The measurements of a private threshold that estimate the sum of the shares.
_DIVISORS = ("estimated_tail_size", "estimated_share_sum")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Private:
  """Makes a builder's process differentially private: all that its server releases has noise.

      tsq.build_superquantile_fed_avg(
        model_fn, theta=0.5, client_optimizer_fn=..., threshold=<a private one>,
        private=tsq.Private(clip_norm=0.1, noise_multiplier=1.0, expected_clients=100))

  Client i has the update u_i and a share s_i in [0, 1]. With C the clip norm and z_w the noise
  multiplier, a round is one of these.

  **By a private threshold** T (superquantile aggregation with a private quantile, Semi-VRed and
  GIFAIR by `threshold.build_histogram_weighting`), whose noise multiplier is z_q:

      U = sum_i s_i clip(u_i, C) + N(0, (z_w C)^2 I),    s_i = share_fn(F_i, T),
      weights += server optimizer of U / D.

  D is the threshold's private estimate of the sum of the shares, a function of T with a positive
  lower bound. The exact sum, by which the paper divides, would reveal the clients that took part.

  **Without a threshold** (FedAvg, FedProx), s_i = 1 and D is `expected_clients`: DP-FedAvg.

  **By own losses** (`build_weighted_fed_avg` of `threshold.build_own_loss_weighting`: with
  `build_power_share` q-FFL, `build_tilted_share` tilted ERM, `build_proportional_share` PropFair),
  the shares s_i = share_fn(F_i) are summed beside the updates, with k the share weight:

      v_i = s_i (clip(u_i, C sqrt(1 - k^2)), k C),
      (U, S) = sum_i v_i + N(0, (z_w C)^2 I),    D = max(S / (k C), 2 z_w / k).

  Mechanism: T is that of the threshold, and given T, U or (U, S) is the Gaussian mechanism of noise
  multiplier z_w; D and the model follow from these without looking at the clients again.

  Sensitivity: given the released model and T, a client's term follows from its own data and draws
  alone: no share is relative to losses of others but by T. Its norm is at most C, as s_i is in
  [0, 1] and |v_i|^2 = s_i^2 (|clip(u_i, C sqrt(1 - k^2))|^2 + k^2 C^2) <= C^2. So setting one
  client's data to nothing (zero-out), and adding or removing a client, change the sum by one vector
  of norm C at most; replacing a client changes it by 2 C at most, the difference of two of them.

  Released: of a round's cohort T and U, or (U, S), and nothing else: no loss, no number of clients.
  Together they are a Gaussian mechanism of noise multiplier (z_q^-2 + z_w^-2)^(-1/2), or with an
  adaptive clip norm, which releases a noisy count besides, (z_q^-2 + z_w^-2 + z_b^-2)^(-1/2):
  `secure_sums.adaptive_clipping`. `privacy.accounting` computes the cost of many rounds on sampled
  cohorts. The server is trusted with the sum of updates before it adds the noise. With `update_sum`
  clients make the noise, and the server sees the sum with the noise of the clients that report
  (`DistributedGaussianSumFactory`). Rounds without any client, or in which all shares are zero,
  release noise like others.

  The metrics hold nothing else of the cohort: `client_work` has the threshold's measurements alone,
  and `aggregator` an adaptive `clip_norm`, which follows from earlier rounds' releases, and D as
  `estimated_share_sum` where shares are summed. Only trainable weights are released.

  The divisor of own losses: S / (k C) estimates the sum of the shares with a standard deviation of
  z_w / k. D is at least twice that, a constant. A step is at least a times as long as with the true
  sum W only if W >= 2 a z_w / k and the noise is below -2 (a - 1) standard deviations: 2.3 % for
  a = 2, 3e-5 for a = 3. Where W is less, there is too little to learn from, and steps are short.

  The choice of k: U / D has, to first order, the mean squared error
  (z_w / W)^2 (d / (1 - k^2) + 1 / k^2) relative to updates of norm C sqrt(1 - k^2) that agree, with
  d the number of weights. It is least at k^2 = 1 / (1 + sqrt(d)), and k = 0.3 is right for d = 100.
  More weights ask for less, but even k = 0 takes no more than 5 % of the updates' noise away, and
  its divisor would be noise. q-FedAvg divides updates by d_i = 1 + q L |u_i|^2 / F_i besides
  (`build_q_fed_avg`): left out, as its denominator is another sum, whose terms nothing bounds.

  Attributes:
    clip_norm: C, to which the l2 norm of a client's update (not its gradient), with its share where
      that is summed, is clipped; or an `AdaptiveClipNorm`, with which C, or C sqrt(1 - k^2),
      follows a quantile of the norms of the updates, in which each client counts by its share.
    noise_multiplier: z_w, the standard deviation of the noise on the sum of updates over C,
      elsewhere called `update_noise_multiplier`.
    expected_clients: q n, the expected size of a cohort; only own losses need none.
    share_weight: k in (0, 1), the part of C that carries the share of own losses.
    noise_key: Key of the server's noise, 16 bytes, to be kept as secret as the noise and used for
      one run only, or a `BandedKey`; None for fresh entropy.
    update_sum: Built by `privacy.noise.sum_mechanism.build_sum_mechanism` with this clip norm and
      noise multiplier, for one entry more than the model has weights where shares are summed: each
      client makes its share of the noise, the server adds those that a cohort lacks; in rounds of
      more reports than shares the sum is zero. None for noise that the server adds.

  Raises:
    TypeError: If a value is not of its type.
    ValueError: If a number is out of its range, or the values contradict each other.
  """

  clip_norm: ClipNorm
  noise_multiplier: float
  expected_clients: float | None = None
  share_weight: float = SHARE_WEIGHT
  noise_key: noise_source.NoiseKey = None
  update_sum: sum_mechanism.SumMechanism | None = None

  def __post_init__(self) -> None:
    rules = dict(share_weight=checks.fraction, noise_multiplier=checks.scale)
    if not self._is_adaptive:
      rules["clip_norm"] = checks.scale
    if self.expected_clients is not None:
      rules["expected_clients"] = checks.positive
    for name, rule in rules.items():
      kind = "a positive number or AdaptiveClipNorm" if name == "clip_norm" else "a positive number"
      checks.of_type(name, getattr(self, name), numbers_lib.Real, kind)
      object.__setattr__(self, name, rule(name, getattr(self, name)))
    self._check_update_sum()

  def _check_update_sum(self) -> None:
    expected = "what privacy.noise.sum_mechanism.build_sum_mechanism returns, or None"
    types = (sum_mechanism.SumMechanism, type(None))
    checks.of_type("update_sum", self.update_sum, types, expected)
    if self.update_sum is None:
      return
    if self._is_adaptive:
      raise ValueError(
        "Found an update_sum, whose modulus follows from a fixed clip norm, with a clip norm that"
        " adapts; expected a number for clip_norm, or noise that the server adds."
      )
    summed = self.update_sum.clip_norm, self.update_sum.noise_multiplier
    if summed != (self.clip_norm, self.noise_multiplier):
      raise ValueError(
        f"Found an update_sum of clip norm and noise multiplier {summed}; expected"
        f" {(self.clip_norm, self.noise_multiplier)}."
      )
    if isinstance(self.noise_key, noise_source.BandedKey):
      raise ValueError(
        "Found noise that is correlated over rounds with an update_sum, whose noise clients make;"
        " expected noise that the server adds."
      )

  @property
  def _is_adaptive(self) -> bool:
    return isinstance(self.clip_norm, adaptive_clipping.AdaptiveClipNorm)

  @property
  def cohort_size(self) -> float:
    """The expected size of a cohort; a `ValueError` where it is not there."""
    if self.expected_clients is None:
      raise ValueError("Found no expected_clients; expected the expected size of a cohort.")
    return self.expected_clients

  def build_sum(
    self, update_type_fn: Callable[[], tff.Type], expected_share_sum: float | None = None
  ) -> "PrivateSum":
    """Builds the noisy sum of the clients' updates, or without `expected_share_sum` of all v_i.

    `update_type_fn` returns the type of an update, a structure of float tensors. It is called if
    the clip norm is a number: to describe a model may take long. `expected_share_sum` is about how
    many clients train.
    """
    share_weight = self.share_weight if expected_share_sum is None else 0.0
    clip_norm = self.clip_norm
    # What a share of 1 adds to S, which is in units of a norm that adapts.
    unit = share_weight * clip_norm if isinstance(clip_norm, float) else share_weight

    def share_sum(result: Any) -> tf.Tensor:
      if not share_weight:
        return tf.constant(expected_share_sum, tf.float32)
      return tf.maximum(result[1] / unit, least_divisor(self.noise_multiplier, share_weight))

    if not isinstance(clip_norm, float):
      adaptive = adaptive_clipping.AdaptiveClippingSumFactory(
        clip_norm, self.noise_multiplier, share_sum, self.noise_key, share_weight
      )
      return PrivateSum(adaptive, lambda update, share, client: (update, share), share_sum)

    def vector(part_fn: Callable[[Any, Any], Any], update: Any, share: tf.Tensor) -> Any:
      """Returns v_i as `part_fn` makes its parts of (a value, the factor that it has in v_i)."""
      of_update = clip_norm * math.sqrt(1.0 - share_weight**2)
      clipped = part_fn(update, _factor(update, share, of_update))
      return (clipped, part_fn(share, unit)) if share_weight else clipped

    vector_type = update_type_fn()
    if share_weight:
      vector_type = tff.types.to_type((vector_type, np.float32))
    if self.update_sum is None:
      stddev = self.noise_multiplier * clip_norm
      central = gaussian_sum.GaussianSum(clip_norm, stddev, self.noise_key, "updates")
      return PrivateSum(
        noisy_sum.FactoryOfReports(central.create_of_reports(vector_type)),
        lambda update, share, client: vector(central.report, update, share),
        share_sum,
      )
    assert not isinstance(self.noise_key, noise_source.BandedKey)  # It is refused above.
    distributed = noisy_sum.DistributedGaussianSumFactory(self.update_sum, noise_key=self.noise_key)
    return PrivateSum(
      noisy_sum.FactoryOfReports(distributed.create_of_reports(vector_type)),
      lambda update, share, client: distributed.report(
        vector(gaussian_sum.scale, update, share), client.seed
      ),
      share_sum,
    )


class PrivateSum(NamedTuple):
  """Sums the clients' updates with noise, and perhaps their shares beside them.

  Attributes:
    factory: Aggregates the clients' reports to U, the noisy sum of their updates, or with a share
      weight to (U, S).
    report_fn: A TensorFlow function from (a client's update, its share, float32 [] in [0, 1],
      `Client`) to its report.
    share_sum_fn: A TensorFlow function from the result to about the sum of the shares, float32 [],
      positive.
  """

  factory: tff.aggregators.UnweightedAggregationFactory
  report_fn: Callable[[Any, tf.Tensor, Client], Any]
  share_sum_fn: Callable[[Any], tf.Tensor]


def _factor(update: Any, share: tf.Tensor, norm: float) -> tf.Tensor:
  """Returns a, float64 [], so that a * update is share * clip(update, norm)."""
  return tf.cast(share, tf.float64) * norm / tf.maximum(adaptive_clipping.global_norm(update), norm)


def least_divisor(noise_multiplier: float, share_weight: float) -> float:
  """Returns 2 z_w / k, below which no estimate of the sum of the shares falls."""
  return _LEAST_DIVISOR * noise_multiplier / share_weight


class _NoisyMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """Divides a noisy sum of (weighted update, share) by the estimated sum of the shares."""

  def __init__(self, summed: PrivateSum):
    self._summed = summed

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    summed = self._summed.factory.create(value_type)

    output_type = summed.next.type_signature.result

    @tff.tensorflow.computation(output_type.result.member, output_type.measurements.member)
    def divide(noisy_sum, measured):
      divisor = self._summed.share_sum_fn(noisy_sum)
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


def build_round(
  private: Private,
  model_fn: local_model.Model,
  options: dict[str, Any],
  threshold: ThresholdProcess | None,
  hooks: client_work.ClientHooks | None,
  theta: float,
) -> tuple[client_work.ClientHooks, dict[str, Any], Callable[[Any], tf.Tensor] | None]:
  """Returns the hooks, the options and the divisor of `learning_process.build` with a `Private`."""
  checks.of_type("private", private, Private, "a tff_superquantile.Private or None")
  for name in _FIXED:
    if options.get(name) is not None:
      raise TypeError(f"Found {name} for a private process, which chooses its own; leave it out.")
  if threshold is not None and not threshold.is_private:
    raise ValueError(
      "Found a threshold that shows the server the losses; expected a private one, such as"
      " build_tree_quantile or build_geometric_quantile."
    )
  divisor = None if threshold is None else _divisor(threshold)
  sums_shares = threshold is not None and divisor is None
  summed = private.build_sum(
    lambda: local_model.describe(model_fn).weights_type.trainable,
    None if sums_shares else theta * private.cohort_size,
  )

  def report(update: Any, share: tf.Tensor, client: Client) -> Any:
    share = tf.where(share > 0.0, tf.minimum(share, 1.0), 0.0)  # A NaN is not above 0.
    return summed.report_fn(update, share, client)

  def divisor_fn(measurements: Any) -> tf.Tensor:
    if divisor is None:
      return tf.constant(private.cohort_size, tf.float32)
    return measurements["threshold"][divisor]

  return (
    dataclasses.replace(hooks or client_work.ClientHooks(), report_fn=report),
    {
      **options,
      "client_weighting": tff.learning.ClientWeighting.UNIFORM,
      "model_aggregator": _NoisyMeanFactory(summed) if sums_shares else summed.factory,
    },
    None if sums_shares else divisor_fn,
  )


def _divisor(threshold: ThresholdProcess) -> str | None:
  """Returns the measurement that estimates the sum of the shares; None for own losses."""
  measured = threshold.next.type_signature.result.measurements.member
  return next((name for name in _DIVISORS if hasattr(measured, name)), None)
