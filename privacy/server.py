"""The cost of a run for a client against the server that aggregates.

The server knows every cohort, so that sampling amplifies nothing against it, unless clients decide
by a coin of their own whether their data count. It follows the protocol of the secure sums: it sees
the sum of the shares of the clients that report, and it knows the noise that it adds to complete
them. It is trusted with every sum to which it adds the noise itself.
"""

import dataclasses
import functools

from privacy import accounting
from privacy import checks
from privacy import cohorts
from privacy import events
from privacy import releases

# The share of delta for cohorts that are left out as too small.
_SMALL_COHORTS_SHARE = 1e-3


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
  """

  epsilon: float | None
  delta: float
  participations: int
  explanation: str


@functools.lru_cache(maxsize=512)
def server_epsilon(
  release: releases.Release, num_rounds: int, delta: float, participations: int | None = None
) -> ServerSpent:
  """Returns the cost of a run for a client against the server.

  Args:
    release: The releases of each round.
    num_rounds: T.
    delta: The delta of (epsilon, delta)-differential privacy.
    participations: In how many of the rounds the client takes part; None for
      `cohorts.likely_participations`.

  Returns:
    The cost for such a client, or why there is none to speak of.

  Raises:
    ValueError: If a number is out of its range, or there are more participations than rounds.
  """
  delta = checks.fraction("delta", delta)
  num_rounds = checks.whole("num_rounds", num_rounds, 0)
  if participations is None:
    participations = cohorts.likely_participations(release, num_rounds)
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
    and releases.THRESHOLDS[release.threshold_kind].noise_by_server
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
  slack = participations * events.round_slack(release)
  failure = _SMALL_COHORTS_SHARE * delta / participations
  noisy = release
  if sees_updates:
    noisy = dataclasses.replace(
      release, update_noise_multiplier=None, clip_count_noise_multiplier=None
    )
  mixture, too_small = cohorts.mixture_of_sizes(noisy, failure)
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
