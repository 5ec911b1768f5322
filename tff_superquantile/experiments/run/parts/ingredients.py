"""The values from which methods build a learning process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from privacy import parts
  from tff_superquantile.threshold import kinds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ingredients:
  """The values from which a method builds its learning process.

  Attributes:
    work: Keywords of every builder: the model, the optimizer, and the work of a client. In a
      private run also the noise of the updates.
    num_clients: The number of training clients.
    threshold: The method's threshold with its noise, in a private run that of the release.
    of_run: The rest of what its process is built from.
    seed_fn: Reads a client's seed.
    index_fn: Reads a client's number.
  """

  work: Mapping[str, Any]
  num_clients: int
  threshold: parts.Threshold | None
  of_run: kinds.OfRun
  seed_fn: Callable[[Any], Any]
  index_fn: Callable[[Any], Any]

  @property
  def clients_per_round(self) -> float:
    """The (expected) number of clients of a round."""
    return self.of_run.expected_clients

  @property
  def max_loss(self) -> float:
    """B, up to which a private release tells losses apart."""
    return self.of_run.max_loss
