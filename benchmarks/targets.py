"""Compares the tables of a run with the targets: ratios of rows, growth with cohorts, memory."""

from collections.abc import Sequence
import dataclasses
from typing import Optional

from benchmarks import lineup
from benchmarks import report


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


def _ratio_lines(tables: Sequence[report.Table]) -> list[str]:
  lines = []
  for target in _TARGETS:
    for table in tables:
      if (table.task, table.clients_per_round) != (target.task, _TARGET_CLIENTS):
        continue
      row = table.row(target.name)
      to = table.fastest_peer() if target.of == "peer" else table.row(target.of)
      what = f"{target.task}: {_title(target.name)}, of {_title(target.of)}"
      lines.append(_verdict(what, report.ratio(row, to) if row and to else None, target.wanted))
  return lines


def _growth_lines(tables: Sequence[report.Table]) -> list[str]:
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


def _memory_lines(tables: Sequence[report.Table]) -> list[str]:
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


def format_targets(tables: Sequence[report.Table]) -> str:
  """Which targets these tables reach; "" if they are about none.

  Args:
    tables: All tables of a run.

  Returns:
    A line of each target.
  """
  lines = [*_ratio_lines(tables), *_growth_lines(tables), *_memory_lines(tables)]
  return "\n".join(["Targets", *lines]) if lines else ""
