"""Writes settings with their epsilons, for other accountants to be checked against.

    python -m benchmarks.accounting.vectors docs/reference/accounting_vectors.csv

Each row is a run of T rounds. A round is one Gaussian mechanism on one cohort: the noise
multipliers of its releases are standard deviations over the l2-sensitivity to removing one client's
data. In 40 rows the clients make the noise in shares of discrete Gaussians, and in the others the
server does. `docs/reference/accounting_vectors.md` describes the columns.
"""

from collections.abc import Iterator
import csv
import dataclasses
import itertools
import sys
from typing import Any

import dp_accounting
from dp_accounting import pld

from privacy import accounting
from privacy import cohorts
from privacy import parts
from privacy import releases

_SAMPLINGS = (
  (cohorts.Poisson.sampling, releases.ZERO_OUT),
  (cohorts.Poisson.sampling, releases.REPLACE_ONE),
  (cohorts.FixedSize.sampling, releases.ZERO_OUT),
  (cohorts.FixedSize.sampling, releases.REPLACE_ONE),
  (cohorts.Everybody.sampling, releases.ZERO_OUT),
)
_COHORTS = ((2500, 100), (1_000_000, 1000), (60, 30), (10_000_000, 10))
# Of the threshold and of the updates; None for what is not released.
_NOISE = ((None, 0.7), (None, 4.0), (4.0, None), (3.2, 1.2))
_RUNS = ((1, 1e-5), (1000, 1e-6), (10, 1e-3), (10_000, 1e-10), (100, 1e-8), (300, 1e-4), (3, 1e-7))
# The noise that clients make: of a tree of so many bins, and of updates of so many numbers.
_NUM_BINS, _NUM_PARAMETERS = 64, 1000
_BY_CLIENTS = ((4.0, None), (3.2, 1.2))
# Random allocation: cohorts, and rounds of which a client's block may have more than there are.
_ALLOCATED = ((2500, 100, 1000), (1_000_000, 1000, 3000), (60, 30, 10), (1000, 7, 300))
_DELTAS = (1e-5, 1e-8)
# dp_accounting's grid of losses is fit for so many rounds and such an epsilon.
_MOST_ROUNDS, _MOST_EPSILON = 300, 60.0

_GIVEN = (
  *("sampling", "relation", "population", "clients_per_round", "threshold_kind"),
  *("threshold_noise_multiplier", "update_noise_multiplier"),
)
COLUMNS = (
  *(*_GIVEN, "num_bins", "num_parameters", "num_shares", "num_rounds", "delta"),
  *("epsilon_pld", "epsilon_rdp", "epsilon", "epsilon_dp_accounting"),
)


@dataclasses.dataclass(frozen=True)
class Setting:
  """What a row is about.

  Attributes:
    release: The releases of a round.
    num_rounds: T.
    delta: The delta of (epsilon, delta)-differential privacy.
  """

  release: releases.Release
  num_rounds: int
  delta: float

  def row(self) -> dict[str, Any]:
    """Returns the row: by each accountant epsilon, blank where it has no answer."""
    release = self.release
    entries = release.entries()
    inputs = {name: entries[name] for name in _GIVEN}
    if inputs["threshold_noise_multiplier"] is None:
      inputs["threshold_kind"] = None
    inputs.update(
      num_bins=entries["tree"] and entries["tree"].num_bins,
      num_parameters=entries["update_sum"] and entries["update_sum"].num_entries,
      num_shares=release.num_shares,
    )
    costs = {
      name: accounting.epsilon_or_none(self.release, self.num_rounds, self.delta, accountant)
      for name, accountant in (
        ("epsilon_pld", accounting.PLD),
        ("epsilon_rdp", accounting.RDP),
        ("epsilon", accounting.TIGHTEST),
      )
    }
    costs["epsilon_dp_accounting"] = self._by_dp_accounting(costs["epsilon"])
    numbers = {name: None if number is None else f"{number:.9g}" for name, number in costs.items()}
    return {**inputs, "num_rounds": self.num_rounds, "delta": self.delta, **numbers}

  def _by_dp_accounting(self, about: float | None) -> float | None:
    """Returns epsilon by dp_accounting's own PLD; None where it has no such mechanism."""
    release = self.release
    cohort = release.cohort
    is_known = isinstance(cohort, (cohorts.Poisson, cohorts.Everybody))
    is_known &= release.relation == releases.ZERO_OUT
    if not is_known or release.num_shares or self.num_rounds > _MOST_ROUNDS:
      return None
    if about is None or about > _MOST_EPSILON:
      return None
    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(release.effective_noise_multiplier)
    if isinstance(cohort, cohorts.Poisson):
      event = dp_accounting.PoissonSampledDpEvent(cohort.probability, event)
    return float(pld.PLDAccountant().compose(event, self.num_rounds).get_epsilon(self.delta))


def settings() -> Iterator[Setting]:
  """Yields the 220 settings, each way of sampling with each cohort and noise."""
  runs, kinds = itertools.cycle(_RUNS), itertools.cycle(parts.private_kinds().values())
  for (sampling, relation), (population, clients) in itertools.product(_SAMPLINGS, _COHORTS):
    cohort = cohorts.SAMPLINGS[sampling](population, clients)
    for of_threshold, of_updates in _NOISE:
      kind = parts.Tree if of_threshold is None else next(kinds)
      released = (kind(noise_multiplier=of_threshold), parts.UpdateSum(noise_multiplier=of_updates))
      release = _release(cohort, relation, *released)
      for num_rounds, delta in itertools.islice(runs, 2):
        yield Setting(release, num_rounds, delta)
    for of_threshold, of_updates in _BY_CLIENTS:
      histogram = parts.Tree(noise_multiplier=of_threshold, num_bins=_NUM_BINS)
      updates = parts.UpdateSum(noise_multiplier=of_updates, num_parameters=_NUM_PARAMETERS)
      yield Setting(_release(cohort, relation, histogram, updates), *next(runs))
  yield from allocated()


def allocated() -> Iterator[Setting]:
  """Yields the 20 settings of random allocation; one in five has noise that clients make."""
  deltas = itertools.cycle(_DELTAS)
  for population, clients, num_rounds in _ALLOCATED:
    cohort = cohorts.Allocated(population, clients)
    for relation in releases.RELATIONS:
      for of_threshold, of_updates in ((None, 0.7), (3.2, 1.2)):
        threshold = parts.PrimalDual(noise_multiplier=of_threshold)
        release = _release(
          cohort, relation, threshold, parts.UpdateSum(noise_multiplier=of_updates)
        )
        yield Setting(release, num_rounds, next(deltas))
    histogram = parts.Tree(noise_multiplier=4.0, num_bins=_NUM_BINS)
    yield Setting(_release(cohort, releases.ZERO_OUT, histogram), num_rounds, next(deltas))


def _release(cohort: cohorts.Cohort, relation: str, *sums: parts.ReleasedPart) -> releases.Release:
  """Returns the release of those parts that have noise."""
  noisy = tuple(part for part in sums if part.noise_multiplier is not None)
  return releases.Release(cohort=cohort, parts=noisy, relation=relation)


def main() -> None:
  """Writes the file that is named, or to standard output."""
  with open(sys.argv[1] if len(sys.argv) > 1 else "/dev/stdout", "w", encoding="utf-8") as file:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(setting.row() for setting in settings())


if __name__ == "__main__":
  main()
