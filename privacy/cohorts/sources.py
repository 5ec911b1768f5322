"""The sources of the noise that a cohort lacks, where clients make noise."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from privacy import checks
from privacy.noise import shares
from privacy.settings import flag
from privacy.settings import part


@dataclasses.dataclass(frozen=True)
class Complement(part.Part):
  """The server makes the shares of noise that a cohort lacks."""

  # One of `shares.PROTOCOLS`, the value of --noise_shares.
  protocol: ClassVar[str] = shares.COMPLEMENT
  # Whether a client may make noise and send no data.
  may_send_none: ClassVar[bool] = False


class Helpers(Complement):
  """Other clients make them, who send no data."""

  protocol = shares.HELPERS
  may_send_none = True


@dataclasses.dataclass(frozen=True)
class PrivateCoin(Complement):
  """More clients make noise than add data, which each does by a coin of its own."""

  protocol: ClassVar[str] = shares.PRIVATE_COIN
  may_send_none: ClassVar[bool] = True
  # The expected number of clients that a round contacts: each is contacted with probability
  # contacted / n and then adds its data with probability m / contacted.
  contacted: int | float = flag.field(
    ...,
    "With --noise_shares=private_coin: the expected number of clients that a round contacts;"
    " --clients_per_round of them add data.",
    least=1,
    name="contacted_clients",
  )


# By --noise_shares.
SOURCES: dict[str, type[Complement]] = {
  kind.protocol: kind for kind in (Complement, Helpers, PrivateCoin)
}


def source_choice() -> Any:
  """Returns the field of the source of a run's noise.

  Returns:
    A dataclass field, whose flag is --noise_shares.
  """
  return part.choice(
    "noise_shares",
    SOURCES,
    "Source of the noise that a cohort lacks, where clients make noise: the server (complement);"
    " other clients, which send no data (helpers); or --contacted_clients, of which each adds its"
    " data by a coin of its own, which protects from the server, too (private_coin).",
    words={"helpers": "helpers", "private_coin": "private coin"},
  )


def source(protocol: str, contacted: float | None = None) -> Complement:
  """Returns the source of the noise that a cohort lacks, by a key of `SOURCES`.

  Args:
    protocol: The key.
    contacted: The number of clients that a round contacts with "private_coin"; None elsewhere.

  Returns:
    The source.

  Raises:
    ValueError: If there is no such key, or `contacted` is missing, no number or of another
      protocol.
  """
  checks.one_of("protocol", protocol, tuple(SOURCES))
  if (contacted is not None) != (protocol == shares.PRIVATE_COIN):
    raise ValueError(
      f"Found contacted = {contacted} with the protocol {protocol}; expected how many clients a"
      " round contacts with private_coin, and none elsewhere."
    )
  if contacted is None:
    return SOURCES[protocol]()
  return PrivateCoin(checks.number("contacted", contacted))
