"""What the finished runs of a task show, in words and in a table: method against method."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import pages
from tff_superquantile.experiments import run_folder

_MEAN = "test.error.mean"
# The paper's measure of the tail, by which methods are compared.
P90 = "test.error.p90"
_TAIL = "the 90th percentile of the test clients’ error"


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of the table; `decimals` None stands for three significant digits."""

  metric: str
  title: str
  factor: float = 100.0
  decimals: int | None = 1
  contest: bool = True  # Whether the lowest entry is marked.
  brief: bool = False  # Whether a terminal shows the column too.


COLUMNS = (
  Column(_MEAN, "mean", brief=True),
  Column("test.error.std", "sd"),
  Column("test.error.p10", "p10"),
  Column("test.error.p50", "p50"),
  Column(P90, "p90", brief=True),
  Column("test.error.p95", "p95"),
  Column("test.error.superquantile_90", "worst 10 %", brief=True),
  Column("test.error.best_10", "best 10 %"),
  Column("train.loss.mean", "train loss", factor=1.0, decimals=3),
  # Time depends on the machine and what else it does, so nobody wins.
  Column("seconds_per_round", "s / round", factor=1.0, decimals=None, contest=False),
)
# More curves than these cannot be told apart.
_MAX_CURVES = 6
_BASELINES_SHOWN = 2
_STATISTICS = (
  ("mean", "mean"),
  *((f"p{percent}", f"p{percent}") for percent in (10, 20, 50, 60, 80, 90, 95)),
  ("superquantile_90", "worst 10 %"),
  ("superquantile_95", "worst 5 %"),
)
# The further tables: all that the paper reports of test errors and of training losses.
ERROR_COLUMNS = tuple(Column(f"test.error.{name}", title) for name, title in _STATISTICS)
LOSS_COLUMNS = tuple(
  Column(f"train.loss.{name}", title, factor=1.0, decimals=3) for name, title in _STATISTICS
)


@dataclasses.dataclass(frozen=True)
class Cell:
  """An entry of the table as text; `spread` is "± sd" or empty."""

  value: str
  spread: str = ""
  best: bool = False

  def __str__(self) -> str:
    return f"{self.value} {self.spread}".strip()


@dataclasses.dataclass(frozen=True)
class Row:
  """A method's row of the table."""

  method: str
  name: str
  num_seeds: int
  cells: list[Cell]


def summary(groups: run_folder.Groups) -> str:
  """Says in a few sentences what the runs show; of private methods, those of the middle budget.

  FedAvg is compared with the method that has the lowest 90th percentile of the test error, seed by
  seed over the seeds that both have.

  Args:
    groups: Finished runs by method.

  Returns:
    Plain text, errors in % and differences in percentage points.
  """
  groups, epsilon = run_folder.at_one_epsilon(groups)
  if epsilon is not None:
    return f"At ε = {epsilon:g}: {_summary(groups)}"
  return _summary(groups)


def _summary(groups: run_folder.Groups) -> str:
  tails = {
    method: run_folder.aggregate(runs)[P90].mean
    for method, runs in groups.items()
    if P90 in run_folder.aggregate(runs)
  }
  tails = {method: tail for method, tail in tails.items() if math.isfinite(tail)}
  if not tails:
    return f"No method reports {_TAIL}."
  rivals = [method for method in tails if method != method_names.FED_AVG]
  best = min(rivals or tails, key=tails.__getitem__)
  name = method_names.display_name(best)
  if method_names.FED_AVG not in tails or not rivals:
    return (
      f"With {name}, {_TAIL} is {_percent(tails[best])}; there is no result of "
      f"{'FedAvg' if rivals else 'another method'} to compare with."
    )

  seeds, tail, tail_sd, levels = _compare(groups[method_names.FED_AVG], groups[best], P90)
  spread = "" if math.isnan(tail_sd) else f" ± {tail_sd:.1f}"
  if f"{tail:.1f}".strip("-") == "0.0":
    effect = f"leaves {_TAIL} as it is ({levels})"
  else:
    effect = (
      f"{'lowers' if tail < 0 else 'raises'} {_TAIL} by {abs(tail):.1f}{spread} points ({levels})"
    )
  if all(_MEAN in run_folder.aggregate(groups[method]) for method in (method_names.FED_AVG, best)):
    mean = _compare(groups[method_names.FED_AVG], groups[best], _MEAN)[1]
    effect += f" and changes the mean by {_signed(mean)} points"
  text = (
    f"Against FedAvg, {name} {effect}"
    if len(rivals) == 1
    else f"Of {len(rivals)} methods compared with FedAvg, {name} does best by the worst-off "
    f"clients: it {effect}"
  )
  if seeds == 0:
    return f"{text}; the two share no seed, so part of the difference may be the seeds’."
  if seeds == 1:
    return f"{text}. This is one seed, which cannot tell an effect from chance."
  caution = (
    " The change of the percentile is no larger than its standard deviation over seeds."
    if abs(tail) <= tail_sd
    else ""
  )
  return f"{text}, over {seeds} seeds.{caution}"


def _compare(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], metric: str
) -> tuple[int, float, float, str]:
  """Compares a fraction between two methods, seed by seed where they share seeds.

  Args:
    before: Runs of a method, of which at least one has the metric.
    after: Runs of another method, likewise.
    metric: A name in `Run.numbers`.

  Returns:
    The number of shared seeds, mean and sd over them (NaN below two) of the change in percentage
    points, and the two levels as text.
  """
  first, second = (
    {run.seed: 100 * run.numbers[metric] for run in runs if metric in run.numbers}
    for runs in (before, after)
  )
  shared = sorted(first.keys() & second.keys())
  old = float(np.mean([first[seed] for seed in shared or first]))
  new = float(np.mean([second[seed] for seed in shared or second]))
  changes = [second[seed] - first[seed] for seed in shared] or [new - old]
  change = run_folder.Aggregate.of(changes)
  return len(shared), change.mean, change.sd, f"{_percent(old / 100)} → {_percent(new / 100)}"


def contenders(groups: run_folder.Groups) -> run_folder.Groups:
  """FedAvg and the methods of the lowest tails, where there are too many to tell apart.

  Args:
    groups: Finished runs by method.

  Returns:
    All of up to six methods. Of more, FedAvg, the two other baselines with the lowest 90th
    percentiles of the test error, and the superquantile methods with the lowest.
  """
  if len(groups) <= _MAX_CURVES:
    return groups
  tails = {}
  for method, runs in groups.items():
    found = run_folder.aggregate(runs).get(P90)
    tails[method] = math.inf if found is None else found.mean

  def best(methods: Sequence[str], number: int) -> list[str]:
    return sorted(methods, key=lambda method: tails[method])[:number]

  tail_methods = [method for method in groups if method_names.is_superquantile(method)]
  baselines = [m for m in groups if m not in tail_methods and m != method_names.FED_AVG]
  chosen = {method_names.FED_AVG, *best(baselines, _BASELINES_SHOWN)}
  chosen |= set(best(tail_methods, _MAX_CURVES - 1 - _BASELINES_SHOWN))
  return {method: runs for method, runs in groups.items() if method in chosen}


def table(
  groups: run_folder.Groups, columns: Sequence[Column] = COLUMNS, brief: bool = False
) -> tuple[list[Column], list[Row]]:
  """Returns the columns that some method has, and a row for each method."""
  aggregates = {method: run_folder.aggregate(runs) for method, runs in groups.items()}
  columns = [
    column
    for column in columns
    if (column.brief or not brief)
    and any(column.metric in aggregate for aggregate in aggregates.values())
  ]
  cells: dict[str, list[Cell]] = {method: [] for method in groups}
  for column in columns:
    entries = {
      method: aggregate[column.metric]
      for method, aggregate in aggregates.items()
      if column.metric in aggregate
    }
    if column.decimals is None:
      sizes = [entry.mean for entry in entries.values() if 0 < entry.mean < math.inf]
      decimals = min(4, max(0, 2 - math.floor(math.log10(min(sizes, default=1)))))
      column = dataclasses.replace(column, decimals=decimals)
    texts = {method: _number(entry.mean, column) for method, entry in entries.items()}
    finite = {method: entry.mean for method, entry in entries.items() if math.isfinite(entry.mean)}
    # What reads the same as the best is as good, so the text decides and not the 15th digit.
    best = texts[min(finite, key=finite.__getitem__)] if len(groups) > 1 and finite else None
    for method, row in cells.items():
      if method not in entries:
        row.append(Cell("–"))
        continue
      sd = entries[method].sd
      spread = "" if math.isnan(sd) else f"± {_number(sd, column)}"
      row.append(Cell(texts[method], spread, column.contest and texts[method] == best))
  return columns, [
    Row(method, method_names.display_name(method), len(groups[method]), row)
    for method, row in cells.items()
  ]


def _number(value: float, column: Column) -> str:
  """Formats a value in the column's unit."""
  value *= column.factor
  if not math.isfinite(value):
    return "NaN" if math.isnan(value) else "∞"
  return f"{value:.{column.decimals}f}"


def _percent(fraction: float) -> str:
  return f"{100 * fraction:.1f} %"


def _signed(points: float) -> str:
  text = f"{points:+.1f}"
  return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def markdown_table(columns: Sequence[Column], rows: Sequence[Row], mark: bool = True) -> str:
  """Lays the table out in Markdown with aligned columns, the best entries bold if `mark`."""
  lines = [["method", "seeds", *[column.title for column in columns]]]
  for row in rows:
    lines.append(
      [
        pages.escape_markdown(row.name),
        str(row.num_seeds),
        *[f"**{cell}**" if mark and cell.best else str(cell) for cell in row.cells],
      ]
    )
  return pages.markdown_table(lines)
