"""Builds the noisy sum of what the clients of a private algorithm report, for all of them alike."""

from collections.abc import Callable, Sequence
import math
import numbers as numbers_lib
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy.noise import sum_mechanism
from tff_superquantile import noise_source
from tff_superquantile.algorithms import learning_process
from tff_superquantile.secure_sums import adaptive_clipping
from tff_superquantile.secure_sums import gaussian_sum
from tff_superquantile.secure_sums import noisy_sum
from tff_superquantile.threshold import Client

# The norm to which updates are clipped: a number, or the rule by which it adapts.
ClipNorm: TypeAlias = float | adaptive_clipping.AdaptiveClipNorm

_FIXED = ("client_weighting", "metrics_aggregator", "model_aggregator")
# The least divisor, in standard deviations of the noise on the estimated sum of the shares.
_LEAST_DIVISOR = 2.0


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


def _checked(
  clip_norm: ClipNorm,
  noise_multiplier: float,
  update_sum: sum_mechanism.SumMechanism | None,
  numbers: Sequence[adaptive_clipping.Number],
) -> tuple[ClipNorm, float]:
  """Returns C and z_w, of the types and in the ranges that `build_private_sum` takes."""
  is_adaptive = isinstance(clip_norm, adaptive_clipping.AdaptiveClipNorm)
  if not is_adaptive:
    checks.of_type(
      "clip_norm", clip_norm, numbers_lib.Real, "a positive number or AdaptiveClipNorm"
    )
    clip_norm = checks.scale("clip_norm", clip_norm)
  checks.of_type("noise_multiplier", noise_multiplier, numbers_lib.Real, "a positive number")
  noise_multiplier = checks.scale("noise_multiplier", noise_multiplier)
  checks.of_type(
    "update_sum",
    update_sum,
    (sum_mechanism.SumMechanism, type(None)),
    "what privacy.noise.sum_mechanism.build_sum_mechanism returns, or None",
  )
  if update_sum is None:
    return clip_norm, noise_multiplier
  if is_adaptive:
    raise ValueError(
      "Found an update_sum, whose modulus follows from a fixed clip norm, with a clip norm that"
      " adapts; expected a number for clip_norm, or noise that the server adds."
    )
  if numbers:
    raise ValueError(
      f"Found an update_sum with the number {numbers[0].name} beside it; expected noise that the"
      " server adds, to both."
    )
  found, expected = (
    (update_sum.clip_norm, update_sum.noise_multiplier),
    (clip_norm, noise_multiplier),
  )
  if found != expected:
    raise ValueError(
      f"Found an update_sum of clip norm and noise multiplier {found}; expected {expected}."
    )
  return clip_norm, noise_multiplier


def build_private_sum(
  update_type_fn: Callable[[], tff.Type],
  clip_norm: ClipNorm,
  noise_multiplier: float,
  noise_key: noise_source.NoiseKey,
  update_sum: sum_mechanism.SumMechanism | None,
  *,
  numbers: Sequence[adaptive_clipping.Number] = (),
  share_weight: float = 0.0,
  expected_share_sum: float | None = None,
) -> PrivateSum:
  """Builds the sum of the clients' vectors v_i, clipped to C, plus N(0, (z_w C)^2 I).

  A vector is s_i clip(u_i, C), with u_i the client's update and s_i its share, or with a share
  weight k in (0, 1) also the share itself,

      v_i = s_i (clip(u_i, C sqrt(1 - k^2)), k C),    (U, S) = sum_i v_i + N(0, (z_w C)^2 I),

  where max(S / (k C), 2 z_w / k) estimates the sum of the shares.

  Guarantee: the sum has l2-sensitivity C under zero-out adjacency and under addition or removal of
  a client, as these change it by one v_i, and 2C under replacement; so its release is a Gaussian
  mechanism of noise multiplier z_w, or z_w / 2. It holds whatever the v_i are, as long as v_i
  depends on no other client of the round, and they are numbers. With an adaptive clip norm C is
  that of the round and S is in units of C, and a count is released besides, and so are further
  numbers, each with noise of its own: `secure_sums.adaptive_clipping` states the guarantee.

  `update_type_fn` returns the type of an update, a structure of float tensors. It is called if the
  clip norm is a number: to describe a model may take long. `noise_key` is the server's, as in
  `build_private_fed_avg`. `update_sum` has the parameters of the sum whose noise the clients make,
  of that C, not adaptive, and z_w, without `numbers`; None for noise that the server adds. Updates
  alone (k = 0) need `expected_share_sum`, about how many clients train.
  """
  clip_norm, noise_multiplier = _checked(clip_norm, noise_multiplier, update_sum, numbers)
  # What a share of 1 adds to S, which is in units of the norm where numbers travel beside it.
  unit = share_weight
  if not (numbers or isinstance(clip_norm, adaptive_clipping.AdaptiveClipNorm)):
    unit = share_weight * clip_norm

  def share_sum(result: Any) -> tf.Tensor:
    if not share_weight:
      return tf.constant(expected_share_sum, tf.float32)
    return tf.maximum(result[1] / unit, least_divisor(noise_multiplier, share_weight))

  if numbers or isinstance(clip_norm, adaptive_clipping.AdaptiveClipNorm):
    adaptive = adaptive_clipping.AdaptiveClippingSumFactory(
      clip_norm, noise_multiplier, share_sum, noise_key, share_weight, numbers
    )
    return PrivateSum(adaptive, lambda update, share, client: (update, share), share_sum)

  def vector(part_fn: Callable[[Any, Any], Any], update: Any, share: tf.Tensor) -> Any:
    """Returns v_i as `part_fn` makes its parts of (a value, the factor that it has in v_i)."""
    clipped = part_fn(update, _factor(update, share, clip_norm * math.sqrt(1.0 - share_weight**2)))
    return (clipped, part_fn(share, unit)) if share_weight else clipped

  vector_type = update_type_fn()
  if share_weight:
    vector_type = tff.types.to_type((vector_type, np.float32))
  if update_sum is None:
    central = gaussian_sum.GaussianSum(
      clip_norm, noise_multiplier * clip_norm, noise_key, "updates"
    )
    return PrivateSum(
      central.factory_of_reports(vector_type),
      lambda update, share, client: vector(central.report, update, share),
      share_sum,
    )
  if isinstance(noise_key, noise_source.BandedKey):
    raise ValueError(
      "Found noise that is correlated over rounds with an update_sum, whose noise clients make;"
      " expected noise that the server adds."
    )
  distributed = noisy_sum.DistributedGaussianSumFactory(update_sum, noise_key=noise_key)
  return PrivateSum(
    distributed.factory_of_reports(vector_type),
    lambda update, share, client: distributed.report(
      vector(gaussian_sum.scale, update, share), client.seed
    ),
    share_sum,
  )


def with_aggregator(
  options: learning_process.Options, aggregator: tff.aggregators.UnweightedAggregationFactory
) -> learning_process.Options:
  """Returns the options of a private algorithm, whose aggregator and client weights are its own."""
  for name in _FIXED:
    if options.get(name) is not None:
      raise TypeError(f"Found {name} for a private process, which chooses its own; leave it out.")
  # Other weights than uniform ones would multiply a client's influence.
  return {
    **options,
    "client_weighting": tff.learning.ClientWeighting.UNIFORM,
    "model_aggregator": aggregator,
  }
