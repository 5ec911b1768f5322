"""The parts that the clients' updates make: their sum, and the count of those within a norm."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.parts import part


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateSum(part.Part):
  """The sum of clipped updates. The sensitivity is the clip norm C.

  Attributes:
    is_weighted: Whether each update is multiplied by a weight in [0, 1] that follows from its
      client's own data, and the sum has one entry more, for the sum of the weights. The
      sensitivity, of both together, is C as without.
    num_parameters: d, the number of numbers in an update, if the clients make the noise; None if
      the server does.
    clip_norm: C, of the integers that clients send. Its unit does not matter to the cost.
    update_sum: The parameters of these integers, which follow.
  """

  flag: ClassVar[str] = "update_noise_multiplier"
  seen: ClassVar[str] = "models"
  summed: ClassVar[str] = "updates"
  may_be_left_out: ClassVar[bool] = True
  blank: ClassVar[Mapping[str, Any]] = {
    "update_noise_multiplier": None,
    "update_sum": None,
    "weighted_updates": False,
  }
  is_recent: ClassVar[bool] = False
  is_weighted: bool = False
  num_parameters: int | None = None
  clip_norm: float = 1.0
  update_sum: sum_mechanism.SumMechanism | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.is_weighted, bool):
      raise ValueError(f"Found weighted_updates = {self.is_weighted!r}; expected a bool.")
    if self.update_sum is not None:
      sensitivity = self.update_sum.sensitivity
      part.check_delivered(
        self, self.update_sum, sensitivity, "an update_sum whose noise", "one with"
      )

  @property
  def mechanism(self) -> sum_mechanism.SumMechanism | None:
    return self.update_sum

  @property
  def noise_by_server(self) -> bool:
    return self.num_parameters is None

  def slack(self, protocol: str) -> float:
    found = self.update_sum
    if found is None:
      return 0.0
    return found.num_entries * shares.slack(found.local_stddev, found.num_shares, protocol)

  def completed(self, num_shares: int, expected: float) -> UpdateSum:
    if self.num_parameters is None or self.update_sum is not None:
      return self
    num_entries = self.num_parameters + self.is_weighted
    found = sum_mechanism.build_sum_mechanism(self.z, self.clip_norm, num_entries, num_shares)
    return dataclasses.replace(self, update_sum=found)

  def derived(self, num_shares: int, expected: float, clip_norm: float | None) -> Any:
    norm = self.clip_norm if clip_norm is None else clip_norm
    again = dataclasses.replace(self, update_sum=None, clip_norm=norm)
    return again.completed(num_shares, expected).update_sum

  def without_mechanism(self) -> UpdateSum:
    return UpdateSum(noise_multiplier=self.noise_multiplier, share=self.share)

  def with_noise(self, noise_multiplier: float) -> UpdateSum:
    return dataclasses.replace(self, noise_multiplier=noise_multiplier, share=1.0, update_sum=None)

  def words(self) -> str:
    maker = "" if self.noise_by_server else " (made by the clients)"
    summed = "the sum of clipped updates"
    if self.is_weighted:
      summed += ", each weighted by its client's own loss, and of these weights,"
    return f"{summed} with noise multiplier {self.z:.4g}{maker}"

  def entries(self) -> dict[str, Any]:
    return {
      **super().entries(),
      "update_sum": self.update_sum,
      "weighted_updates": self.is_weighted,
    }

  @classmethod
  def of_entries(cls, found: Mapping[str, Any]) -> UpdateSum | None:
    z, summed, is_weighted = found[cls.flag], found["update_sum"], found["weighted_updates"]
    if z is None and summed is not None:
      raise ValueError("Found update_sum without update_noise_multiplier; expected both.")
    if z is None and is_weighted:
      raise ValueError("Found weighted_updates without update_noise_multiplier; expected both.")
    if z is None:
      return None
    if summed is None:
      return cls(noise_multiplier=z, is_weighted=is_weighted)
    return cls(
      noise_multiplier=z,
      is_weighted=is_weighted,
      num_parameters=summed.num_entries - is_weighted,
      clip_norm=summed.clip_norm,
      update_sum=summed,
    )

  def flags(self) -> dict[str, Any]:
    source = "central" if self.noise_by_server else "distributed"
    return {**super().flags(), "update_sum": source}

  def columns(self, given: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset({"estimated_share_sum"} if self.is_weighted else ()), frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipCount(part.Part):
  """A one-bit count of the updates within the clip norm, by which that adapts.

  For its sensitivity to replacing a client 2 is a bound (`secure_sums.adaptive_clipping` has the
  proof).
  """

  flag: ClassVar[str] = "clip_count_noise_multiplier"
  share_flag: ClassVar[str] = "clip_rho_ratio"
  seen: ClassVar[str] = "clip norms"
  summed: ClassVar[str] = ""
  may_be_left_out: ClassVar[bool] = True
  blank: ClassVar[Mapping[str, Any]] = {"clip_count_noise_multiplier": None}

  def words(self) -> str:
    return f"a one-bit count of the updates within the clip norm with noise multiplier {self.z:.4g}"

  def columns(self, given: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset({"clip_norm"}), frozenset()
