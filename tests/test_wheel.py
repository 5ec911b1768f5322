"""The wheel has what its packages need, and works away from the checkout."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml

import tff_superquantile

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PACKAGES = ("privacy", "tasks", "tff_superquantile")
_NOT_IN_IT = ("paper",)
_BESIDE = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg")
# In one process, as TensorFlow's import takes longer than they do.
_TWO_COMMANDS = """
import sys
from tff_superquantile import commands
flags = [f"--{flag}" for flag in sys.argv[1:]]
sys.exit(commands.main(["train", *flags]) or commands.main(["report", flags[-1]]))
"""
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


def _python(*arguments, **kwargs):
  command = [sys.executable, *map(str, arguments)]
  result = subprocess.run(
    command, capture_output=True, text=True, timeout=600, check=False, **kwargs
  )
  assert result.returncode == 0, result.stderr
  return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A copy: setuptools takes into a wheel whatever an older build has left in build/."""
  folder = tmp_path_factory.mktemp("source")
  for name in (*_PACKAGES, *_NOT_IN_IT):
    shutil.copytree(_ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
  for name in _BESIDE:
    shutil.copy(_ROOT / name, folder)
  return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
  folder = tmp_path_factory.mktemp("wheel")
  files = {
    path.relative_to(source).as_posix()
    for name in _PACKAGES
    for path in (source / name).rglob("*")
    if path.is_file()
  }
  # The environment has the build tools, so that this needs no network.
  _python(*_PIP, "wheel", ".", "--no-deps", "--no-build-isolation", "-w", folder, cwd=source)
  (path,) = folder.glob("*.whl")
  return path, files


def test_has_every_file_of_the_packages(wheel):
  path, files = wheel
  names = set(zipfile.ZipFile(path).namelist())
  assert {name for name in names if ".dist-info/" not in name} == files
  assert {f"{package}/py.typed" for package in _PACKAGES} <= names
  assert "tff_superquantile/experiments/pages/templates/page.md.j2" in names


def test_metadata_are_those_of_the_configuration(wheel):
  archive = zipfile.ZipFile(wheel[0])
  (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
  metadata = archive.read(name).decode().splitlines()
  config = configparser.ConfigParser()
  config.read(_ROOT / "setup.cfg")
  assert f"Version: {tff_superquantile.__version__}" in metadata
  assert config["metadata"]["version"] == tff_superquantile.__version__
  assert "Requires-Python: <3.14,>=3.10" in metadata
  required = [line.split(": ")[1] for line in metadata if line.startswith("Requires-Dist: ")]
  names = {re.match(r"[\w-]+", line)[0] for line in required if "extra ==" not in line}
  assert names == {"dp-accounting", "numpy", "scipy"}  # The accountant's.
  assert 'tensorflow<2.22,>=2.19; extra == "training"' in required
  # No resolver could have them.
  assert not any("tensorflow-federated" in line for line in required)


def test_version_is_the_same_everywhere():
  version = tff_superquantile.__version__
  citation = yaml.safe_load((_ROOT / "CITATION.cff").read_text(encoding="utf-8"))
  assert citation["version"] == version
  assert citation["preferred-citation"]["doi"] == "10.1007/s10994-023-06332-x"
  heading = "Unreleased\n" if ".dev" in version else f"{version} - "
  assert f"\n## {heading}" in (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_dockerfile_copies_what_is_there_and_not_ignored():
  dockerfile = (_ROOT / "Dockerfile").read_text(encoding="utf-8")
  copied = set()
  for line in re.findall(r"^COPY (.+) \S+$", dockerfile, flags=re.MULTILINE):
    copied.update(line.split())
  kept = (_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
  assert copied == {line[1:] for line in kept if line.startswith("!")}
  assert all((_ROOT / name).exists() for name in copied)
  assert {*_PACKAGES, *_NOT_IN_IT, *_BESIDE} <= copied


def test_works_away_from_the_checkout(wheel, tmp_path):
  site = tmp_path / "site"
  _python(*_PIP, "install", "--no-deps", "--target", site, wheel[0])
  environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
  code = f"for name in {_PACKAGES}: print(__import__(name).__file__)"
  paths = _python("-c", code, cwd=tmp_path, env=environment).splitlines()
  assert len(paths) == len(_PACKAGES) and all(path.startswith(str(site)) for path in paths)
  # This Python knows the checkout, too: as if it did not.
  alone = (
    "import runpy, sys; sys.modules['paper'] = None;"
    " runpy.run_module('tff_superquantile.experiments.sweep', run_name='__main__', alter_sys=True)"
  )
  command = [sys.executable, "-c", alone, "--experiment=model_family"]
  result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
  assert result.returncode == 2
  assert result.stderr == (
    "Error: Found no module paper.studies.model_family, which makes a page of"
    " --experiment=model_family; expected a clone of the project, where it is beside the"
    " library.\n"
  )
  run = "task=synthetic algorithm=fed_avg num_rounds=2 cache_dir=cache output_dir=results"
  _python("-c", _TWO_COMMANDS, *run.split(), cwd=tmp_path, env=environment)
  assert "FedAvg" in (tmp_path / "results/synthetic/report.md").read_text()
