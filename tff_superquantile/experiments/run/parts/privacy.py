"""The privacy of a run: a budget or noise, and clipping.

Importing this starts no TensorFlow.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from privacy import cohorts
from privacy import parts
from privacy.settings import flag
from privacy.settings import part
import tff_superquantile

tsq: Any = tff_superquantile  # Its names are loaded on first use.

_ADAPTIVE = "adaptive"  # The value of --clip_norm with which it adapts.
_ADAPTS, _IS_FIXED = f"--clip_norm={_ADAPTIVE}", "a --clip_norm that does not adapt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(part.Part, abc.ABC):
  """A number that each round releases beside the sum of updates.

  Its flags include those of its noise and of its share of the budget; `kind` names the part of a
  release that accounts for it.
  """

  kind: ClassVar[type[parts.Number]]

  @property
  def noise(self) -> float | None:
    """z; None until it is known."""
    z: float | None = part.values(self)[self.kind.flag]
    return z

  @property
  def share(self) -> float | None:
    """Its cost over that of all before it; None for the usual one."""
    share: float | None = part.values(self)[self.kind.share_flag]
    return share

  @property
  def released(self) -> parts.Number:
    """The part of a release, with the noise that is known."""
    share = self.kind.usual_share if self.share is None else self.share
    return self.kind(noise_multiplier=self.noise, share=share)

  @abc.abstractmethod
  def build(self, norm: float) -> Any:
    """Returns its `secure_sums.Number` with noise, for the (first) C in units of the update."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip(part.Part, abc.ABC):
  """How the updates of clients are clipped."""

  @abc.abstractmethod
  def first_norm(self, unit: str) -> float | None:
    """Returns C of the first round, in a unit of --clip_unit; None if it was not given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedClip(Clip):
  """To a norm."""

  norm: float | None = flag.field(
    None,
    "C of a private run: the l2 norm of a client's update is clipped to it. adaptive: C follows a"
    " quantile of the norms, by a private bit of each client that trains.",
    word=_ADAPTIVE,
    name="clip_norm",
  )

  def first_norm(self, unit: str) -> float | None:
    return self.norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Clip, Number):
  """To a norm that follows a quantile of the updates' norms."""

  kind: ClassVar[type[parts.Number]] = parts.ClipCount
  clip_norm: str = flag.field(_ADAPTIVE, "C adapts.", choices=(_ADAPTIVE,))
  initial_clip_norm: float | None = flag.field(
    None,
    "C of the first round with --clip_norm=adaptive; None for 0.1, or 1 with --clip_unit=gradient.",
  )
  clip_quantile: float = flag.field(
    0.5,
    "The fraction of the updates that --clip_norm=adaptive does not clip; None for 0.5.",
    flag_default=None,
  )
  clip_rho_ratio: float | None = flag.field(
    None,
    "The bits' part of the budget over that of the updates with --clip_norm=adaptive; None for"
    " 0.01.",
  )
  count_noise_multiplier: float | None = flag.field(
    None,
    "Noise on the count of the bits of --clip_norm=adaptive: its standard deviation over the"
    " sensitivity. It follows from --epsilon.",
    name="clip_count_noise_multiplier",
  )

  def first_norm(self, unit: str) -> float | None:
    if self.initial_clip_norm is not None:
      return self.initial_clip_norm
    return {"update": 0.1, "gradient": 1.0}[unit]

  def build(self, norm: float) -> Any:
    return tsq.AdaptiveClipNorm(self.count_noise_multiplier, norm, self.clip_quantile)


# Further numbers, by words for the flags that choose them.
NUMBERS: dict[str, type[Number]] = {}


def _number(given: Mapping[str, Any]) -> str | None:
  """Returns which further number some values of flags choose."""
  for words, one in NUMBERS.items():
    if {given.get(one.kind.flag), given.get(one.kind.share_flag)} != {None}:
      return words
  return None


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
  clip: Clip = part.chosen_by(
    lambda given: _ADAPTS if given.get("clip_norm") == _ADAPTIVE else _IS_FIXED,
    {_IS_FIXED: FixedClip, _ADAPTS: AdaptiveClip},
    default=FixedClip(),
  )
  number: Number | None = part.chosen_by(_number, NUMBERS, "in a run without such a number")
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
  def numbers(self) -> tuple[Number, ...]:
    """The numbers that a round releases beside the updates."""
    return tuple(one for one in (self.clip, self.number) if isinstance(one, Number))

  @property
  def budget(self) -> float | None:
    """epsilon of the whole run; None where its noise is given."""
    return None


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

  @property
  def budget(self) -> float | None:
    return self.epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise(Privacy):
  """Noise, from which the cost follows."""


def _chosen(given: Mapping[str, Any]) -> str | None:
  named = ("epsilon", "update_noise_multiplier")
  return next((f"--{name}" for name in named if given.get(name) is not None), None)


def is_private(given: Mapping[str, Any]) -> bool:
  """Returns whether values of flags, by name, are of a private run."""
  return _chosen(given) is not None


def usual_sampling(given: Mapping[str, Any]) -> str:
  """Returns the sampling of cohorts where values of flags name none."""
  return cohorts.POISSON if is_private(given) else cohorts.FIXED_SIZE


def choice() -> Any:
  """Returns the field of a run's privacy: None for a run without."""
  kinds: dict[str, type[Privacy]] = {"--epsilon": Budget, "--update_noise_multiplier": Noise}
  return part.chosen_by(_chosen, kinds, "in a run that is not private")
