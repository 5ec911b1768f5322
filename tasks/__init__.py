"""Finds tasks: client data, a model and an experiment's defaults under one name.

A task is one file of this package; `task` says how to add one. This package finds them by itself.
"""

import importlib
import pkgutil
import types
import typing

import tff_superquantile as _library  # noqa: F401  It lets TFF in, which tasks import.

# isort: split
from privacy.settings import plugins as _plugins

if typing.TYPE_CHECKING:
  from tasks import task


def __getattr__(name: str) -> types.ModuleType:
  """Imports `task` on first use: it starts TensorFlow, which a `request` does without."""
  if name != "task":
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return importlib.import_module(f"{__name__}.task")


def _find_tasks() -> dict[str, "task.Task"]:
  """Returns every task of every module of this package that defines `TASKS`, by name."""
  tasks = {}
  for module_info in pkgutil.iter_modules(__path__):
    module = importlib.import_module(f"{__name__}.{module_info.name}")
    for task in getattr(module, "TASKS", ()):
      if task.name in tasks:
        raise ValueError(
          f"Found two tasks named {task.name!r}, the second in {module.__name__}; rename one."
        )
      tasks[task.name] = task
  return tasks


def task_names() -> tuple[str, ...]:
  """Returns the names of all tasks, sorted.

  Returns:
    The names.
  """
  return tuple(sorted(_find_tasks()))


def get_task(name: str) -> "task.Task":
  """Returns the task of that name; a `ValueError` names those that there are.

  Args:
    name: The task's name, one of `task_names()` or MODULE:NAME of one from outside.

  Returns:
    The task.

  Raises:
    ValueError: If there is no such task.
  """
  kind = __getattr__("task").Task
  return _plugins.Registry("task", "tasks", kind, _find_tasks(), of_classes=False)[name]
