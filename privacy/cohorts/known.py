"""Cohorts that everybody may know, in which a client waits before its next turn."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from privacy import checks
from privacy.cohorts import cohort
from privacy.noise import banded
from privacy.settings import flag


class Known(cohort.Cohort):
  """Clients whom everybody may know, and whose choice depends on nobody's data.

  The noise of rounds may be correlated: see `privacy.noise.banded`.
  """

  separation: int  # s, the least distance of two rounds in which a client takes part.
  is_sampled = False
  is_public = True
  list_is_public = True
  is_one_mechanism = True
  rounds_vary = False

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

  def sampler(self, draws: cohort.Draws, most: int | None = None) -> cohort.Sampler:
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

  def sampler(self, draws: cohort.Draws, most: int | None = None) -> cohort.Sampler:
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
