"""The model with which a run starts, the one that it leaves, and the measure that counts."""

from __future__ import annotations

import dataclasses

from privacy.settings import flag
from privacy.settings import part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start(part.Part):
  """The model of a finished run, with which another one starts."""

  folder: str = flag.field(
    ...,
    "Folder of a finished run, OUTPUT_DIR/TASK/METHOD/seed_S, from whose model the run starts (a"
    " warm start); empty for the task's own initial weights.",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep(part.Part):
  """Which model a run leaves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Last(Keep):
  """The last one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best(Keep):
  """That of the round with the best evaluation of validation clients."""

  best_by: str | None = flag.field(
    None,
    "With --keep=best: the number of metrics.json that is to be least; None for"
    " validation.METRIC.p90, METRIC being that of --metric.",
  )
  patience: int | None = flag.field(
    None,
    "With --keep=best: the run ends after so many evaluations without a better one; None to carry"
    " out all rounds.",
    least=1,
  )


# By the value of --keep.
KEEPS: dict[str, type[Keep]] = {"last": Last, "best": Best}


def best_by(metric: str | None) -> str:
  """Returns the --best_by of a --metric: its 90th percentile over the validation clients."""
  return f"validation.{metric or 'error'}.p90"
