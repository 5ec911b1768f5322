"""The model with which a run starts, and the one that it leaves.

Importing this starts no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_superquantile.experiments.run.parts import flag
from tff_superquantile.experiments.run.parts import part

BEST_BY = "validation.error.p90"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start(part.Part):
  """The model of a finished run, with which another one starts."""

  folder: str = flag.field(
    ...,
    "Folder of a finished run, OUTPUT_DIR/TASK/METHOD/seed_S, from whose model the run starts;"
    " empty for the task's own initial weights.",
    name="initial_weights",
    flag_default="",
    is_incidental=True,  # Their fingerprint counts.
  )
  fingerprint: str | None = flag.field(
    None,
    "Fingerprint of the file of --initial_weights, from which alone the run goes on; None for that"
    " which is there.",
    name="initial_weights_fingerprint",
  )


def start() -> Any:
  """Returns the field of a run's start: None for the task's own initial weights."""
  kinds = {"--initial_weights": Start}
  return part.chosen_by(
    lambda given: next(iter(kinds)) if given.get("initial_weights") else None,
    kinds,
    "in a run that starts anew",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep(part.Part):
  """Which model a run leaves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Last(Keep):
  """The last one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best(Keep):
  """That of the round with the best evaluation of validation clients."""

  best_by: str = flag.field(
    BEST_BY,
    f"With --keep=best: the number of metrics.json that is to be least; None for {BEST_BY}.",
    flag_default=None,
  )
  patience: int | None = flag.field(
    None,
    "With --keep=best: the run ends after so many evaluations without a better one; None to carry"
    " out all rounds.",
    least=1,
  )


# By the value of --keep.
KEEPS: dict[str, type[Keep]] = {"last": Last, "best": Best}
