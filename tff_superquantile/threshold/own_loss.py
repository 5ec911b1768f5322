"""Builds weightings in which a client's share follows from its own loss and constants alone.

The server learns nothing of the losses, and no client's share depends on another client. The
constant B bounds the losses: a loss above it counts as B, which has the share 1.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile.threshold import process

# From the loss F_i, float32 [], to the share, float32 [] in [0, 1].
OwnShareFn = Callable[[tf.Tensor], tf.Tensor]


def build_own_loss_weighting(share_fn: OwnShareFn) -> process.ThresholdProcess:
  """Builds the weighting pi_i = alpha_i share_fn(F_i), of which the server learns nothing.

  `share_fn` is a TensorFlow function from a client's loss, which is finite, to its share in [0, 1].
  Reports, result and measurements are empty.

  Args:
    share_fn: From a finite loss, float32 [], to a share in [0, 1], float32 [].

  Returns:
    A `ThresholdProcess` that counts as private: the server sees nothing of a loss.
  """

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(tff.StructType([]), tff.CLIENTS)
  )
  def next_of_reports(state, reports):
    del reports
    nothing = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(state, nothing, nothing)

  return process.ThresholdProcess(
    initialize,
    next_of_reports,
    report_fn=lambda loss, weight, client: (),
    share_fn=lambda loss, nothing, client: share_fn(loss),
    is_private=True,
  )


def build_power_share(q: float, max_loss: float) -> OwnShareFn:
  """Builds the share (min(F, B) / B)^q of q-FFL (Li et al., 2020), F^q over its largest value.

  q >= 0; 0 gives each client the share 1. B, `max_loss`, is in units of the loss; a negative loss
  counts as 0.

  Args:
    q: The exponent, >= 0; 0 gives each client the share 1.
    max_loss: B, positive, in units of the loss.

  Returns:
    A TensorFlow function from a loss, float32 [], to the share in [0, 1].

  Raises:
    TypeError: If an argument is no number.
    ValueError: If `q` is negative, or `max_loss` not positive.
  """
  q, max_loss = checks.not_negative("q", q), checks.scale("max_loss", max_loss)
  return lambda loss: tf.pow(tf.clip_by_value(loss / max_loss, 0.0, 1.0), q)


def build_tilted_share(temperature: float, max_loss: float) -> OwnShareFn:
  """Builds the share exp(t (min(F, B) - B)) of tilted ERM (Li et al., 2021).

  The temperature t >= 0 is in units of one over the loss; 0 gives each client the share 1.

  Args:
    temperature: t, >= 0, in units of one over the loss.
    max_loss: B, positive, in units of the loss.

  Returns:
    A TensorFlow function from a loss, float32 [], to the share in (0, 1].

  Raises:
    TypeError: If an argument is no number.
    ValueError: If `temperature` is negative, or `max_loss` not positive.
  """
  temperature = checks.not_negative("temperature", temperature)
  max_loss = checks.scale("max_loss", max_loss)
  return lambda loss: tf.exp(temperature * tf.minimum(loss - max_loss, 0.0))


def build_proportional_share(utility_bound: float, max_loss: float) -> OwnShareFn:
  """Builds the share (M - B) / (M - min(F, B)) of PropFair (Zhang et al., 2023).

  It is the slope of -log(M - F) over its largest value, for a bound M > B on the losses, of which M
  - F is a client's utility. Zhang et al. continue the logarithm as a straight line where M - F <
  epsilon, which is where F > B = M - epsilon: the slope stays there.

  Args:
    utility_bound: M, above B, in units of the loss.
    max_loss: B, positive, in units of the loss.

  Returns:
    A TensorFlow function from a loss, float32 [], to the share in (0, 1].

  Raises:
    TypeError: If an argument is no number.
    ValueError: If one of them is not positive, or M is not above B.
  """
  utility_bound = checks.scale("utility_bound", utility_bound)
  max_loss = checks.scale("max_loss", max_loss)
  if not utility_bound > max_loss:
    raise ValueError(
      f"Found utility_bound = {utility_bound}; expected a number above max_loss = {max_loss}, which"
      " is the largest loss that counts."
    )
  # 1 / (1 + (B - F) / (M - B)): single precision may not tell M from B.
  least_utility = np.float32(max(utility_bound - max_loss, checks.LEAST_SCALE))
  return lambda loss: 1.0 / (1.0 + tf.maximum(max_loss - loss, 0.0) / least_utility)
