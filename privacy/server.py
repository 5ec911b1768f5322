"""The cost of a run for a client against the server that aggregates.

The server knows every cohort, so that sampling amplifies nothing against it, unless clients decide
by a coin of their own whether their data count. It follows the protocol of the secure sums: it sees
the sum of the shares of the clients that report, and it knows the noise that it adds to complete
them. It is trusted with every sum to which it adds the noise itself. As it knows the size of each
cohort, a round is a mixture over the (binomial) sizes.
"""

import dataclasses
import functools

import numpy as np

from privacy import accounting
from privacy import checks
from privacy import cohorts
from privacy import events
from privacy import releases
from privacy.noise import dominating_pairs
from privacy.noise import shares

# The share of delta for cohorts that are left out as too small.
_SMALL_COHORTS_SHARE = 1e-3
_APART = (
  " If a party apart from it sums, adds the noise and shows it noisy sums alone, the epsilon of the"
  " releases holds against the server, too, who knows every cohort; that party is trusted then."
)
# The server's view tells at most so many cohort sizes apart.
_MOST_SIZES = 200


@dataclasses.dataclass(frozen=True)
class ServerSpent:
  """The cost of a run for a client against the server that aggregates.

  Attributes:
    epsilon: The epsilon of (epsilon, delta)-differential privacy; None where the server sees
      numbers without noise.
    delta: The delta of (epsilon, delta)-differential privacy.
    participations: The number of rounds for which it holds, of those in which a client takes part
      (with a private coin: is contacted).
    explanation: The meaning of the number, or the reason why there is none.
    of_rounding: How much of epsilon is for the rounding of noise that clients draw.
  """

  epsilon: float | None
  delta: float
  participations: int
  explanation: str
  of_rounding: float = 0.0


def likely_participations(release: releases.Release, num_rounds: int) -> int:
  """Returns the number of T rounds in which a client reports; one in a thousand has more.

  Args:
    release: What a round releases; its cohort and contacts count here.
    num_rounds: T.

  Returns:
    A number of rounds, at most T.
  """
  return release.cohort.likely_participations(num_rounds, release.contact_probability)


def mixture_of_sizes(
  release: releases.Release, failure: float
) -> tuple[dominating_pairs.Mixture, float]:
  """Describes a round in which a client reports, for a server that counts the reports.

  The server knows the number of reports k and sees k shares of noise, with "helpers" K. It does not
  know the coin of "private_coin". Sizes are independent of data: a mixture over them.

  Args:
    release: What a round releases, with its noise.
    failure: The most probability of cohorts that are left out as too small.

  Returns:
    The mixture, and the probability of what is left out.
  """
  cohort = release.cohort
  coin = cohort.expected / release.contacted
  if isinstance(release.noise, cohorts.Helpers):
    return ((1.0, release.gaussian(coin)),), 0.0
  # Without a histogram, K is that of the one that would be built.
  most = release.num_shares or release.limit
  if not cohort.size_varies:
    growth = 1.0
    if cohort.expected < most:
      growth = shares.loss_ratio(max(1, int(cohort.expected)), most)
    return ((1.0, release.gaussian(coin, growth)),), 0.0
  sizes, probabilities = shares.reports_of_a_member(
    cohort.population, release.contact_probability, most
  )
  first = int(np.searchsorted(np.cumsum(probabilities), failure, side="right"))
  too_small = float(probabilities[:first].sum())
  # A few sizes together count as their smallest.
  starts = np.arange(first, most, -(-most // _MOST_SIZES))
  mixture = []
  for size, probability in zip(sizes[starts], np.add.reduceat(probabilities, starts)):
    if probability > 0.0:
      pair = release.gaussian(coin, shares.loss_ratio(float(size), most))
      mixture.append((float(probability), pair))
  return tuple(mixture), too_small


@functools.lru_cache(maxsize=512)
def server_epsilon(
  release: releases.Release, num_rounds: int, delta: float, participations: int | None = None
) -> ServerSpent:
  """Returns the cost of T rounds for a client against the server, or why there is none to speak of.

  Args:
    release: What a round releases, with its noise.
    num_rounds: T.
    delta: In (0, 1).
    participations: The rounds in which the client takes part; None for `likely_participations`.

  Returns:
    Epsilon, or the reason.

  Raises:
    ValueError: If an argument is out of its range.
  """
  delta = checks.fraction("delta", delta)
  num_rounds = checks.whole("num_rounds", num_rounds, 0)
  if participations is None:
    participations = likely_participations(release, num_rounds)
    beyond = "; one in a thousand takes part in more" if release.cohort.rounds_vary else ""
  else:
    participations = checks.whole("participations", participations, 0)
    if participations > num_rounds:
      raise ValueError(
        f"Found participations = {participations} in num_rounds = {num_rounds}; expected at most"
        " one a round."
      )
    beyond = ""
  verb = "is contacted" if release.has_coin else "takes part"
  which = f"{participations} of the {num_rounds} rounds{beyond}"
  if participations == num_rounds:
    which = f"all of the {num_rounds} rounds"
  who = f"A client who {verb} in {which}."

  seen = [part for part in release.parts if part.noise_by_server]
  noisy = tuple(part for part in release.parts if not part.noise_by_server)
  names = " and ".join(dict.fromkeys(part.summed for part in seen if part.summed))
  answer = functools.partial(ServerSpent, delta=delta, participations=participations)
  if not noisy or not all(part.may_be_left_out for part in seen):
    apart = _APART if release.cohort.is_one_mechanism else ""
    explanation = (
      f"The server adds the noise to the sums of {names} itself and sees them without it: it is"
      f" trusted.{apart}"
    )
    return answer(epsilon=None, explanation=explanation)
  if participations == 0:
    return answer(epsilon=0.0, explanation=who)
  slack = participations * events.round_slack(release)
  failure = _SMALL_COHORTS_SHARE * delta / participations
  mixture, too_small = mixture_of_sizes(dataclasses.replace(release, parts=noisy), failure)
  rest = delta - participations * too_small
  try:
    epsilon, rounding = events.with_drawn_noise(
      [(release, participations)],
      rest,
      lambda left: accounting.pld_epsilon(mixture, participations, left, slack),
    )
  except ValueError:
    explanation = f"{who} The noise is too little for any epsilon to speak of."
    return answer(epsilon=None, explanation=explanation)
  trusted = "sees noisy sums only"
  if seen:
    trusted = f"is trusted with the {names}, to whose sum it adds the noise"
  coin = ", but not who adds data," if release.has_coin else ""
  explanation = (
    f"{who} The server, who knows every cohort{coin} and follows the protocol of the secure sums,"
    f" {trusted}."
  )
  return answer(epsilon=epsilon, explanation=explanation, of_rounding=rounding)
