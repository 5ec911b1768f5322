"""What a run costs a client against the server that aggregates.

The server knows every cohort, so that sampling amplifies nothing against it, unless clients decide
by a coin of their own whether their data count. It follows the protocol of the secure sums: it sees
the sum of the shares of those who report, and what it adds itself to complete them is no secret to
it. It is trusted with every sum to which it adds the noise itself.
"""

import dataclasses
import functools
from typing import Optional

import numpy as np
from scipy import stats

from privacy import accounting
from privacy import checks
from privacy import dominating_pairs
from privacy import shares

# The share of delta for cohorts that are so small that they are not looked at.
_SMALL_COHORTS_SHARE = 1e-3
# No more cohort sizes than this are told apart.
_MOST_SIZES = 200


@dataclasses.dataclass(frozen=True)
class ServerSpent:
  """What a run costs a client against the server that aggregates.

  Attributes:
    epsilon: Of (epsilon, delta)-differential privacy; None where the server sees what no noise
      protects.
    delta: Of (epsilon, delta)-differential privacy.
    participations: The number of rounds for which it holds, of those in which a client takes part
      (with a private coin: is contacted).
    explanation: What the number is about, or why there is none.
  """

  epsilon: Optional[float]
  delta: float
  participations: int
  explanation: str


def likely_participations(release: accounting.Release, num_rounds: int) -> int:
  """In how many rounds a client reports, but for one client in a thousand.

  Args:
    release: What each round releases.
    num_rounds: T.

  Returns:
    The 0.999 quantile of Binomial(T, q), which is T without sampling.
  """
  return int(stats.binom.ppf(0.999, num_rounds, release.contact_probability)) if num_rounds else 0


def _view(
  release: accounting.Release, sees_updates: bool, failure: float
) -> tuple[dominating_pairs.Mixture, float]:
  """A round in which a client reports, as the server sees it.

  It knows the number of reports k and sees k shares of noise, with "helpers" K. What it does not
  know is the coin of "private_coin". Sizes are independent of data: a mixture over them.

  Args:
    release: What a round releases.
    sees_updates: Whether it sees the updates without noise, and is trusted with them.
    failure: How likely cohorts may be that are too small to be looked at.

  Returns:
    The mixture over the other cohorts, and the probability of those, at most `failure`.
  """
  seen = dataclasses.replace(release, tree=None, update_sum=None)
  if sees_updates:
    seen = dataclasses.replace(seen, update_noise_multiplier=None)
  coin = 1.0
  if release.contacted is not None:
    coin = release.clients_per_round / release.contacted
  if release.protocol == shares.HELPERS:
    return ((1.0, seen.gaussian(coin)),), 0.0
  if release.sampling != accounting.POISSON:
    growth = 1.0
    if release.num_shares is not None and release.clients_per_round < release.num_shares:
      growth = shares.loss_ratio(max(1, int(release.clients_per_round)), release.num_shares)
    return ((1.0, seen.gaussian(coin, growth)),), 0.0
  # Without parameters of a histogram: those of the one that would be built.
  limit = release.num_shares or shares.cohort_limit(
    release.population, release.contacted or release.clients_per_round
  )
  sizes, probabilities = shares.reports_of_a_member(
    release.population, release.contact_probability, limit
  )
  first = int(np.searchsorted(np.cumsum(probabilities), failure, side="right"))
  too_small = float(probabilities[:first].sum())
  # A few sizes together count as their smallest.
  starts = np.arange(first, limit, -(-limit // _MOST_SIZES))
  found = []
  for size, probability in zip(sizes[starts], np.add.reduceat(probabilities, starts)):
    if probability > 0.0:
      pair = seen.gaussian(coin, shares.loss_ratio(float(size), limit))
      found.append((float(probability), pair))
  return tuple(found), too_small


@functools.lru_cache(maxsize=512)
def server_epsilon(
  release: accounting.Release, num_rounds: int, delta: float, participations: Optional[int] = None
) -> ServerSpent:
  """What a run costs a client against the server.

  Args:
    release: What each round releases.
    num_rounds: T.
    delta: Of (epsilon, delta)-differential privacy.
    participations: In how many of the rounds the client takes part; None for
      `likely_participations`.

  Returns:
    The cost for such a client, or why there is none to speak of.

  Raises:
    ValueError: If a number is out of its range, or there are more participations than rounds.
  """
  delta = checks.fraction("delta", delta)
  num_rounds = checks.whole("num_rounds", num_rounds, 0)
  if participations is None:
    participations = likely_participations(release, num_rounds)
    beyond = "; one in a thousand takes part in more"
  else:
    participations = checks.whole("participations", participations, 0)
    if participations > num_rounds:
      raise ValueError(
        f"Found participations = {participations} in num_rounds = {num_rounds}; expected at most"
        " one a round."
      )
    beyond = ""
  verb = "is contacted" if release.contacted is not None else "takes part"
  which = f"{participations} of the {num_rounds} rounds{beyond}"
  if participations == num_rounds:
    which = f"all of the {num_rounds} rounds"
  who = f"A client who {verb} in {which}."

  sees_updates = release.update_noise_multiplier is not None and release.update_sum is None
  sees_bits = (
    release.threshold_noise_multiplier is not None
    and release.threshold_kind == accounting.GEOMETRIC
  )
  if sees_bits or release.threshold_noise_multiplier is None and sees_updates:
    seen = [name for name, sees in (("counts", sees_bits), ("updates", sees_updates)) if sees]
    return ServerSpent(
      None,
      delta,
      participations,
      f"The server adds the noise to the sums of {' and '.join(seen)} itself and sees them without"
      " it: it is trusted.",
    )
  if participations == 0:
    return ServerSpent(0.0, delta, 0, who)
  slack = participations * accounting.round_slack(release)
  failure = _SMALL_COHORTS_SHARE * delta / participations
  mixture, too_small = _view(release, sees_updates, failure)
  try:
    found = accounting.pld_epsilon(
      mixture, participations, delta - participations * too_small, slack
    )
  except ValueError:
    return ServerSpent(
      None, delta, participations, f"{who} The noise is too little for any epsilon to speak of."
    )
  trusted = (
    "is trusted with the updates, to whose sum it adds the noise"
    if sees_updates
    else "sees noisy sums only"
  )
  coin = ", but not who adds data," if release.contacted is not None else ""
  return ServerSpent(
    found,
    delta,
    participations,
    f"{who} The server, who knows every cohort{coin} and follows the protocol of the secure sums,"
    f" {trusted}.",
  )
