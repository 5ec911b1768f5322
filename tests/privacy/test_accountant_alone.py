"""`pip install .` gives an accountant and auditor that need no TensorFlow."""

import configparser
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from packaging import requirements
import pytest

from privacy import account

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_KEPT = _ROOT / "tests/experiments/kept_results/synthetic"
_UV = shutil.which("uv")
_CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
_COHORTS = ("--population=2500", "--clients_per_round=100", "--num_rounds=1000")
_SPEND = (
  *("spend", *_COHORTS, "--delta=4e-4", "--json"),
  *("--threshold_noise_multiplier=3.2", "--update_noise_multiplier=1.2"),
)
_CALIBRATE = ("calibrate", *_COHORTS, "--epsilon=3", "--rho_ratio=0.5", "--num_bins=64", "--json")


def _run(*command):
  return subprocess.run(
    command, capture_output=True, text=True, cwd="/", env=_CLEAN, timeout=600, check=False
  )


def _declared():
  """Returns the installed distributions that `pip install .` would bring, by what each declares."""
  config = configparser.ConfigParser()
  config.read(_ROOT / "setup.cfg")
  wanted, found = config["options"]["install_requires"].split(), {}
  while wanted:
    requirement = requirements.Requirement(wanted.pop())
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
      continue
    if requirement.name in found:
      continue
    try:
      found[requirement.name] = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:  # scripts/lock.sh leaves it out.
      continue
    wanted += found[requirement.name].requires or ()
  return found.values()


def _links(folder):
  """Returns a Python that finds the packages and what they declare, and nothing else of here."""
  for distribution in _declared():
    for name in {path.parts[0] for path in distribution.files} - {"..", "__pycache__"}:
      if not (folder / name).exists():
        (folder / name).symlink_to(distribution.locate_file(name))
  for package in ("privacy", "tasks", "tff_superquantile"):
    (folder / package).symlink_to(_ROOT / package)
  # Without the site's files (-S), an environment has its standard library alone.
  return ("env", f"PYTHONPATH={folder}", sys.executable, "-S")


def _environment(python, folder):
  """Returns the Python of a fresh environment with the project as `pip install .` leaves it."""
  copy, venv = folder / "project", folder / "venv"
  ignored = shutil.ignore_patterns(".*", "results", "tests", "docs", "benchmarks", "site", "build")
  shutil.copytree(_ROOT, copy, ignore=ignored)
  made = _run(_UV, "venv", "--python", python, venv) if _UV else _run(python, "-m", "venv", venv)
  if made.returncode:
    pytest.skip(f"{python} cannot make an environment: {made.stderr}")
  fresh = venv / "bin/python"
  pip = (_UV, "pip", "install", "--python", fresh) if _UV else (fresh, "-m", "pip", "install")
  result = _run(*pip, "--quiet", copy)
  if result.returncode and re.search("(?i)retrying|connect|resolv(e|ing) host|dns", result.stderr):
    pytest.skip("no package index can be reached")
  assert result.returncode == 0, result.stderr
  return (fresh,)


def _answer(python, *arguments):
  result = _run(*python, "-m", "privacy.account", *arguments)
  assert (result.returncode, result.stderr) == (0, "")
  return result.stdout


def _check(python, capsys):
  code = (
    "import importlib.metadata, json;"
    "print(json.dumps([d.metadata['Name'].lower() for d in importlib.metadata.distributions()]))"
  )
  found = set(json.loads(_run(*python, "-c", code).stdout))
  assert {"dp-accounting", "scipy", "numpy", "absl-py"} <= found
  assert not {"tensorflow", "tensorflow-cpu", "pandas", "matplotlib"} & found and len(found) < 15
  for command in (_SPEND, _CALIBRATE):
    assert account.run(command) == account.SUCCESS
    here, there = json.loads(capsys.readouterr().out), json.loads(_answer(python, *command))
    for name in ("epsilon", "epsilon_rdp", "threshold_noise_multiplier"):
      assert there[name] == pytest.approx(here[name], rel=1e-5), name
  for ledger in _KEPT.glob("*/*/privacy.json"):
    assert "The claim holds." in _answer(python, "audit", ledger.parent)
  # Who wants to train is told what is missing.
  result = _run(*python, "-c", "import tff_superquantile as tsq; tsq.build_fed_avg")
  assert "tff-superquantile[training]" in result.stderr


def test_the_accountant_needs_no_tensorflow(tmp_path, capsys):
  _check(_links(tmp_path), capsys)


@pytest.mark.slow
def test_pip_install_needs_no_tensorflow(tmp_path, capsys):
  _check(_environment(sys.executable, tmp_path), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_so_it_is_with_every_python_that_is_here(version, tmp_path, capsys):
  name = f"python{version}"
  python = _run(_UV, "python", "find", version).stdout.strip() if _UV else shutil.which(name)
  if not python:
    pytest.skip(f"{name} is not here")
  _check(_environment(python, tmp_path), capsys)
