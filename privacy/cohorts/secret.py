"""Cohorts that are drawn in secret, and those of everybody, of which no draw is counted on."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from privacy.cohorts import cohort
from privacy.noise import dominating_pairs
from privacy.noise import shares


class Poisson(cohort.Cohort):
  """Each client takes part in each round with probability m / n, by itself."""

  sampling = "poisson"
  size_varies = True
  protocols = shares.PROTOCOLS

  def sampler(self, draws: cohort.Draws, most: int | None = None) -> cohort.Sampler:
    """Returns what the accounting of Poisson sampling assumes.

    The size of a cohort varies down to 0; it must not be released, or the cohort is as good as one
    of fixed size. Cohorts of more than `most` lose clients at random:
    `privacy.noise.dominating_pairs` says what that changes in the accounting.
    """
    num_clients, probability = self.population, self.probability

    def sample(round_num: int) -> np.ndarray:
      rng = draws.generator("cohort", round_num)
      chosen = np.flatnonzero(rng.random(num_clients) < probability)
      return cohort.cut(chosen, most, rng)

    return sample

  def mixture(
    self, pair: dominating_pairs.SampledGaussian, overflow: float
  ) -> dominating_pairs.Mixture:
    if not overflow:
      return ((1.0, pair),)
    full = dataclasses.replace(pair, is_replaced=True, replace_one=True)
    return (1.0 - overflow, pair), (overflow, full)

  def event(self, gaussians: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.PoissonSampledDpEvent(float(self.probability), gaussians)

  def words(self) -> str:
    return (
      f"Poisson; each of {self.population} clients takes part in each round with probability"
      f" {self.probability:.4g}, independently, and nobody learns who does or how many."
    )


class FixedSize(cohort.Cohort):
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

  def sampler(self, draws: cohort.Draws, most: int | None = None) -> cohort.Sampler:
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

  def event(self, gaussians: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.SampledWithoutReplacementDpEvent(
      source_dataset_size=self.population, sample_size=int(self.expected), event=gaussians
    )

  def words(self) -> str:
    return (
      f"{self.expected:g} of {self.population} clients, uniformly without replacement in each"
      " round, and nobody learns who."
    )


class Everybody(cohort.Cohort):
  """No secret sampling, as if everybody took part in every round; of the accountant alone."""

  sampling = "none"
  is_sampled = False
  is_public = True
  rounds_vary = False
