"""The parts that the clients' updates make: their sum, and numbers beside it."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from privacy.noise import sum_mechanism
from privacy.parts import released


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateSum(released.ReleasedPart):
  """The sum of clipped updates. The sensitivity is the clip norm C."""

  flag: ClassVar[str] = "update_noise_multiplier"
  seen: ClassVar[str] = "models"
  summed: ClassVar[str] = "updates"
  may_be_left_out: ClassVar[bool] = True
  label: ClassVar[str] = "weights"
  symbol: ClassVar[str] = "z_w"
  recorded: ClassVar[Mapping[str, tuple[str, Any]]] = {
    "update_sum": ("mechanism", None),
    "weighted_updates": ("is_weighted", False),
  }
  is_always_said: ClassVar[bool] = True
  # Whether each update is multiplied by a weight in [0, 1] that follows from its client's own
  # data, and the sum has one entry more, for the sum of the weights. The sensitivity, of both
  # together, is C as without.
  is_weighted: bool = False
  # d, the number of numbers in an update, if the clients make the noise; None if the server does.
  num_parameters: int | None = None
  # C, of the integers that clients send. Its unit does not matter to the cost.
  clip_norm: float = 1.0
  mechanism: sum_mechanism.SumMechanism | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.is_weighted, bool):
      raise ValueError(f"Found weighted_updates = {self.is_weighted!r}; expected a bool.")
    if self.mechanism is not None:
      sensitivity = self.mechanism.sensitivity
      released.check_delivered(
        self, self.mechanism, sensitivity, "an update_sum whose noise", "one with"
      )

  @property
  def noise_by_server(self) -> bool:
    return self.num_parameters is None

  def built(self, num_shares: int, expected: float) -> sum_mechanism.SumMechanism | None:
    del expected
    if self.num_parameters is None:
      return None
    num_entries = self.num_parameters + self.is_weighted
    return sum_mechanism.build_sum_mechanism(self.z, self.clip_norm, num_entries, num_shares)

  def words(self, judged: str) -> str:
    del judged
    maker = "" if self.noise_by_server else " (made by the clients)"
    summed = "the sum of clipped updates"
    if self.is_weighted:
      summed += ", each weighted by its client's own loss, and of these weights,"
    return f"{summed} with noise multiplier {self.z:.4g}{maker}"

  @classmethod
  def of_entries(cls, content: Mapping[str, Any]) -> UpdateSum | None:
    z, summed, is_weighted = content[cls.flag], content["update_sum"], content["weighted_updates"]
    if z is None and summed is not None:
      raise ValueError("Found update_sum without update_noise_multiplier; expected both.")
    if z is None and is_weighted:
      raise ValueError("Found weighted_updates without update_noise_multiplier; expected both.")
    if z is None:
      return None
    made: dict[str, Any] = {}
    if summed is not None:
      made = dict(
        num_parameters=summed.num_entries - is_weighted,
        clip_norm=summed.clip_norm,
        mechanism=summed,
      )
    return cls(noise_multiplier=z, is_weighted=is_weighted, **made)

  def flags(self) -> dict[str, Any]:
    source = "central" if self.noise_by_server else "distributed"
    return {**super().flags(), "update_sum": source}

  def columns(self, header: frozenset[str]) -> frozenset[str]:
    return frozenset({"estimated_share_sum"} if self.is_weighted else ())
