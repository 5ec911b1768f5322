"""What the measured rounds say: equal work or not, tables, targets reached or not."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Optional

import numpy as np

from benchmarks import contender
from benchmarks import lineup
from benchmarks import race

# How far apart weights may be after the first round, and after the last one, relative to how far
# they have moved: |a - b| / |b - initial|, Euclidean. Two libraries round differently. For linear
# models that stays what it is; training the others amplifies it, step by step and round by round,
# so that the first round has to decide. Measured for 100 clients, linear and ConvNet: initial
# weights that differ by 1e-8 make 5e-6 and 4e-3 of it, one client of the hundred left out 1e-2 and
# 2e-2, one visited backwards 2e-2 and 2e-2, all last batches left out 2e-1 and 1e-1.
_TOLERANCES = {"linear": (1e-4, 1e-4), "convnet": (1e-2, None), "lstm": (1e-3, None)}
_WIDTHS = (35, 25, 8, 7, 6, 6, 12)
_HEADER = (
  ("", "seconds a round", "of TFF's", "of best", "first", "start", "peak MB, own", "weights apart"),
  ("", "median (min to max)", "ids", "peer", "s", "s", "+ children", "first, last"),
)


@dataclasses.dataclass(frozen=True)
class Row:
  """What a contender achieved.

  Attributes:
    record: What was measured.
    seconds: Of the timed rounds.
    first_distance: How far its weights are from the reference's after the first round; None for
      the reference itself, and if nobody else did the same work.
    last_distance: The same after the last round.
    is_reference: Whether the others of its work are compared with it.
    is_void: Whether it did not do the work that it should have done.
  """

  record: race.Record
  seconds: np.ndarray
  first_distance: Optional[float] = None
  last_distance: Optional[float] = None
  is_reference: bool = False
  is_void: bool = False

  @property
  def counts(self) -> bool:
    """Whether its times mean something."""
    return self.record.error is None and not self.is_void

  @property
  def median(self) -> float:
    """The median seconds of a timed round."""
    return float(np.median(self.seconds))


@dataclasses.dataclass(frozen=True)
class Table:
  """The rows of a task and a size of cohorts.

  Attributes:
    task: The task.
    model: Its model: linear, convnet or lstm.
    data: What the data is.
    clients_per_round: The size of a cohort.
    warm_up: Rounds at the beginning that are not counted.
    rows: One of each contender.
  """

  task: str
  model: str
  data: str
  clients_per_round: int
  warm_up: int
  rows: Sequence[Row]

  def row(self, name: str) -> Optional[Row]:
    """The row of that name, if it is there and counts."""
    found = [row for row in self.rows if row.record.entry.name == name and row.counts]
    return found[0] if found else None

  def fastest_peer(self) -> Optional[Row]:
    """The peer whose median is the smallest, of those that count."""
    peers = [row for row in self.rows if row.record.entry.peer and row.counts]
    return min(peers, key=lambda row: row.median) if peers else None


def _flat(weights: Sequence[np.ndarray]) -> np.ndarray:
  return np.concatenate([np.asarray(w, np.float64).ravel() for w in weights])


def distance(
  weights: Sequence[np.ndarray], reference: Sequence[np.ndarray], initial: Sequence[np.ndarray]
) -> float:
  """How far weights are from the reference, relative to how far that is from the beginning.

  Args:
    weights: A contender's weights.
    reference: The reference's.
    initial: Those that both began with.

  Returns:
    |weights - reference| / |reference - initial|, or infinity if that isn't a number or shapes
    differ.
  """
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
  that did it.

  Args:
    records: What was measured.
    initial_weights: What everybody began with.
    model: linear, convnet or lstm.
    warm_up: Rounds at the beginning that are not counted.

  Returns:
    A row of each record.
  """
  first_tolerance, last_tolerance = _TOLERANCES[model]
  preferred = (lineup.BEST_STOCK, "tff_tutorial")
  rows = []
  references: dict[str, race.Record] = {}
  for record in records:
    if record.error is None:
      work = record.entry.work
      mates = [r for r in records if r.error is None and r.entry.work == work]
      mates.sort(key=lambda r: (r.entry.name not in preferred, "@native" not in r.entry.name))
      references[work] = mates[0]
  for record in records:
    seconds = np.array(record.seconds[warm_up:])
    if record.error is not None:
      rows.append(Row(record, seconds))
      continue
    reference = references[record.entry.work]
    if record is reference:
      num_mates = sum(r.error is None and r.entry.work == record.entry.work for r in records)
      rows.append(Row(record, seconds, is_reference=num_mates > 1))
      continue
    first, last = (
      distance(
        contender.load_weights(getattr(record, which)),
        contender.load_weights(getattr(reference, which)),
        initial_weights,
      )
      for which in ("first_weights", "last_weights")
    )
    is_void = first > first_tolerance or not np.isfinite(last)
    # A loss beside the threshold may be on either side of it, by its last digit; from then on
    # weights differ by what a client of the tail moves them.
    is_averaging_all = record.entry.work == lineup.FED_AVG
    is_void |= is_averaging_all and last_tolerance is not None and last > last_tolerance
    rows.append(Row(record, seconds, first, last, is_void=is_void))
  return rows


def ratio(row: Row, to: Row) -> float:
  """The median, over rounds, of a row's seconds divided by another's in the same round."""
  return float(np.median(row.seconds / to.seconds))


def _format_ratio(row: Row, to: Optional[Row]) -> str:
  if to is None:
    return "-"
  value = ratio(row, to)
  return f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


def _work(row: Row) -> str:
  if row.is_reference:
    return "reference"
  if row.first_distance is None:
    return "-"
  text = f"{row.first_distance:.0e}, {row.last_distance:.0e}"
  return f"VOID {text}" if row.is_void else text


def _cells(row: Row, table: Table) -> list[str]:
  record = row.record
  seconds = f"{row.median:.3f} ({row.seconds.min():.3f} to {row.seconds.max():.3f})"
  megabytes = f"{record.own_peak / 1e6:.0f} + {record.children_peak / 1e6:.0f}"
  ratios = [_format_ratio(row, to) for to in (table.row(lineup.BEST_STOCK), table.fastest_peer())]
  return [
    record.entry.title,
    seconds,
    *(ratios if row.counts else ("-", "-")),
    f"{record.seconds[0]:.1f}",
    f"{record.start_seconds:.1f}",
    megabytes,
    _work(row),
  ]


def _line(cells: Sequence[str]) -> str:
  padded = [
    cell.ljust(width) if i == 0 else cell.rjust(width)
    for i, (cell, width) in enumerate(zip(cells, _WIDTHS))
  ]
  return "  ".join([*padded, cells[-1]]).rstrip()


def format_table(table: Table) -> str:
  """A table of text, at most 130 columns wide.

  Args:
    table: The rows.

  Returns:
    Lines: a title, the header, a line of each contender, and what failed or is void.
  """
  num_rounds = max((len(row.seconds) for row in table.rows), default=0)
  peer = table.fastest_peer()
  lines = [
    f"{table.task}, {table.clients_per_round} clients a round ({table.data}): {num_rounds} rounds"
    f" after {table.warm_up} of warm-up",
    *map(_line, _HEADER),
  ]
  lines += [_line(_cells(row, table)) for row in table.rows if row.record.error is None]
  if peer is not None:
    lines.append(f"The best peer: {peer.record.entry.title}.")
  for row in table.rows:
    if row.record.error is not None:
      lines.append(f"FAILED: {row.record.entry.title}: {row.record.error}")
    elif row.is_void:
      lines.append(f"VOID: {row.record.entry.title} did other work; its times say nothing.")
  return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class _Target:
  """A ratio of two rows that is to be reached; `of` is a name, or "peer" for the best one."""

  task: str
  name: str
  of: str
  wanted: float


_TARGETS = (
  _Target("emnist_convnet", lineup.SUPERQUANTILE, lineup.BEST_STOCK, 1 / 3),
  _Target("emnist_linear", lineup.SUPERQUANTILE, lineup.BEST_STOCK, 1 / 7),
  _Target("emnist_convnet", lineup.FED_AVG, "peer", 0.7),
  _Target("emnist_linear", lineup.FED_AVG, "peer", 1.0),
  _Target("emnist_convnet", lineup.SUPERQUANTILE, "peer", 0.55),
  _Target("emnist_linear", lineup.SUPERQUANTILE, "peer", 0.6),
  _Target("synthetic", "tree_1024", lineup.SUPERQUANTILE, 1.1),
  _Target("emnist_linear", "tree_1024", lineup.SUPERQUANTILE, 1.1),
  _Target("emnist_convnet", "tree_1024", lineup.SUPERQUANTILE, 1.1),
)
_TARGET_CLIENTS = 100  # The targets are for cohorts of this size.
_MAX_GROWTH_PER_CLIENT = 1.15  # Of a client's seconds, from the smallest cohort to the largest.
_MAX_MEMORY_GROWTH = 1.05
_MEMORY_ROUNDS = (50, 500)


def _verdict(what: str, found: Optional[float], wanted: float) -> str:
  if found is None:
    return f"  {what:78}  at most {wanted:5.3f}            not measured"
  verdict = "reached" if found <= wanted else "NOT reached"
  return f"  {what:78}  at most {wanted:5.3f}  found {found:5.3f}  {verdict}"


def _title(name: str) -> str:
  return "the best peer's FedAvg" if name == "peer" else lineup.find(name, 0.5).title


def _ratio_lines(tables: Sequence[Table]) -> list[str]:
  lines = []
  for target in _TARGETS:
    for table in tables:
      if (table.task, table.clients_per_round) != (target.task, _TARGET_CLIENTS):
        continue
      row = table.row(target.name)
      to = table.fastest_peer() if target.of == "peer" else table.row(target.of)
      what = f"{target.task}: {_title(target.name)}, of {_title(target.of)}"
      lines.append(_verdict(what, ratio(row, to) if row and to else None, target.wanted))
  return lines


def _growth_lines(tables: Sequence[Table]) -> list[str]:
  """Whether the cost of a client is the same in a large cohort."""
  lines = []
  for task in dict.fromkeys(table.task for table in tables):
    sizes = sorted((t for t in tables if t.task == task), key=lambda t: t.clients_per_round)
    small, large = sizes[0], sizes[-1]
    if small is large:
      continue
    for name in (lineup.FED_AVG, lineup.SUPERQUANTILE):
      in_small, in_large = small.row(name), large.row(name)
      found = None
      if in_small is not None and in_large is not None:
        seconds = in_small.median / small.clients_per_round
        found = in_large.median / large.clients_per_round / seconds
      what = (
        f"{task}: {_title(name)}, seconds a client with {large.clients_per_round}, of those with"
        f" {small.clients_per_round}"
      )
      lines.append(_verdict(what, found, _MAX_GROWTH_PER_CLIENT))
  return lines


def _memory_lines(tables: Sequence[Table]) -> list[str]:
  first, last = _MEMORY_ROUNDS
  lines = []
  for table in tables:
    for row in table.rows:
      if row.record.entry.module == "ours" and len(row.record.resident) >= last:
        resident = row.record.resident
        what = f"{table.task}: {row.record.entry.title}, memory in round {last}, of round {first}"
        found = resident[last - 1] / resident[first - 1]
        lines.append(_verdict(what, found, _MAX_MEMORY_GROWTH))
  return lines


def format_targets(tables: Sequence[Table]) -> str:
  """Which targets these tables reach; "" if they are about none.

  Args:
    tables: All tables of a run.

  Returns:
    A line of each target.
  """
  lines = [*_ratio_lines(tables), *_growth_lines(tables), *_memory_lines(tables)]
  return "\n".join(["Targets", *lines]) if lines else ""


def to_json(tables: Sequence[Table]) -> list[dict[str, Any]]:
  """All raw numbers, as JSON has them."""
  return [_table_to_json(table) for table in tables]


def _table_to_json(table: Table) -> dict[str, Any]:
  facts = {
    field.name: getattr(table, field.name)
    for field in dataclasses.fields(table)
    if field.name != "rows"
  }
  return {**facts, "rows": [_row_to_json(row) for row in table.rows]}


def _row_to_json(row: Row) -> Mapping[str, Any]:
  record = row.record
  return dict(
    name=record.entry.name,
    title=record.entry.title,
    error=record.error,
    details=record.details,
    seconds=record.seconds,
    start_seconds=record.start_seconds,
    resident=record.resident,
    own_peak=record.own_peak,
    children_peak=record.children_peak,
    is_reference=row.is_reference,
    is_void=row.is_void,
    # Infinity is no JSON.
    first_distance=_finite(row.first_distance),
    last_distance=_finite(row.last_distance),
  )


def _finite(value: Optional[float]) -> Optional[float]:
  return value if value is not None and np.isfinite(value) else None
