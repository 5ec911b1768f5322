"""The cost of a private training run in (epsilon, delta)-differential privacy.

Two accountants bound the cost from above: a curve of Renyi divergences (RDP, see `events`) and
privacy loss distributions (PLD, see `dominating_pairs`). The default takes the smaller of the two.
Rounds of cohorts that all may know are together one Gaussian mechanism (see `banded`), whose cost
it knows exactly.

    release = releases.Release(
      cohort=cohorts.Poisson(2500, 100),
      parts=(parts.Tree(share=0.5), parts.UpdateSum()),
    )
    release = calibration.calibrate(release, 3.0, 4e-4, num_rounds=1000)
    Accountant(release, 4e-4).epsilon(1000)  # at most 3

The module needs NumPy, SciPy and dp_accounting only.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import math

from dp_accounting import rdp

from privacy import checks
from privacy import events
from privacy import releases
from privacy.noise import banded
from privacy.noise import composition
from privacy.noise import dominating_pairs

RDP = "rdp"
PLD = "pld"
GAUSSIAN = "gaussian"  # One Gaussian mechanism, exactly.
TIGHTEST = "tightest"
ACCOUNTANTS = (TIGHTEST, PLD, RDP)

# Rounding each loss upwards to a grid of width h adds at most T h min(h / 4, 2 H) to the variance
# of a run's losses, H a round's total variation. Its root is at most this share of epsilon.
_ROUNDING_OF_EPSILON = 0.004
_COARSEST_INTERVAL = 1e-3
# A round's losses are computed at no more points than these, and at first at no fewer.
_MOST_POINTS, _FEWEST_POINTS = 1e6, 1e3
# The share of delta for the largest losses, which count as infinite. The rest is tilted more.
_BEYOND_OF_DELTA = 1e-4
_LEAST_PROBABILITY = 1e-300
# Beyond this, e^epsilon overflows double precision.
_LARGEST_PLD_EPSILON = 700.0
# `Accountant` computes the PLD of a long run at this many fractions of it.
_RUNGS = 10


def default_delta(population: int) -> float:
  """Returns the default delta for n clients: 1e-5 or n^-1.1, whichever is smaller.

  It is below 1 / n: a delta of 1 / n would allow to publish the data of a random client.

  Args:
    population: n, a whole number of at least 1.

  Returns:
    Delta, in (0, 1e-5].

  Raises:
    ValueError: If `population` is no such number.
  """
  # A population of one would get a delta of 1.
  return min(1e-5, math.pow(checks.whole("population", population, 1), -1.1))


def delta_warning(delta: float, population: int) -> str | None:
  """Returns a sentence for a delta that is not below 1 / n, for n clients; else None.

  Args:
    delta: A number in (0, 1).
    population: n, a whole number of at least 1.

  Returns:
    The warning, with a safer delta, or None.

  Raises:
    ValueError: If an argument is out of its range.
  """
  delta = checks.fraction("delta", delta)
  population = checks.whole("population", population, 1)
  # A delta that was computed as 1 / n elsewhere may differ in the last bit.
  if delta * population < 1.0 - 1e-9:
    return None
  return (
    f"Found delta = {delta:g}, not below 1 / population = {1 / population:g}: publishing the data"
    f" of one client chosen at random would satisfy it. {default_delta(population):.3g} or less"
    " is a safer choice."
  )


@dataclasses.dataclass(frozen=True)
class Spent:
  """The cost of some rounds.

  Attributes:
    epsilon: The epsilon of (epsilon, delta)-differential privacy.
    delta: The whole delta, with the part for the ends of the noise.
    num_rounds: The number of rounds.
    accountant: "rdp", "pld" or "gaussian", the accountant of the bound.
    rdp_order: The order that gives the least epsilon by RDP; None for PLD and for no rounds.
    tail_probability: The share of delta for outputs beyond the end of the server's noise.
    of_rounding: How much of epsilon is for the rounding of noise that clients draw.
  """

  epsilon: float
  delta: float
  num_rounds: int
  accountant: str
  rdp_order: float | None = None
  tail_probability: float = 0.0
  of_rounding: float = 0.0


@dataclasses.dataclass(frozen=True)
class Accountant:
  """A run's account; it accounts for each number of rounds once.

  Attributes:
    release: The releases of each round.
    delta: The delta of (epsilon, delta)-differential privacy.
    accountant: "tightest" for the smaller of both bounds, "pld", or "rdp".
  """

  release: releases.Release
  delta: float
  accountant: str = TIGHTEST

  def __post_init__(self) -> None:
    object.__setattr__(self, "delta", checks.fraction("delta", self.delta))
    checks.one_of("accountant", self.accountant, ACCOUNTANTS)

  def spent(self, num_rounds: int) -> Spent:
    """Returns the cost of `num_rounds` rounds against an adversary that sees all that they release.

    It is a `ValueError` if the noise ends too early for delta, or the accountant cannot tell ("rdp"
    knows no private coin with replacement, "pld" needs some noise).
    """
    num_rounds = checks.whole("num_rounds", num_rounds, 0)
    if num_rounds == 0:
      return Spent(0.0, self.delta, 0, RDP if self.accountant == RDP else PLD)
    return _spent(self.release, num_rounds, self.delta, self.accountant)

  def epsilon(self, num_rounds: int) -> float:
    """Returns the epsilon of `spent`."""
    return self.spent(num_rounds).epsilon

  def epsilon_at_most(self, num_rounds: int, num_rounds_planned: int) -> float:
    """Returns a bound on `epsilon`, quickly enough for every round of a run.

    The bound is the smaller one of RDP's and of PLD's for the next of ten stages of the run, whose
    rounds include these. In the last of the planned rounds it is `epsilon`; it never falls.
    """
    num_rounds = checks.whole("num_rounds", num_rounds, 0)
    is_quick = self.accountant == RDP or self.release.cohort.is_one_mechanism
    if is_quick or num_rounds == 0:
      return self.epsilon(num_rounds)
    stage = math.ceil(num_rounds * _RUNGS / max(num_rounds_planned, 1))
    end = max(num_rounds, math.ceil(stage * num_rounds_planned / _RUNGS))
    bound = self.epsilon(end)
    if self.accountant == TIGHTEST:
      by_rdp = epsilon_or_none(self.release, num_rounds, self.delta, RDP)
      bound = bound if by_rdp is None else min(bound, by_rdp)
    return bound


@functools.lru_cache(maxsize=1024)
def _spent(release: releases.Release, num_rounds: int, delta: float, accountant: str) -> Spent:
  if accountant == TIGHTEST and release.cohort.is_one_mechanism:
    rest, tail = _rest_of_delta(release, num_rounds, delta)
    cost = banded.epsilon(1.0 / release.norm_of_run(num_rounds), rest)
    return Spent(cost, delta, num_rounds, GAUSSIAN, None, tail)
  if accountant == RDP:
    return _spent_by_rdp(release, num_rounds, delta)
  if accountant == PLD:
    return spent_by_pld(release, num_rounds, delta)
  try:
    by_rdp = _spent(release, num_rounds, delta, RDP)
  except ValueError:
    return spent_by_pld(release, num_rounds, delta)
  with contextlib.suppress(ValueError):
    by_pld = spent_by_pld(release, num_rounds, delta)
    return min(by_pld, by_rdp, key=lambda cost: cost.epsilon)
  return by_rdp


def _rest_of_delta(release: releases.Release, num_rounds: int, delta: float) -> tuple[float, float]:
  """Returns delta without the part for the ends of the noise, and that part."""
  tail = num_rounds * events.tail_probability(release)
  if tail >= delta:
    raise ValueError(
      f"Found noise multipliers as small as {release.effective_noise_multiplier:.3g}, so little"
      f" noise that with probability {min(tail, 1.0):.2g} a released number gives a client away:"
      f" noise ends at {events.GAUSSIAN_SUPPORT:g} standard deviations, and no number is past that"
      f" without the client; expected more noise, so that this is less likely than {delta = :g}."
    )
  return delta - tail, tail


def _spent_by_rdp(release: releases.Release, num_rounds: int, delta: float) -> Spent:
  orders, curve = events.round_curve(release)
  rest, tail = _rest_of_delta(release, num_rounds, delta)
  # D(P' || Q') <= D(P || Q) + slack (2 alpha - 1) / (alpha - 1) for densities within e^(+-slack).
  slack = num_rounds * events.round_slack(release)
  curve = num_rounds * curve + slack * (2.0 * orders - 1.0) / (orders - 1.0)
  _, order = rdp.compute_epsilon(orders, curve, rest)
  cost, rounding = events.with_drawn_noise(
    [(release, num_rounds)], rest, lambda left: float(rdp.compute_epsilon(orders, curve, left)[0])
  )
  return Spent(cost, delta, num_rounds, RDP, float(order), tail, rounding)


def _interval(epsilon: float, num_rounds: int, total_variation: float) -> float:
  """Returns the distance of losses, for the sum H of all rounds' total variations."""
  rounding = _ROUNDING_OF_EPSILON * epsilon
  coarsest = _COARSEST_INTERVAL * min(max(1.0, epsilon / 10.0), 100.0)
  of_rare = rounding**2 / (2.0 * total_variation)
  return min(coarsest, max(2.0 * rounding / math.sqrt(num_rounds), of_rare))


@functools.lru_cache(maxsize=1024)  # `calibrate` asks again for the cost of what it has found.
def spent_by_pld(release: releases.Release, num_rounds: int, delta: float) -> Spent:
  """Returns the cost by PLD; see `Accountant.spent` and `composed_epsilon`.

  Args:
    release: What a round releases, with its noise.
    num_rounds: T.
    delta: That of the whole run.

  Returns:
    The cost.

  Raises:
    ValueError: As by `composed_epsilon`.
  """
  rest, tail = _rest_of_delta(release, num_rounds, delta)
  slack = num_rounds * events.round_slack(release)
  cost, rounding = events.with_drawn_noise(
    [(release, num_rounds)],
    rest,
    lambda left: composed_epsilon(release.runs(num_rounds), left, slack),
  )
  return Spent(cost, delta, num_rounds, PLD, None, tail, rounding)


def pld_epsilon(
  mixture: dominating_pairs.Mixture, num_rounds: int, delta: float, slack: float = 0.0
) -> float:
  """Returns `composed_epsilon` of one run.

  Args:
    mixture: The mechanisms of which a round is one, with their probabilities.
    num_rounds: T, at least 1.
    delta: That of all rounds together.
    slack: As for `composed_epsilon`.

  Returns:
    An upper bound on epsilon.

  Raises:
    ValueError: As by `composed_epsilon`.
  """
  return composed_epsilon(((mixture, num_rounds),), delta, slack)


def composed_epsilon(
  runs: Sequence[tuple[dominating_pairs.Mixture, int]], delta: float, slack: float = 0.0
) -> float:
  """Returns the epsilon of sampled Gaussian mechanisms, on a grid that is fine enough for it.

  Args:
    runs: The mechanisms of which a round, or a block of rounds, of a run is one, and how often
      there is each, at least once; all are of the same two neighbouring data sets, in this order.
    delta: That of all rounds together.
    slack: The log of the ratio between the densities of all rounds and those accounted for.

  Returns:
    An upper bound on epsilon, at least 2 `slack`.

  Raises:
    ValueError: If delta is too small for double precision, losses or epsilon are too large, or the
      work is too long.
  """
  # With densities within a factor of e^slack, (eps, delta) becomes (eps + 2 slack, e^slack delta)
  # on the way there and back.
  rest = delta * math.exp(-slack)
  num_rounds = sum(rounds for _, rounds in runs)
  beyond = _BEYOND_OF_DELTA * rest / num_rounds
  if beyond < _LEAST_PROBABILITY:
    raise ValueError(
      f"Found delta = {delta:g}, too small for accounting by 'pld' in double precision; expected"
      " 'rdp'."
    )

  def composed(interval: float) -> list[composition.Composition]:
    """Returns the losses of all rounds, in each direction."""
    losses = [dominating_pairs.losses_of_round(mixture, interval, beyond) for mixture, _ in runs]
    return [
      composition.Composition(*((of[end], rounds) for of, (_, rounds) in zip(losses, runs)))
      for end in ((0, -1) if any(len(of) > 1 for of in losses) else (0,))
    ]

  largest = max(dominating_pairs.largest_loss(mixture, beyond) for mixture, _ in runs)
  if largest > _LARGEST_PLD_EPSILON * _FEWEST_POINTS:
    raise ValueError(
      f"Found privacy losses up to {largest:.3g}, too large for accounting by 'pld'; expected more"
      " noise, or 'rdp'."
    )
  directions = composed(largest / _FEWEST_POINTS)
  total_variation = max(direction.total_variation for direction in directions)
  if total_variation <= rest:
    return 2.0 * slack
  # Chernoff's bound is a first guess, and epsilon on a coarse grid mostly the last one.
  bound = max(direction.chernoff(rest)[1] for direction in directions)
  finest = largest * max(1.0, sum(len(mixture) for mixture, _ in runs) / 10.0) / _MOST_POINTS
  interval = max(4.0 * _interval(bound, num_rounds, total_variation), finest)
  while bound > 0.0:
    directions = composed(interval)
    try:
      guess, bound = bound, max(direction.epsilon(rest) for direction in directions)
    except ValueError:  # On so fine a grid there are too many sums.
      finest = interval = 2.0 * interval
      continue
    target = max(_interval(bound, num_rounds, total_variation), finest)
    if interval < 1.5 * target or bound > guess:
      bound = min(bound, guess)
      break
    interval = target
  if bound > _LARGEST_PLD_EPSILON:
    raise ValueError(
      f"Found an epsilon of about {bound:.3g}, too large for accounting by 'pld'; expected more"
      " noise, or 'rdp'."
    )
  return max(0.0, bound) + 2.0 * slack


def epsilon(
  release: releases.Release, num_rounds: int, delta: float, accountant: str = TIGHTEST
) -> Spent:
  """Returns the cost of T rounds against an adversary that sees all that they release.

  It is that of `Accountant.spent`, under `release.neighboring_relation`.

  Args:
    release: What a round releases, with its noise.
    num_rounds: T; 0 costs nothing.
    delta: That of the whole run, in (0, 1).
    accountant: One of `ACCOUNTANTS`, or `TIGHTEST` for the smallest of their epsilons.

  Returns:
    The cost; see `Spent`.

  Raises:
    ValueError: If an argument is out of its range, or no such accountant has an answer.
  """
  return Accountant(release, delta, accountant).spent(num_rounds)


def epsilon_or_none(
  release: releases.Release, num_rounds: int, delta: float, accountant: str
) -> float | None:
  """Returns `epsilon` by one accountant, beside another's; None where it has no answer.

  Args:
    release: As for `epsilon`.
    num_rounds: T.
    delta: That of the whole run.
    accountant: As for `epsilon`.

  Returns:
    Epsilon, or None where `epsilon` raises a `ValueError`.
  """
  try:
    return epsilon(release, num_rounds, delta, accountant).epsilon
  except ValueError:
    return None
