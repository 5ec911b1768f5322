"""`pip install .` gives an accountant and auditor that need no TensorFlow."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_KEPT = _ROOT / "tests/experiments/kept_results/synthetic"
_RUN = _KEPT / "superquantile_theta_0.5_tree_epsilon_20/seed_0"
_OTHERS = [
  name for name in ("python3.10", "python3.11", "python3.12", "python3.13") if shutil.which(name)
]


def _environment(python, folder):
  """A fresh environment with the project as `pip install .` leaves it."""
  copy = folder / "project"
  ignored = shutil.ignore_patterns(".*", "results", "tests", "docs", "benchmarks", "site", "build")
  shutil.copytree(_ROOT, copy, ignore=ignored)
  if subprocess.run([python, "-m", "venv", folder / "venv"], capture_output=True).returncode:
    pytest.skip(f"{python} cannot make an environment")
  command = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", copy]
  result = subprocess.run(command, capture_output=True, text=True, timeout=400)
  if "Retrying" in result.stderr or "connection" in result.stderr.lower():
    pytest.skip("no package index can be reached")
  assert result.returncode == 0, result.stderr
  return folder / "venv/bin/python"


def _answer(python, *arguments):
  clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
  command = [python, "-m", "privacy.account", *arguments]
  result = subprocess.run(command, capture_output=True, text=True, cwd="/", env=clean, timeout=120)
  assert (result.returncode, result.stderr) == (0, "")
  return result.stdout


_SPEND = (
  *("spend", "--population=2500", "--clients_per_round=100", "--num_rounds=1000", "--json"),
  *("--threshold_noise_multiplier=3.2", "--update_noise_multiplier=1.2", "--delta=4e-4"),
)


def _check(python):
  listed = [python, "-m", "pip", "list", "--format=json"]
  found = {one["name"] for one in json.loads(subprocess.check_output(listed, text=True))}
  assert {"dp-accounting", "scipy", "numpy", "absl-py"} <= found
  assert not {"tensorflow", "tensorflow-cpu", "pandas", "matplotlib"} & found and len(found) < 15
  here = _answer(sys.executable, *_SPEND)
  there = json.loads(_answer(python, *_SPEND))
  assert there["epsilon"] == pytest.approx(json.loads(here)["epsilon"], rel=1e-9)
  assert "noise" in _answer(
    python,
    "calibrate",
    "--epsilon=3",
    "--population=2500",
    "--clients_per_round=100",
    "--num_rounds=1000",
    "--rho_ratio=0.5",
    "--num_bins=64",
  )
  clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
  result = subprocess.run(
    [python, "-m", "privacy.account", "audit", _RUN], capture_output=True, text=True, env=clean
  )
  expected = subprocess.run(
    [sys.executable, "-m", "privacy.account", "audit", _RUN],
    capture_output=True,
    text=True,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
  )
  assert (result.returncode, result.stdout) == (expected.returncode, expected.stdout)
  # Who wants to train is told what is missing.
  code = "import tff_superquantile as tsq; tsq.build_fed_avg"
  result = subprocess.run([python, "-c", code], capture_output=True, text=True, env=clean, cwd="/")
  assert "tff-superquantile[training]" in result.stderr


def test_the_accountant_needs_no_tensorflow(tmp_path):
  _check(_environment(sys.executable, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("python", _OTHERS)
def test_so_it_is_with_every_python_that_is_here(python, tmp_path):
  _check(_environment(python, tmp_path))
