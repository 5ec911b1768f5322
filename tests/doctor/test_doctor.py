"""The doctor: each check driven to its failure, what is reported, and a real run."""

import argparse
import ast
import importlib.metadata
import pathlib
import re
import signal
import subprocess
import sys

from helpers import commands
import pytest

from privacy.settings import command_line
from tff_superquantile.doctor import __main__ as doctor
from tff_superquantile.doctor import machine
from tff_superquantile.experiments.config import run_config

_LOCK = r"""# gamma==4.0
alpha==2.0 \
    --hash=sha256:0123 \
    --hash=sha256:4567
beta==3.0.post1 ; python_full_version < '3.10' \
    --hash=sha256:89ab
zeta==0.9 ; python_full_version >= '3.9' and python_full_version < '3.10' \
    --hash=sha256:cdef
zeta==1.0 ; python_full_version >= '3.10' \
    --hash=sha256:cdef
"""
_SECONDS = 120  # Of patience, not of duration.


def _assert_finding(finding, status, *parts):
  """A finding that says these things; a problem is a sentence and has a remedy."""
  assert finding.status == status, finding
  for part in parts:
    assert part in f"{finding.state}\n{finding.remedy}"
  if status == "FAIL":
    assert re.match(r"Found .*\.", finding.state) and finding.remedy
  if status == "ok":
    assert not finding.remedy


def test_python(monkeypatch):
  _assert_finding(machine.check_python(), "ok", "CPython 3.", sys.executable)
  for version in ((3, 9, 1), (3, 14, 0)):
    monkeypatch.setattr(sys, "version_info", version)
    _assert_finding(machine.check_python(), "FAIL", "3.10, 3.11, 3.12, 3.13", "PYTHON=")
  monkeypatch.setattr(sys, "version_info", (3, 10, 1))
  monkeypatch.setattr("platform.python_implementation", lambda: "PyPy")
  _assert_finding(machine.check_python(), "FAIL", "Found PyPy")


def test_wanted_versions_are_those_of_the_set_up():
  config = (commands.ROOT / "setup.cfg").read_text()
  least, most = machine.PYTHONS[0], machine.PYTHONS[-1]
  wanted = f"python_requires = >={least[0]}.{least[1]},<{most[0]}.{most[1] + 1}\n"
  assert wanted in config
  script = (commands.ROOT / "scripts/venv.sh").read_text()
  assert f"_MIN_GLIBC_MINOR={machine.MIN_GLIBC[1]}\n" in script


@pytest.mark.parametrize(
  "system, processor, library, status, part",
  [
    ("Linux", "x86_64", ("glibc", "2.31"), "ok", "Linux x86_64, glibc 2.31"),
    ("Darwin", "arm64", ("glibc", "2.31"), "FAIL", "Found Darwin arm64"),
    ("Linux", "x86_64", ("glibc", "2.28"), "FAIL", "glibc 2.31"),
    ("Linux", "x86_64", ("", ""), "FAIL", "another"),
  ],
)
def test_platform(monkeypatch, system, processor, library, status, part):
  for name, value in (("system", system), ("machine", processor), ("libc_ver", library)):
    monkeypatch.setattr(f"platform.{name}", lambda value=value: value)
  _assert_finding(machine.check_platform(), status, part)


def test_folder(tmp_path, monkeypatch):
  def check(path):
    return machine.check_folder("results", str(path), "--output_dir=DIR")

  _assert_finding(check(tmp_path / "new/one"), "ok", f"GB free for {tmp_path}/new/one")
  assert list(tmp_path.iterdir()) == []

  (tmp_path / "file").touch()
  _assert_finding(check(tmp_path / "file/one"), "FAIL", "Not a directory", "--output_dir=DIR")

  usage = dict(total=10**12, used=0)
  for free, status in ((5 * 10**8, "note"), (10**7, "FAIL")):
    fake = type("Usage", (), dict(usage, free=free))
    monkeypatch.setattr("shutil.disk_usage", lambda path, fake=fake: fake)
    _assert_finding(check(tmp_path), status, "GB free", "Make room", "--output_dir=DIR")

  def refuse(dir):
    raise PermissionError(13, "Permission denied")

  monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # Root may write everywhere.
  _assert_finding(check(tmp_path), "FAIL", "Permission denied", "--output_dir=DIR")


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """A lock, and {name: version} of what is installed, as it says."""
  versions = {"zeta": "1.0", "alpha": "2.0+cpu", "other": "9"}

  def version(name):
    if name not in versions:
      raise importlib.metadata.PackageNotFoundError(name)
    return versions[name]

  monkeypatch.setattr(importlib.metadata, "version", version)
  monkeypatch.setattr(machine, "_LOCK", tmp_path / "requirements.lock")
  (tmp_path / "requirements.lock").write_text(_LOCK)
  return versions


def test_packages_are_compared_with_the_lock(installed):
  _assert_finding(machine.check_packages(), "ok", "all 2 of requirements.lock")
  del installed["zeta"]
  installed["alpha"] = "2.1"
  remedy = f"{machine._PIP} alpha==2.0 zeta==1.0"
  parts = ("Found alpha 2.1 (not ==2.0), zeta missing;", remedy)
  _assert_finding(machine.check_packages(), "FAIL", *parts)
  installed["zeta"] = None  # A folder of metadata without a file in it.
  _assert_finding(machine.check_packages(), "FAIL", *parts)


def test_tensorflow_with_and_without_gpus_is_the_same(installed, tmp_path):
  for wanted, other in (("tensorflow-cpu", "tensorflow"), ("tensorflow", "tensorflow-cpu")):
    (tmp_path / "requirements.lock").write_text(f"{wanted}==2.21.0 \\\n")
    _assert_finding(machine.check_packages(), "FAIL", f"{wanted} missing")
    installed[other] = "2.20.0"
    _assert_finding(machine.check_packages(), "FAIL", f"{wanted} 2.20.0 (not ==2.21.0)")
    installed[other] = "2.21.0"
    _assert_finding(machine.check_packages(), "ok")
    del installed[other]


def test_without_a_checkout_versions_are_those_of_the_metadata(installed, monkeypatch, tmp_path):
  (tmp_path / "requirements.lock").unlink()
  declared = ["zeta>=1", 'alpha<3,>=1.9; extra == "training"', 'pytest>=8; extra == "dev"']
  monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)
  _assert_finding(machine.check_packages(), "ok", "all 2 of")
  installed["alpha"] = "3.1"
  _assert_finding(machine.check_packages(), "FAIL", "alpha 3.1 (not <3,>=1.9)", "'alpha<3,>=1.9'")


# A round.


@pytest.mark.parametrize(
  "lines, parts",
  [
    ("os.kill(os.getpid(), signal.SIGILL)", ["SIGILL", "AVX"]),
    ("os.kill(os.getpid(), signal.SIGKILL)", ["SIGKILL", "memory"]),
    ("sys.stderr.write('F check failed\\n\\n'); os.abort()", ["SIGABRT", "F check failed"]),
    ("sys.exit('no such thing')", ["exit status 1", "no such thing", "pip install"]),
    ("sys.exit('Error: Found no cluster.')", ["Found no cluster", "Mend what its last words"]),
    ("time.sleep(3600)", ["SIGKILL", "ten minutes"]),
  ],
)
def test_runs_that_do_not_finish(monkeypatch, lines, parts):
  if "sleep" in lines:
    monkeypatch.setattr(doctor, "_MOST_SECONDS", 1.0)
  command = [sys.executable, "-c", f"import os, signal, sys, time\n{lines}"]
  _assert_finding(doctor._check_round(command), "FAIL", *parts)


_OPTIONS = argparse.Namespace(output_dir="results", cache_dir="")


@pytest.mark.parametrize(
  "status, remedy, num_checks", [("ok", "", 2), ("FAIL", "Mend it.", 2), ("FAIL", None, 1)]
)
def test_data_are_looked_at_unless_tensorflow_ends_python(monkeypatch, status, remedy, num_checks):
  remedy = doctor._REMEDIES[-signal.SIGILL] if remedy is None else remedy
  run = machine.Finding(status, "round", "Found it.", remedy)
  monkeypatch.setattr(machine, "check_all", lambda *folders: [])
  monkeypatch.setattr(doctor, "_check_round", lambda: run)
  monkeypatch.setattr(doctor, "check_data", lambda *paths: 1 / 0)  # A finding.
  findings = list(doctor._check_all(_OPTIONS))
  assert len(findings) == num_checks
  if num_checks == 2:
    _assert_finding(findings[-1], "FAIL", "ZeroDivisionError: division by zero")


# Data sets.


def _check(cache_dir):
  return {finding.name: finding for finding in doctor.check_data(str(cache_dir))}


def test_what_was_downloaded(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  cache = tmp_path / "cache"
  findings = _check(cache)
  _assert_finding(findings["EMNIST"], "note", "not here", "downloads it", "--data=standin")
  _assert_finding(findings["Sent140"], "note", "download sent140")
  for folder in (cache, tmp_path / ".tff"):  # Where TFF itself leaves it, which comes first.
    folder.mkdir()
    (folder / "emnist_all.sqlite").write_bytes(b"")
    _assert_finding(_check(cache)["EMNIST"], "ok", f"{folder}/emnist_all.sqlite")


# The command.


def _run_main(monkeypatch, capsys, findings, *arguments):
  def check(options):
    for finding in findings:
      if isinstance(finding, type):
        raise finding
      yield finding

  monkeypatch.setattr(doctor, "_check_all", check)
  return command_line.run(doctor, arguments), capsys.readouterr()


def test_exit_status_and_lines(monkeypatch, capsys):
  good = machine.ok("good", "we\33[2Jll")
  bad = machine.fail("bad", "Found it.", "Mend it.\nSo.")
  code, output = _run_main(monkeypatch, capsys, [good])
  assert (code, output.err) == (0, "")
  assert output.out == (
    "ok    good          we\N{REPLACEMENT CHARACTER}[2Jll\n\nAll is well: 1 checks.\n"
  )
  code, output = _run_main(monkeypatch, capsys, [good, bad])
  indent = "\n" + " " * 20
  assert code == 1
  assert f"FAIL  bad           Found it.{indent}Mend it.{indent}So.\n\n1 of 2 " in output.out
  code, output = _run_main(monkeypatch, capsys, [KeyboardInterrupt])
  assert (code, output.out, output.err) == (130, "", "Error: Interrupted.\n")


def test_defaults_are_those_of_a_run():
  options, defaults = vars(command_line.parse(doctor, [])), run_config.defaults()
  assert len(options) == 2 and options == {name: defaults[name] for name in options}


def test_runs_where_nothing_is_installed(tmp_path):
  """And on Pythons that the rest is not for: without site-packages, it says what is missing."""
  script = (
    "import sys; sys.path.append(sys.argv[1])\n"
    "from tff_superquantile.doctor import __main__ as doctor\n"
    "from privacy.settings import command_line\n"
    "sys.exit(command_line.run(doctor, []))"
  )
  result = subprocess.run(
    [sys.executable, "-I", "-S", "-c", script, str(commands.ROOT)],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    timeout=_SECONDS,
    check=False,
  )
  assert (result.returncode, result.stderr) == (1, "")
  assert re.search(r"^FAIL  packages +Found no package named packaging", result.stdout, re.M)
  assert re.search(r"^skip  round +needs packages$", result.stdout, re.M)
  for path in pathlib.Path(doctor.__file__).parent.glob("*.py"):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.fixture(scope="module")
def real_run(lab):
  started = lab.python("-m", "tff_superquantile.doctor")
  return started.wait(), started


def test_a_real_run_finds_nothing_wrong(real_run):
  result, started = real_run
  assert (result.code, result.err) == (0, ""), result.out
  checks = re.findall(r"^(ok|note|FAIL|skip) +(\S+)", result.out, re.M)
  assert len(checks) >= 8 and not {"FAIL", "skip"} & {status for status, _ in checks}
  assert {("ok", "packages"), ("ok", "round")} <= set(checks)
  assert started.left_behind() == []
