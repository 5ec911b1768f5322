"""The model that a run leaves. Importing this starts no TensorFlow."""

from __future__ import annotations

import dataclasses

from tff_superquantile.experiments.run.parts import flag
from tff_superquantile.experiments.run.parts import part

BEST_BY = "validation.error.p90"


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
