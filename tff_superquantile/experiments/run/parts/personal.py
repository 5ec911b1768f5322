"""What each client makes of the model that a run leaves. Importing this starts no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from privacy.settings import flag
from privacy.settings import part

# The models of a client, on the examples that it holds out: each has a file PART_clients.csv in the
# run's folder and an entry of its metrics.json.
PARTS = SHARED, PERSONAL, CHOSEN = "shared", "personal", "chosen"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Personalization(part.Part):
  """How test clients fine-tune; it changes nothing of the model that they start from."""

  epochs: int = flag.field(
    ...,
    "After training, each test client fine-tunes the model for so many passes over half of its"
    " examples (with --held_out_examples over those that it trained on), and keeps it or the shared"
    " one by these alone; both are measured on its other examples. With validation clients it is"
    " the most passes, of which they choose, or none. It works for finished runs, too. None for no"
    " personal models.",
    name="personalize",
    least=1,
    most=(10**4, "a client's fine-tuning cannot be interrupted"),
    is_incidental=True,
  )
  learning_rate: float | None = flag.field(
    None,
    "With --personalize: its learning rate; None for that of the last round.",
    name="personal_learning_rate",
    rule=flag.positive,
    is_incidental=True,
  )
  proximal_weight: float = flag.field(
    0.0,
    "With --personalize: lambda of lambda / 2 |v - w|^2, which pulls a client's model v to the"
    " shared one w, as Ditto does.",
    name="personal_proximal_weight",
    least=0.0,
    is_incidental=True,
  )

  @property
  def asked(self) -> dict[str, Any]:
    """What a run's metrics say that was asked for."""
    return dataclasses.asdict(self)

  def is_done(self, metrics: Mapping[str, Any]) -> bool:
    """Returns whether a finished run's metrics have what is asked for."""
    return bool(metrics.get(PERSONAL, {}).get("asked") == self.asked)
