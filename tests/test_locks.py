"""The locks have what the metadata ask for, and hosts of code are told what is there."""

import configparser
import pathlib
import re

from packaging import requirements
import pytest
import yaml

from tff_superquantile import install_tff

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def _locked(name):
  """The requirements of a lock, and the hashes of each."""
  lines = (_ROOT / name).read_text().splitlines()
  text = "\n".join(line for line in lines if not line.startswith("#"))
  entries = [re.split(r" \\\n +--hash=sha256:", entry) for entry in re.split(r"\n(?! )", text)]
  return [(requirements.Requirement(first), hashes) for first, *hashes in entries]


_LOCKS = ("requirements.lock", "requirements-dev.lock")
# The first of each, and those between which the locks may make a difference.
_PYTHONS = ("3.10.0", "3.10.99", "3.11.0", "3.11.4", "3.11.5", "3.12.0", "3.12.99", "3.13.0")


def _versions(lock, python):
  """What a lock has for a Python."""
  environment = {"python_full_version": python}
  return {
    requirement.name: next(iter(requirement.specifier)).version
    for requirement, _ in _locked(lock)
    if requirement.marker is None or requirement.marker.evaluate(environment)
  }


@pytest.mark.parametrize("lock", _LOCKS)
def test_locks_have_exact_versions_with_hashes_in_order(lock):
  locked = _locked(lock)
  for requirement, hashes in locked:
    assert [specifier.operator for specifier in requirement.specifier] == ["=="]
    assert set(re.findall("[a-z_]{3,}", str(requirement.marker or ""))) <= {
      "python_full_version",
      "and",
    }
    assert hashes and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes)
  names = [requirement.name for requirement, _ in locked]
  assert names == sorted(names)
  for python in _PYTHONS:
    environment = {"python_full_version": python}
    applicable = [r.name for r, _ in locked if r.marker is None or r.marker.evaluate(environment)]
    assert len(applicable) == len(set(applicable))


@pytest.mark.parametrize("python", _PYTHONS)
def test_locks_have_what_the_metadata_ask_for(python):
  config = configparser.ConfigParser()
  config.read(_ROOT / "setup.cfg")
  extras = config["options.extras_require"]
  experiments, tests = (_versions(lock, python) for lock in _LOCKS)
  assert not experiments.keys() & tests.keys()
  experiments["tensorflow"] = experiments["tensorflow-cpu"]  # scripts/lock.sh says why.
  assert len(install_tff.PACKAGES) == 3
  for name, version in (package.split("==") for package in install_tff.PACKAGES):
    assert experiments[name] == version
  everything = {**experiments, **tests}
  for text, versions in (
    (config["options"]["install_requires"], experiments),
    (extras["training"], experiments),
    (extras["dev"], everything),
  ):
    for requirement in map(requirements.Requirement, text.split()):
      assert versions[requirement.name] in requirement.specifier


# What hosts of code read.


def test_the_workflow_and_the_hooks_name_what_is_there():
  workflow = yaml.safe_load((_ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
  jobs = workflow["jobs"]
  classifiers = (_ROOT / "setup.cfg").read_text(encoding="utf-8")
  pythons = re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
  assert jobs["tests"]["strategy"]["matrix"]["python"] == pythons
  commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
  files = {name.lstrip("/") for name in re.findall(r"[\w/-]+\.(?:sh|lock)", commands)}
  locks = {"requirements.lock", "requirements-dev.lock"}
  assert files == {"run_tests.sh", "scripts/build_docs.sh", *locks}
  hooks = yaml.safe_load((_ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
  (local,) = hooks["repos"]  # Versions are those of the locks alone.
  checks = (_ROOT / "run_tests.sh").read_text(encoding="utf-8")
  for hook in local["hooks"]:
    assert f'"$VENV/bin/python" {hook["entry"].partition(" ")[2]}' in checks
  for form in (_ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"):
    fields = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= fields.keys()
  assert (_ROOT / "SECURITY.md").is_file()
