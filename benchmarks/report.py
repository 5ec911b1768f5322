"""Shows the measured rounds as a table or as JSON, and compares them with the targets."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import lineup
from benchmarks import results
from tff_superquantile.engine.processes import limits

# The load of the race itself may exceed the cores by a little.
_LOAD_OF_OTHERS = 0.5
_LINE = "{:34}  {:>25}  {:>9}  {:>8}  {:>7}  {:>6}  {:>6}  {:>12}  {}"
_HEADER = (
  (
    "",
    "seconds a round",
    "clients",
    "of TFF's",
    "of best",
    "first",
    "start",
    "peak MB, own",
    "weights apart",
  ),
  ("", "median (min to max)", "a second", "ids", "peer", "s", "s", "+ children", "first, last"),
)
# The JSON has these of a table, and of the record of a row.
_TABLE_FACTS = ("task", "model", "data", "clients_per_round", "warm_up")
_RECORD_FACTS = (
  *("error", "load", "details", "seconds", "start_seconds"),
  *("resident", "own_peak", "children_peak"),
)


def _format_ratio(row: results.Row, to: results.Row | None) -> str:
  if to is None:
    return "-"
  value = results.ratio(row, to)
  return f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


def _work(row: results.Row) -> str:
  if row.is_reference:
    return "reference"
  if row.first_distance is None:
    return "-"
  text = f"{row.first_distance:.0e}, {row.last_distance:.0e}"
  return f"VOID {text}" if row.is_void else text


def _cells(row: results.Row, table: results.Table) -> list[str]:
  record = row.record
  seconds = f"{row.median:.3f} ({row.seconds.min():.3f} to {row.seconds.max():.3f})"
  megabytes = f"{record.own_peak / 1e6:.0f} + {record.children_peak / 1e6:.0f}"
  ratios = [_format_ratio(row, to) for to in (table.row(lineup.BEST_STOCK), table.fastest_peer())]
  return [
    record.entry.title,
    seconds,
    f"{table.clients_per_round / row.median:.0f}",
    *(ratios if row.counts else ("-", "-")),
    f"{record.seconds[0]:.1f}",
    f"{record.start_seconds:.1f}",
    megabytes,
    _work(row),
  ]


def _line(cells: Sequence[str]) -> str:
  return _LINE.format(*cells).rstrip()


def format_table(table: results.Table) -> str:
  """Writes a table as text, at most 140 columns wide.

  Its lines are a title, the header, one of each contender, and what failed or is void.
  """
  num_rounds = max((len(row.seconds) for row in table.rows), default=0)
  peer = table.fastest_peer()
  lines = [
    f"{table.task}, {table.clients_per_round} clients a round ({table.data}): {num_rounds} rounds"
    f" after {table.warm_up} of warm-up",
    *map(_line, _HEADER),
  ]
  lines += [_line(_cells(row, table)) for row in table.rows if row.record.error is None]
  if table.load > limits.num_cores() + _LOAD_OF_OTHERS:
    lines.append(
      f"BUSY: the load was up to {table.load:.1f} on {limits.num_cores()} cores, so that"
      " even ratios are bent; repeat it on a quiet machine."
    )
  if peer is not None:
    lines.append(f"The best peer: {peer.record.entry.title}.")
  for row in table.rows:
    if row.record.error is not None:
      lines.append(f"FAILED: {row.record.entry.title}: {row.record.error}")
    elif row.is_void:
      lines.append(f"VOID: {row.record.entry.title} did other work; its times say nothing.")
  return "\n".join(lines)


def to_json(tables: Sequence[results.Table]) -> list[dict[str, Any]]:
  """Returns all raw numbers, as JSON has them."""
  objects = []
  for table in tables:
    facts = {name: getattr(table, name) for name in _TABLE_FACTS}
    objects.append({**facts, "rows": [_row_to_json(row) for row in table.rows]})
  return objects


def _row_to_json(row: results.Row) -> dict[str, Any]:
  entry = row.record.entry
  return dict(
    {"name": entry.name, "title": entry.title},
    **{name: getattr(row.record, name) for name in _RECORD_FACTS},
    is_reference=row.is_reference,
    is_void=row.is_void,
    # Infinity is no JSON.
    first_distance=_finite(row.first_distance),
    last_distance=_finite(row.last_distance),
  )


def _finite(value: float | None) -> float | None:
  return value if value is not None and np.isfinite(value) else None


# Ratios of two rows to reach: task, row, the other row (a name, or "peer" for the best one), ratio.
_TARGETS = (
  ("emnist_convnet", lineup.SUPERQUANTILE, lineup.BEST_STOCK, 1 / 3),
  ("emnist_linear", lineup.SUPERQUANTILE, lineup.BEST_STOCK, 1 / 7),
  ("synthetic", lineup.FED_AVG, "peer", 0.8),
  ("synthetic", f"{lineup.FED_AVG}@kept", "peer", 0.8),  # Peers have their examples in memory.
  ("emnist_linear", lineup.FED_AVG, "peer", 0.65),
  ("emnist_convnet", lineup.FED_AVG, "peer", 0.6),
  ("sent140_lstm", lineup.FED_AVG, "peer", 0.8),
  ("synthetic", lineup.SUPERQUANTILE, "peer", 0.8),
  ("synthetic", f"{lineup.SUPERQUANTILE}@kept", "peer", 0.8),
  ("emnist_linear", lineup.SUPERQUANTILE, "peer", 0.5),
  ("emnist_convnet", lineup.SUPERQUANTILE, "peer", 0.42),
  ("sent140_lstm", lineup.SUPERQUANTILE, "peer", 0.6),
  ("synthetic", "tree_1024", lineup.SUPERQUANTILE, 1.3),
  ("emnist_linear", "tree_1024", lineup.SUPERQUANTILE, 1.1),
  ("emnist_convnet", "tree_1024", lineup.SUPERQUANTILE, 1.1),
  ("synthetic", "private_distributed", lineup.SUPERQUANTILE, 1.3),
  ("emnist_linear", "private_distributed", lineup.SUPERQUANTILE, 2.0),
  ("synthetic", lineup.FAMILY, lineup.FED_AVG, 1.5),
  ("emnist_linear", lineup.FAMILY, lineup.FED_AVG, 1.5),
)
_TARGET_CLIENTS = 100  # The targets are for cohorts of this size.
_MAX_GROWTH_PER_CLIENT = 1.15  # A client's seconds may grow so from the smallest cohort.
_MAX_MEMORY_GROWTH = 1.05
_MEMORY_ROUNDS = (50, 500)


def _verdict(what: str, ratio: float | None, limit: float) -> str:
  if ratio is None:
    return f"  {what:78}  at most {limit:5.3f}            not measured"
  verdict = "reached" if ratio <= limit else "NOT reached"
  return f"  {what:78}  at most {limit:5.3f}  found {ratio:5.3f}  {verdict}"


def _title(name: str) -> str:
  return "the best peer's FedAvg" if name == "peer" else lineup.find(name, 0.5).title


def _ratio_lines(tables: Sequence[results.Table]) -> list[str]:
  lines = []
  for task, name, of, limit in _TARGETS:
    for table in tables:
      if (table.task, table.clients_per_round) == (task, _TARGET_CLIENTS):
        row, to = table.row(name), table.fastest_peer() if of == "peer" else table.row(of)
        ratio = results.ratio(row, to) if row and to else None
        lines.append(_verdict(f"{task}: {_title(name)}, of {_title(of)}", ratio, limit))
  return lines


def _growth_lines(tables: Sequence[results.Table]) -> list[str]:
  """Compares the cost of a client in large and small cohorts."""
  lines = []
  for task in dict.fromkeys(table.task for table in tables):
    sizes = sorted((t for t in tables if t.task == task), key=lambda t: t.clients_per_round)
    small, large = sizes[0], sizes[-1]
    if small is large:
      continue
    for name in (lineup.FED_AVG, lineup.SUPERQUANTILE):
      in_small, in_large = small.row(name), large.row(name)
      growth = None
      if in_small is not None and in_large is not None:
        seconds = in_small.median / small.clients_per_round
        growth = in_large.median / large.clients_per_round / seconds
      what = (
        f"{task}: {_title(name)}, seconds a client with {large.clients_per_round}, of those with"
        f" {small.clients_per_round}"
      )
      lines.append(_verdict(what, growth, _MAX_GROWTH_PER_CLIENT))
  return lines


def _memory_lines(tables: Sequence[results.Table]) -> list[str]:
  first, last = _MEMORY_ROUNDS
  lines = []
  for table in tables:
    for row in table.rows:
      if row.record.entry.module == "ours" and len(row.record.resident) >= last:
        resident = row.record.resident
        what = f"{table.task}: {row.record.entry.title}, memory in round {last}, of round {first}"
        growth = resident[last - 1] / resident[first - 1]
        lines.append(_verdict(what, growth, _MAX_MEMORY_GROWTH))
  return lines


def format_targets(tables: Sequence[results.Table]) -> str:
  """Tells which targets all tables of a run reach, a line each; "" if they are about none."""
  lines = [*_ratio_lines(tables), *_growth_lines(tables), *_memory_lines(tables)]
  return "\n".join(["Targets", *lines]) if lines else ""
