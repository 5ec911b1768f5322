"""Tables of means over seeds, from results by method or by way of choosing, for pages and files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import csv
import io
import math

from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import run_folder

# {row: {metric: {seed: value}}}, in the order of the rows.
Results = Mapping[str, Mapping[str, Mapping[int, float]]]


def number(value: float, column: comparison.Column) -> str:
  """Formats a value in the column's unit."""
  value *= column.factor
  if not math.isfinite(value):
    return "NaN" if math.isnan(value) else "∞"
  text = f"{value:.{column.decimals}f}"
  return text.removeprefix("-") if not float(text) else text.replace("-", "−")


def rows(
  columns: Sequence[comparison.Column],
  results: Results,
  names: Mapping[str, str],
  not_in_contest: Collection[str] = (),
) -> list[comparison.Row]:
  """Lays out the means, and standard deviations over seeds, of every row that has them.

  Args:
    columns: The columns; the smallest entry of each that is a contest is marked.
    results: The values.
    names: What to call the rows.
    not_in_contest: Rows that cannot win.

  Returns:
    The rows; the smallest is marked if there are others to compare with, and so is what reads the
    same.
  """
  cells: dict[str, list[comparison.Cell]] = {row: [] for row in results}
  for column in columns:
    entries = {
      row: run_folder.Aggregate.of(list(metrics[column.metric].values()))
      for row, metrics in results.items()
      if metrics.get(column.metric)
    }
    rivals = {
      row: entry.mean
      for row, entry in entries.items()
      if row not in not_in_contest and math.isfinite(entry.mean)
    }
    texts = {row: number(entry.mean, column) for row, entry in entries.items()}
    best = None
    if column.contest and len(rivals) > 1:
      best = texts[min(rivals, key=rivals.__getitem__)]
    for row, line in cells.items():
      if row not in entries:
        line.append(comparison.Cell("–"))
        continue
      sd = entries[row].sd
      spread = "" if math.isnan(sd) else f"± {number(sd, column)}"
      line.append(comparison.Cell(texts[row], spread, row in rivals and texts[row] == best))
  return [
    comparison.Row(row, names[row], max(map(len, results[row].values()), default=0), line)
    for row, line in cells.items()
  ]


def csv_text(task: str, row_name: str, results: Results) -> str:
  """All results as `task, ROW_NAME, metric, mean, sd, num_seeds`; sd is blank for one seed."""
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator="\n")
  writer.writerow(["task", row_name, "metric", "mean", "sd", "num_seeds"])
  for row, metrics in results.items():
    for metric, values in metrics.items():
      entry = run_folder.Aggregate.of(list(values.values()))
      sd = "" if entry.num_seeds == 1 else repr(entry.sd)
      writer.writerow([task, row, metric, repr(entry.mean), sd, entry.num_seeds])
  return buffer.getvalue()


def change(first: Mapping[int, float], second: Mapping[int, float]) -> run_folder.Aggregate | None:
  """Second minus first, seed by seed over the seeds that both have; None if they share none."""
  shared = sorted(first.keys() & second.keys())
  if not shared:
    return None
  return run_folder.Aggregate.of([second[seed] - first[seed] for seed in shared])


def points(entry: run_folder.Aggregate, decimals: int = 1) -> str:
  """A difference of fractions in percentage points, "−4.8 ± 1.1"."""
  column = comparison.Column("", "", decimals=decimals)
  text = number(entry.mean, column)
  text = text if text.startswith("−") or not float(text) else f"+{text}"
  return text if math.isnan(entry.sd) else f"{text} ± {number(entry.sd, column)}"
