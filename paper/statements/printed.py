"""The paper's tables of errors: each printed cell beside what was measured.

Reports of runs read the same cells, `of_the_paper.cells`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from paper.statements import measurements
from paper.statements import rows
from paper.statements import sources
from tff_superquantile.experiments.evidence import of_the_paper
from tff_superquantile.experiments.pages import tables

_DIGITS = {"EMNIST linear": "emnist_linear", "EMNIST ConvNet": "emnist_convnet"}
# Table 8 has its changes against FedAvg alone (`on_people`).
_PEOPLE = {"EMNIST linear": "writers_linear", "EMNIST ConvNet": "people_convnet"}
_METRICS = {"sd": "std"}  # Our name of a column where it is another.
_NUM_SEEDS = 5
# Columns that the paper prints and does not speak of.
_NOT_CLAIMED = ("sd", "p10", "p50")
# Within this the same number was rounded twice.
ROUNDING = 0.0151


class Place(NamedTuple):
  """A table of the paper, with the task and the metric of all columns.

  They are empty where each column is one.
  """

  number: str
  title: str
  task: str = ""
  metric: str = ""


TABLES = {
  "results_90": Place("Table 2", "90th percentile of the error", metric="p90"),
  "results_mean": Place("Table 3", "mean error", metric="mean"),
  "pers": Place("Table 4", "personalization", task="EMNIST ConvNet"),
  "ext_comp_emnist_linear": Place("Table 6", "EMNIST, linear", task="EMNIST linear"),
  "ext_comp_emnist_convnet": Place("Table 7", "EMNIST, ConvNet", task="EMNIST ConvNet"),
  "ext_comp_sent140_linear": Place("Table 8", "Sent140, linear", task="Sent140 linear"),
  "ext_comp_sent140_rnn": Place("Table 9", "Sent140, RNN", task="Sent140 RNN"),
}


read = of_the_paper.cells


def value(table: str, method: str, column: str) -> float:
  """Returns a printed mean in %."""
  cells = read().set_index(["table", "method", "column"])
  return float(cells.loc[(table, method, column), "value"])


def column(table: str, name: str) -> pd.Series:
  """Returns the printed means of a column in %, by method."""
  cells = read()
  chosen = cells[(cells["table"] == table) & (cells["column"] == name)]
  return chosen.set_index("method")["value"].astype(float)


def values(table: str, name: str) -> dict[str, measurements.Value]:
  """Returns the printed entries of a column, as fractions over the paper's seeds, by method."""
  cells = read()
  chosen = cells[(cells["table"] == table) & (cells["column"] == name)]
  return {
    cell.method: measurements.Value(float(cell.value) / 100, float(cell.sd) / 100, _NUM_SEEDS)
    for cell in chosen.itertuples()
  }


def _family(method: str) -> str:
  """Returns the name of a printed method without the value of its parameter."""
  return method.split(" q = ")[0].split(" t = ")[0]


def _plain(method: str) -> str:
  """Returns a printed method with its parameter as our labels write it, t = 1 for t = 1.0."""
  return method.removesuffix(".0")


def measured_method(evidence: measurements.Evidence, source: str, method: str) -> str | None:
  """Returns our label of a printed method: of several values of its parameter, the best one."""
  plain = _plain(method)
  if plain in evidence.methods(source):
    return plain
  # The value of a parameter that was best there need not be the best here.
  return evidence.best(source, _family(method))


def measured(
  evidence: measurements.Evidence,
  table: str,
  method: str,
  column: str,
  of_task: Mapping[str, str] = _DIGITS,
) -> measurements.Value | None:
  """Returns our measurement for a printed cell, of these sources by task; None without one."""
  place = TABLES[table]
  if table == "pers":
    metric, when = column.split(", ")
    source = "personalization" if of_task is _DIGITS else ""
    part = {"before": "shared", "after": "personal"}[when]
    return evidence.get(source, method, f"{part}.error.{metric}")
  source = of_task.get(place.task or column, "")
  ours = measured_method(evidence, source, method)
  metric = place.metric or _METRICS.get(column, column)
  return evidence.get(source, ours, f"test.error.{metric}") if ours else None


def _of_other_parameter(
  evidence: measurements.Evidence, table: str, cell: Any, of_task: Mapping[str, str] = _DIGITS
) -> str:
  """Returns " (q = 1)" where a printed cell's measurement is of that value of its parameter."""
  place = TABLES[table]
  source = of_task.get(place.task or cell.column, "")
  return "" if table == "pers" else other_parameter(evidence, source, cell.method)


def other_parameter(evidence: measurements.Evidence, source: str, method: str) -> str:
  """Returns " (q = 1)" where a source has a printed method with that value of its parameter."""
  ours = measured_method(evidence, source, method)
  if ours is None or ours == _plain(method):
    return ""
  return f" ({ours.removeprefix(_family(method)).strip(' ()')})"


def cell_rows(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields a row for each printed cell."""
  for cell in read().itertuples():
    place = TABLES[cell.table]
    found = []
    for data, of_task in ((sources.DIGITS, _DIGITS), ("real people", _PEOPLE)):
      ours = measured(evidence, cell.table, cell.method, cell.column, of_task)
      other = _of_other_parameter(evidence, cell.table, cell, of_task)
      if ours:
        found.append(f"{ours.in_percent()}{other} on {data}")
    yield rows.Row(
      "",
      f"Printed: {cell.value:.2f} ± {cell.sd:.2f}. Measured: {'; '.join(found) or 'nothing'}.",
      rows.Verdict.UNCHECKED,
      "The paper’s whole data and rounds are not here.",
      about=f"{place.number}, {cell.method}, {cell.column}",
    )


def grids(evidence: measurements.Evidence) -> Iterator[tables.Table]:
  """Yields each printed table of which something was measured: means and p90, printed and ours.

  Tables 2 and 3 are columns of those of the appendix.
  """
  cells = read()
  cells = cells[~cells["column"].isin(_NOT_CLAIMED)]
  for name, place in TABLES.items():
    of_table = cells[cells["table"] == name]
    columns = list(dict.fromkeys(of_table["column"]))
    laid_out, is_measured = [], False
    for method, of_method in of_table.groupby("method", sort=False):
      label = method
      entries: list[tables.Cell] = []
      for cell in of_method.itertuples():
        arrows = []
        for arrow, of_task in (("→", _DIGITS), ("⇒", _PEOPLE)) if place.task else ():
          ours = measured(evidence, name, method, cell.column, of_task)
          other = _of_other_parameter(evidence, name, cell, of_task)
          arrows += [f"{arrow} {ours.in_percent()}"] if ours else []
          label += f" {arrow}{other}" * (bool(other) and not entries)
        text = f"{cell.value:.2f} ± {cell.sd:.2f}"
        entries.append(tables.Cell(text, " ".join(arrows), bool(cell.mark)))
        is_measured |= bool(arrows)
      laid_out.append(tables.Row(label, entries))
    if is_measured:
      yield tables.Table(f"{place.number}: {place.title}", ["method", *columns], laid_out)


def mark_rows() -> Iterator[rows.Row]:
  """Yields a row for each column that does not follow the paper's rule for what is bold."""
  cells = read()
  for (name, heading), of_column in cells.groupby(["table", "column"], sort=False):
    lowest = of_column["value"].min()
    best = set(of_column.loc[of_column["value"] == lowest, "method"])
    marked = set(of_column.loc[of_column["mark"] != "", "method"])
    # Of a tie at two decimals one may be smaller unrounded.
    is_tie = len(best) > 1 and bool(marked) and marked < best
    if marked == best:
      continue
    yield rows.Row(
      "bold",
      f"Bold is {', '.join(sorted(marked)) or 'nothing'}; the smallest is"
      f" {' and '.join(sorted(best))} with {lowest:.2f}.",
      rows.Verdict.UNCHECKED if is_tie else rows.Verdict.MISPRINT,
      "A tie at two decimals: which is smaller cannot be seen." * is_tie,
      about=f"{TABLES[name].number}, {heading}",
    )


def entire_rows() -> Iterator[rows.Row]:
  """Yields the rule for entries that are bold with their sd: nobody else is within one sd."""
  cells = read()
  breaking, num_columns = [], 0
  for (name, heading), of_column in cells.groupby(["table", "column"], sort=False):
    marked = of_column[of_column["mark"] != ""]
    if not name.startswith("ext_comp") or len(marked) != 1:
      continue
    num_columns += 1
    best = marked.iloc[0]
    others = of_column[of_column["method"] != best["method"]]
    is_alone = (others["value"] > best["value"] + best["sd"]).all()
    if is_alone != (best["mark"] == "entirely bold"):
      breaking.append(f"{TABLES[name].number}, {heading} ({best['method']})")
  yield rows.Row(
    "bold_entire",
    f"{len(breaking)} of {num_columns} columns with one bold entry break it"
    + (f": {'; '.join(breaking)}." if breaking else "."),
    rows.judge(not breaking, rows.Verdict.MISPRINT),
  )


def _same_cells() -> Iterator[tuple[str, str, str, float, float]]:
  """Yields (table, method, task, value, value in the appendix) of cells that are printed twice."""
  for name in ("results_90", "results_mean"):
    for detailed, place in TABLES.items():
      if not detailed.startswith("ext_comp"):
        continue
      short, full = column(name, place.task), column(detailed, TABLES[name].metric)
      for method, printed in short.items():
        family = [other for other in full.index if _family(other) == method]
        if method != "FedAvg-Sub" and len(family) == 1:
          yield name, method, place.task, printed, full[family[0]]


def twice_rows() -> Iterator[rows.Row]:
  """Yields whether the numbers that two tables print are the same."""
  cells = list(_same_cells())
  different = [
    f"{TABLES[name].number}, {method}, {task}: {printed:.2f}, {again:.2f} in the appendix"
    for name, method, task, printed, again in cells
    if abs(printed - again) > ROUNDING
  ]
  yield rows.Row(
    "twice",
    f"{len(cells) - len(different)} of the {len(cells)} cells that Tables 2 and 3 share with the"
    f" appendix are the same. {'; '.join(different)}{'.' * bool(different)}",
    rows.judge(not different, rows.Verdict.INCONSISTENT),
    "The paper does not say why." * bool(different),
    rule="the same number but for two roundings",
  )
