"""What tests of notebooks share: what cells have printed, and whether that is what is committed."""

import math
import pathlib
import re

TUTORIALS = pathlib.Path(__file__).resolve().parents[2] / "docs/tutorials"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
# Another processor rounds otherwise, and rounds of training make that visible.
_TOLERANCE = dict(rel_tol=0.1, abs_tol=0.01)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _text(cell):
  """What a cell has printed, or its value as text, but not the text that stands for a picture."""
  parts = []
  for output in cell.outputs:
    data = output.get("data", {})
    if "image/png" not in data and "image/svg+xml" not in data:
      parts.append(output.get("text", "") or data.get("text/plain", ""))
  return "".join(parts)


def assert_texts_alike(text, committed):
  """The same words, and about the same numbers."""
  assert _NUMBER.sub("0", text).split() == _NUMBER.sub("0", committed).split()
  for a, b in zip(_NUMBER.findall(text), _NUMBER.findall(committed)):
    assert math.isclose(float(a), float(b), **_TOLERANCE), f"{text}\ninstead of\n{committed}"


def assert_alike(executed, committed):
  """Every cell has printed what the committed one has."""
  for cell, before in zip(code_cells(executed), code_cells(committed), strict=True):
    assert_texts_alike(_text(cell), _text(before))
