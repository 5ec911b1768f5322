"""What the noise of the paper's accounting really costs, and the sentences that say so."""

import dataclasses

from privacy import accounting
from privacy import cohorts
from privacy import releases

NOT_A_GUARANTEE = (
  "This is the paper's accounting, for reproduction only: its epsilon is NOT a guarantee, because"
  " it accounts for cohorts of fixed size as for Poisson samples and takes the number of tail"
  " clients for public."
)


@dataclasses.dataclass(frozen=True)
class RealCost:
  """The real cost of noise that the paper's accounting chose.

  Attributes:
    poisson: Epsilon with Poisson cohorts and removal of a client's data, if nothing else about the
      cohort is released.
    fixed_size: Likewise with the paper's cohorts of fixed size and replacement of a client; None if
      the cohort's size isn't whole.
    fixed_size_at_least: A cost that fixed cohorts reach for some data; None where it takes long to
      compute.
  """

  poisson: float
  fixed_size: float | None
  fixed_size_at_least: float | None


def real_cost(release: releases.Release, num_rounds: int, delta: float) -> RealCost:
  """Accounts properly for a release that the paper's accounting is used on.

  Args:
    release: The releases of each round, of a fixed clip norm. Its sampling does not matter.
    num_rounds: T.
    delta: The delta of (epsilon, delta)-differential privacy.

  Returns:
    The epsilons. They hold if the exact number of tail clients is not released; no epsilon is
    finite if it is.
  """
  cohort = release.cohort
  poisson = dataclasses.replace(
    release.without_mechanisms(),
    cohort=cohorts.Poisson(cohort.population, cohort.expected),
    noise=cohorts.Complement(),
    relation=releases.ZERO_OUT,
  )
  fixed_cost = at_least = None
  if cohort.expected == int(cohort.expected):
    sample = cohorts.FixedSize(cohort.population, cohort.expected)
    fixed = dataclasses.replace(poisson, cohort=sample, relation=releases.REPLACE_ONE)
    fixed_cost = accounting.epsilon(fixed, num_rounds, delta).epsilon
    # If all the others are alike and the client is as different as can be, replacing it by one
    # like them is adding a client at twice the distance to a Poisson sample.
    farther = (part.with_noise(part.z / part.replace_one_factor) for part in poisson.parts)
    apart = dataclasses.replace(poisson, parts=tuple(farther))
    if apart.effective_noise_multiplier > 0.35:
      at_least = accounting.epsilon(apart, num_rounds, delta, accounting.PLD).epsilon
  cost = accounting.epsilon(poisson, num_rounds, delta).epsilon
  return RealCost(cost, fixed_cost, at_least)


def caveat(cost: RealCost) -> list[str]:
  """States that the paper's accounting is no guarantee, and the real cost of its noise.

  Args:
    cost: The real cost of the noise.

  Returns:
    Sentences.
  """
  sentences = [
    NOT_A_GUARANTEE,
    f"The same noise really has epsilon = {cost.poisson:.4g} with Poisson cohorts if a client's"
    " data are removed.",
  ]
  if cost.fixed_size is not None:
    least = ""
    if cost.fixed_size_at_least is not None:
      least = f" between {cost.fixed_size_at_least:.4g} and"
    sentences.append(
      f"With the paper's cohorts of fixed size it has{least or ' at most'} {cost.fixed_size:.4g} if"
      " a client is replaced."
    )
  sentences.append("If the exact number of tail clients is published too, no epsilon is finite.")
  return sentences
