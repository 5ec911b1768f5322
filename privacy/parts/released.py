"""A part of a release: one noisy number or vector, and all that others must know of it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
import dataclasses
import math
from typing import Any, ClassVar, TypeVar

from privacy import checks
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from privacy.settings import part

Mechanism = tree_mechanism.TreeMechanism | sum_mechanism.SumMechanism
_Part = TypeVar("_Part", bound="ReleasedPart")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedPart(part.Part, abc.ABC):
  """One Gaussian release of a round."""

  # The cost rho = 1 / (2 z^2) over that of all parts before it in `Release.ranked`, by which a
  # budget is divided; the first part there has no use for it. None for `usual_share`.
  share: float | None = None
  # z, the noise's standard deviation over the l2-sensitivity to removing one client's data; None
  # until it is calibrated.
  noise_multiplier: float | None = None
  # The parameters of the integers by which clients make the noise, each a share of it; they
  # follow from the noise and the clients of a round. None where the server makes it, or by far.
  mechanism: Mechanism | None = None
  usual_share: ClassVar[float] = 1.0  # The share of a part that has none.
  flag: ClassVar[str]  # The name of z: as a flag, and in a ledger.
  label: ClassVar[str]  # The name of z in an answer's text.
  symbol: ClassVar[str]  # The symbol of z there.
  share_flag: ClassVar[str] = ""  # The flag of `share`; empty for none.
  # The sensitivity to replacing a client over that to removing its data.
  replace_one_factor: ClassVar[float] = 2.0
  # Whether it is released before the clients of the round train.
  before_training: ClassVar[bool] = False
  seen: ClassVar[str]  # What everybody sees of it, in a word.
  # What is added up; empty where it follows from another part's word.
  summed: ClassVar[str] = "counts"
  # Whether an epsilon against a server that adds this part's noise itself may be that of the
  # other parts, for which it is not trusted.
  may_be_left_out: ClassVar[bool] = False
  # Its entries in a ledger besides z, by name: the attribute, and what a ledger of a release
  # without such a part has.
  recorded: ClassVar[Mapping[str, tuple[str, Any]]] = {}
  # Whether answers have z also of a release without such a part, as None.
  is_always_said: ClassVar[bool] = False

  def __post_init__(self) -> None:
    if self.noise_multiplier is not None:
      z = checks.scale(self.flag, checks.number(self.flag, self.noise_multiplier))
      object.__setattr__(self, "noise_multiplier", z)
    super().__post_init__()

  @property
  def z(self) -> float:
    """The noise multiplier of a part that has one."""
    if self.noise_multiplier is None:
      raise ValueError(f"Found no {self.flag}; expected a calibrated release.")
    return self.noise_multiplier

  @property
  def noise_by_server(self) -> bool:
    """Whether the server adds the noise, so that it sees the release without."""
    return True

  def built(self, num_shares: int, expected: float) -> Mechanism | None:
    """Returns the mechanism for a round's clients; None where clients make no noise."""
    del num_shares, expected
    return None

  def slack(self, protocol: str) -> float:
    """Returns the log of the ratio between its law and that with continuous Gaussian noise."""
    if self.mechanism is None:
      return 0.0
    stddev, num_shares = self.mechanism.local_stddev, self.mechanism.num_shares
    return self.mechanism.num_entries * shares.slack(stddev, num_shares, protocol)

  def drawn_slack(self, num_rounds: int, is_replaced: bool, room: float) -> float:
    """Returns what the rounding of drawn shares adds to epsilon, by `shares.drawn_slack`."""
    if self.mechanism is None:
      return 0.0
    stddev, num_shares = self.mechanism.local_stddev, self.mechanism.num_shares
    factor = self.replace_one_factor if is_replaced else 1.0
    # The sensitivity, in integers, with which these shares have the noise multiplier z.
    sensitivity = factor * stddev * math.sqrt(num_shares) / self.z
    entries = self.mechanism.num_entries
    return shares.drawn_slack(stddev, num_shares, entries, sensitivity, num_rounds, room)

  def completed(self: _Part, num_shares: int, expected: float) -> _Part:
    """Returns the part with the mechanism of its noise, for K shares and m expected clients."""
    if self.mechanism is not None:
      return self
    return dataclasses.replace(self, mechanism=self.built(num_shares, expected))

  def without_mechanism(self) -> ReleasedPart:
    """Returns the part as if its noise were continuous."""
    return type(self)(noise_multiplier=self.noise_multiplier, share=self.share)

  def with_noise(self, noise_multiplier: float) -> ReleasedPart:
    """Returns the part with other noise, and without its mechanism."""
    return dataclasses.replace(self, noise_multiplier=noise_multiplier, share=None, mechanism=None)

  @abc.abstractmethod
  def words(self, judged: str) -> str:
    """States what it releases, and its noise; `judged` is by what clients are: their losses."""

  @classmethod
  def blank(cls) -> dict[str, Any]:
    """Returns the entries of a ledger of a release without such a part."""
    return {cls.flag: None, **{name: blank for name, (_, blank) in cls.recorded.items()}}

  def entries(self) -> dict[str, Any]:
    """Returns its entries in a ledger."""
    recorded = {name: getattr(self, attribute) for name, (attribute, _) in self.recorded.items()}
    return {self.flag: self.noise_multiplier, **recorded}

  @classmethod
  def of_entries(cls, content: Mapping[str, Any]) -> ReleasedPart | None:
    """Returns the part of a ledger's entries; None where there is none."""
    z = content[cls.flag]
    return None if z is None else cls(noise_multiplier=z)

  def flags(self) -> dict[str, Any]:
    """Returns what the flags of its run say of it, besides its `share_flag`."""
    return {self.flag: self.noise_multiplier}

  def columns(self, header: frozenset[str]) -> frozenset[str]:
    """Returns the columns of rounds.csv that follow from it, of a file with that header."""
    return frozenset()


def check_delivered(
  made: ReleasedPart, mechanism: Mechanism, sensitivity: float, subject: str, expected: str
) -> None:
  """Raises a `ValueError` if a mechanism has less noise than its part says."""
  delivered = shares.delivered_noise_multiplier(
    mechanism.local_stddev, sensitivity, mechanism.num_shares
  )
  if delivered < made.z * (1.0 - 1e-9):
    raise ValueError(
      f"Found {made.flag} = {made.z:.6g} with {subject} gives {delivered:.6g}; expected {expected}"
      " noise."
    )
