"""Measures of a client's predictions beside error and loss, each a file and a row of `MEASURES`.

In each of them less is better, so that the tail over clients is at large values, as it is for
errors and losses. All are functions of predictions and labels in numpy: importing them starts no
TensorFlow.
"""

from collections.abc import Mapping
import types

from tff_superquantile.measures import balanced_error
from tff_superquantile.measures import calibration_error
from tff_superquantile.measures import mae
from tff_superquantile.measures import measure
from tff_superquantile.measures import ranking_error

# By the names that they have in files and as values of --metric.
MEASURES: Mapping[str, measure.Measure] = types.MappingProxyType(
  {
    row.name: row
    for row in (
      balanced_error.MEASURE,
      ranking_error.MEASURE,
      calibration_error.MEASURE,
      mae.MEASURE,
    )
  }
)
# What every evaluation has of every client.
OF_EVALUATIONS = ("error", "loss")
NAMES = (*OF_EVALUATIONS, *MEASURES)


def of_kind(error: str) -> tuple[str, ...]:
  """Returns the names of the measures of a task by its error.

  Args:
    error: A key of `errors.ERRORS`.

  Returns:
    The names, "error" and "loss" first.
  """
  return (*OF_EVALUATIONS, *(name for name, measure in MEASURES.items() if measure.error == error))


def check(name: str, error: str, task: str) -> None:
  """Raises a `ValueError` if a task has no measure of this name.

  Args:
    name: A value of --metric.
    error: The task's error, a key of `errors.ERRORS`.
    task: The task's name, for the error.

  Raises:
    ValueError: If the task has no such measure.
  """
  if name not in of_kind(error):
    labels = "numbers" if error == measure.NUMBERS else "classes"
    raise ValueError(
      f"Found --metric={name} for {task}, whose labels are {labels}; expected one of"
      f" {', '.join(of_kind(error))}."
    )
