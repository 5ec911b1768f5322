"""What each client makes of the model that a run leaves. Importing this starts no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from privacy import checks
from privacy.settings import flag
from privacy.settings import part
from tff_superquantile import personal

# The models of a client, on the examples that it holds out: each has a file PART_clients.csv in the
# run's folder and an entry of its metrics.json.
PARTS = SHARED, PERSONAL, CHOSEN = "shared", "personal", "chosen"
# Of --ditto, a further part.
DITTO = "ditto"
ALL_PARTS = (*PARTS, DITTO)
# CHOSEN is also the value of --personalize with which each client chooses how long it tunes.


def positive_or_chosen(name: str, value: int | str) -> None:
  """The rule of passes: raises a `ValueError` for other than positive numbers."""
  if isinstance(value, str) or value < 1:
    raise ValueError(f"Found {name}={value}; expected a positive number, or {CHOSEN}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Personalization(part.Part):
  """How test clients fine-tune; it changes nothing of the model that they start from."""

  epochs: int | str = flag.field(
    ...,
    "After training, each test client fine-tunes the model on half of its examples (with"
    " --held_out_examples on those that it trained on). By these alone it keeps the shared model or"
    f" its own, after {', '.join(map(str, personal.EPOCHS))} passes; both are measured on its other"
    " examples. A number of passes is a further choice, and what personal_clients.csv is after. It"
    " works for finished runs, too. None for no personal models.",
    name="personalize",
    rule=positive_or_chosen,
    most=(10**4, "a client's fine-tuning cannot be interrupted"),
    word=CHOSEN,
    is_usual_word=True,
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
  def passes(self) -> int | None:
    """The number of passes that was asked for; None where each client's choice is enough."""
    return None if isinstance(self.epochs, str) else self.epochs

  @property
  def choices(self) -> list[int]:
    """The numbers of passes of which each client chooses, or none of them."""
    return sorted({*personal.EPOCHS, *filter(None, [self.passes])})

  @property
  def asked(self) -> dict[str, Any]:
    """What a run's metrics say that was asked for."""
    return {**dataclasses.asdict(self), "choices": self.choices}

  def is_done(self, metrics: Mapping[str, Any]) -> bool:
    """Returns whether a finished run's metrics have what is asked for."""
    return bool(metrics.get(PERSONAL, {}).get("asked") == self.asked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ditto(part.Part):
  """How test clients train models of their own beside the shared one, which these do not change.

  They follow from the rounds, so that a finished run cannot get them.
  """

  strength: float = flag.field(
    ...,
    "lambda of Ditto: beside the rounds each test client trains a model v of its own on half of its"
    " examples (with --held_out_examples on those that it trained on), one pass after each"
    " --rounds_per_evaluation rounds, with lambda / 2 |v - w|^2 to the shared model w of that time;"
    " it is measured on its other examples. 0 is training alone. Usual: 0.1 to 1. Not in private"
    " runs. None for no such models.",
    name="ditto",
    rule=checks.not_negative,
  )
  learning_rate: float | None = flag.field(
    None,
    "With --ditto: its learning rate; None for --client_learning_rate, without its schedule.",
    name="ditto_learning_rate",
    rule=flag.positive,
  )
