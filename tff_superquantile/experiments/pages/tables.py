"""Tables of means and standard deviations over seeds, for pages and CSV files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import decimal
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from tff_superquantile.experiments.config.names import Name
from tff_superquantile.experiments.pages import style

P90 = "test.error.p90"  # The paper's measure of the tail.
_MINUS = "\N{MINUS SIGN}"
# Room for the largest float and a half that is more.
_EACH_DIGIT = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)
ONE_SEED = "This is one seed, which cannot tell an effect from chance."
# The kind of a table's entries; words and code may have rows of any length.
Kind = Literal["numbers", "words", "code"]


class Cell(NamedTuple):
  """An entry of a table as text.

  Attributes:
    text: The value.
    spread: "± sd", or empty.
    best: Whether it is the best of its column, and marked.
  """

  text: str
  spread: str = ""
  best: bool = False

  def __str__(self) -> str:
    return f"{self.text} {self.spread}".strip()


class Row(NamedTuple):
  """A row of a table: its name, its entries, and the colour of its method in the figures."""

  name: str
  cells: Sequence[Cell]
  color: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of plain texts.

  Attributes:
    title: Heading; empty for none.
    headings: The columns' headings, the first for the rows' names; empty for none.
    rows: The rows.
    note: A hint on reading it.
    kind: The kind of the entries.
    focus: The heading of the column that matters most.
    lead: A sentence that precedes the table in a terminal; without it terminals leave it out.
    brief: Headings of the columns that a terminal shows; empty for all.
    is_sortable: Whether readers sort and filter its rows in a browser.
  """

  title: str
  headings: Sequence[str]
  rows: Sequence[Row]
  note: str = ""
  kind: Kind = "numbers"
  focus: str = ""
  lead: str = ""
  brief: Collection[str] = ()
  is_sortable: bool = False


class Column(NamedTuple):
  """A column of means over seeds."""

  metric: str
  title: str
  factor: float = 100.0
  decimals: int = 1
  contest: bool = True  # True marks the lowest entry.
  sign: bool = False  # True writes a sign before all numbers.


def of_values(rows: Iterable[tuple[str, int, Mapping[str, float]]]) -> pd.DataFrame:
  """Collects results as rows with the columns "method", "seed", "metric" and "value"."""
  values = [
    (method, seed, metric, float(value))
    for method, seed, metrics in rows
    for metric, value in metrics.items()
  ]
  results = pd.DataFrame(values, columns=["method", "seed", "metric", "value"])
  return results.astype({"seed": np.int64, "value": np.float64})  # Also where there is nothing.


def entries(is_one_seed: bool) -> str:
  """Begins a hint on reading a table of `of_seeds`."""
  if is_one_seed:
    return "Entries are of one seed"
  return "Entries are means, and ± the standard deviation, over seeds"


def over_seeds(results: pd.DataFrame) -> pd.DataFrame:
  """Averages results of `of_values` over seeds, by method and metric in their first order."""
  # pandas' own mean and std of groups leave NaN out and round differently.
  return results.groupby(["method", "metric"], sort=False)["value"].agg(
    mean=lambda values: np.mean(values.to_numpy()),
    sd=lambda values: np.std(values.to_numpy(), ddof=1) if len(values) > 1 else np.nan,
    num_seeds="size",
  )


def to_csv(task: str, results: pd.DataFrame, name: str = "method", decision: str = "") -> str:
  """Returns all results as `task, NAME, metric, mean, sd, num_seeds`; sd is blank for one seed."""
  rows = over_seeds(results).reset_index().rename(columns={"method": name})
  rows.insert(0, "task", task)
  rows["mean"] = rows["mean"].map(repr)
  rows["sd"] = rows["sd"].map(repr).where(rows["num_seeds"] > 1, "")
  if decision:
    rows["decision"] = [decision, *[""] * (len(rows) - 1)]
  return rows.to_csv(index=False, lineterminator="\n")


def number(value: float, decimals: int = 1, sign: bool = False) -> str:
  """Formats a number with a true minus, and zero without any sign.

  Of two texts as near, the larger number's, of either sign.

  Args:
    value: The number; infinity, of either sign, becomes "∞".
    decimals: Digits after the point.
    sign: Whether a positive number has a plus.

  Returns:
    The text.
  """
  if not math.isfinite(value):
    return "NaN" if math.isnan(value) else "∞"
  # Sums have other last bits on another kind of CPU, which are not to decide where a value is half
  # way between two texts.
  digits = decimal.Decimal(f"{value:.12g}")
  rounded = digits.quantize(decimal.Decimal(1).scaleb(-decimals), context=_EACH_DIGIT)
  text = f"{rounded:{'+' if sign else ''}f}"
  return text.replace("-", _MINUS) if float(text) else text.lstrip("+-")


def plural(count: int, noun: str) -> str:
  """Formats a number of things."""
  return f"{count} {noun}{'' if count == 1 else 's'}"


def listing(entries: Mapping[str, Any], title: str = "", kind: Kind = "words") -> Table:
  """Lays out entries by their names."""
  rows = [Row(name, [Cell(str(value))]) for name, value in entries.items()]
  return Table(title, [], rows, kind=kind)


def of_seeds(
  results: pd.DataFrame,
  columns: Sequence[Column],
  names: Mapping[str, str],
  *,
  coloured: Sequence[Name] | None = None,
  not_in_contest: Collection[str] = (),
  marked: Collection[tuple[str, str]] | None = None,
  first: str = "method",
  title: str = "",
  focus: str = "",
  **texts: Any,
) -> Table:
  """Lays out means, and standard deviations over seeds, of what `of_values` returns."""
  looks = style.palette([method for method in names if isinstance(method, Name)], coloured)
  colors = {method: look.color for method, look in looks.items()}
  there = set(results["metric"])
  columns = [column for column in columns if column.metric in there]
  seeds = results.groupby("method")["seed"].nunique()
  aggregates = over_seeds(results[results["metric"].isin([column.metric for column in columns])])
  cells = {method: [Cell(str(seeds.get(method, 0)))] for method in names}
  for column in columns:
    entries = aggregates.xs(column.metric, level="metric")
    means, sds = entries["mean"] * column.factor, entries["sd"] * column.factor
    decimals = column.decimals
    rivals = means[np.isfinite(means)].drop(list(not_in_contest), errors="ignore")
    is_contest = column.contest and len(names) - len(not_in_contest) > 1 and not rivals.empty
    # Entries that read the same are equally good: the text decides and not the 15th digit.
    best = number(rivals.min(), decimals, column.sign) if is_contest else ""
    for method, row in cells.items():
      if method not in means:
        row.append(Cell("–"))
        continue
      text = number(means[method], decimals, column.sign)
      spread = "" if math.isnan(sds[method]) else f"± {number(sds[method], decimals)}"
      is_best = text == best and method not in not_in_contest
      is_best = is_best and (marked is None or (method, column.metric) in marked)
      row.append(Cell(text, spread, is_best))
  rows = [Row(names[method], row, colors.get(method, "")) for method, row in cells.items()]
  titles = {column.metric: column.title for column in columns}
  headings = [first, "seeds", *titles.values()]
  return Table(title, headings, rows, focus=titles.get(focus, ""), **texts)
