"""The cohorts of rounds, and the sources of the noise that a cohort lacks.

A cohort is a Poisson sample, a sample of fixed size, everybody, or one that all may know, in which
a client waits before its next turn. Poisson cohorts of more than K clients lose clients at random.

Each is a class whose fields are the flags of a run and of the accountant; the number of clients
comes with the data. It says who knows the cohorts, what a round costs a client, and draws them:
`tff_superquantile.simulation.cohorts` gives it random generators, and names to positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from scipy import special

from privacy import checks
from privacy.noise import banded
from privacy.noise import dominating_pairs
from privacy.noise import shares
from privacy.settings import flag
from privacy.settings import part

_SIZE = "clients_per_round"
_STILL_COUNTED = (
  "zero-out (a client's data removed, the client itself still in the list and counted)"
)
_REMOVED = "zero-out (a client's data removed) / add-or-remove one client"
_Cohort = TypeVar("_Cohort", bound="Cohort")
# From a round's number, from 0, to the positions of its clients among all, int [cohort].
Sampler = Callable[[int], np.ndarray]


class Draws(Protocol):
  """The randomness of cohorts: the same for the same seed or key, round by round."""

  def generator(self, purpose: str, round_num: int) -> np.random.Generator:
    """Returns the generator of one purpose, such as "cohort", in one round."""

  def order(self, purpose: str) -> np.ndarray:
    """Returns the positions of all clients in the order of hashes of their names, int [n]."""

  def are_there(self, round_num: int) -> np.ndarray:
    """Returns the probabilities that clients are available, float [n]."""


@dataclasses.dataclass(frozen=True)
class Cohort(part.Part):
  """The clients whose data count in a round."""

  population: int = 0  # n, the number of clients; 0 before the data are known.
  # m, the (expected) number of clients whose data count in a round; None where the task decides.
  # In a run a whole number; the accountant takes any.
  size: int | float = flag.field(None, "Cohort size; None for the task's own.", least=1, name=_SIZE)
  # Whether a run names its sampling, which follows from its privacy otherwise.
  is_asked: bool = dataclasses.field(default=True, kw_only=True)
  sampling: ClassVar[str]  # The value of --sampling.
  is_sampled: ClassVar[bool] = True  # Whether a client's rounds are drawn, and secret.
  # Whether the adversary knows the cohorts.
  is_public: ClassVar[bool] = False
  # Whether the list of clients is public, and the same without a client's data.
  list_is_public: ClassVar[bool] = False
  # Whether a round's number of clients is drawn, too, so that it may lack shares of noise.
  size_varies: ClassVar[bool] = False
  # Whether all rounds together are one Gaussian mechanism. All noise is the server's, then, and may
  # be correlated over rounds: see `privacy.noise.banded`.
  is_one_mechanism: ClassVar[bool] = False

  def __post_init__(self) -> None:
    if self.population == 0:
      if isinstance(self.size, float):  # Only the accountant knows sizes that are not whole.
        object.__setattr__(self, "size", checks.whole(_SIZE, self.size, 1))
      super().__post_init__()
      return
    population = checks.whole("population", self.population, 1)
    size = checks.positive(_SIZE, checks.number(_SIZE, self.size))
    if size > population:
      raise ValueError(
        f"Found clients_per_round = {size:g} of population = {population}; expected at most the"
        " population, a sampling probability of at most 1."
      )
    object.__setattr__(self, "population", population)
    object.__setattr__(self, "size", size)

  def of(self: _Cohort, population: int) -> _Cohort:
    """Returns the cohorts of so many clients, at least one."""
    population = checks.whole("population", population, 1)
    return dataclasses.replace(self, population=population, is_asked=True)

  @property
  def expected(self) -> float:
    """m, where it is known."""
    if self.size is None:
      raise ValueError("Found no --clients_per_round; expected a value.")
    return self.size

  @property
  def probability(self) -> float:
    """q: the chance that a given client's data count in a given round; 1 without sampling."""
    return self.expected / self.population if self.is_sampled else 1.0

  @property
  def neighbors(self) -> str:
    """The neighbouring relation of removing a client's data, in words."""
    return _STILL_COUNTED if self.list_is_public else _REMOVED

  def participation(self, num_rounds: int) -> banded.Participation | None:
    """Returns the rounds in which a client may take part; None where rounds compose one by one."""
    del num_rounds
    return None

  def likely_participations(self, num_rounds: int, probability: float) -> int:
    """Returns the number of T rounds in which a client reports; one in a thousand has more.

    It is the 0.999 quantile of Binomial(T, q), which is T without sampling; `probability` is q.
    """
    if not num_rounds or probability in (0.0, 1.0):
      return int(num_rounds * probability)
    # `bdtrik` is bdtr's inverse in k, no whole number; that the next lower k is one is rounding.
    most: int = math.ceil(special.bdtrik(0.999, num_rounds, probability))
    return most - int(special.bdtr(most - 1, num_rounds, probability) >= 0.999)

  def mixture(
    self, pair: dominating_pairs.SampledGaussian, overflow: float
  ) -> dominating_pairs.Mixture:
    """Describes a round as Gaussian mechanisms on samples of clients, with probabilities.

    `pair` is the round on a Poisson sample of its probability; with the chance `overflow` the
    others fill the cohort, so that a client takes one's place.
    """
    if not overflow:
      return ((1.0, pair),)
    full = dataclasses.replace(pair, is_replaced=True, replace_one=True)
    return (1.0 - overflow, pair), (overflow, full)

  def overflow_probability(self, probability: float, num_shares: int) -> float:
    """Returns the chance that the others fill a round's cohort, each there with `probability`."""
    del probability, num_shares
    return 0.0

  def sampler(self, draws: Draws, most: int | None = None) -> Sampler:
    """Returns what draws the cohorts, of at most so many clients where their size varies."""
    raise NotImplementedError(f"{self.sampling} is of the accountant alone.")

  def mean_size(self) -> float:
    """Returns the mean number of clients of a round."""
    return self.expected

  def limit(self, contacted: float) -> int:
    """Returns K, the most clients of a round that contacts so many; each sum has K shares."""
    return max(1, int(contacted))

  def words(self) -> str:
    """States how the cohort is drawn, and who may know it."""
    return "none that counts; every client may take part in every round, for all to know."

  @classmethod
  def own(cls) -> dict[str, str]:
    """Returns the fields of its kind alone by their flags, which are entries of a ledger, too."""
    return {flag.name: field for field, flag in part.own_flags(cls).items() if field != "size"}

  def entries(self) -> dict[str, Any]:
    """Returns the cohort as a ledger has it."""
    own = {name: getattr(self, field) for name, field in self.own().items()}
    return dict(
      population=self.population,
      clients_per_round=self.expected,
      sampling=self.sampling,
      **own,
    )


class Poisson(Cohort):
  """Each client takes part in each round with probability m / n, by itself."""

  sampling = "poisson"
  size_varies = True

  def sampler(self, draws: Draws, most: int | None = None) -> Sampler:
    """Returns what the accounting of Poisson sampling assumes.

    The size of a cohort varies down to 0; it must not be released, or the cohort is as good as one
    of fixed size. Cohorts of more than `most` lose clients at random:
    `privacy.noise.dominating_pairs` says what that changes in the accounting.
    """
    num_clients, probability = self.population, self.probability

    def sample(round_num: int) -> np.ndarray:
      rng = draws.generator("cohort", round_num)
      chosen = np.flatnonzero(rng.random(num_clients) < probability)
      if most is not None and len(chosen) > most:
        chosen = np.sort(rng.choice(chosen, most, replace=False))
      return chosen

    return sample

  def overflow_probability(self, probability: float, num_shares: int) -> float:
    return shares.overflow_probability(self.population, probability, num_shares)

  def words(self) -> str:
    return (
      f"Poisson; each of {self.population} clients takes part in each round with probability"
      f" {self.probability:.4g}, independently, and nobody learns who does or how many."
    )

  def limit(self, contacted: float) -> int:
    return shares.cohort_limit(self.population, contacted)


class FixedSize(Cohort):
  """m clients, uniformly, without replacement."""

  sampling = "fixed_size"
  list_is_public = True

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.size is not None and self.size != int(self.size):
      raise ValueError(
        f"Found clients_per_round = {self.expected:g} with fixed_size sampling; expected a whole"
        " number."
      )

  def sampler(self, draws: Draws, most: int | None = None) -> Sampler:
    def sample(round_num: int) -> np.ndarray:
      rng = draws.generator("cohort", round_num)
      return rng.choice(self.population, int(self.expected), replace=False)

    return sample

  def mixture(
    self, pair: dominating_pairs.SampledGaussian, overflow: float
  ) -> dominating_pairs.Mixture:
    if pair.probability == 1.0:
      return super().mixture(pair, overflow)
    # Another client counts in a round in which a client does not.
    return ((1.0, dataclasses.replace(pair, is_replaced=True)),)

  def words(self) -> str:
    return (
      f"{self.expected:g} of {self.population} clients, uniformly without replacement in each"
      " round, and nobody learns who."
    )


class Everybody(Cohort):
  """No secret sampling, as if everybody took part in every round; of the accountant alone."""

  sampling = "none"
  is_sampled = False
  is_public = True


class Known(Cohort):
  """Clients whom everybody may know, and whose choice depends on nobody's data.

  The noise of rounds may be correlated: see `privacy.noise.banded`.
  """

  separation: int  # s, the least distance of two rounds in which a client takes part.
  is_sampled = False
  is_public = True
  list_is_public = True
  is_one_mechanism = True

  def participation(self, num_rounds: int) -> banded.Participation:
    return banded.Participation(num_rounds, self.separation)

  def likely_participations(self, num_rounds: int, probability: float) -> int:
    """Returns the most rounds of all clients."""
    return -(-num_rounds // self.separation)

  def turns(self) -> str:
    """States whose turn a round is."""
    return f"in each round at most {self.expected:g} of {self.population} clients"

  def words(self) -> str:
    return (
      f"{self.turns()}, for all to know; a client takes part in one of {self.separation} successive"
      " rounds at most, and which depends on nobody's data."
    )


class Cyclic(Known):
  """Groups of at most m clients take turns, in an order that is public.

  The ceil(n / m) groups differ by one client at most. A client's group follows from its rank among
  the hashes of all clients' names under the seed, which is public. One that misses its turn waits
  for its group's next one, so that its rounds are never closer than there are groups.
  """

  sampling = "cyclic"

  @property
  def separation(self) -> int:  # type: ignore[override]
    """The number of groups: the fewest of which none has more than m clients."""
    return math.ceil(self.population / self.expected)

  def turns(self) -> str:
    return (
      f"{self.separation} groups of at most {self.expected:g} of {self.population} clients, one"
      " after another"
    )

  def mean_size(self) -> float:
    return self.population / self.separation

  def sampler(self, draws: Draws, most: int | None = None) -> Sampler:
    by_hash, num_groups = draws.order("group"), self.separation
    return lambda round_num: by_hash[round_num % num_groups :: num_groups]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spaced(Known):
  """At most m clients that are available and have not taken part in the last s - 1 rounds.

  The cohort are m clients, drawn uniformly from those that are there and have waited; fewer, or
  none, if there are not so many. Nothing depends on data.
  """

  sampling: ClassVar[str] = "spaced"
  separation: int = flag.field(
    ...,
    "With --sampling=spaced: the least distance of two rounds of a client; at most the number of"
    " clients over --clients_per_round.",
    least=1,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.population == 0:
      return
    separation = checks.whole("separation", self.separation, 1)
    most = int(self.population / self.expected)
    if separation > most:
      raise ValueError(
        f"Found separation = {separation} with {self.expected:g} of {self.population} clients a"
        f" round; expected 1 to {most}, since all clients of a round must have waited so long."
      )
    object.__setattr__(self, "separation", separation)

  def sampler(self, draws: Draws, most: int | None = None) -> Sampler:
    """Returns what draws a round the faster the closer it is to the last that was asked for."""
    drawn: list[np.ndarray] = []

    def draw(round_num: int) -> np.ndarray:
      rng = draws.generator("cohort", round_num)
      can = rng.random(self.population) < draws.are_there(round_num)
      for recent in drawn[max(0, round_num - self.separation + 1) :]:
        can[recent] = False
      there = np.flatnonzero(can)
      return rng.choice(there, min(int(self.expected), there.size), replace=False)

    def sample(round_num: int) -> np.ndarray:
      while len(drawn) <= round_num:
        drawn.append(draw(len(drawn)))
      return drawn[round_num]

    return sample


# By --sampling.
SAMPLINGS: dict[str, type[Cohort]] = {
  kind.sampling: kind for kind in (Poisson, FixedSize, Everybody, Cyclic, Spaced)
}


def own_flags() -> dict[str, str]:
  """Returns the flags that single kinds of an accountant's cohorts have, and their help."""
  kinds = SAMPLINGS.values()
  return {n: part.own_flags(kind)[field].help for kind in kinds for n, field in kind.own().items()}


def known() -> str:
  """Returns the names of the samplings whose rounds are one mechanism, for a sentence."""
  return " or ".join(name for name, kind in SAMPLINGS.items() if kind.is_one_mechanism)


def of(sampling: str, population: int, expected: float, **own: Any) -> Cohort:
  """Returns the cohort of m = `expected` of n = `population` clients, by one of `SAMPLINGS`.

  `own` are values of `own_flags()`, None where a kind does not have it; others are a `ValueError`.
  """
  checks.one_of("sampling", sampling, tuple(SAMPLINGS))
  kind = SAMPLINGS[sampling]
  for name in own_flags():
    if (own.get(name) is None) == (name in kind.own()):
      owners = [other for other, kind in SAMPLINGS.items() if name in kind.own()]
      raise ValueError(
        f"Found {name} = {own.get(name)} with {sampling} sampling; expected a value with"
        f" {' or '.join(owners)}, and none elsewhere."
      )
  population = checks.whole("population", population, 1)
  return kind(population, expected, **{field: own[name] for name, field in kind.own().items()})


def choice(usual: Callable[[Mapping[str, Any]], str]) -> Any:
  """Returns the field of a run's cohorts; `usual` chooses where --sampling has no value."""
  return part.choice(
    "sampling",
    {name: kind for name, kind in SAMPLINGS.items() if kind is not Everybody},
    "Sampling of cohorts: exactly --clients_per_round clients (fixed_size); each client by itself"
    " with the same probability (poisson); groups of at most so many, which take turns (cyclic); at"
    " most so many of the clients that are there at their local hour and waited for --separation"
    " rounds (spaced). Private runs with the last two protect from whoever knows the cohorts. None"
    " for fixed_size, or in a private run for poisson.",
    usual=usual,
    default=FixedSize(is_asked=False),
    words={"cyclic": "cyclic cohorts", "spaced": "spaced cohorts"},
  )


@dataclasses.dataclass(frozen=True)
class Complement(part.Part):
  """The server makes the shares of noise that a cohort lacks."""

  # One of `shares.PROTOCOLS`, the value of --noise_shares.
  protocol: ClassVar[str] = shares.COMPLEMENT


class Helpers(Complement):
  """Other clients make them, who send no data."""

  protocol = shares.HELPERS


@dataclasses.dataclass(frozen=True)
class PrivateCoin(Complement):
  """More clients make noise than add data, which each does by a coin of its own."""

  protocol: ClassVar[str] = shares.PRIVATE_COIN
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
  """Returns the field of the source of a run's noise."""
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

  `contacted` is the number of clients that a round contacts with "private_coin"; None elsewhere.
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
