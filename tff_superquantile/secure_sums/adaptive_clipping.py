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

Further numbers travel in the same way, each as one more entry: a client adds s_i x_i, of an
absolute value of at most g, with noise z g. All together are a Gaussian mechanism with
z = (z_w^-2 + sum of the z^-2)^(-1/2), for a fixed norm, too.
"""

import abc
import collections
from collections.abc import Callable, Sequence
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


class Number(abc.ABC):
  """One more number that a round releases beside the sum of the updates, with noise of its own.

  The guarantee holds whatever a client adds: what is beyond the sensitivity is cut.

  Attributes:
    name: Of its measurement; numbers of one sum need different names.
  """

  name: str

  @property
  @abc.abstractmethod
  def noise_multiplier(self) -> float:
    """z, the noise over the sensitivity to removing one client's data."""

  @property
  @abc.abstractmethod
  def sensitivity(self) -> float:
    """g, the most that one client's data add, to either side."""

  @property
  @abc.abstractmethod
  def initial(self) -> float:
    """The state before the first round."""

  @abc.abstractmethod
  def of_client(self, length: tf.Tensor, limit: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Returns what a client adds, by |u_i|, the norm of clipping and s_i, float64 [] like these."""

  @abc.abstractmethod
  def of_round(
    self, state: tf.Tensor, mean: tf.Tensor, share_sum: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the next state and the measurement, float32 [], of a round.

    `mean` is the noisy sum over `share_sum`, N, float32 [] like the state.
    """


@dataclasses.dataclass(frozen=True)
class AdaptiveClipNorm(Number):
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

  name = "clip_norm"

  @property
  def noise_multiplier(self) -> float:
    return self.count_noise_multiplier

  @property
  def sensitivity(self) -> float:
    return max(self.target_quantile, 1.0 - self.target_quantile)

  @property
  def initial(self) -> float:
    return self.initial_norm

  def of_client(self, length: tf.Tensor, limit: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return share * (tf.cast(length <= limit, tf.float64) - self.target_quantile)

  def of_round(
    self, state: tf.Tensor, mean: tf.Tensor, share_sum: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    del share_sum
    gamma = self.target_quantile
    step = self.learning_rate * tf.clip_by_value(mean, -gamma, 1.0 - gamma)
    # Where nobody trains, noise alone moves the norm.
    moved = tf.clip_by_value(state * tf.exp(-step), checks.LEAST_SCALE, checks.MOST_SCALE)
    return moved, state  # The norm of this round, which follows from those before.


def global_norm(vector: Any) -> tf.Tensor:
  """Returns the l2 norm over all float tensors of a structure, float64 [].

  In single precision that of a huge update overflows: one client would make the sum NaN, and the
  round would release no noise.
  """
  return tf.linalg.global_norm([tf.cast(v, tf.float64) for v in tf.nest.flatten(vector)])


class AdaptiveClippingSumFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums clipped updates of (update, share float32 []) with noise, and numbers beside them.

  The result is U; with a `share_weight` k it is (U, S), where updates are clipped to
  C_t (1 - k^2)^(1/2), S = k sum_i s_i + N(0, z_w^2), and the first two parts of v_i together have a
  norm of at most 1. Measurements, float32: one of each number; `clip_norm`, C_t, if it adapts.
  """

  def __init__(
    self,
    clip_norm: float | AdaptiveClipNorm,
    noise_multiplier: float,
    share_sum_fn: Callable[[Any], tf.Tensor],
    noise_key: noise_source.NoiseKey,
    share_weight: float = 0.0,
    numbers: Sequence[Number] = (),
  ):
    """Initializes an `AdaptiveClippingSumFactory`.

    Args:
      clip_norm: How the norm moves, and the noise of the count; or a norm that does not.
      noise_multiplier: z_w, of the sum of the updates.
      share_sum_fn: A TensorFlow function of the result to N, about the sum of the shares, float32
        [], positive. It may depend on nothing else of the cohort.
      noise_key: Key of the server's noise, 16 bytes, or a `BandedKey`; None for fresh entropy.
      share_weight: k in [0, 1).
      numbers: Further numbers; with a norm that does not adapt at least one.
    """
    self._clip_norm = clip_norm
    self._numbers: list[Number] = [clip_norm] if isinstance(clip_norm, AdaptiveClipNorm) else []
    self._numbers += numbers
    self._share_sum_fn = share_sum_fn
    self._share_weight = share_weight
    # The entries of numbers are scaled so that their noise is that of the others.
    in_noise = [noise_multiplier / number.noise_multiplier for number in self._numbers]
    self._scales = [z / number.sensitivity for z, number in zip(in_noise, self._numbers)]
    self._sum = gaussian_sum.GaussianSum(
      math.hypot(1.0, *in_noise), noise_multiplier, noise_key, "updates"
    )

  def _norm(self, states: Any) -> tf.Tensor:
    """Returns C_t, float32 []."""
    if isinstance(self._clip_norm, AdaptiveClipNorm):
      return states[self._clip_norm.name]
    return tf.constant(self._clip_norm, tf.float32)

  def _at_client(self, states: Any, update: Any, share: tf.Tensor) -> Any:
    """Reports (s clip(u, C) / C[, k s], the numbers), these scaled."""
    k = self._share_weight
    relative = math.sqrt(1.0 - k**2)
    limit = relative * tf.cast(self._norm(states), tf.float64)
    norm, share64 = global_norm(update), tf.cast(share, tf.float64)
    clipped = self._sum.report(update, share64 * relative / tf.maximum(norm, limit))
    added = []
    for number, scale in zip(self._numbers, self._scales):
      value, most = number.of_client(norm, limit, share64), number.sensitivity
      value = tf.where(tf.math.is_nan(value), tf.zeros_like(value), value)
      added.append(self._sum.report(scale * tf.clip_by_value(value, -most, most)))
    summed = (clipped, self._sum.report(k * share64)) if k else clipped
    return summed, tuple(added)

  def _at_server(self, states: Any, noisy: Any) -> tuple[Any, Any, Any]:
    """Returns the next states, the result of the round, and the measurements."""
    summed, added = noisy
    norm = self._norm(states)
    update = summed[0] if self._share_weight else summed
    update = tf.nest.map_structure(lambda u: u * tf.cast(norm, u.dtype), update)
    result = (update, summed[1]) if self._share_weight else update
    share_sum = self._share_sum_fn(result)
    next_states, measured = collections.OrderedDict(), collections.OrderedDict()
    for number, scale, value in zip(self._numbers, self._scales, added):
      mean = value / (scale * share_sum)
      following = number.of_round(states[number.name], mean, share_sum)
      next_states[number.name], measured[number.name] = following
    return next_states, result, measured

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    names = [number.name for number in self._numbers]

    @tff.tensorflow.computation
    def initial_states():
      return collections.OrderedDict(
        (number.name, tf.constant(number.initial, tf.float32)) for number in self._numbers
      )

    states_type = initial_states.type_signature.result

    @tff.tensorflow.computation(states_type, value_type)
    def at_client(states, value):
      return self._at_client(states, value[0], value[1])

    summed_type = (value_type[0], np.float32) if self._share_weight else value_type[0]
    noisy_sum = self._sum.create_of_reports(
      tff.types.to_type((summed_type, (np.float32,) * len(names)))
    )
    at_server = tff.tensorflow.computation(
      self._at_server, states_type, noisy_sum.next.type_signature.result.result.member
    )

    @tff.federated_computation
    def initialize():
      states = tff.federated_eval(initial_states, tff.SERVER)
      return tff.federated_zip(
        collections.OrderedDict({name: states[name] for name in names}, sum=noisy_sum.initialize())
      )

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      states = tff.federated_zip(collections.OrderedDict((name, state[name]) for name in names))
      reports = tff.federated_map(at_client, (tff.federated_broadcast(states), values))
      output = noisy_sum.next(state["sum"], reports)
      moved, result, measured = tff.federated_map(at_server, (states, output.result))
      new_state = collections.OrderedDict({name: moved[name] for name in names}, sum=output.state)
      return tff.templates.MeasuredProcessOutput(tff.federated_zip(new_state), result, measured)

    return tff.templates.AggregationProcess(initialize, next_fn)
