"""The non-convex theorem with its constants: the learning rate, the bound, and that of the drift.

The theorem (thm:sfl:nonsmooth-nonconvex) takes mu = 2 L and bounds the mean of |grad Phi(w_t)|^2
over the rounds, in expectation, where Phi is the Moreau envelope of bar F_theta at mu. Its proof
shows, for every learning rate gamma <= 1 / (4 tau L),

    4 Delta / (tau gamma T) + 4 tau gamma L G^2 + 32 (tau - 1) tau gamma^2 L^2 G^2,

with Delta = Phi(w_0) - inf Phi. The theorem leaves out constants: its gamma gives at most 16 times
its right side.
"""

from __future__ import annotations

import dataclasses
import math

from paper.nonconvex import network


def largest_rate(constants: network.Constants, local_steps: int) -> float:
  """Returns 1 / (4 tau L), up to which the proof holds."""
  return 0.25 / (local_steps * constants.smoothness)


def learning_rate(
  constants: network.Constants, descent: float, *, num_rounds: int, local_steps: int
) -> float:
  """Returns the theorem's gamma, of one local step, for a descent of Delta or more.

  Its last term has 32 where balancing the terms of the proof gives 8; a smaller rate does no harm.
  """
  noise = constants.smoothness * constants.lipschitz**2
  rates = [
    largest_rate(constants, local_steps) * local_steps,
    math.sqrt(descent / (noise * num_rounds)),
  ]
  if local_steps > 1:
    drift = 32.0 * constants.smoothness * noise * (1.0 - 1.0 / local_steps)
    rates.append((descent / (drift * num_rounds)) ** (1.0 / 3.0))
  return min(rates) / local_steps


@dataclasses.dataclass(frozen=True)
class Bound:
  """The terms of the proof's bound on the mean of |grad Phi(w_t)|^2.

  They are of the way that is to go, of the length of a round's step, and of the local steps, 0 for
  one.
  """

  start: float
  noise: float
  drift: float

  @property
  def total(self) -> float:
    return self.start + self.noise + self.drift


def bound(
  constants: network.Constants, descent: float, *, num_rounds: int, rate: float, local_steps: int
) -> Bound:
  """Returns the proof's bound for Delta, or more, and gamma, at most `largest_rate`."""
  step = local_steps * rate
  noise = constants.smoothness * constants.lipschitz**2
  return Bound(
    4.0 * descent / (step * num_rounds),
    4.0 * step * noise,
    32.0 * (local_steps - 1) * step * rate * constants.smoothness * noise,
  )


def drift_bound(constants: network.Constants, rate: float, local_steps: int) -> float:
  """Returns 8 tau^2 (tau - 1) gamma^2 G^2 (prop:sfl:client-drift, lambda = 0).

  It bounds the drift d = E sum_i pi_i sum_k |w_ik - w|^2 of a round over k = 0, ..., tau - 1.
  """
  return 8.0 * local_steps**2 * (local_steps - 1) * (rate * constants.lipschitz) ** 2


def plain_drift_bound(constants: network.Constants, rate: float, local_steps: int) -> float:
  """Returns tau (tau - 1) (2 tau - 1) / 6 gamma^2 G^2, as k steps are at most k gamma G long."""
  squares = local_steps * (local_steps - 1) * (2 * local_steps - 1) / 6.0
  return squares * (rate * constants.lipschitz) ** 2
