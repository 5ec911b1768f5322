"""The norms to which clients' updates are clipped, and the count by which one adapts."""

from __future__ import annotations

import abc
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from privacy import checks
from privacy.parts import released
from privacy.settings import flag as flag_lib
from privacy.settings import part

_ADAPTIVE = "adaptive"  # The value of --clip_norm with which it adapts.
_ADAPTS, _IS_FIXED = f"--clip_norm={_ADAPTIVE}", "a --clip_norm that does not adapt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip(part.Part, abc.ABC):
  """How the updates of clients are clipped."""

  norm: float | None  # C of the first round, in a unit of --clip_unit; None if it was not given.

  @abc.abstractmethod
  def first_norm(self, unit: str) -> float | None:
    """Returns C of the first round, or its default in a unit of --clip_unit."""

  @abc.abstractmethod
  def check(self, noise_by_clients: bool) -> None:
    """Raises a `ValueError` if a private run cannot have it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedClip(Clip):
  """To a norm."""

  norm: float | None = flag_lib.field(
    None,
    "C of a private run: the l2 norm of a client's update is clipped to it. adaptive: C follows a"
    " quantile of the norms, by a private bit of each client that trains.",
    word=_ADAPTIVE,
    name="clip_norm",
  )

  def first_norm(self, unit: str) -> float | None:
    return self.norm

  def check(self, noise_by_clients: bool) -> None:
    if self.norm is None:
      raise ValueError("Found no --clip_norm in a private run; give one, such as 0.1, or adaptive.")
    checks.scale("--clip_norm", self.norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClip(released.ReleasedPart, Clip):
  """To a norm that adapts, by a one-bit count of the updates within it.

  The count is an entry of the sum of updates, with noise of its own; 2 is a bound on its
  `replace_one_factor` (`secure_sums.adaptive_clipping` has the proof of its sensitivity).
  """

  clip_norm: str = flag_lib.field(_ADAPTIVE, "C adapts.", choices=(_ADAPTIVE,))
  norm: float | None = flag_lib.field(
    None,
    "C of the first round with --clip_norm=adaptive; None for 0.1, or 1 with --clip_unit=gradient.",
    name="initial_clip_norm",
  )
  clip_quantile: float = flag_lib.field(
    0.5,
    "The fraction of the updates that --clip_norm=adaptive does not clip; None for 0.5.",
    flag_default=None,
  )
  share: float | None = flag_lib.field(
    None,
    "The bits' part of the budget over that of the updates with --clip_norm=adaptive; None for"
    " 0.01.",
    name="clip_rho_ratio",
  )
  noise_multiplier: float | None = flag_lib.field(
    None,
    "Noise on the count of the bits of --clip_norm=adaptive: its standard deviation over the"
    " sensitivity. It follows from --epsilon.",
    name="clip_count_noise_multiplier",
  )
  flag: ClassVar[str] = "clip_count_noise_multiplier"
  label: ClassVar[str] = "updates within the clip norm"
  symbol: ClassVar[str] = "z_b"
  share_flag: ClassVar[str] = "clip_rho_ratio"
  seen: ClassVar[str] = "clip norms"
  summed: ClassVar[str] = ""
  may_be_left_out: ClassVar[bool] = True
  # The updates' noise grows by half a percent, and C stays within a few percent of the wanted
  # quantile's rank (docs/how_to/choose_parameters.md, "Clip norm").
  usual_share: ClassVar[float] = 0.01

  def first_norm(self, unit: str) -> float | None:
    return {"update": 0.1, "gradient": 1.0}[unit] if self.norm is None else self.norm

  def check(self, noise_by_clients: bool) -> None:
    if noise_by_clients:
      raise ValueError(
        "Found --clip_norm=adaptive with --update_sum=distributed, whose modulus follows from a"
        " fixed norm; give a number, or use --update_sum=central."
      )
    checks.scale("--initial_clip_norm", self.norm)
    checks.fraction("--clip_quantile", self.clip_quantile)

  def words(self, judged: str) -> str:
    del judged
    return f"a one-bit count of the updates within the clip norm with noise multiplier {self.z:.4g}"

  def columns(self, header: frozenset[str]) -> frozenset[str]:
    return frozenset({"clip_norm"})


def _chosen(flags: Mapping[str, Any]) -> str:
  return _ADAPTS if flags.get("clip_norm") == _ADAPTIVE else _IS_FIXED


def choice() -> Any:
  """Returns the field of how a run clips."""
  return part.chosen_by(_chosen, {_IS_FIXED: FixedClip, _ADAPTS: AdaptiveClip}, default=FixedClip())
