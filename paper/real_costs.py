"""What the noise of the paper's accounting really costs, and the sentences that say so."""

import dataclasses

from privacy import accounting
from privacy import releases
from privacy.noise import shares

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
  release = dataclasses.replace(
    release,
    tree=None,
    update_sum=None,
    relation=releases.ZERO_OUT,
    protocol=shares.COMPLEMENT,
    contacted=None,
  )
  poisson = dataclasses.replace(release, sampling=releases.POISSON)
  fixed_cost = at_least = None
  if release.clients_per_round == int(release.clients_per_round):
    fixed = dataclasses.replace(
      release, sampling=releases.FIXED_SIZE, relation=releases.REPLACE_ONE
    )
    fixed_cost = accounting.epsilon(fixed, num_rounds, delta).epsilon
    # If all the others are alike and the client is as different as can be, replacing it by one
    # like them is adding a client at twice the distance to a Poisson sample.
    factors = release.replace_one_factors
    apart = dataclasses.replace(
      poisson,
      threshold_noise_multiplier=_divide(release.threshold_noise_multiplier, factors[0]),
      update_noise_multiplier=_divide(release.update_noise_multiplier, factors[1]),
    )
    if apart.effective_noise_multiplier > 0.35:
      at_least = accounting.epsilon(apart, num_rounds, delta, accounting.PLD).epsilon
  cost = accounting.epsilon(poisson, num_rounds, delta).epsilon
  return RealCost(cost, fixed_cost, at_least)


def _divide(multiplier: float | None, factor: float) -> float | None:
  return None if multiplier is None else multiplier / factor


def caveat(cost: RealCost) -> list[str]:
  """States that the paper's accounting is no guarantee, and the real cost of its noise."""
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
