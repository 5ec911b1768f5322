"""The bytes of the messages of a round, counted from what a run is."""

from __future__ import annotations

import dataclasses
import math

from privacy import parts
from privacy import releases
from tff_superquantile import superquantile
from tff_superquantile.experiments.run.parts import methods
from tff_superquantile.experiments.run.parts import thresholds

_NUMBER = 4  # Bytes of a float32.


@dataclasses.dataclass(frozen=True)
class Traffic:
  """What a round of a run sends, in bytes.

  Attributes:
    down: To a client of the cohort.
    threshold_up: From a client of the cohort, for the threshold or the weights.
    update_up: From a client that sends an update.
    senders: The clients with a share, in the mean of a round.
    cohort: The clients of a cohort, in the mean of a round.
  """

  down: float
  threshold_up: float
  update_up: float
  senders: float
  cohort: float

  @property
  def plain(self) -> float:
    """Bytes up in a round if only clients with a share send their update."""
    return self.cohort * self.threshold_up + self.senders * self.update_up

  @property
  def secure(self) -> float:
    """Bytes up in a round if all clients of the cohort take part in the secure sum."""
    return self.cohort * (self.threshold_up + self.update_up)


def of_round(
  method: methods.Method,
  clients_per_round: int,
  num_weights: int,
  release: releases.Release | None,
) -> Traffic:
  """Counts the bytes of a round.

  Args:
    method: The run's.
    clients_per_round: The (expected) size of a cohort.
    num_weights: The number of the model's trainable weights.
    release: What each round of a private run releases; None for a run without privacy.

  Returns:
    The traffic.
  """
  cohort = senders = float(clients_per_round)
  num_trained = method.num_trained(clients_per_round)
  if num_trained is not None:
    cohort = senders = float(num_trained)
  down = _NUMBER * num_weights
  # An average without a budget has the sum of its weights, too.
  update_up = float(_NUMBER * (num_weights + (release is None)))
  threshold_up = 0.0
  if isinstance(method, methods.Superquantile):
    senders = math.ceil(method.theta * cohort * (1 - superquantile.TAIL_MASS_TOLERANCE))
    # Of the reweighting: the threshold, and the share of the clients that are at it.
    down += _NUMBER * (2 if isinstance(method.threshold, thresholds.Reweighting) else 1)
    threshold_up = _report_bits(method.threshold, clients_per_round, release) / 8
  updates = None if release is None else release.find(parts.UpdateSum)
  if updates is not None and updates.update_sum is not None:
    update_up = updates.update_sum.bits_per_client / 8
  return Traffic(down, threshold_up, update_up, senders, cohort)


def _report_bits(
  threshold: thresholds.Threshold | None,
  clients_per_round: int,
  release: releases.Release | None,
) -> int:
  """Returns the bits of a client's report to the threshold of a method that has one."""
  if isinstance(threshold, thresholds.Tree):
    released = None if release is None else release.find(parts.Histogram)
    # A run without a budget has no release.
    mechanism = released and released.tree or threshold.mechanism(clients_per_round)
    return mechanism.bits_per_client
  if threshold is not None and threshold.noise_multiplier:
    # A bit, in a secure sum that has to hold as many as there are clients.
    return clients_per_round.bit_length()
  return 2 * 8 * _NUMBER  # A loss and a weight.
