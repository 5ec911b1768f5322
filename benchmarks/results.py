"""Judges the measured rounds: equal work or not, and how the times compare."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from benchmarks import contender
from benchmarks import lineup
from benchmarks import race

# Weights may be so far apart after the first round, and after the last one, relative to the way
# that they have gone: |a - b| / |b - initial|, Euclidean. Two libraries round differently. For
# linear models that stays what it is; training the others amplifies it, step by step and round by
# round, so that the first round has to decide. Measured for 100 clients, linear and ConvNet:
# initial weights that differ by 1e-8 make 5e-6 and 4e-3 of it, one client of the hundred left out
# 1e-2 and 2e-2, one visited backwards 2e-2 and 2e-2, all last batches left out 2e-1 and 1e-1.
_TOLERANCES = {"linear": (1e-4, 1e-4), "convnet": (1e-2, None), "lstm": (1e-3, None)}


@dataclasses.dataclass(frozen=True)
class Row:
  """The record of a contender, judged.

  Attributes:
    record: The measurements.
    seconds: Seconds of the timed rounds.
    first_distance: Distance of its weights from the reference's after the first round; None for the
      reference itself, and if nobody else did the same work.
    last_distance: The same after the last round.
    is_reference: Whether the others of its work are compared with it.
    is_void: Whether it did not do the work that it should have done.
  """

  record: race.Record
  seconds: np.ndarray
  first_distance: float | None = None
  last_distance: float | None = None
  is_reference: bool = False
  is_void: bool = False

  @property
  def counts(self) -> bool:
    """Tells whether its times mean something."""
    return self.record.error is None and not self.is_void

  @property
  def median(self) -> float:
    """The median seconds of a timed round."""
    return float(np.median(self.seconds))


@dataclasses.dataclass(frozen=True)
class Table:
  """The rows of a task and a size of cohorts, one of each contender.

  `model` is linear, convnet or lstm, `data` words, and `warm_up` the number of rounds at the
  beginning that are not counted.
  """

  task: str
  model: str
  data: str
  clients_per_round: int
  warm_up: int
  rows: Sequence[Row]

  def row(self, name: str) -> Row | None:
    """Returns the row of that name, if it is there and counts."""
    rows = [row for row in self.rows if row.record.entry.name == name and row.counts]
    return rows[0] if rows else None

  @property
  def load(self) -> float:
    """The largest load of the machine meanwhile."""
    return max((row.record.load for row in self.rows), default=0.0)

  def fastest_peer(self) -> Row | None:
    """Returns the peer whose median is the smallest, of those that count."""
    peers = [row for row in self.rows if row.record.entry.peer and row.counts]
    return min(peers, key=lambda row: row.median) if peers else None


def _flat(weights: Sequence[np.ndarray]) -> np.ndarray:
  return np.concatenate([np.asarray(w, np.float64).ravel() for w in weights])


def distance(
  weights: Sequence[np.ndarray], reference: Sequence[np.ndarray], initial: Sequence[np.ndarray]
) -> float:
  """Returns |weights - reference| / |reference - initial|; infinity for NaN and other shapes."""
  if [np.shape(w) for w in weights] != [np.shape(w) for w in reference]:
    return float("inf")
  apart = np.linalg.norm(_flat(weights) - _flat(reference))
  moved = np.linalg.norm(_flat(reference) - _flat(initial))
  if not apart:
    return 0.0
  ratio = float(apart / moved) if moved else float("inf")
  return ratio if np.isfinite(ratio) else float("inf")


def judge(
  records: Sequence[race.Record],
  *,
  initial_weights: Sequence[np.ndarray],
  model: str,
  warm_up: int,
) -> list[Row]:
  """Compares the weights of those that did the same work.

  FedAvg is compared with TFF's own where that takes part; other work with the first of the table
  that did it. All began with the initial weights; `warm_up` rounds are not counted.
  """
  first_tolerance, last_tolerance = _TOLERANCES[model]
  preferred = (lineup.BEST_STOCK, "tff_tutorial")
  same_work: dict[str, list[race.Record]] = {}
  for record in records:
    if record.error is None:
      same_work.setdefault(record.entry.work, []).append(record)
  rows = []
  for record in records:
    row = Row(record, np.array(record.seconds[warm_up:]))
    rows.append(row)
    if record.error is not None:
      continue
    mates = same_work[record.entry.work]
    reference = min(
      mates, key=lambda r: (r.entry.name not in preferred, "@native" not in r.entry.name)
    )
    if record is reference:
      rows[-1] = dataclasses.replace(row, is_reference=len(mates) > 1)
      continue
    first, last = (
      distance(contender.load_weights(weights), contender.load_weights(expected), initial_weights)
      for weights, expected in (
        (record.first_weights, reference.first_weights),
        (record.last_weights, reference.last_weights),
      )
    )
    is_void = first > first_tolerance or not np.isfinite(last)
    # A loss beside the threshold may be on either side of it, by its last digit; from then on
    # weights differ by what a client of the tail moves them.
    is_averaging_all = record.entry.work == lineup.FED_AVG
    is_void |= is_averaging_all and last_tolerance is not None and last > last_tolerance
    rows[-1] = dataclasses.replace(row, first_distance=first, last_distance=last, is_void=is_void)
  return rows


def ratio(row: Row, to: Row) -> float:
  """Returns the median, over rounds, of a row's seconds divided by another's in the same round."""
  return float(np.median(row.seconds / to.seconds))
