"""The cost of several runs together, for one client whom all of them have.

Runs, and evaluations of training clients, are releases about the same clients. Each has noise of
its own, so that given the data they are independent, and a later one may be chosen by the results
of earlier ones: they compose as the rounds of one run do. For neighbouring data sets that differ in
one client, a round of each run has a dominating pair (`privacy.noise.dominating_pairs`), and all
rounds of all runs together are dominated by the product of these. Rounds that sample nobody, as of
known cohorts or of an evaluation, are Gaussian mechanisms: those together are one, whose distance
is the root of the sum of squares.

Neighbouring relations. The product is of one pair of data sets, so that all runs must speak of the
same change. Noise multipliers are about removing a client's data in all of them, so each release
can be accounted for in either relation anew. If one run claims to hide the replacement of a
client's data, all are accounted for in that relation: it is the stronger one, as no data are other
data, and a run that claims the weaker one costs more in it than it claims. A data set without a
client is one in which its data count as nothing, where cohorts are Poisson samples with a given
probability; where others notice that a client is not there, it stays and is counted in all of them.

What must hold besides: the runs have keys of their own. Two runs with one key have the same cohorts
and noise, and compose in no way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math

from privacy import accounting
from privacy import checks
from privacy import events
from privacy import releases
from privacy.noise import banded
from privacy.noise import dominating_pairs

# Where no privacy loss distribution is known, epsilons add, and so do deltas.
SUM = "sum"


@dataclasses.dataclass(frozen=True)
class Repeated:
  """Some rounds of one release.

  Attributes:
    release: The release of a round.
    num_rounds: The number of rounds that released it.
    accountant: That of the run by itself.
    times: How many such runs there are, each with noise and cohorts of its own.
  """

  release: releases.Release
  num_rounds: int
  accountant: str = accounting.TIGHTEST
  times: int = 1

  def __post_init__(self) -> None:
    object.__setattr__(self, "num_rounds", checks.whole("num_rounds", self.num_rounds, 0))
    object.__setattr__(self, "times", checks.whole("times", self.times, 1))

  def epsilon(self, delta: float) -> float:
    """Returns the cost of one of the runs by itself, in the relation that it claims."""
    return accounting.epsilon(self.release, self.num_rounds, delta, self.accountant).epsilon


@dataclasses.dataclass(frozen=True)
class TotalCost:
  """The cost of several runs together.

  Attributes:
    epsilon: The epsilon of (epsilon, delta)-differential privacy.
    delta: The whole delta.
    method: "pld", "gaussian" (one Gaussian mechanism, exactly) or "sum" (epsilons added up); that
      of the run's own accountant for a single one.
    relation: The change of the data that it is about, one of `releases.RELATIONS`.
    neighboring_relation: The same in words.
    is_converted: Whether a run claims another relation, in which its own epsilon is less.
  """

  epsilon: float
  delta: float
  method: str
  relation: str
  neighboring_relation: str
  is_converted: bool = False


def spent(runs: Iterable[Repeated], delta: float) -> TotalCost:
  """Returns the cost of several runs, at least one, for a client whose data all of them train on.

  Delta is that of all together. That of clients whom fewer runs have is no more.

  Args:
    runs: The releases, and the number of rounds of each.
    delta: In (0, 1).

  Returns:
    The cost of all.

  Raises:
    ValueError: If there is no run, delta is out of its range, or the noise is too little for an
      answer.
  """
  counted = tuple(runs)
  if not counted:
    raise ValueError("Found no release to account for; expected at least one.")
  return _spent(counted, checks.fraction("delta", delta))


@functools.lru_cache(maxsize=256)  # The folders of a sweep ask for the same.
def _spent(runs: tuple[Repeated, ...], delta: float) -> TotalCost:
  claimed = {run.release.relation for run in runs}
  relation = releases.REPLACE_ONE if releases.REPLACE_ONE in claimed else releases.ZERO_OUT
  same = [
    dataclasses.replace(run, release=dataclasses.replace(run.release, relation=relation))
    for run in runs
  ]
  # A client that is counted in one run is so in all of them.
  counted = next((run for run in same if run.release.cohort.list_is_public), same[0])
  neighbors = counted.release.neighboring_relation
  epsilon, method = _cost([run for run in same if run.num_rounds], delta)
  return TotalCost(epsilon, delta, method, relation, neighbors, len(claimed) > 1)


def _cost(runs: Sequence[Repeated], delta: float) -> tuple[float, str]:
  """Returns epsilon of runs that have begun, all in one relation, and the method."""
  number = sum(run.times for run in runs)
  if number < 2:
    cost = [accounting.epsilon(r.release, r.num_rounds, delta, r.accountant) for r in runs]
    return (cost[0].epsilon, cost[0].accountant) if cost else (0.0, accounting.PLD)
  try:
    return _by_losses(runs, delta)
  except ValueError:  # Epsilon is too large or delta too small for privacy losses.
    return sum(run.times * run.epsilon(delta / number) for run in runs), SUM


def _by_losses(runs: Sequence[Repeated], delta: float) -> tuple[float, str]:
  """Returns epsilon of the product of all rounds' dominating pairs, and the method."""
  rounds: dict[dominating_pairs.Mixture, int] = {}
  distances, slack, rest = [], 0.0, delta
  for run in runs:
    num_rounds = run.times * run.num_rounds
    rest -= num_rounds * events.tail_probability(run.release)
    slack += num_rounds * events.round_slack(run.release)
    if run.release.cohort.is_one_mechanism:
      distances.append(run.release.norm_of_run(run.num_rounds) * math.sqrt(run.times))
      continue
    for mixture, number in run.release.runs(run.num_rounds):
      distance = dominating_pairs.distance_of_gaussian(mixture)
      if distance is not None:
        distances.append(distance * math.sqrt(run.times * number))
      else:
        rounds[mixture] = rounds.get(mixture, 0) + run.times * number
  if rest <= 0.0:
    raise ValueError(f"Found delta = {delta:g}, which the ends of the noise use up; expected more.")
  distance = math.hypot(*distances)
  drawn = [(run.release, run.times * run.num_rounds) for run in runs]
  if not rounds:

    def of_gaussian(left: float) -> float:
      return banded.epsilon(1.0 / distance, left * math.exp(-slack)) + 2.0 * slack

    return events.with_drawn_noise(drawn, rest, of_gaussian)[0], accounting.GAUSSIAN
  of_runs = list(rounds.items())
  if distances:
    gaussian = dominating_pairs.SampledGaussian(1.0, distance, distance)
    of_runs.append((((1.0, gaussian),), 1))

  def of_losses(left: float) -> float:
    return accounting.composed_epsilon(of_runs, left, slack)

  return events.with_drawn_noise(drawn, rest, of_losses)[0], accounting.PLD
