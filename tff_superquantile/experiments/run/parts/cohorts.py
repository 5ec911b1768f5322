"""The cohorts of a run's rounds. Importing this starts no TensorFlow."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from privacy import cohorts as privacy_cohorts
from tff_superquantile.experiments.run.parts import flag
from tff_superquantile.experiments.run.parts import part
from tff_superquantile.experiments.run.parts import privacy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cohort(part.Part):
  """The clients of a round.

  Attributes:
    size: m, their (expected) number; None where the task decides.
    is_asked: Whether a run names its sampling, which follows from its privacy otherwise.
  """

  size: int | None = flag.field(
    None, "Cohort size; None for the task's own.", least=1, name="clients_per_round"
  )
  is_asked: bool = True


class Resolved(Cohort, abc.ABC):
  """Cohorts whose size is known."""

  size: int

  def mean_size(self, num_clients: int) -> float:
    """Returns the expected number of clients of a round, of so many in all."""
    del num_clients
    return self.size

  @abc.abstractmethod
  def sampler(self, client_ids: Sequence[str], seed: int) -> Callable[[int], list[str]]:
    """Returns the function from a round of a run without a secret key to the ids of its cohort."""


def _samplers() -> Any:
  from tff_superquantile.simulation import cohorts  # --help needs no NumPy.

  return cohorts


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(Cohort):
  """Exactly so many clients."""


class ResolvedFixedSize(FixedSize, Resolved):
  """`FixedSize` of a known size."""

  size: int

  def sampler(self, client_ids: Sequence[str], seed: int) -> Callable[[int], list[str]]:
    sample: Callable[[int], list[str]] = _samplers().build_fixed_size_sampler(
      client_ids, self.size, seed
    )
    return sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Cohort):
  """Each client by itself, with the same probability."""


class ResolvedPoisson(Poisson, Resolved):
  """`Poisson` of a known size."""

  size: int

  def sampler(self, client_ids: Sequence[str], seed: int) -> Callable[[int], list[str]]:
    sample: Callable[[int], list[str]] = _samplers().build_poisson_sampler(
      client_ids, self.size, seed
    )
    return sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diurnal(Cohort):
  """Each client by itself, with a probability that follows its local hour."""


class ResolvedDiurnal(Diurnal, Resolved):
  """`Diurnal` of a known size."""

  size: int

  def sampler(self, client_ids: Sequence[str], seed: int) -> Callable[[int], list[str]]:
    sample: Callable[[int], list[str]] = _samplers().build_diurnal_sampler(
      client_ids, self.size, seed
    )
    return sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known(Cohort):
  """Cohorts that everybody may know, in which clients wait between their rounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(Known):
  """Groups of clients take turns, in an order that is public."""


class ResolvedCyclic(Cyclic, Resolved):
  """`Cyclic` of a known size."""

  size: int

  def mean_size(self, num_clients: int) -> float:
    return num_clients / privacy_cohorts.num_groups(num_clients, self.size)

  def sampler(self, client_ids: Sequence[str], seed: int) -> Callable[[int], list[str]]:
    sample: Callable[[int], list[str]] = _samplers().build_cyclic_sampler(
      client_ids, self.size, seed
    )
    return sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spaced(Known):
  """Clients that are available and have not taken part in the last rounds."""

  separation: int = flag.field(
    ...,
    "With --sampling=spaced: the least distance of two rounds of a client; at most the number of"
    " clients over --clients_per_round.",
    least=1,
  )


class ResolvedSpaced(Spaced, Resolved):
  """`Spaced` of a known size."""

  size: int

  def sampler(self, client_ids: Sequence[str], seed: int) -> Callable[[int], list[str]]:
    sample: Callable[[int], list[str]] = _samplers().build_spaced_sampler(
      client_ids, self.size, self.separation, seed
    )
    return sample


# By the value of --sampling.
COHORTS: dict[str, type[Cohort]] = {
  "fixed_size": FixedSize,
  "poisson": Poisson,
  "diurnal": Diurnal,
  "cyclic": Cyclic,
  "spaced": Spaced,
}


def check(cohort: Cohort) -> None:
  """Raises a `ValueError` if a run's cohorts lack a value that they need."""
  for name, one in part.own_flags(type(cohort)).items():
    if one.is_required and getattr(cohort, name) is None:
      raise ValueError(f"Found --sampling={name_of(cohort)} without --{one.name}; give one.")


def name_of(cohort: Cohort) -> str:
  """Returns the value of --sampling."""
  return part.key(COHORTS, cohort)


def choice() -> Any:
  """Returns the field of a run's cohorts."""
  return part.choice(
    "sampling",
    COHORTS,
    "Sampling of cohorts: exactly --clients_per_round clients (fixed_size); each client by itself"
    " with the same probability (poisson), or with one that follows its local hour (diurnal);"
    " groups of at most so many, which take turns (cyclic); at most so many of the clients that are"
    " there at their local hour and waited for --separation rounds (spaced). Private runs with the"
    " last two protect from whoever knows the cohorts. None for fixed_size, or in a private run for"
    " poisson.",
    usual=lambda given: "poisson" if privacy.is_private(given) else "fixed_size",
    default=FixedSize(is_asked=False),
    words={"cyclic": "cyclic cohorts", "spaced": "spaced cohorts"},
  )
