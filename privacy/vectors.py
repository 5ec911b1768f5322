"""Writes settings with their epsilons, for other accountants to be checked against.

    python -m privacy.vectors docs/reference/accounting_vectors.csv

Each row is a run of T rounds whose server makes all noise. A round is one Gaussian mechanism on one
cohort: the noise multipliers of its releases are standard deviations over the l2-sensitivity to
removing one client's data. `docs/reference/accounting_vectors.md` describes the columns.
"""

from collections.abc import Iterator
import csv
import dataclasses
import itertools
import sys
from typing import Any

from privacy import accounting
from privacy import releases

_SAMPLINGS = (
  (releases.POISSON, releases.ZERO_OUT),
  (releases.POISSON, releases.REPLACE_ONE),
  (releases.FIXED_SIZE, releases.ZERO_OUT),
  (releases.FIXED_SIZE, releases.REPLACE_ONE),
  (releases.NO_SAMPLING, releases.ZERO_OUT),
)
_COHORTS = ((2500, 100), (1_000_000, 1000), (60, 30), (3597, 5))
# Of the threshold and of the updates; None for what is not released.
_NOISE = ((None, 1.0), (None, 4.0), (4.0, None), (3.2, 1.2), (20.0, 0.7))
_RUNS = ((1, 1e-5), (1000, 1e-6), (10, 1e-3), (10_000, 1e-10), (100, 1e-8), (300, 1e-4), (3, 1e-7))
_KINDS = (releases.TREE, releases.GEOMETRIC, releases.PRIMAL_DUAL)

_GIVEN = (
  *("sampling", "relation", "population", "clients_per_round", "threshold_kind"),
  *("threshold_noise_multiplier", "update_noise_multiplier"),
)
COLUMNS = (*_GIVEN, "num_rounds", "delta", "epsilon_pld", "epsilon_rdp", "epsilon")


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
    given = {name: getattr(self.release, name) for name in _GIVEN}
    if self.release.threshold_noise_multiplier is None:
      given["threshold_kind"] = None
    found = {
      name: accounting.epsilon_or_none(self.release, self.num_rounds, self.delta, accountant)
      for name, accountant in (
        ("epsilon_pld", accounting.PLD),
        ("epsilon_rdp", accounting.RDP),
        ("epsilon", accounting.TIGHTEST),
      )
    }
    numbers = {name: None if number is None else f"{number:.9g}" for name, number in found.items()}
    return {**given, "num_rounds": self.num_rounds, "delta": self.delta, **numbers}


def settings() -> Iterator[Setting]:
  """Yields the 200 settings, each way of sampling with each cohort and noise, two runs each."""
  runs, kinds = itertools.cycle(_RUNS), itertools.cycle(_KINDS)
  for (sampling, relation), (population, clients), (of_threshold, of_updates) in itertools.product(
    _SAMPLINGS, _COHORTS, _NOISE
  ):
    release = releases.Release(
      population,
      clients,
      of_threshold,
      of_updates,
      sampling,
      threshold_kind=releases.TREE if of_threshold is None else next(kinds),
      relation=relation,
    )
    for num_rounds, delta in itertools.islice(runs, 2):
      yield Setting(release, num_rounds, delta)


def main() -> None:
  """Writes the file that is named, or to standard output."""
  with open(sys.argv[1] if len(sys.argv) > 1 else "/dev/stdout", "w", encoding="utf-8") as file:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(setting.row() for setting in settings())


if __name__ == "__main__":
  main()
