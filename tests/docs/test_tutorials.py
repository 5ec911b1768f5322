"""The notebooks run from top to bottom, in Jupyter's kernel, to the outputs that are committed."""

import ast
import importlib
import os
import pathlib
import types

from helpers import notebooks
import nbclient
import nbformat
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTEBOOKS = sorted(notebooks.TUTORIALS.glob("*.ipynb"))
_MAX_BYTES = 400_000
_OURS = ("tff_superquantile", "tasks", "privacy")


def _without_commands(source):
  """The Python of a cell, without what is the shell's and Jupyter's."""
  lines = source.splitlines()
  return "\n".join(line for line in lines if not line.lstrip().startswith(("!", "%")))


def _member(module, name):
  """An attribute of a module, or a module in it."""
  try:
    return getattr(module, name)
  except AttributeError:
    return importlib.import_module(f"{module.__name__}.{name}")


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_outputs_are_of_one_clean_run(path):
  assert path.stat().st_size < _MAX_BYTES
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  cells = notebooks.code_cells(notebook)
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  assert any("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs)
  for output in (output for cell in cells for output in cell.outputs):
    assert output.output_type != "error"
    assert output.get("name") != "stderr", output["text"]


@pytest.mark.slow
@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_to_the_committed_outputs(path, tmp_path, monkeypatch):
  monkeypatch.setenv("PYTHONPATH", f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
  # Settings of whoever runs the tests, and of the machine's other kernels, don't count.
  monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
  committed = nbformat.read(path, as_version=4)
  executed = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    executed,
    timeout=600,
    startup_timeout=600,
    kernel_name="python3",
    resources={"metadata": {"path": str(tmp_path)}},
  )
  client.execute()
  notebooks.assert_alike(executed, committed)


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_takes_from_our_modules_is_there(path):
  cells = notebooks.code_cells(nbformat.read(path, as_version=4))
  code = "".join(f"{_without_commands(cell.source)}\n" for cell in cells)
  modules, hidden, names = {}, set(), 0
  for node in ast.walk(ast.parse(code)):
    if isinstance(node, ast.Import):
      for alias in node.names:
        if alias.asname and alias.name.split(".")[0] in _OURS:
          modules[alias.asname] = importlib.import_module(alias.name)
    elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in _OURS:
      for alias in node.names:
        found = _member(importlib.import_module(node.module), alias.name)
        modules[alias.asname or alias.name] = found
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      hidden.add(node.id)
  for node in ast.walk(ast.parse(code)):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      module = modules.get(node.value.id)
      if isinstance(module, types.ModuleType) and node.value.id not in hidden:
        assert hasattr(module, node.attr), ast.unparse(node)
        names += 1
  assert names or path.stem == "colab"


@pytest.mark.parametrize(
  "text,alike",
  [("mean 20.1 %", True), ("mean 35.0 %", False), ("median 20.1 %", False), ("mean 20.1", False)],
)
def test_outputs_are_compared_by_words_and_numbers(text, alike):
  if alike:
    notebooks.assert_texts_alike(text, "mean 20.0 %")
  else:
    with pytest.raises(AssertionError):
      notebooks.assert_texts_alike(text, "mean 20.0 %")
