"""A table of the user's own: a row an example, a column that says whose it is.

`features` says how columns become numbers, and an `encoding` what they became, which a run keeps:
what reads the rows of a later table by it needs no TensorFlow. `own_task` is the task.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
  """Returns the `TASKS` of `own_task`, which starts TensorFlow."""
  if name != "TASKS":
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return importlib.import_module(f"{__name__}.own_task").TASKS
