"""The values from which methods and thresholds build a learning process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from privacy import parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ingredients:
  """The values from which a method builds its learning process.

  Attributes:
    work: Keywords of every builder: the model, the optimizer, and the work of a client. In a
      private run also its `Private`.
    num_clients: The number of training clients.
    clients_per_round: The (expected) number of clients of a round.
    max_loss: B, up to which a private release tells losses apart.
    threshold: The method's, in a private run that of the release, with its noise.
    noise_key: The key of the threshold's noise, 16 bytes or a `BandedKey`.
    seed_fn: Reads a client's seed.
    index_fn: Reads a client's number.
  """

  work: Mapping[str, Any]
  num_clients: int
  clients_per_round: float
  max_loss: float
  threshold: parts.Threshold | None
  noise_key: Any
  seed_fn: Callable[[Any], Any]
  index_fn: Callable[[Any], Any]
