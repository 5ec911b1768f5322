"""The cohorts of rounds, and the sources of the noise that a cohort lacks.

A cohort is a Poisson sample, a sample of fixed size, everybody, one that all may know, in which a
client waits before its next turn, or those whose secret round of a block it is. Cohorts whose size
varies lose clients at random if they have more than K.

Each is a class whose fields are the flags of a run and of the accountant; the number of clients
comes with the data. It says who knows the cohorts, what a round costs a client, and draws them:
`tff_superquantile.simulation.cohorts` gives it random generators, and names to positions. A new
sampling is a class and a row of `SAMPLINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from privacy import checks
from privacy.cohorts.allocated import Allocated as Allocated
from privacy.cohorts.cohort import Cohort as Cohort
from privacy.cohorts.cohort import Runs as Runs
from privacy.cohorts.known import Cyclic as Cyclic
from privacy.cohorts.known import Known as Known
from privacy.cohorts.known import Spaced as Spaced
from privacy.cohorts.secret import Everybody as Everybody
from privacy.cohorts.secret import FixedSize as FixedSize
from privacy.cohorts.secret import Poisson as Poisson
from privacy.cohorts.sources import SOURCES as SOURCES
from privacy.cohorts.sources import Complement as Complement
from privacy.cohorts.sources import Helpers as Helpers
from privacy.cohorts.sources import PrivateCoin as PrivateCoin
from privacy.cohorts.sources import source as source
from privacy.cohorts.sources import source_choice as source_choice
from privacy.settings import part

# By --sampling.
SAMPLINGS: dict[str, type[Cohort]] = {
  kind.sampling: kind for kind in (Poisson, FixedSize, Everybody, Cyclic, Spaced, Allocated)
}


def own_flags() -> dict[str, str]:
  """Returns the flags that single kinds of an accountant's cohorts have, and their help.

  Returns:
    Help by the flag's name.
  """
  kinds = SAMPLINGS.values()
  return {
    n: part.flags_by_field(kind)[field].help for kind in kinds for n, field in kind.own().items()
  }


def of_one_mechanism() -> str:
  """Returns the names of the samplings whose rounds are one mechanism, for a sentence.

  Returns:
    The names with "or" between them.
  """
  return " or ".join(name for name, kind in SAMPLINGS.items() if kind.is_one_mechanism)


def with_protocol(protocol: str) -> str:
  """Returns the samplings that know a source of noise, for a sentence.

  Args:
    protocol: One of `privacy.noise.shares.PROTOCOLS`.

  Returns:
    Their names, with "or" between them.
  """
  return " or ".join(name for name, kind in SAMPLINGS.items() if protocol in kind.protocols)


def of(sampling: str, population: int, expected: float, **own: Any) -> Cohort:
  """Returns the cohort of m = `expected` of n = `population` clients, by one of `SAMPLINGS`.

  Args:
    sampling: The kind's name.
    population: n, a whole number of at least 1.
    expected: m, the (expected) number of clients of a round.
    **own: Values of `own_flags()`, None where the kind does not have the flag.

  Returns:
    The cohort.

  Raises:
    ValueError: If there is no such sampling, a number is out of its range, or a flag's value is
      missing or of another kind.
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


def choice(default_kind: Callable[[Mapping[str, Any]], str]) -> Any:
  """Returns the field of a run's cohorts.

  Args:
    default_kind: Chooses the sampling by the values of all flags, where --sampling has none.

  Returns:
    A dataclass field, whose flag is --sampling.
  """
  return part.choice(
    "sampling",
    {name: kind for name, kind in SAMPLINGS.items() if kind is not Everybody},
    "Sampling of cohorts: exactly --clients_per_round clients (fixed_size); each client by itself"
    " with the same probability (poisson); groups of at most so many, which take turns (cyclic); at"
    " most so many of the clients that are there at their local hour and waited for --separation"
    " rounds (spaced); each client in one secret round of each block of n / m rounds (allocated)."
    " Private runs with cyclic or spaced protect from whoever knows the cohorts. None for"
    " fixed_size, or in a private run for poisson.",
    default_kind=default_kind,
    default=FixedSize(is_explicit=False),
    words={
      "cyclic": "cyclic cohorts",
      "spaced": "spaced cohorts",
      "allocated": "allocated cohorts",
    },
  )
