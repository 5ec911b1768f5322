"""All that this project logs is under one name: logging.getLogger("tff_superquantile")."""

import ast
import logging
import pathlib
import uuid

import pytest

from tff_superquantile.engine.cohort.graphs import errors

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_NAME = "tff_superquantile"
_MODULES = [path for name in (_NAME, "tasks", "privacy") for path in (_ROOT / name).rglob("*.py")]
# The command line shows the warnings of all libraries, as absl formats them.
_SHOWS_ALL = "tff_superquantile/experiments/cli.py"


def _loggers(path):
  """Yields the logger that each call of a module logs to; "absl" for absl's functions."""
  tree = ast.parse(path.read_text(encoding="utf-8"))
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module == "absl":
      yield from ("absl" for alias in node.names if alias.name == "logging")
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
      (name,) = node.args
      if isinstance(name, ast.Name) and name.id == "__name__":
        yield ".".join(path.relative_to(_ROOT).with_suffix("").parts)
      else:
        yield name.value if isinstance(name, ast.Constant) else _NAME


def test_every_logger_is_below_that_of_the_package():
  found = {str(path.relative_to(_ROOT)): list(_loggers(path)) for path in _MODULES}
  assert found.pop(_SHOWS_ALL) == ["absl"]
  names = [name for of_module in found.values() for name in of_module]
  assert len(names) > 15
  assert {name.partition(".")[0] for name in names} == {_NAME}


def test_a_handler_of_the_package_gets_what_its_modules_say(caplog):
  message = f"Found %d of {uuid.uuid4()}"  # Said once in a process.
  with caplog.at_level(logging.WARNING, logger=_NAME):
    for number in (1, 2):
      errors.warn_once(logging.getLogger(errors.__name__), message, number)
  (record,) = caplog.records
  assert record.getMessage() == message % 1
  assert record.name.startswith(f"{_NAME}.") and record.levelno == logging.WARNING


@pytest.mark.parametrize("level, is_heard", [(logging.ERROR, False), (logging.INFO, True)])
def test_one_line_makes_it_silent_or_talkative(level, is_heard, caplog):
  with caplog.at_level(level, logger=_NAME):
    logging.getLogger("tff_superquantile.tasks").info("Reading.")
  assert bool(caplog.records) == is_heard
