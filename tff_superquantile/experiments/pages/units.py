"""The units of errors and losses, in which reports write them."""

from __future__ import annotations

from typing import Any, NamedTuple

from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.run import run_folder


class Unit(NamedTuple):
  """The unit of a quantity, whose name begins a sentence.

  `name` is the unit's, as in "in %"; `symbol` is for the titles of axes, in brackets; `suffix`, for
  single numbers, and `change`, the unit of a change, have the space before them. `factor` is from
  the unit of the runs' files to this one; `decimals` are those of single numbers.
  """

  quantity: str
  name: str
  symbol: str
  suffix: str = ""
  change: str = ""
  factor: float = 1.0
  decimals: int = 3

  @property
  def least_span(self) -> float:
    """The least span of an axis, ten points of a hundred, so that one point looks like one."""
    return 0.1 * self.factor

  @property
  def of_changes(self) -> str:
    """Its name in a sentence on changes, "percentage points"."""
    return f"percentage{self.change}" if self.change else self.name

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

  def effect(self, change: float, subject: str) -> str:
    """Says what a change does to a subject: "lowers the mean error by 4.8 points"."""
    if not float(self.number(abs(change))):
      return f"leaves {subject} as it is"
    verb = "lowers" if change < 0 else "raises"
    return f"{verb} {subject} by {self.number(abs(change))}{self.change}"


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
# Of further measures, which are as errors or losses are.
_OF_MEASURES = {
  "balanced_error": PERCENT._replace(quantity="Balanced error"),
  "ranking_error": PERCENT._replace(quantity="Ranking error (1 − AUC)"),
  "calibration_error": PERCENT._replace(quantity="Calibration error"),
}
# Names within sentences, where they are not those in files.
_WORDS = {"mae": "absolute error"}


class Leading(NamedTuple):
  """The measure that a report leads with, that of the runs' --metric, by its name in files."""

  name: str
  unit: Unit

  @property
  def p90(self) -> str:
    """The number of metrics.json that is its tail."""
    return self.metric("p90")

  def metric(self, statistic: str) -> str:
    """Returns the number of metrics.json that is a statistic of it over the test clients."""
    return f"test.{self.name}.{statistic}"

  @property
  def words(self) -> str:
    """Its name within a sentence."""
    return words(self.name)

  @property
  def title(self) -> str:
    """Its name at the beginning of a sentence."""
    return self.words.capitalize()


def words(name: str) -> str:
  """Returns the name of a measure within a sentence."""
  return _WORDS.get(name) or name.replace("_", " ")


def of_measure(name: str, units: Units) -> Unit:
  """Returns the unit of a measure of a task with these units."""
  if name == "mae":  # Of numbers alone.
    error = _UNITS["rmse"].error if units.error == PERCENT else units.error
    return error._replace(quantity="Mean absolute error")
  return _OF_MEASURES.get(name) or {"error": units.error, "loss": units.loss}[name]


def of_error(error: str) -> Units:
  """Returns the units of a task with this error."""
  return _UNITS[error]


def of_run(run: run_folder.Run) -> Units:
  """Returns the units of a run, which say a standard deviation of its labels in their own, too."""
  units, sd = _UNITS[run.error_kind], run.label_sd
  if sd is None or units.error.symbol != "label sd":
    return units
  own = f"{sd:,.0f}" if sd >= 1000 else f"{sd:.3g}"
  own = f"{own} {run.label_unit}".strip()
  error = units.error._replace(name=f"{units.error.name} ({own} each)", symbol=f"label sd of {own}")
  return units._replace(error=error)
