"""The notebook for Colab installs what it needs, and runs, where only Colab's packages are."""

import os
import pathlib
import shutil
import subprocess

import nbclient
import nbformat
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTEBOOK = _ROOT / "docs/tutorials/colab.ipynb"
_PACKAGES = pathlib.Path(__file__).parent / "colab-2026.01.txt"
_SECONDS = 900


def _run(*command, **kwargs):
  result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, **kwargs)
  if "Retrying" in result.stderr or "dns error" in result.stderr:
    pytest.skip("no package index can be reached")
  assert result.returncode == 0, result.stderr
  return result.stdout


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
  """A Python 3.12 with Colab's packages alone."""
  folder = tmp_path_factory.mktemp("colab")
  uv = shutil.which("uv")
  python = shutil.which("python3.12")
  if uv is not None:
    found = subprocess.run([uv, "venv", "--seed", "--python=3.12", folder / "env"])
  elif python is not None:
    found = subprocess.run([python, "-m", "venv", folder / "env"], capture_output=True)
  if (uv is None and python is None) or found.returncode:
    pytest.skip("there is no Python 3.12")
  here = folder / "env/bin/python"
  if uv is not None:
    _run(uv, "pip", "install", "--quiet", f"--python={here}", "-r", _PACKAGES)
  else:
    _run(here, "-m", "pip", "install", "--quiet", "-r", _PACKAGES)
  # The reader's checkout, without what is of this machine.
  ignored = shutil.ignore_patterns(".*", "results", "tests", "site", "build")
  shutil.copytree(_ROOT, folder / "tff_superquantile", ignore=ignored)
  return folder


def _text(cell):
  return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.slow
def test_the_notebook_runs_there(colab, monkeypatch):
  for name in ("PYTHONPATH", "TF_USE_LEGACY_KERAS", "VIRTUAL_ENV"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("IPYTHONDIR", str(colab / "ipython"))
  _run(colab / "env/bin/python", "-m", "ipykernel", "install", "--name=colab", f"--prefix={colab}")
  monkeypatch.setenv("JUPYTER_PATH", str(colab / "share/jupyter"))
  committed = nbformat.read(_NOTEBOOK, as_version=4)
  executed = nbformat.read(_NOTEBOOK, as_version=4)
  nbclient.NotebookClient(
    executed, timeout=_SECONDS, kernel_name="colab", resources={"metadata": {"path": str(colab)}}
  ).execute()
  words = [
    [_text(cell).split() for cell in notebook.cells if cell.cell_type == "code"]
    for notebook in (executed, committed)
  ]
  assert [[w for w in cell if w.isalpha()] for cell in words[0]] == [
    [w for w in cell if w.isalpha()] for cell in words[1]
  ]
  # NumPy is Colab's own, of which other packages there are made.
  assert "numpy==2.0.2" in _run(colab / "env/bin/python", "-m", "pip", "freeze")
  # Afterwards any order will do in this environment.
  _run(colab / "env/bin/python", "-m", "tff_superquantile.stack", cwd="/")
  clean = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
  code = "import tensorflow_federated as tff, tff_superquantile; print(tff.__version__)"
  assert _run(colab / "env/bin/python", "-c", code, env=clean, cwd="/") == "0.87.0\n"
