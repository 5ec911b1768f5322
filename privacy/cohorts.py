"""The cohorts of a release: their sizes, and a round as Gaussian mechanisms on samples of clients.

A cohort is a Poisson sample, a sample of fixed size, or everybody. Poisson cohorts of more than K
clients lose clients at random. Against the server, which knows the size of each cohort, a round is
a mixture over the (binomial) sizes.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from privacy import releases
from privacy.noise import dominating_pairs
from privacy.noise import shares

# The server's view tells at most so many cohort sizes apart.
_MOST_SIZES = 200


def limit(release: releases.Release) -> int:
  """Returns K, the most clients of a round; each sum has the noise of K shares.

  Args:
    release: The releases of each round.

  Returns:
    `shares.cohort_limit` of Poisson cohorts; the size of others.
  """
  cohort = release.contacted or release.clients_per_round
  if release.sampling == releases.POISSON:
    return shares.cohort_limit(release.population, cohort)
  return max(1, int(cohort))


def gaussian(
  release: releases.Release, probability: float, growth: float = 1.0
) -> dominating_pairs.SampledGaussian:
  """Describes a round as a Gaussian mechanism on a Poisson sample.

  Args:
    release: The releases of a round.
    probability: The probability with which a client's data count.
    growth: The ratio of the release's variance to that of the noise.

  Returns:
    The mechanism, with the release's neighbouring relation.
  """
  factors = release.replace_one_factors
  replaced = math.hypot(
    *(f / z for f, z in zip(factors, release.noise_multipliers) if z is not None)
  )
  return dominating_pairs.SampledGaussian(
    probability=probability,
    removed=math.sqrt(growth) / release.effective_noise_multiplier,
    replaced=math.sqrt(growth) * replaced,
    replace_one=release.relation == releases.REPLACE_ONE,
  )


def mixture(release: releases.Release) -> dominating_pairs.Mixture:
  """Describes a round as Gaussian mechanisms on samples of clients, with probabilities."""
  found = gaussian(release, release.sampling_probability)
  if release.sampling == releases.FIXED_SIZE and found.probability < 1.0:
    return ((1.0, dataclasses.replace(found, is_replaced=True)),)
  overflow = release.overflow_probability
  if not overflow:
    return ((1.0, found),)
  full = dataclasses.replace(found, is_replaced=True, replace_one=True)
  return (1.0 - overflow, found), (overflow, full)


def likely_participations(release: releases.Release, num_rounds: int) -> int:
  """Returns the number of rounds in which a client reports; one in a thousand has more.

  Args:
    release: The releases of each round.
    num_rounds: T.

  Returns:
    The 0.999 quantile of Binomial(T, q), which is T without sampling.
  """
  probability = release.contact_probability
  if not num_rounds or probability in (0.0, 1.0):
    return int(num_rounds * probability)
  # `bdtrik` is bdtr's inverse in k, no whole number; that the next lower k is one is rounding.
  found = math.ceil(special.bdtrik(0.999, num_rounds, probability))
  return found - int(special.bdtr(found - 1, num_rounds, probability) >= 0.999)


def mixture_of_sizes(
  release: releases.Release, failure: float
) -> tuple[dominating_pairs.Mixture, float]:
  """Describes a round in which a client reports, for a server that counts the reports.

  The server knows the number of reports k and sees k shares of noise, with "helpers" K. It does not
  know the coin of "private_coin". Sizes are independent of data: a mixture over them.

  Args:
    release: The releases of a round, as far as the server sees them.
    failure: The largest probability of cohorts that are left out as too small.

  Returns:
    The mixture over the other cohorts, and the probability of those, at most `failure`.
  """
  coin = 1.0
  if release.contacted is not None:
    coin = release.clients_per_round / release.contacted
  if release.protocol == shares.HELPERS:
    return ((1.0, gaussian(release, coin)),), 0.0
  # Without a histogram, K is that of the one that would be built.
  most = release.num_shares or limit(release)
  if release.sampling != releases.POISSON:
    growth = 1.0
    if release.clients_per_round < most:
      growth = shares.loss_ratio(max(1, int(release.clients_per_round)), most)
    return ((1.0, gaussian(release, coin, growth)),), 0.0
  sizes, probabilities = shares.reports_of_a_member(
    release.population, release.contact_probability, most
  )
  first = int(np.searchsorted(np.cumsum(probabilities), failure, side="right"))
  too_small = float(probabilities[:first].sum())
  # A few sizes together count as their smallest.
  starts = np.arange(first, most, -(-most // _MOST_SIZES))
  found = []
  for size, probability in zip(sizes[starts], np.add.reduceat(probabilities, starts)):
    if probability > 0.0:
      pair = gaussian(release, coin, shares.loss_ratio(float(size), most))
      found.append((float(probability), pair))
  return tuple(found), too_small
