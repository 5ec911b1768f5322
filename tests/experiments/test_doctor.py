"""The doctor: each check driven to its failure, what is reported, and a real run."""

import ast
import csv
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys

import commands
from packaging import requirements
import pytest
import tensorflow_federated as tff

from tff_superquantile import threshold
from tff_superquantile.doctor import command as doctor
from tff_superquantile.doctor import data
from tff_superquantile.doctor import machine
from tff_superquantile.doctor import packages
from tff_superquantile.doctor import report
from tff_superquantile.doctor import runtime
from tff_superquantile.doctor import trials
from tff_superquantile.experiments import train_flags
from tff_superquantile.simulation import context
from tff_superquantile.simulation import limits

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


def _assert_finding(finding, status, *parts):
  """A finding that says these things; a problem is a sentence and has a remedy."""
  assert finding.status == status, finding
  for part in parts:
    assert part in f"{finding.found}\n{finding.remedy}"
  if status == report.FAIL:
    assert re.match(r"Found .*\.", finding.found) and finding.remedy
  if status == report.OK:
    assert not finding.remedy


# The machine.


@pytest.fixture
def root(tmp_path, monkeypatch):
  """A folder in place of /, with two cores and 8 GB that no cgroup limits."""
  monkeypatch.setattr(limits, "ROOT", tmp_path)
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
  _write(tmp_path, "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n")
  _write(tmp_path, "proc/cpuinfo", "model name\t: Fast  One\nflags\t\t: fpu sse avx avx2\n")
  _write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
  return tmp_path


def _write(root, path, text):
  (root / path).parent.mkdir(parents=True, exist_ok=True)
  (root / path).write_text(str(text))


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
  federated = re.findall(r"(tensorflow-[a-z-]+)(==[\d.]+)", config)
  assert dict(federated) == packages.FEDERATED


@pytest.mark.parametrize("system, processor", [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_platform(monkeypatch, system, processor):
  _assert_finding(machine.check_platform(), "ok", "Linux x86_64")
  monkeypatch.setattr("platform.system", lambda: system)
  monkeypatch.setattr("platform.machine", lambda: processor)
  _assert_finding(machine.check_platform(), "FAIL", f"Found {system} {processor}", "container")


def test_c_library(root, monkeypatch):
  monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.31")
  _assert_finding(machine.check_c_library(), "ok", "glibc 2.31")
  monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.28")
  _assert_finding(machine.check_c_library(), "FAIL", "glibc 2.28", "2.31", "newer Linux")

  def unknown(name):
    raise ValueError("unrecognized configuration name")

  monkeypatch.setattr(os, "confstr", unknown)
  _assert_finding(machine.check_c_library(), "note", "no version")
  _write(root, "lib/ld-musl-x86_64.so.1", "")
  _assert_finding(machine.check_c_library(), "FAIL", "musl", "glibc 2.31", "Debian")


def test_processor(root):
  _assert_finding(machine.check_processor(), "ok", "Fast One, with AVX")
  _write(root, "proc/cpuinfo", "model name: Old\nflags: fpu sse avx2like\n")
  _assert_finding(machine.check_processor(), "FAIL", "Old without AVX", "-cpu host")
  (root / "proc/cpuinfo").unlink()
  _assert_finding(machine.check_processor(), "note", "SIGILL")


def test_cores_and_quotas(root):
  _assert_finding(machine.check_cores(), "ok", "2")
  _write(root, "sys/fs/cgroup/cpu.max", "max 100000")
  _write(root, "sys/fs/cgroup/a/b/cpu.max", "300000 100000")
  _assert_finding(machine.check_cores(), "ok", "2")
  _write(root, "sys/fs/cgroup/a/cpu.max", "150000 100000")  # Of a cgroup around.
  _assert_finding(machine.check_cores(), "ok", "2 of 2", "allows 1.5")
  _write(root, "sys/fs/cgroup/a/cpu.max", "100000 100000")
  _assert_finding(machine.check_cores(), "ok", "1 of 2", "allows 1")


def test_memory_of_the_machine(root):
  _assert_finding(machine.check_memory(), "ok", "8.2 GB available")
  _write(root, "proc/meminfo", "MemAvailable: 1500000 kB\n")
  _assert_finding(machine.check_memory(), "note", "1.5 GB", "--num_workers=1")
  _write(root, "sys/fs/cgroup/a/b/cpu.max", "50000 100000")  # One run at a time anyway.
  _assert_finding(machine.check_memory(), "ok", "1.5 GB")
  _write(root, "proc/meminfo", "MemAvailable: 400000 kB\n")
  _assert_finding(machine.check_memory(), "FAIL", "0.4 GB", "expected 1 GB")
  (root / "proc/meminfo").unlink()
  _assert_finding(machine.check_memory(), "note", "no MemAvailable")


def test_memory_of_a_cgroup(root):
  group = "sys/fs/cgroup/a/b"
  _write(root, f"{group}/memory.max", "max")
  _assert_finding(machine.check_memory(), "ok", "8.2 GB")
  _write(root, f"{group}/memory.max", 3 * 10**9)
  _write(root, f"{group}/memory.current", 29 * 10**8)
  _assert_finding(machine.check_memory(), "FAIL", "0.1 GB", "container")
  _write(root, f"{group}/memory.stat", "file 9\ninactive_file 2500000000\nactive_file 7\n")
  _assert_finding(machine.check_memory(), "ok", "2.6 GB")


def test_memory_of_a_cgroup_of_version_1(root):
  _write(root, "proc/self/cgroup", "4:memory:/docker/12\n0::/\n")
  _write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 2**63 - 4096)
  _assert_finding(machine.check_memory(), "ok", "8.2 GB")
  _write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 10**9)
  _write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", 5 * 10**8)
  _assert_finding(machine.check_memory(), "FAIL", "0.5 GB")


def test_folder(tmp_path, monkeypatch):
  def check(path):
    return machine.check_folder(str(path), "--output_dir=DIR")

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


# The packages.


@pytest.fixture
def installed(tmp_path, monkeypatch):
  """A lock, and {name: version} of what is installed, as it says."""
  versions = {"zeta": "1.0", "alpha": "2.0+cpu", "other": "9"}

  def version(name):
    if name not in versions:
      raise importlib.metadata.PackageNotFoundError(name)
    return versions[name]

  monkeypatch.setattr(importlib.metadata, "version", version)
  monkeypatch.setattr(packages, "_LOCK", tmp_path / "requirements.lock")
  (tmp_path / "requirements.lock").write_text(_LOCK)
  return versions


def _pip(*arguments):
  return " ".join([sys.executable, "-m pip install", *arguments])


_ALONE = "--no-deps --ignore-requires-python"


def test_packages_as_in_the_lock(installed):
  _assert_finding(packages.check_packages(), "ok", "all 2 of requirements.lock")
  _assert_finding(packages.check_versions(), "ok")


def test_missing_and_different_packages_have_one_command(installed):
  del installed["zeta"]
  installed["alpha"] = "2.1"
  command = _pip(_ALONE, "alpha==2.0", "zeta==1.0")
  _assert_finding(packages.check_packages(), "FAIL", "Found no zeta;", command)
  _assert_finding(packages.check_versions(), "FAIL", "alpha 2.1 (not 2.0)", command)
  installed["zeta"] = None  # A folder of metadata without a file in it.
  _assert_finding(packages.check_packages(), "FAIL", "Found no zeta;")


def test_own_packages(tmp_path, monkeypatch):
  _assert_finding(packages.check_own_packages(), "ok", str(commands.ROOT))
  (tmp_path / "tasks").mkdir()
  (tmp_path / "tasks/__init__.py").touch()
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "tasks")
  _assert_finding(
    packages.check_own_packages(), "FAIL", f"Found {tmp_path}/tasks", "PYTHONSAFEPATH"
  )


def test_many_missing_packages_are_installed_from_the_lock(installed, tmp_path):
  lock = tmp_path / "requirements.lock"
  lock.write_text("".join(f"p{i}==1.0\n" for i in range(20)))
  command = _pip(_ALONE, f"-r {lock}")
  _assert_finding(packages.check_packages(), "FAIL", "no p0, p1", "and 13 more", command)


def test_tensorflow_with_and_without_gpus_is_the_same(installed, tmp_path):
  for wanted, other in (("tensorflow-cpu", "tensorflow"), ("tensorflow", "tensorflow-cpu")):
    (tmp_path / "requirements.lock").write_text(f"{wanted}==2.21.0 \\\n")
    _assert_finding(packages.check_packages(), "FAIL", f"no {wanted}")
    installed[other] = "2.20.0"
    _assert_finding(packages.check_versions(), "FAIL", f"{wanted} 2.20.0 (not 2.21.0)")
    installed[other] = "2.21.0"
    _assert_finding(packages.check_versions(), "ok")
    del installed[other]


@pytest.mark.parametrize(
  "version, bounds, fits",
  [
    ("2.21.0", ">=2.21,<2.22", True),
    ("2.22.0", ">=2.21,<2.22", False),
    ("2.9.1", ">=2.21,<2.22", False),
    ("3.11.7", "python_full_version == '3.11.*'", True),
    ("3.1.7", "python_full_version == '3.11.*'", False),
    ("3.11.4", "python_full_version >= '3.11' and python_full_version < '3.11.5'", True),
    ("3.11.5", "python_full_version >= '3.11' and python_full_version < '3.11.5'", False),
    ("1.0.post1", "==1.0.post1", True),
    ("1.0", "==1.0.post1", False),
  ],
)
def test_bounds(version, bounds, fits):
  assert packages._fits(version, bounds) == fits


def test_without_a_checkout_versions_are_those_of_the_metadata(installed, monkeypatch, tmp_path):
  (tmp_path / "requirements.lock").unlink()
  declared = ["zeta>=1", 'alpha<3,>=1.9; extra == "training"', 'pytest>=8; extra == "dev"']
  monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)
  installed.update({name: bound[2:] for name, bound in packages.FEDERATED.items()})
  _assert_finding(packages.check_packages(), "ok", "all 5 of the metadata")
  _assert_finding(packages.check_versions(), "ok")
  installed["alpha"] = "3.1"
  installed["tensorflow-federated"] = "0.86.0"
  _assert_finding(
    packages.check_versions(),
    "FAIL",
    "alpha 3.1 (not <3,>=1.9), tensorflow-federated 0.86.0 (not 0.87.0)",
    _pip(_ALONE, "tensorflow-federated==0.87.0") + "\nand: " + _pip("'alpha<3,>=1.9'"),
  )

  def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, "requires", missing)
  _assert_finding(packages.check_packages(), "FAIL", "no metadata", "-e PATH")


def test_the_lock_of_this_checkout_is_read_whole():
  wanted = packages.read_wanted()
  lines = (commands.ROOT / "requirements.lock").read_text().splitlines()
  parsed = [
    requirements.Requirement(line.rstrip("\\")) for line in lines if re.match("[a-z]", line)
  ]
  assert wanted.versions == {
    r.name: str(r.specifier) for r in parsed if r.marker is None or r.marker.evaluate()
  }
  assert packages.FEDERATED.items() <= wanted.versions.items()
  remedy = _pip("--force-reinstall", _ALONE, "tensorflow-cpu==")
  assert remedy in packages.reinstall_command()


# Trials.

_SECONDS = 120  # Of patience, not of duration.


def _trials(lines):
  """Trials by a process that reads one request and then does this."""
  script = "import os, signal, sys, time, subprocess\nsys.stdin.readline()\n" + lines
  return runtime.Trials([sys.executable, "-c", script])


def _answer(**fields):
  return f"print({json.dumps(json.dumps(fields))}, flush=True)\nsys.stdin.read()\n"


def test_trial_that_answers():
  trials = _trials(_answer(status="ok", found="it"))
  _assert_finding(trials.run("data_dir", _SECONDS, "mend it", data_dir="there"), "ok", "it")
  assert trials.close() == []
  failed = _trials(_answer(status="FAIL", found="Found it."))
  _assert_finding(failed.run("engine", _SECONDS, "mend it"), "FAIL", "mend it")
  failed.kill()


@pytest.mark.parametrize(
  "lines, parts",
  [
    ("os.kill(os.getpid(), signal.SIGILL)", ["SIGILL", "AVX"]),
    ("os.kill(os.getpid(), signal.SIGKILL)", ["SIGKILL", "memory"]),
    ("sys.stderr.write('F check failed\\n\\n'); os.abort()", ["SIGABRT", "F check failed", "mend"]),
    ("sys.exit('no such thing')", ["exit status 1", "no such thing", "mend"]),
  ],
)
def test_trial_that_crashes(lines, parts):
  trials = _trials(lines)
  for _ in range(2):  # The next one has a process of its own.
    _assert_finding(trials.run("tensorflow", _SECONDS, "mend it"), "FAIL", *parts)
  assert trials.close() == []


def test_trial_that_hangs_is_ended_and_what_it_leaves_is_named(monkeypatch):
  sleep = "time.sleep(3600)"
  child = f"subprocess.Popen([{sys.executable!r}, '-c', 'import time; {sleep}'])"
  said = json.dumps(dict(status="ok", found="it"))
  trials = _trials(
    f"{child}\nprint({said!r}, flush=True)\nsys.stdin.readline()\n"
    f"print('started', file=sys.stderr, flush=True)\n{sleep}"
  )
  # Once it has answered, the rest is a matter of patience.
  _assert_finding(trials.run("data_dir", _SECONDS, "mend it"), "ok", "it")
  _assert_finding(trials.run("engine", 0.1, "mend it"), "FAIL", "no answer in 0.1 s", "mend it")

  # What it started was not bound to it.
  ((pid, _),) = trials._seen
  monkeypatch.setattr(runtime, "_SECONDS_TO_END", 0.2)
  try:
    finding = doctor._check_processes(trials)
  finally:
    os.kill(pid, signal.SIGKILL)
  _assert_finding(finding, "FAIL", f"kill -9 {pid}")


def _try(trial, **arguments):
  return trials._answer({"trial": trial, "arguments": arguments})


def test_whatever_a_trial_raises_is_a_finding():
  finding = _try("engine", kind="none")
  assert finding.status == "FAIL" and finding.found.startswith("Found TypeError: engine() got")


@pytest.mark.usefixtures("simulation_context")
def test_wrong_sums_are_found(monkeypatch):
  monkeypatch.setattr(context, "set_simulation_context", lambda: None)
  assert _try("secure_sum").status == "ok"

  right = threshold.build_tree_quantile
  monkeypatch.setattr(threshold, "build_tree_quantile", lambda theta, *a: right(0.4, *a))
  finding = _try("secure_sum")
  assert finding.status == "FAIL" and "private median of 2." in finding.found

  monkeypatch.setattr(tff, "federated_secure_sum", lambda values, bound: tff.federated_max(values))
  finding = _try("secure_sum")
  assert finding.status == "FAIL" and "(99, 150)" in finding.found

  monkeypatch.setattr(tff, "federated_sum", tff.federated_max)
  finding = _try("engine")
  assert finding.status == "FAIL" and "sum of 198" in finding.found


# Data sets.


def _write_leaf(folder, x, users=("a", "b")):
  for split in ("train", "test"):
    (folder / split).mkdir(parents=True)
    content = {
      "users": list(users),
      "num_samples": [1] + [100] * (len(users) - 1),
      "user_data": {user: {"x": x, "y": [1]} for user in users},
    }
    (folder / split / "all.json").write_text(json.dumps(content))
  return str(folder)


def _write_database(path):
  connection = sqlite3.connect(path)
  connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, x BLOB)")
  connection.executemany("INSERT INTO examples VALUES ('all_train', ?, '')", [["a"], ["b"], ["a"]])
  connection.commit()
  connection.close()


def test_leaf_files_are_told_apart_by_what_is_in_them(tmp_path):
  pixels = _write_leaf(tmp_path / "pixels", [[0.5] * 784])
  texts = _write_leaf(tmp_path / "texts", [["1", "date", "query", "user", "text [", "training"]])
  _assert_finding(data.check_data_dir(pixels), "ok", "holds EMNIST")
  _assert_finding(data.check_data_dir(texts), "ok", "holds Sent140")
  finding = data.check_data_set("EMNIST", pixels, "")
  found = "2 training and 2 test writers, of whom 1 and 1 have 100 images or more"
  _assert_finding(finding, "ok", found, "--min_examples_per_client", pixels)
  _assert_finding(data.check_data_set("Sent140", texts, ""), "ok", "2 test users")
  _assert_finding(data.check_data_set("Sent140", pixels, ""), "note", "not in", "--data_dir")


def test_single_files(tmp_path):
  database = tmp_path / "emnist_all.sqlite"
  _write_database(database)
  table = tmp_path / "tweets.csv"
  with open(table, "w", newline="") as file:
    csv.writer(file).writerow(["0", "1", "date", "query", "user", "text, more"])
  _assert_finding(data.check_data_dir(str(tmp_path)), "ok", "holds EMNIST")
  _assert_finding(data.check_data_dir(str(table)), "ok", "holds Sent140")
  finding = data.check_data_set("EMNIST", str(database), "")
  _assert_finding(finding, "ok", "2 writers, of whom 0 have 100 images or more")
  _assert_finding(data.check_data_set("Sent140", str(table), ""), "ok", "tweets.csv")


def test_unusable_data(tmp_path):
  _assert_finding(data.check_data_dir(str(tmp_path / "no")), "FAIL", "There is no directory")
  (tmp_path / "empty").mkdir()
  parts = ("EMNIST: ", "Sent140: ", "no train/*.json")
  _assert_finding(data.check_data_dir(str(tmp_path / "empty")), "FAIL", *parts)
  for name, content in (("emnist_all.sqlite.lzma", b"no lzma"), ("emnist_all.sqlite", b"SQL")):
    (tmp_path / name).write_bytes(content)
    _assert_finding(data.check_data_dir(str(tmp_path / name)), "FAIL", name)
  (tmp_path / "emnist_all.sqlite").write_bytes(b"SQLite format 3\0" + bytes(3000))
  _assert_finding(data.check_data_dir(str(tmp_path / "emnist_all.sqlite")), "FAIL")


def test_what_was_downloaded(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  cache = str(tmp_path / "cache")
  finding = data.check_data_set("EMNIST", "", cache)
  _assert_finding(finding, "note", "not here", "downloads it", "--data=standin")
  _assert_finding(data.check_data_set("Sent140", "", cache), "note", "http://cs.stanford")
  (tmp_path / "cache").mkdir()
  _write_database(tmp_path / "cache/emnist_all.sqlite")
  _assert_finding(data.check_data_set("EMNIST", "", cache), "ok", "2 writers", cache)
  (tmp_path / ".tff").mkdir()  # Where TFF itself leaves it, which comes first.
  (tmp_path / ".tff/emnist_all.sqlite").write_bytes(b"half a download")
  _assert_finding(data.check_data_set("EMNIST", "", cache), "FAIL", ".tff", "Delete")


def test_word_vectors(tmp_path):
  check = data.check_word_vectors
  _assert_finding(check("", ""), "note", "not here", "--glove")
  _assert_finding(check("", str(tmp_path)), "note", "no glove.6B.50d.txt", "--glove")
  path = tmp_path / "glove.6B.50d.txt"
  _assert_finding(check(str(path), ""), "FAIL", f"no file --glove={path}", "https://nlp.stanford")
  path.write_text("the 0.1 -2 3e-3\n")
  _assert_finding(check("", str(tmp_path)), "ok", "3 numbers a word")
  path.write_text("<html>\n")
  _assert_finding(check(str(path), ""), "FAIL", "first line")


# The report and the command.


def _findings(*statuses):
  return [
    report.Finding(status, f"Found {status}.", "Do this.\nDo that." * (status == "FAIL"), n)
    for status, n in zip(statuses, ("one", "another", "third", "fourth"))
  ]


def test_columns_and_remedies():
  layout = report.Layout(["one", "another"], colour=False)
  ok, failed = _findings("ok", "FAIL")
  assert layout.lines(ok) == "ok    one      Found ok."
  indent = " " * len("FAIL  another  ")
  assert layout.lines(failed) == (f"FAIL  another  Found FAIL.\n{indent}Do this.\n{indent}Do that.")
  hostile = dataclasses.replace(ok, found="a\33[2Jb")
  assert "\33" not in layout.lines(hostile)
  coloured = report.Layout(["one", "another"], colour=True).lines(failed)
  assert coloured.startswith("\33[1;31mFAIL\33[0m  another") and coloured.count("\33") == 2


def test_summary():
  assert report.summary(_findings("ok")) == "All is well: 1 check."
  assert report.summary(_findings("ok", "note")) == "All is well: 2 checks, 1 note."
  said = report.summary(_findings("ok", "FAIL", "skip", "skip"))
  assert said.startswith("1 of 4 checks failed, 2 skipped: ")


def test_checks_that_need_a_failed_one_are_skipped():
  def broken():
    raise RuntimeError("what")

  checks = [
    doctor.Check("a", lambda: report.fail("Found a.", "b")),
    doctor.Check("b", broken, ("a",)),
    doctor.Check("c", broken, ("b",)),
    doctor.Check("d", lambda: report.note("d")),
    doctor.Check("e", broken, ("d",)),
  ]
  found = list(doctor.carry_out(checks))
  assert [f.status for f in found] == ["FAIL", "skip", "skip", "note", "FAIL"]
  assert [f.name for f in found] == list("abcde")
  assert found[2].found == "needs b"
  _assert_finding(found[4], "FAIL", "RuntimeError('what')")


def _run_main(monkeypatch, capsys, checks, *arguments):
  monkeypatch.setattr(doctor, "all_checks", lambda options, trials: checks)
  code = doctor.main(arguments)
  return code, capsys.readouterr()


def test_exit_status_and_json(monkeypatch, capsys):
  good = [doctor.Check("good", lambda: report.ok("well"))]
  bad = [*good, doctor.Check("bad", lambda: report.fail("Found it.", "Mend it."))]
  code, said = _run_main(monkeypatch, capsys, good)
  assert (code, said.err) == (0, "")
  assert said.out == "ok    good  well\n\nAll is well: 1 check.\n"
  code, said = _run_main(monkeypatch, capsys, bad, "--json")
  content = json.loads(said.out)
  assert (code, content["ok"]) == (1, False)
  last = content["findings"][-1]
  assert last.pop("seconds") >= 0.0
  assert last == {"status": "FAIL", "found": "Found it.", "remedy": "Mend it.", "name": "bad"}

  def interrupted():
    raise KeyboardInterrupt

  code, said = _run_main(monkeypatch, capsys, [doctor.Check("slow", interrupted)])
  assert (code, said.out, said.err) == (130, "", "Error: Interrupted.\n")


@pytest.mark.parametrize("argument", ["--data", "--unknown=1", "doctor"])
def test_bad_flags(capsys, argument):
  with pytest.raises(SystemExit) as ended:
    doctor.main([argument])
  assert ended.value.code == 2
  said = capsys.readouterr()
  assert said.out == "" and re.fullmatch(r"Error: .* \(--help lists the flags\)\n", said.err)


def test_defaults_are_those_of_a_run():
  defaults = {name: flag.default for name, flag in train_flags.flags.FLAGS._flags().items()}
  options = vars(doctor._parse([]))
  del options["json"]
  assert options.pop("ray_address") == ""  # A cluster is looked at if it is asked for.
  assert options == {name: defaults[name] for name in options}


def test_runs_where_nothing_is_installed(tmp_path):
  """And on Pythons that the rest is not for: without site-packages, it says what is missing."""
  script = (
    "import sys; sys.path.append(sys.argv[1])\n"
    "from tff_superquantile.doctor import command as doctor\n"
    "sys.exit(doctor.main([]))"
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
  assert re.search(r"^FAIL  packages +Found no absl-py, ", result.stdout, re.MULTILINE)
  assert re.search(r"^skip  TensorFlow +needs packages$", result.stdout, re.MULTILINE)
  for path in pathlib.Path(doctor.__file__).parent.glob("*.py"):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.fixture(scope="module")
def real_run(lab):
  data = _write_leaf(lab.folder / "data", [[0.5] * 784])
  started = lab.python(
    "-m", "tff_superquantile.doctor", f"--data_dir={data}", "--glove=nowhere", "--json"
  )
  return started.wait(), started


def test_a_real_run_finds_only_what_is_wrong(real_run):
  result, started = real_run
  assert (result.code, result.err) == (1, "")
  findings = {finding["name"]: finding for finding in json.loads(result.out)["findings"]}
  wrong = {name: f for name, f in findings.items() if f["status"] in ("FAIL", "skip")}
  assert set(wrong) == {"word vectors"}, wrong
  for name in ("TensorFlow", "engine", "secure sum", "EMNIST", "processes"):
    assert findings[name]["status"] == "ok"
  assert findings["Sent140"]["status"] == "note"
  assert started.left_behind() == []


def test_ctrl_c_ends_it_at_once(tmp_path, cache_dir):
  lab = commands.Lab(tmp_path, cache_dir)
  # Found before the real one, and on its way for ever.
  (tmp_path / "tensorflow.py").write_text(
    "import time\nopen('on_its_way', 'w').close()\ntime.sleep(1000)\n"
  )
  started = lab.python("-m", "tff_superquantile.doctor")
  started.wait_until((tmp_path / "on_its_way").exists)
  result = started.end_by(signal.SIGINT)
  assert (result.code, result.err) == (130, "Error: Interrupted.\n")
  assert started.left_behind() == []
