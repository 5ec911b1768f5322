"""What a sampling answers: who knows its cohorts, what a round costs, how to draw them."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import Any, ClassVar, Protocol, TypeVar

import dp_accounting
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
# Mechanisms that compose, and how often: those of rounds, or of several rounds together.
Runs = tuple[tuple[dominating_pairs.Mixture, int], ...]
# From a round's number, from 1, to the positions of its clients among all, int [cohort].
Sampler = Callable[[int], np.ndarray]


class Draws(Protocol):
  """The randomness of cohorts: the same for the same seed or key, round by round."""

  def generator(self, purpose: str, round_num: int) -> np.random.Generator:
    """Returns the generator of one purpose, such as "cohort", in one round."""

  def order(self, purpose: str) -> np.ndarray:
    """Returns the positions of all clients in the order of hashes of their names, int [n]."""

  def are_there(self, round_num: int) -> np.ndarray:
    """Returns the probabilities that clients are available, float [n]."""


def cut(chosen: np.ndarray, most: int | None, rng: np.random.Generator) -> np.ndarray:
  """Returns clients in their order, of more than `most` so many at random.

  `privacy.noise.dominating_pairs` says what that changes in the accounting.
  """
  if most is None or len(chosen) <= most:
    return chosen
  return np.sort(rng.choice(chosen, most, replace=False))


@dataclasses.dataclass(frozen=True)
class Cohort(part.Part):
  """The clients whose data count in a round."""

  population: int = 0  # n, the number of clients; 0 before the data are known.
  # m, the (expected) number of clients whose data count in a round; None where the task decides.
  # In a run a whole number; the accountant takes any.
  size: int | float = flag.field(None, "Cohort size; None for the task's own.", least=1, name=_SIZE)
  # Whether a run names its sampling, which follows from its privacy otherwise.
  is_explicit: bool = dataclasses.field(default=True, kw_only=True)
  sampling: ClassVar[str]  # The value of --sampling.
  is_sampled: ClassVar[bool] = True  # Whether a client's rounds are drawn, and secret.
  # Whether the adversary knows the cohorts.
  is_public: ClassVar[bool] = False
  # Whether the list of clients is public, and the same without a client's data.
  list_is_public: ClassVar[bool] = False
  # Whether a round's number of clients is drawn, too, so that it may lack shares of noise.
  size_varies: ClassVar[bool] = False
  # The most clients of a round have room for so many standard deviations above the mean, then.
  room: ClassVar[float] = 4.0
  # Whether clients take part in more or in fewer rounds by chance.
  rounds_vary: ClassVar[bool] = True
  # The sources of the noise that a round lacks, of `privacy.noise.shares.PROTOCOLS`.
  protocols: ClassVar[tuple[str, ...]] = (shares.COMPLEMENT,)
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
    """Returns the cohorts of so many clients.

    Args:
      population: n, a whole number of at least 1.

    Returns:
      The cohorts.

    Raises:
      ValueError: If `population` is no such number, or less than the size of a cohort.
    """
    population = checks.whole("population", population, 1)
    return dataclasses.replace(self, population=population, is_explicit=True)

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
    """Returns the rounds in which a client may take part; None where rounds compose one by one.

    Args:
      num_rounds: T.

    Returns:
      The rounds, or None.
    """
    del num_rounds
    return None

  def likely_participations(self, num_rounds: int, probability: float) -> int:
    """Returns the number of T rounds in which a client reports; one in a thousand has more.

    It is the 0.999 quantile of Binomial(T, q), which is T without sampling.

    Args:
      num_rounds: T.
      probability: q, with which a client reports in a round.

    Returns:
      A number of rounds, at most T.
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

    Args:
      pair: The round on a Poisson sample of its probability.
      overflow: The chance that the others fill the cohort, so that a client takes the place of one.

    Returns:
      The mechanisms and their probabilities.

    Raises:
      NotImplementedError: If this sampling has no accounting by pld.
    """
    if pair.probability < 1.0 or overflow:
      raise NotImplementedError(f"Found no accounting by pld of {self.sampling} sampling.")
    return ((1.0, pair),)

  def runs(self, num_rounds: int, pair: dominating_pairs.SampledGaussian, overflow: float) -> Runs:
    """Describes T rounds as mechanisms that compose, each by `mixture`."""
    return ((self.mixture(pair, overflow), num_rounds),)

  def event(self, gaussians: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Builds dp_accounting's event of a round, of that of its releases with the cohort given.

    Args:
      gaussians: The event of the releases.

    Returns:
      The event.

    Raises:
      NotImplementedError: If this sampling has no accounting by rdp.
    """
    if self.probability < 1.0:
      raise NotImplementedError(f"Found no accounting by rdp of {self.sampling} sampling.")
    return gaussians

  def overflow_probability(self, probability: float, num_shares: int) -> float:
    """Returns the chance that the others fill a round's cohort.

    Args:
      probability: That with which each of them is there.
      num_shares: K, the most clients of a round.

    Returns:
      The chance; 0 for cohorts of fixed size.
    """
    if not self.size_varies:
      return 0.0
    return shares.overflow_probability(self.population, probability, num_shares)

  def sampler(self, draws: Draws, most: int | None = None) -> Sampler:
    """Returns what draws the cohorts.

    Args:
      draws: The randomness of the run.
      most: The most clients of a cohort where their size varies; None for no limit.

    Returns:
      A function from the round to the places of its clients.

    Raises:
      NotImplementedError: If the sampling is of the accountant alone.
    """
    raise NotImplementedError(f"{self.sampling} is of the accountant alone.")

  def mean_size(self) -> float:
    """Returns the mean number of clients of a round."""
    return self.expected

  def limit(self, contacted: float) -> int:
    """Returns K, the most clients of a round; each sum has K shares.

    Args:
      contacted: The (expected) number of clients that a round contacts.

    Returns:
      K, at least 1.
    """
    if self.size_varies:
      return shares.cohort_limit(self.population, contacted, self.room)
    return max(1, int(contacted))

  def words(self) -> str:
    """States how the cohort is drawn, and who may know it."""
    return "none that counts; every client may take part in every round, for all to know."

  @classmethod
  def own(cls) -> dict[str, str]:
    """Returns the fields of its kind alone by their flags, which are entries of a ledger, too."""
    return {flag.name: field for field, flag in part.flags_by_field(cls).items() if field != "size"}

  def entries(self) -> dict[str, Any]:
    """Returns the cohort as a ledger has it."""
    own = {name: getattr(self, field) for name, field in self.own().items()}
    return dict(
      population=self.population,
      clients_per_round=self.expected,
      sampling=self.sampling,
      **own,
    )
