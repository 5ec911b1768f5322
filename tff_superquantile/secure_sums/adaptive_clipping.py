"""Sums clipped vectors with noise, to a clip norm that follows a quantile of the vectors' norms.

The method is "Differentially Private Learning with Adaptive Clipping" by Andrew, Thakkar, McMahan
and Ramaswamy (2021). In round t client i has an update u_i and a share s_i in [0, 1]; all know the
clip norm C_t. With gamma the wanted quantile, eta the learning rate, and b_i = [|u_i| <= C_t],

    U = C_t (sum_i s_i clip(u_i, C_t) / C_t + N(0, z_w^2 I)),
    B = sum_i s_i (b_i - gamma) + N(0, (z_b g)^2),    g = max(gamma, 1 - gamma),
    C_{t+1} = C_t exp(-eta B / N),    with B / N cut to [-gamma, 1 - gamma].

A client that sends nothing (s_i = 0: outside of the tail, or without a finite update) adds nothing
to B. So B is zero, but for its noise, if a fraction gamma of those that train (by their shares) is
within C_t, however many they are: N only scales the step, and a rough N does no harm. The paper
counts b_i - 1/2 and subtracts gamma - 1/2 after the division. That is the same for gamma = 1/2; for
another gamma an N that is off would move the quantile.

Mechanism: U / C_t and B are one Gaussian mechanism with

    z = (z_w^-2 + z_b^-2)^(-1/2),

since C_t follows from releases of earlier rounds, and B travels as one more entry of the vectors.

Sensitivity. A client adds v_i = s_i (clip(u_i, C_t) / C_t, b_i - gamma), whose two parts have norms
of at most 1 and g; so |v_i| in units of the noise is at most (z_w^-2 + z_b^-2)^(1/2). Removing a
client's data (zero-out, v_i becomes 0) and adding or removing a client change the sum by one v_i.
Replacing a client changes the first part by 2 at most, and the second, which is between -gamma and
1 - gamma or 0, by 1 <= 2 g at most: twice these sensitivities are a bound, which gamma = 1/2
reaches.

Released: U, B and what follows from them, C_{t+1} among it, and nothing else. N is a constant or
follows from U.
"""

import collections
from collections.abc import Callable
import dataclasses
import math
import numbers
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile import noise_source
from tff_superquantile.secure_sums import gaussian_sum


@dataclasses.dataclass(frozen=True)
class AdaptiveClipNorm:
  """A clip norm that follows a quantile of the norms of the updates from round to round.

  Attributes:
    count_noise_multiplier: z_b, the noise of the count of updates within the clip norm, over its
      sensitivity to removing one client's data.
    initial_norm: C of the first round.
    target_quantile: gamma in (0, 1), the fraction of the updates that is not clipped.
    learning_rate: eta, the step size of the norm's logarithm.

  Raises:
    TypeError: If a number is none.
    ValueError: If a number is out of its range.
  """

  count_noise_multiplier: float
  initial_norm: float = 0.1
  target_quantile: float = 0.5
  learning_rate: float = 0.2

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      checks.of_type(field.name, value, numbers.Real, "a number")
      check = checks.fraction if field.name == "target_quantile" else checks.scale
      object.__setattr__(self, field.name, check(field.name, value))

  def of_client(self, length: tf.Tensor, limit: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Returns s_i (b_i - gamma), by |u_i|, the norm of clipping and s_i, float64 [] like these."""
    return share * (tf.cast(length <= limit, tf.float64) - self.target_quantile)

  def moved(self, norm: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """Returns the norm of the next round, float32 [] like that of this one and B / N."""
    gamma = self.target_quantile
    step = self.learning_rate * tf.clip_by_value(mean, -gamma, 1.0 - gamma)
    # Where nobody trains, noise alone moves the norm.
    return tf.clip_by_value(norm * tf.exp(-step), checks.LEAST_SCALE, checks.MOST_SCALE)


def global_norm(vector: Any) -> tf.Tensor:
  """Returns the l2 norm over all float tensors of a structure.

  In single precision that of a huge update overflows: one client would make the sum NaN, and the
  round would release no noise.

  Args:
    vector: A structure of float tensors.

  Returns:
    The norm, float64 [].
  """
  return tf.linalg.global_norm([tf.cast(v, tf.float64) for v in tf.nest.flatten(vector)])


class AdaptiveClippingSumFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums clipped updates of (update, share float32 []) with noise, and adapts the clip norm.

  The result is U; with a `share_weight` k it is (U, S), where updates are clipped to
  C_t (1 - k^2)^(1/2), S = k sum_i s_i + N(0, z_w^2), and the first two parts of v_i together have a
  norm of at most 1. The measurement `clip_norm` is C_t, float32.
  """

  def __init__(
    self,
    clip_norm: AdaptiveClipNorm,
    noise_multiplier: float,
    share_sum_fn: Callable[[Any], tf.Tensor],
    noise_key: noise_source.NoiseKey,
    share_weight: float = 0.0,
  ):
    """Initializes an `AdaptiveClippingSumFactory`.

    Args:
      clip_norm: How the norm moves, and the noise of the count.
      noise_multiplier: z_w, of the sum of the updates.
      share_sum_fn: A TensorFlow function of the result to N, about the sum of the shares, float32
        [], positive. It may depend on nothing else of the cohort.
      noise_key: Key of the server's noise, 16 bytes, or a `BandedKey`; None for fresh entropy.
      share_weight: k in [0, 1).
    """
    self._clip_norm = clip_norm
    self._share_sum_fn = share_sum_fn
    self._share_weight = share_weight
    # The entry of the count is scaled so that its noise is that of the others.
    in_noise = noise_multiplier / clip_norm.count_noise_multiplier
    self._scale = in_noise / max(clip_norm.target_quantile, 1.0 - clip_norm.target_quantile)
    self._sum = gaussian_sum.GaussianSum(
      math.hypot(1.0, in_noise), noise_multiplier, noise_key, "updates"
    )

  def _at_client(self, clip_norm: tf.Tensor, value: Any) -> Any:
    """Reports (s clip(u, C) / C[, k s], the count), this scaled."""
    update, share, k = value[0], tf.cast(value[1], tf.float64), self._share_weight
    relative = math.sqrt(1.0 - k**2)
    limit = relative * tf.cast(clip_norm, tf.float64)
    norm = global_norm(update)
    clipped = self._sum.report(update, share * relative / tf.maximum(norm, limit))
    count = self._sum.report(self._scale * self._clip_norm.of_client(norm, limit, share))
    return (clipped, self._sum.report(k * share)) if k else clipped, count

  def _at_server(self, clip_norm: tf.Tensor, noisy: Any) -> tuple[tf.Tensor, Any]:
    """Returns the next clip norm, and the result of the round."""
    summed, count = noisy
    update = summed[0] if self._share_weight else summed
    update = tf.nest.map_structure(lambda u: u * tf.cast(clip_norm, u.dtype), update)
    result = (update, summed[1]) if self._share_weight else update
    mean = count / (self._scale * self._share_sum_fn(result))
    return self._clip_norm.moved(clip_norm, mean), result

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    @tff.tensorflow.computation
    def initial_norm():
      return tf.constant(self._clip_norm.initial_norm, tf.float32)

    norm_type = initial_norm.type_signature.result
    at_client = tff.tensorflow.computation(self._at_client, norm_type, value_type)
    summed_type = (value_type[0], np.float32) if self._share_weight else value_type[0]
    noisy_sum = self._sum.create_of_reports(tff.types.to_type((summed_type, np.float32)))
    at_server = tff.tensorflow.computation(
      self._at_server, norm_type, noisy_sum.next.type_signature.result.result.member
    )

    @tff.federated_computation
    def initialize():
      norm = tff.federated_eval(initial_norm, tff.SERVER)
      return tff.federated_zip(collections.OrderedDict(clip_norm=norm, sum=noisy_sum.initialize()))

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      norm = state["clip_norm"]
      reports = tff.federated_map(at_client, (tff.federated_broadcast(norm), values))
      output = noisy_sum.next(state["sum"], reports)
      moved, result = tff.federated_map(at_server, (norm, output.result))
      new_state = collections.OrderedDict(clip_norm=moved, sum=output.state)
      measured = tff.federated_zip(collections.OrderedDict(clip_norm=norm))
      return tff.templates.MeasuredProcessOutput(tff.federated_zip(new_state), result, measured)

    return tff.templates.AggregationProcess(initialize, next_fn)
