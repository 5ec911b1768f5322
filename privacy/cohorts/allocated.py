"""Cohorts of clients that take part once in each block of rounds, and when is drawn in secret."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np

from privacy.cohorts import cohort
from privacy.noise import allocation
from privacy.noise import dominating_pairs
from privacy.noise import shares


class Allocated(cohort.Cohort):
  """Each client takes part in one round of each block of t, uniform and secret (allocation).

  t = ceil(n / m) is the fewest rounds of which none expects more than m clients. In T = k t rounds
  each client takes part exactly k times, and after any number of rounds two clients differ by one
  at most. Its round of a block depends on nobody else, and is drawn anew for each.

  `privacy.noise.allocation` has the guarantee. A round may have no clients.
  """

  sampling = "allocated"
  size_varies = True
  rounds_vary = False
  # A cut cohort would tell more of a client than with Poisson samples: with a room of 4, where 6e-5
  # of the rounds of 100 clients are filled, an epsilon of 3 takes 10 % more noise.
  room = 7.0
  protocols = (shares.COMPLEMENT, shares.HELPERS)

  @property
  def length(self) -> int:
    """t, the rounds of a block."""
    return math.ceil(self.population / self.expected)

  @property
  def probability(self) -> float:
    return 1.0 / self.length

  def mean_size(self) -> float:
    return self.population / self.length

  def likely_participations(self, num_rounds: int, probability: float) -> int:
    """Returns the most rounds of all clients."""
    return -(-num_rounds // self.length)

  def sampler(self, draws: cohort.Draws, most: int | None = None) -> cohort.Sampler:
    """Returns what the accounting assumes; of more than `most` clients some are left out at random.

    Cohorts follow from the block's generator alone, in any order of rounds. The first block begins
    with round 1: cut elsewhere, the first and the last block of a run would not be whole, and the
    accounting, which counts rounds from the first, would count another draw than this.
    """

    def sample(round_num: int) -> np.ndarray:
      if round_num < 1:
        raise ValueError(
          f"Found round {round_num} of an allocated sampling; expected a number from 1, the round"
          " with which its first block begins."
        )
      block, turn = divmod(round_num - 1, self.length)
      turns = draws.generator("allocation", block).integers(self.length, size=self.population)
      return cohort.cut(np.flatnonzero(turns == turn), most, draws.generator("cohort", round_num))

    return sample

  def runs(
    self, num_rounds: int, pair: dominating_pairs.SampledGaussian, overflow: float
  ) -> cohort.Runs:
    """Describes the whole blocks, and the rounds of one that has not ended.

    Rounds that the others fill are told, and whether the client's is one: neither depends on data.
    With probability o = `overflow` it is, and the client takes another's place in a round that is
    known. Otherwise its round is one of those left. That one is filled has a chance of t o at most,
    and that two are of (t o)^2 / 2, as numbers of clients in different rounds are negatively
    associated (balls and bins). Two count as if the client's round was filled.
    """
    if self.length == 1:
      return super().runs(num_rounds, pair, overflow)
    whole, rest = divmod(num_rounds, self.length)
    of_one = min(1.0, self.length * overflow)
    of_known = min(1.0, overflow + of_one**2 / 2.0)

    def mixture(seen: int) -> dominating_pairs.Mixture:
      block = allocation.AllocatedGaussian(
        self.length, seen, pair.removed, pair.replaced, pair.replace_one
      )
      if not overflow:
        return ((1.0, block),)
      fewer = dataclasses.replace(block, length=self.length - 1, seen=max(seen - 1, 1))
      known = dominating_pairs.SampledGaussian(1.0, pair.replaced, pair.replaced)
      of_none = max(0.0, 1.0 - of_one - of_known)
      return (of_none, block), (min(of_one, 1.0 - of_known), fewer), (of_known, known)

    counted = ((self.length, whole), (rest, min(rest, 1)))
    return tuple((mixture(seen), number) for seen, number in counted if number)

  def event(self, gaussians: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    if self.length == 1:
      return gaussians
    raise ValueError(
      "Found allocated sampling, whose rounds do not compose one by one, with accounting by 'rdp';"
      " expected 'pld'."
    )

  def words(self) -> str:
    return (
      f"random allocation; each of {self.population} clients takes part in one of"
      f" {self.length} successive rounds, drawn uniformly and independently for each block of"
      " these, and nobody learns which, or how many do."
    )
