"""The second command of an installation: what pip is asked for, and what its failures become."""

import pathlib
import subprocess
import sys
import types

import pytest

from privacy.settings import command_line
from tff_superquantile import commands
from tff_superquantile import install_tff
from tff_superquantile import stack

_NAMES = [package.partition("==")[0] for package in install_tff.PACKAGES]


@pytest.fixture
def pip(monkeypatch, tmp_path):
  """Notes pip's calls, answers as told, and takes a folder for this Python's packages."""
  found = types.SimpleNamespace(calls=[], code=0, err="", there={}, folder=tmp_path)

  def version(name):
    if name not in found.there:
      raise install_tff.metadata.PackageNotFoundError(name)
    return found.there[name]

  def run(command, **kwargs):
    found.calls.append(command)
    return subprocess.CompletedProcess(command, found.code, "", found.err)

  monkeypatch.setattr(install_tff.metadata, "version", version)
  monkeypatch.setattr(install_tff.subprocess, "run", run)
  monkeypatch.setattr(install_tff.sysconfig, "get_path", lambda name: str(found.folder))
  return found


def test_only_what_is_missing_is_installed_without_what_it_declares(pip, capsys):
  pip.there = {_NAMES[0]: "0.87.0", _NAMES[1]: "0.8.0"}  # The second is another version.
  assert commands.main(["install_tff"]) == 0
  ((python, *arguments),) = pip.calls
  assert python == sys.executable and arguments[:2] == ["-m", "pip"]
  assert arguments[-2:] == list(install_tff.PACKAGES[1:])
  assert {"--no-deps", "--ignore-requires-python"} <= set(arguments)
  assert "in red" in capsys.readouterr().out
  assert (pip.folder / "tff_superquantile_stack.pth").is_file()


def test_where_all_is_there_it_needs_no_pip(pip, capsys, monkeypatch):
  monkeypatch.setattr(install_tff.importlib.util, "find_spec", lambda name: None)
  pip.there = dict(package.split("==") for package in install_tff.PACKAGES)
  for _ in range(2):
    assert install_tff.main(None) == 0 and pip.calls == []
  assert "in red" not in capsys.readouterr().out
  pip.there = {}
  assert install_tff.main(None) == 1
  assert "Error: Found no pip in" in capsys.readouterr().err


@pytest.mark.parametrize(
  "said, told",
  [
    ("WARNING: x\nERROR: No matching distribution found for y\n", "(No matching distribution"),
    ("", "(exit status 1)"),
  ],
)
def test_a_failure_of_pips_is_one_sentence_and_prepares_nothing(pip, capsys, said, told):
  pip.code, pip.err = 1, said
  assert install_tff.main(None) == 1
  out, err = capsys.readouterr()
  assert err.startswith("Error: Found that pip cannot install them ") and told in err
  assert err.count("\n") == 1 and "can be imported" not in out
  assert list(pip.folder.iterdir()) == []


def test_an_environment_that_cannot_be_written_is_one_sentence(pip, capsys):
  pip.folder = pathlib.Path("/dev/null")
  assert install_tff.main(None) == 1
  assert "cannot be written (Not a directory)" in capsys.readouterr().err


def test_it_prepares_what_the_package_prepares(pip):
  pip.there = dict(package.split("==") for package in install_tff.PACKAGES)
  install_tff.main(None)
  made = (pip.folder / "tff_superquantile_stack.py").read_text()
  pip.folder.joinpath("other").mkdir()
  stack.install_at_start(str(pip.folder / "other"))
  assert made == (pip.folder / "other/tff_superquantile_stack.py").read_text()
  assert commands.main(["install_tff", "x"]) == command_line.USAGE_ERROR
