"""The notebooks run from top to bottom, in Jupyter's kernel, to the outputs that are committed."""

import os
import pathlib

import nbclient
import nbformat
import notebooks
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTEBOOKS = sorted(notebooks.TUTORIALS.glob("*.ipynb"))
_MAX_BYTES = 400_000


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


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_to_the_committed_outputs(path, tmp_path, monkeypatch):
  monkeypatch.setenv("PYTHONPATH", f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
  # Settings of whoever runs the tests, and of the machine's other kernels, don't count.
  monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
  committed = nbformat.read(path, as_version=4)
  executed = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    executed, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
  )
  client.execute()
  notebooks.assert_alike(executed, committed)


def test_there_are_seven():
  assert len(_NOTEBOOKS) == 7


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
