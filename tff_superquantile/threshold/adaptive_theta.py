"""The tail fraction of a round from how many clients turned up.

The paper fixes theta. Where the number of clients that turn up swings over the day, the tail of a
fixed theta swings with it: a handful of clients at the worst hour, whose average is mostly noise,
and many times as many at the best, which noise does not need.
"""

import dataclasses
import numbers
from typing import Union

import numpy as np
import tensorflow as tf

from privacy import checks
from tff_superquantile import superquantile


@dataclasses.dataclass(frozen=True)
class AdaptiveTheta:
  """theta_t = clip(wanted_updates / n_t, min_theta, max_theta), n_t the clients that turned up.

  So that wanted_updates clients are in the tail while n_t is between wanted_updates / max_theta and
  wanted_updates / min_theta; more when more turn up, and max_theta * n_t when fewer do. What is
  minimised is then no one superquantile: over the rounds, it is the mean over t of the
  superquantiles at theta_t of those that turned up. With a narrower range it is nearer to one.

  It says nothing of where n_t comes from; the thresholds that take it do.

  Attributes:
    wanted_updates: How many clients are to be in the tail, a whole number of at least 1.
    min_theta: The least tail fraction, positive: how far the tail narrows when many turn up.
    max_theta: The largest, up to 1: how far it widens when few do.
  """

  wanted_updates: int
  min_theta: float
  max_theta: float

  def __post_init__(self) -> None:
    wanted = float(self.wanted_updates)
    if not (1.0 <= wanted < np.inf and wanted == int(wanted)):  # Also refuses NaN.
      raise ValueError(
        f"Found wanted_updates = {self.wanted_updates}; expected a whole number of at least 1."
      )
    if not 0.0 < float(self.min_theta) <= float(self.max_theta) <= 1.0:
      raise ValueError(
        f"Found min_theta = {self.min_theta} and max_theta = {self.max_theta}; expected 0 <"
        " min_theta <= max_theta <= 1."
      )
    # float() because numpy's float32 would round what Python's floats compute exactly.
    object.__setattr__(self, "wanted_updates", int(wanted))
    object.__setattr__(self, "min_theta", float(self.min_theta))
    object.__setattr__(self, "max_theta", float(self.max_theta))

  def at(self, num_clients: Union[float, tf.Tensor]) -> tf.Tensor:
    """Returns the tail fraction for a number of clients.

    Args:
      num_clients: n_t, of any shape, in clients. An estimate may be fractional, zero or negative.

    Returns:
      float64, of the same shape, in [min_theta, max_theta]; max_theta for no clients.
    """
    # Below one client wanted_updates / n_t is above 1 and clipped, so that 1 may stand for it.
    num_clients = tf.maximum(tf.cast(num_clients, tf.float64), 1.0)
    return tf.clip_by_value(self.wanted_updates / num_clients, self.min_theta, self.max_theta)


Theta = Union[float, AdaptiveTheta]


def check_theta(theta: Theta) -> Theta:
  """Returns an `AdaptiveTheta` as it is, and anything else as a float.

  Raises:
    TypeError: If it is neither an `AdaptiveTheta` nor a number.
    ValueError: If a number is not a tail fraction in (0, 1].
  """
  if isinstance(theta, AdaptiveTheta):
    return theta
  checks.of_type("theta", theta, numbers.Real, "a tail fraction in (0, 1] or an AdaptiveTheta")
  return superquantile.check_theta(theta)


def of_round(theta: Theta, num_clients: Union[float, tf.Tensor]) -> Union[float, tf.Tensor]:
  """Returns the round's tail fraction: a fixed one as it is, else `AdaptiveTheta.at`."""
  return theta.at(num_clients) if isinstance(theta, AdaptiveTheta) else theta
