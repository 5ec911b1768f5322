"""The cohorts of rounds, and the sources of the noise that a cohort lacks.

A cohort is a Poisson sample, a sample of fixed size, everybody, or one that all may know, in which
a client waits before its next turn. Poisson cohorts of more than K clients lose clients at random.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from privacy import checks
from privacy.noise import shares

POISSON = "poisson"
FIXED_SIZE = "fixed_size"
NO_SAMPLING = "none"
CYCLIC = "cyclic"
SPACED = "spaced"
_STILL_COUNTED = "zero-out (a client's data removed, the client itself still counted)"


@dataclasses.dataclass(frozen=True)
class Cohort:
  """The clients whose data count in a round.

  Numbers may be given as any real scalar; they are kept as Python's own.

  Attributes:
    population: n, the number of clients.
    expected: m, the (expected) number of clients whose data count in a round.
    sampling: The name of the way of sampling.
    is_replaced: Whether another client counts in a round in which a client does not.
    neighbors: The change of the data that removing a client's data is, in words.
  """

  population: int
  expected: float
  sampling: ClassVar[str]
  is_replaced: ClassVar[bool] = False
  neighbors: ClassVar[str] = "zero-out (a client's data removed) / add-or-remove one client"

  def __post_init__(self) -> None:
    object.__setattr__(self, "population", checks.whole("population", self.population, 1))
    expected = checks.number("clients_per_round", self.expected)
    if expected <= 0:
      raise ValueError(f"Found clients_per_round = {expected:g}; expected a positive number.")
    object.__setattr__(self, "expected", expected)
    if expected > self.population:
      raise ValueError(
        f"Found clients_per_round = {expected:g} of population = {self.population};"
        " expected at most the population, a sampling probability of at most 1."
      )

  @property
  def probability(self) -> float:
    """q: the chance that a given client's data count in a given round; 1 without sampling."""
    return self.expected / self.population

  def limit(self, contacted: float) -> int:
    """Returns K, the most clients of a round that contacts so many; each sum has K shares."""
    return max(1, int(contacted))

  def entries(self) -> dict[str, Any]:
    """Returns the cohort as a ledger has it."""
    return dict(population=self.population, clients_per_round=self.expected, sampling=self.sampling)


class Poisson(Cohort):
  """Each client takes part in each round with probability m / n, by itself."""

  sampling = POISSON

  def limit(self, contacted: float) -> int:
    return shares.cohort_limit(self.population, contacted)


class FixedSize(Cohort):
  """m clients, uniformly, without replacement."""

  sampling = FIXED_SIZE
  is_replaced = True
  neighbors = _STILL_COUNTED

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.expected != int(self.expected):
      raise ValueError(
        f"Found clients_per_round = {self.expected:g} with fixed_size sampling; expected a whole"
        " number."
      )


class Everybody(Cohort):
  """No secret sampling, as if everybody took part in every round."""

  sampling = NO_SAMPLING

  @property
  def probability(self) -> float:
    return 1.0


@dataclasses.dataclass(frozen=True)
class Known(Cohort):
  """Clients whom everybody may know, and whose choice depends on nobody's data.

  The noise of rounds may be correlated: see `privacy.noise.banded`.

  Attributes:
    separation: s, the least distance of two rounds in which a client takes part.
  """

  separation: int
  neighbors = _STILL_COUNTED

  @property
  def probability(self) -> float:
    return 1.0


@dataclasses.dataclass(frozen=True)
class Cyclic(Known):
  """Groups of at most m clients, one after another, in the same order again and again."""

  sampling: ClassVar[str] = CYCLIC
  separation: int = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    super().__post_init__()
    object.__setattr__(self, "separation", num_groups(self.population, self.expected))


@dataclasses.dataclass(frozen=True)
class Spaced(Known):
  """At most m clients, of those that have not taken part in the last s - 1 rounds."""

  sampling: ClassVar[str] = SPACED

  def __post_init__(self) -> None:
    super().__post_init__()
    separation = checks.whole("separation", self.separation, 1)
    most = int(self.population / self.expected)
    if separation > most:
      raise ValueError(
        f"Found separation = {separation} with {self.expected:g} of {self.population} clients a"
        f" round; expected 1 to {most}, since all clients of a round must have waited so long."
      )
    object.__setattr__(self, "separation", separation)

  def entries(self) -> dict[str, Any]:
    return {**super().entries(), "separation": self.separation}


def num_groups(population: int, clients_per_round: float) -> int:
  """Returns the fewest groups of a population of which none has more clients than a round."""
  return math.ceil(population / clients_per_round)


# By --sampling.
SAMPLINGS: dict[str, type[Cohort]] = {
  kind.sampling: kind for kind in (Poisson, FixedSize, Everybody, Cyclic, Spaced)
}


def of(sampling: str, population: int, expected: float, separation: int | None = None) -> Cohort:
  """Returns the cohort of a value of --sampling.

  Args:
    sampling: A key of `SAMPLINGS`.
    population: n.
    expected: m.
    separation: s of "spaced"; None elsewhere.

  Raises:
    ValueError: If there is no such cohort, or `separation` does not belong to it.
  """
  checks.one_of("sampling", sampling, tuple(SAMPLINGS))
  if (separation is None) == (sampling == SPACED):
    raise ValueError(
      f"Found separation = {separation} with {sampling} sampling; expected the least distance of a"
      f" client's rounds with {SPACED}, and none elsewhere."
    )
  if separation is not None:
    return Spaced(population, expected, separation)
  kind: Any = SAMPLINGS[sampling]
  found: Cohort = kind(population, expected)
  return found


@dataclasses.dataclass(frozen=True)
class Complement:
  """The server makes the shares of noise that a cohort lacks.

  Attributes:
    protocol: One of `shares.PROTOCOLS`, the value of --noise_shares.
  """

  protocol: ClassVar[str] = shares.COMPLEMENT


@dataclasses.dataclass(frozen=True)
class Helpers(Complement):
  """Other clients make them, who send no data."""

  protocol: ClassVar[str] = shares.HELPERS


@dataclasses.dataclass(frozen=True)
class PrivateCoin(Complement):
  """More clients make noise than add data, which each does by a coin of its own.

  Attributes:
    contacted: The expected number of clients that a round contacts: each is contacted with
      probability contacted / n and then adds its data with probability m / contacted.
  """

  protocol: ClassVar[str] = shares.PRIVATE_COIN
  contacted: float

  def __post_init__(self) -> None:
    contacted = checks.number("contacted", self.contacted)
    if contacted <= 0:
      raise ValueError(f"Found contacted = {contacted:g}; expected a positive number.")
    object.__setattr__(self, "contacted", contacted)


def source(protocol: str, contacted: float | None = None) -> Complement:
  """Returns the source of the noise that a cohort lacks.

  Args:
    protocol: One of `shares.PROTOCOLS`.
    contacted: How many clients a round contacts with "private_coin"; None elsewhere.

  Raises:
    ValueError: If there is no such protocol, or `contacted` does not belong to it.
  """
  checks.one_of("protocol", protocol, shares.PROTOCOLS)
  if (contacted is not None) != (protocol == shares.PRIVATE_COIN):
    raise ValueError(
      f"Found contacted = {contacted} with the protocol {protocol}; expected how many clients a"
      " round contacts with private_coin, and none elsewhere."
    )
  if contacted is not None:
    return PrivateCoin(contacted)
  return Helpers() if protocol == shares.HELPERS else Complement()
