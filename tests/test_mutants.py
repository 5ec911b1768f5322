"""The faults of mutants.json can be put in: a text that moved leaves a row without a meaning."""

import importlib.util
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("mutants", _ROOT / "tests" / "mutants.py")
mutants = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(mutants)  # The folder of all tests is on no path.
_ROWS = mutants.read()


def test_there_are_many_in_all_rooms():
  rooms = {"/".join(row.file.split("/")[:2]) for row in _ROWS}
  assert len(_ROWS) >= 60
  assert len(rooms) >= 15


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: f"{row.file}: {row.before}"[:90])
def test_the_text_is_in_its_file_once_and_the_tests_are_there(row):
  assert mutants.count(row) == 1
  assert row.after != row.before
  for test in row.tests.split():
    name = test.partition("::")[0]
    assert not name.startswith("tests/") or (_ROOT / name).exists()
