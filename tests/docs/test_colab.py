"""The notebook for Colab installs what it needs, and runs, where only Colab's packages are."""

import os
import pathlib
import shutil
import subprocess

from helpers import notebooks
import nbclient
import nbformat
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTEBOOK = notebooks.TUTORIALS / "colab.ipynb"
_PACKAGES = pathlib.Path(__file__).parent / "colab-2026.01.txt"
_SECONDS = 900
_OFFLINE = ("Retrying", "dns error", "error sending request", "Network unreachable")
# None of Colab's own packages may change but these: other packages there were made for the rest.
_REPLACED = {"attrs", "wrapt"}
_ADDED = {
  *("dp-accounting", "tff-superquantile"),
  *("tensorflow-federated", "tensorflow-model-optimization", "tensorflow-privacy"),
}


def _run(*command, **kwargs):
  result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, **kwargs)
  if result.returncode and any(sign in result.stderr for sign in _OFFLINE):
    pytest.skip("no package index can be reached")
  assert result.returncode == 0, result.stderr
  return result.stdout


def _versions(python):
  lines = _run(python, "-m", "pip", "list", "--format=freeze").split()
  pairs = (line.lower().replace("_", "-").split("==") for line in lines)
  return {name: version for name, version in pairs}


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
  """A folder with the project, and with a Python 3.12 that has Colab's packages alone."""
  folder = tmp_path_factory.mktemp("colab")
  uv, python = shutil.which("uv"), shutil.which("python3.12")
  here = folder / "env/bin/python"
  if uv is not None:
    found = subprocess.run(
      [uv, "venv", "--seed", "--python=3.12", folder / "env"], capture_output=True
    )
    install = [uv, "pip", "install", f"--python={here}"]
  elif python is not None:
    found = subprocess.run([python, "-m", "venv", folder / "env"], capture_output=True)
    install = [here, "-m", "pip", "install"]
  if (uv is None and python is None) or found.returncode:
    pytest.skip("there is no Python 3.12")
  _run(*install, "--quiet", "-r", _PACKAGES)
  # The reader's checkout, without what is of this machine.
  ignored = shutil.ignore_patterns(".*", "results", "tests", "site", "build")
  shutil.copytree(_ROOT, folder / "tff_superquantile", ignore=ignored)
  return folder


@pytest.mark.slow
def test_the_notebook_runs_there(colab, monkeypatch):
  for name in ("PYTHONPATH", "TF_USE_LEGACY_KERAS", "VIRTUAL_ENV"):
    monkeypatch.delenv(name, raising=False)
  python = colab / "env/bin/python"
  before = _versions(python)
  monkeypatch.setenv("IPYTHONDIR", str(colab / "ipython"))
  _run(python, "-m", "ipykernel", "install", "--name=colab", f"--prefix={colab}")
  monkeypatch.setenv("JUPYTER_PATH", str(colab / "share/jupyter"))
  committed = nbformat.read(_NOTEBOOK, as_version=4)
  executed = nbformat.read(_NOTEBOOK, as_version=4)
  nbclient.NotebookClient(
    executed, timeout=_SECONDS, kernel_name="colab", resources={"metadata": {"path": str(colab)}}
  ).execute()
  for output in (output for cell in executed.cells for output in cell.get("outputs", ())):
    # What an index or a proxy has pip say is of this machine.
    assert output.get("name") != "stderr" or "Traceback" not in output["text"], output["text"]
  notebooks.assert_alike(executed, committed)
  after = _versions(python)
  assert after.keys() - before.keys() == _ADDED
  assert {name for name in before if after[name] != before[name]} == _REPLACED
  # The install cell lets TFF in for every later Python of this environment, in any order.
  quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
  for first, second in (
    ("tensorflow_federated", "tff_superquantile"),
    ("tff_superquantile", "tensorflow_federated"),
  ):
    code = f"import {first}, {second}; print(tensorflow_federated.__version__)"
    assert _run(python, "-c", code, env=quiet, cwd="/") == "0.87.0\n"
