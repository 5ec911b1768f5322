"""The units of errors and losses, in which reports write them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import run_folder


class Unit(NamedTuple):
  """The unit of a quantity.

  Attributes:
    quantity: The name of the quantity, to begin a sentence.
    name: The name of the unit, as in "in %".
    symbol: The same for the titles of axes, in brackets.
    suffix: For single numbers, with the space before it.
    change: The unit of a change, with the space before it.
    factor: From the unit of the runs' files to this one.
    decimals: The decimals of single numbers.
  """

  quantity: str
  name: str
  symbol: str
  suffix: str = ""
  change: str = ""
  factor: float = 1.0
  decimals: int = 3

  def axis(self, title: str) -> str:
    """Returns the title of an axis of a quantity in this unit."""
    return f"{title} ({self.symbol})"

  def column(self, metric: str, title: str, **texts: Any) -> tables.Column:
    """Returns the column of a table with a metric in this unit."""
    return tables.Column(metric, title, self.factor, self.decimals, **texts)

  def number(self, value: float, sign: bool = False) -> str:
    """Formats a value without its unit."""
    return tables.number(self.factor * value, self.decimals, sign)

  def text(self, value: float) -> str:
    """Formats a value, for example "12.3 %"."""
    return f"{self.number(value)}{self.suffix}"

  def points(self, changes: pd.Series, sign: bool = True) -> str:
    """Formats changes as mean and sd over seeds, without their unit: "−4.8 ± 1.1"."""
    text = self.number(changes.mean(), sign)
    return text if len(changes) == 1 else f"{text} ± {self.number(changes.std())}"

  def effect(self, changes: pd.Series, subject: str = "it") -> str:
    """Says what changes of a subject do to it: "lowers it by 4.8 ± 1.1 points"."""
    if not float(self.number(abs(changes.mean()))):
      return f"leaves {subject} as it is"
    verb, sizes = ("lowers", -changes) if changes.mean() < 0 else ("raises", changes)
    return f"{verb} {subject} by {self.points(sizes, sign=False)}{self.change}"


class Units(NamedTuple):
  """The units of a client's error and loss."""

  error: Unit
  loss: Unit


PERCENT = Unit("Misclassification error", "%", "%", " %", " points", 100.0, 1)
# By the error of a task, a key of `tff_superquantile.evaluation.errors.ERRORS`.
_UNITS = {
  "misclassification": Units(PERCENT, Unit("Cross-entropy", "nats", "nats")),
  # Labels that are numbers are standardised.
  "rmse": Units(
    Unit("Root mean squared error", "standard deviations of the labels", "label sd"),
    Unit("Half the squared error", "variances of the labels", "label var."),
  ),
}


def of_error(error: str) -> Units:
  """Returns the units of a task with this error."""
  return _UNITS[error]


def of_run(run: run_folder.Run) -> Units:
  """Returns the units of a run."""
  return _UNITS[run.error_kind]


def of(groups: run_folder.Groups) -> Units:
  """Returns the units of runs of one task."""
  return of_run(next(run for runs in groups.values() for run in runs))
