"""The model with which a run starts, the one that it leaves, and the measure that counts."""

from __future__ import annotations

import dataclasses
from typing import Any

from privacy.settings import flag
from privacy.settings import part
from tff_superquantile import measures


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
    lambda flags: next(iter(kinds)) if flags.get("initial_weights") else None,
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


def metric() -> Any:
  """Returns the field that is --metric."""
  return flag.field(
    None,
    "The measure of test clients that reports lead with, and of validation clients by which --tune"
    " and --keep=best choose: error, loss, balanced_error (the mean over classes of the share of"
    " their examples that are missed), ranking_error (1 - AUC), calibration_error, or mae of labels"
    " that are numbers; less is better in each. None for error, or for a table of which one class"
    " has more than 80 % of the examples, balanced_error.",
    choices=measures.NAMES,
    is_incidental=True,  # What changes a run is in --best_by.
  )


def best_by(metric: str | None) -> str:
  """Returns the --best_by of a --metric: its 90th percentile over the validation clients."""
  return f"validation.{metric or 'error'}.p90"
