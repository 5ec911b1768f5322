"""Chooses the tail fraction of a round by the number of clients that turned up.

The paper fixes theta. If the number of clients swings over the day, the tail of a fixed theta
swings with it. At the worst hour the tail is a handful of clients, whose average is mostly noise;
at the best hour it is many times as large, which the noise does not require.
"""

import dataclasses
import numbers
from typing import TypeAlias

import tensorflow as tf

from privacy import checks
from tff_superquantile import superquantile


@dataclasses.dataclass(frozen=True)
class AdaptiveTheta:
  """Sets theta_t = clip(wanted_updates / n_t, min_theta, max_theta) for n_t clients.

  The tail has wanted_updates clients while n_t is between wanted_updates / max_theta and
  wanted_updates / min_theta. It has more if more turn up, and max_theta * n_t if fewer do. Training
  then minimises no single superquantile, but the mean over the rounds t of the superquantiles at
  theta_t of the clients that turned up. With a narrower range it is nearer to a single one.

  The threshold that takes an `AdaptiveTheta` says how it counts or estimates n_t.

  Attributes:
    wanted_updates: The wanted number of clients in the tail, a whole number of at least 1.
    min_theta: The least tail fraction, positive: the tail narrows to it if many clients turn up.
    max_theta: The largest tail fraction, up to 1: the tail widens to it if few clients turn up.
  """

  wanted_updates: int
  min_theta: float
  max_theta: float

  def __post_init__(self) -> None:
    wanted = float(self.wanted_updates)
    if not (wanted >= 1.0 and wanted.is_integer()):  # Also refuses NaN and infinity.
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

  def at(self, num_clients: float | tf.Tensor) -> tf.Tensor:
    """Returns the tail fraction for n_t clients, float64 of their shape; max_theta for none.

    An estimated number of clients may be fractional, zero or negative.
    """
    # Less than one client counts as one: wanted_updates / n_t is then at least 1, and clipped.
    num_clients = tf.maximum(tf.cast(num_clients, tf.float64), 1.0)
    return tf.clip_by_value(self.wanted_updates / num_clients, self.min_theta, self.max_theta)


Theta: TypeAlias = float | AdaptiveTheta


def check_theta(theta: Theta) -> Theta:
  """Returns an `AdaptiveTheta` as it is, and a number as a float if it is in (0, 1]."""
  if isinstance(theta, AdaptiveTheta):
    return theta
  checks.of_type("theta", theta, numbers.Real, "a tail fraction in (0, 1] or an AdaptiveTheta")
  return superquantile.check_theta(theta)


def of_round(theta: Theta, num_clients: float | tf.Tensor) -> float | tf.Tensor:
  """Returns the round's tail fraction, a fixed theta as it is and an adaptive one `at` n_t."""
  return theta.at(num_clients) if isinstance(theta, AdaptiveTheta) else theta
