"""Brackets the epsilons of random allocation by `pld-accounting`, which shares no code with ours.

It is no dependency. In an environment of its own (pld-accounting 2.0 with numba, some minutes):

    python benchmarks/accounting/allocation_oracle.py docs/reference/accounting_vectors.csv \
        benchmarks/accounting/allocation_oracle.csv

Each row of random allocation gets an upper and a lower bound for its whole run. A block of rounds
that has not ended counts as a whole one above and as none below. If a client's data are replaced,
the upper bound is that of Theorem 3 of `privacy.noise.allocation`, for all blocks at once; the
lower one is that of removing the data, which is one way to replace them.
"""

import csv
import math
import sys

import numpy as np
import PLD_accounting  # type: ignore[import-not-found]

_INTERVAL, _MOST_POINTS, _TAIL = 2e-3, 8000, 1e-3


def _distribution(z, length, blocks, delta, bound):
  """Returns dp_accounting's privacy loss distribution of some blocks."""
  return PLD_accounting.gaussian_allocation_pld(
    params=PLD_accounting.PrivacyParams(
      sigma=z, num_steps=length, num_selected=1, num_epochs=blocks
    ),
    config=PLD_accounting.AllocationSchemeConfig(
      loss_discretization=_INTERVAL, tail_truncation=_TAIL * delta, max_grid_mult=_MOST_POINTS
    ),
    bound_type=bound,
  )


def _replaced(distribution, delta):
  """Returns the least epsilon of two steps whose deltas have the sum delta."""
  epsilons = []
  for share in np.linspace(0.05, 0.95, 19):
    first = distribution.get_epsilon_for_delta(share * delta)
    epsilons.append(
      first + distribution.get_epsilon_for_delta((1.0 - share) * delta * math.exp(-first))
    )
  return min(epsilons)


def bounds_of(row):
  """Returns the lower and the upper bound of a row of the vectors."""
  noises = (row["threshold_noise_multiplier"], row["update_noise_multiplier"])
  z = 1.0 / math.hypot(*(1.0 / float(noise) for noise in noises if noise))
  length = math.ceil(int(row["population"]) / float(row["clients_per_round"]))
  rounds, delta = int(row["num_rounds"]), float(row["delta"])
  kinds = PLD_accounting.BoundType
  lower = _distribution(z, length, rounds // length, delta, kinds.IS_DOMINATED)
  least = lower.get_epsilon_for_delta(delta)
  if row["relation"] == "zero_out":
    upper = _distribution(z, length, -(-rounds // length), delta, kinds.DOMINATES)
    return least, upper.get_epsilon_for_delta(delta)
  # The delta of the second step is as small as e^-epsilon of the first one.
  small = delta * math.exp(-1.5 * least)
  upper = _distribution(z, length, -(-rounds // length), small, kinds.DOMINATES)
  return least, _replaced(upper, delta)


def main() -> None:
  """Reads the vectors, and writes the bounds."""
  with open(sys.argv[1], encoding="utf-8") as file:
    rows = [row for row in csv.DictReader(file) if row["sampling"] == "allocated"]
  with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write("lower,upper\n")
    for row in rows:
      file.write("{:.6g},{:.6g}\n".format(*bounds_of(row)))
      file.flush()


if __name__ == "__main__":
  main()
