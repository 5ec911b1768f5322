"""The privacy of a run: a budget or noise."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from privacy import cohorts
from privacy import parts
from privacy.parts import clips
from privacy.settings import flag
from privacy.settings import part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy(part.Part):
  """What makes a run private: all that it releases of its training clients has noise."""

  delta: float | None = flag.field(
    None,
    "delta of --epsilon; None for min(1e-5, n^-1.1) with n clients.",
  )
  update_noise_multiplier: float | None = flag.field(
    None,
    "Noise on the sum of updates: its standard deviation over --clip_norm. It makes the run private"
    " in place of --epsilon.",
    short="update_z",
    symbol="update z",
  )
  accounting: str = flag.field(
    "tightest",
    "The bound on --epsilon: that of privacy loss distributions (pld), that of Renyi divergences"
    " (rdp), or the smaller one (tightest).",
    choices=("tightest", "pld", "rdp"),
  )
  noise_key_file: str = flag.field(
    "",
    "To repeat a private run: a file with 32 hexadecimal digits, from which cohorts and noise"
    " follow. Keep it secret and use it for one run only. Empty to draw a key, which is kept in"
    " checkpoints/noise_key.",
    is_incidental=True,
  )
  clip: parts.Clip = clips.choice()
  clip_unit: str = flag.field(
    "update",
    "Unit of --clip_norm and --initial_clip_norm: that of the update, or that of the update over"
    " the learning rate, as in the paper (gradient).",
    choices=("update", "gradient"),
  )
  update_sum: str = flag.field(
    "central",
    "Source of the noise on the updates of a private run: the server (central), or the clients with"
    " a secure sum (distributed).",
    choices=("central", "distributed"),
    words={"distributed": "distributed noise"},
  )
  shares: cohorts.Complement = cohorts.source_choice()
  bands: int | None = flag.field(
    None,
    "The number of rounds over which noise is correlated, with --sampling=cyclic or spaced; 1 for"
    " noise that is independent. None for the least distance of two rounds of a client.",
    least=1,
    short="bands",
    symbol="bands",
  )
  relation: str = flag.field(
    "zero_out",
    "The change that a private run hides: one client's data are removed (zero_out), or replaced by"
    " any others (replace_one).",
    choices=("zero_out", "replace_one"),
    words={"replace_one": "replace one"},
  )

  @property
  def noise_by_clients(self) -> bool:
    """Whether the clients make the noise on the updates."""
    return self.update_sum == "distributed"

  @property
  def numbers(self) -> tuple[parts.AdaptiveClip, ...]:
    """The numbers that a round releases beside the updates."""
    return (self.clip,) if isinstance(self.clip, parts.AdaptiveClip) else ()

  def noise_multipliers(self, threshold: part.Part | None) -> dict[str, float | None]:
    """Returns the noise of what a round releases, by flag: its threshold, updates, and numbers.

    None stands for one that follows from the budget.
    """
    multipliers: dict[str, float | None] = {}
    if isinstance(threshold, parts.PrivateThreshold):
      multipliers[threshold.flag] = threshold.noise_multiplier
    multipliers["update_noise_multiplier"] = self.update_noise_multiplier
    for number in self.numbers:
      multipliers[number.flag] = number.noise_multiplier
    return multipliers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Privacy):
  """A budget, from which the noise follows."""

  epsilon: float = flag.field(
    ...,
    "Budget of the whole run, (epsilon, delta)-differential privacy of all that the server"
    " releases. It makes the run private; the noise follows from it.",
    short="epsilon",
    symbol="ε",
  )
  rho_ratio: float | None = flag.field(
    None,
    "The threshold's part of the budget over that of the updates; None for the ratio with the least"
    " modelled error.",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise(Privacy):
  """Noise, from which the cost follows."""


# By the flag that chooses each.
KINDS: dict[str, type[Privacy]] = {"epsilon": Budget, "update_noise_multiplier": Noise}


def is_private(flags: Mapping[str, Any]) -> bool:
  """Returns whether values of flags, by name, are of a private run."""
  return part.first_given(KINDS, flags) is not None


def usual_sampling(flags: Mapping[str, Any]) -> str:
  """Returns the sampling of cohorts where values of flags name none."""
  return (cohorts.Poisson if is_private(flags) else cohorts.FixedSize).sampling
