"""Builds the noisy sum of what the clients of a private algorithm report, for all of them alike."""

import numbers
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy.noise import sum_mechanism
from tff_superquantile.algorithms import learning_process
from tff_superquantile.secure_sums import noisy_sum
from tff_superquantile.secure_sums import seeded_gaussian_query
from tff_superquantile.threshold import Client

_FIXED = ("client_weighting", "metrics_aggregator", "model_aggregator")


class PrivateSum(NamedTuple):
  """Sums the clients' vectors with noise.

  Attributes:
    clip_norm: C, to which each vector is clipped.
    noise_multiplier: z_w, the standard deviation of the noise over C.
    factory: Aggregates the clients' reports to the noisy sum of their vectors.
    report_fn: A TensorFlow function from (a client's vector, `Client`) to its report.
  """

  clip_norm: float
  noise_multiplier: float
  factory: tff.aggregators.UnweightedAggregationFactory
  report_fn: Callable[[Any, Client], Any]


def clip(vector: Any, norm: float) -> Any:
  """Clips a structure of float tensors to an l2 norm over all of them.

  The norm is computed in double precision. In single precision that of a huge update overflows: one
  client would make the sum NaN, and the round would release no noise.
  """
  found = tf.linalg.global_norm([tf.cast(v, tf.float64) for v in tf.nest.flatten(vector)])
  factor = norm / tf.maximum(found, norm)
  return tf.nest.map_structure(lambda v: tf.cast(tf.cast(v, tf.float64) * factor, v.dtype), vector)


def weigh(update: Any, share: tf.Tensor, norm: float) -> Any:
  """Returns share * clip(update, norm), of norm at most share * norm."""
  return tf.nest.map_structure(lambda u: u * tf.cast(share, u.dtype), clip(update, norm))


def build_private_sum(
  value_type_fn: Callable[[], tff.Type],
  clip_norm: float,
  noise_multiplier: float,
  noise_key: Optional[bytes],
  update_sum: Optional[sum_mechanism.SumMechanism],
) -> PrivateSum:
  """Builds the sum of the clients' vectors v_i, clipped to C, plus N(0, (z_w C)^2 I).

  Guarantee: the sum has l2-sensitivity C under zero-out adjacency and under addition or removal of
  a client, as these change it by one v_i, and 2C under replacement; so its release is a Gaussian
  mechanism of noise multiplier z_w, or z_w / 2. It holds whatever the v_i are, as long as v_i
  depends on no other client of the round, and they are numbers.

  Args:
    value_type_fn: Returns the type of a vector, a structure of float tensors. It is called if the
      clients make the noise: to describe a model may take long.
    clip_norm: C.
    noise_multiplier: z_w.
    noise_key: Key of the server's noise, 16 bytes; None for fresh entropy.
    update_sum: Parameters of the sum whose noise the clients make, of that C and z_w; None for
      noise that the server adds.

  Returns:
    The `PrivateSum`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range, or `update_sum` is of another sum.
  """
  for name, number in (("clip_norm", clip_norm), ("noise_multiplier", noise_multiplier)):
    checks.of_type(name, number, numbers.Real, "a positive number")
  clip_norm = checks.scale("clip_norm", clip_norm)
  noise_multiplier = checks.scale("noise_multiplier", noise_multiplier)
  checks.of_type(
    "update_sum",
    update_sum,
    (sum_mechanism.SumMechanism, type(None)),
    "what privacy.noise.sum_mechanism.build_sum_mechanism returns, or None",
  )
  if update_sum is None:
    query = seeded_gaussian_query.SeededGaussianSumQuery(
      clip_norm, noise_multiplier * clip_norm, noise_key, "updates"
    )
    return PrivateSum(
      clip_norm,
      noise_multiplier,
      tff.aggregators.DifferentiallyPrivateFactory(query),
      lambda vector, client: clip(vector, clip_norm),  # The query's clip is in single precision.
    )
  found, expected = (
    (update_sum.clip_norm, update_sum.noise_multiplier),
    (clip_norm, noise_multiplier),
  )
  if found != expected:
    raise ValueError(
      f"Found an update_sum of clip norm and noise multiplier {found}; expected {expected}."
    )
  distributed = noisy_sum.DistributedGaussianSumFactory(update_sum, noise_key=noise_key)
  return PrivateSum(
    clip_norm,
    noise_multiplier,
    distributed.factory_of_reports(value_type_fn()),
    lambda vector, client: distributed.report(vector, client.seed),
  )


def with_aggregator(
  options: learning_process.Options, aggregator: tff.aggregators.UnweightedAggregationFactory
) -> learning_process.Options:
  """Returns the options of a private algorithm, whose aggregator and client weights are its own.

  Raises:
    TypeError: If an option is given that is not to be chosen there.
  """
  for name in _FIXED:
    if options.get(name) is not None:
      raise TypeError(f"Found {name} for a private process, which chooses its own; leave it out.")
  # Other weights than uniform ones would multiply a client's influence.
  return {
    **options,
    "client_weighting": tff.learning.ClientWeighting.UNIFORM,
    "model_aggregator": aggregator,
  }
