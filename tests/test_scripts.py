"""The shell scripts on machines of all kinds, which are folders of fake commands; the locks."""

import configparser
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from tff_superquantile.experiments import studies
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.run import methods

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FILES = (
  "run_experiments.sh",
  "run_tests.sh",
  "scripts/venv.sh",
  "setup.cfg",
  "pyproject.toml",
  "requirements.lock",
  "requirements-dev.lock",
  "requirements.hashes",
  "requirements-dev.hashes",
)
_COREUTILS = ("cat", "cut", "dirname", "env", "mkdir", "mv", "readlink", "rm")
_COREUTILS += ("sha256sum", "tail", "tr")
_OTHERS = ("bash", "grep", "flock")

# Answers as far as the scripts ask, and notes what was asked. VERSION and VENV are filled in.
_FAKE_PYTHON = """#!{bash}
[[ "$1" != -I ]] || shift
case "$1 $2" in
  "-c "*ensurepip*) echo "{implementation} {version} {has_venv}" ;;
  "-c "*) ;;
  "-m venv")
    echo "venv" >>"$CALLS"
    {mkdir} -p "$3/bin" && {cp} "$0" "$3/bin/python"
    ;;
  "-m pip")
    [[ "$3" != --version ]] || exit 0
    echo "pip ${{*: -2}}" >>"$CALLS"
    [[ -z "${{PIP_TAKES:-}}" ]] || {sleep} "$PIP_TAKES"
    [[ -z "${{PIP_SAYS:-}}" ]] || {{ echo "$PIP_SAYS"; exit 1; }}
    [[ -z "${{PIP_IS_KILLED:-}}" ]] || kill -KILL $$
    ;;
  *)
    echo "${{*}}" >>"$CALLS"
    echo "pid $$ in $PWD, log level ${{TF_CPP_MIN_LOG_LEVEL:-none}}"
    [[ "$2" != "${{FAILING_MODULE:-}}" ]] || exit 7
    ;;
esac
"""


class _Machine:
  """A project folder and a PATH on which only known commands are."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.project = folder / "a project"
    self.bin = folder / "bin"
    self.bin.mkdir()
    for name in _FILES:
      (self.project / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(_ROOT / name, self.project / name)
    for name in _COREUTILS + _OTHERS:
      if shutil.which(name):
        (self.bin / name).symlink_to(shutil.which(name))
    self.command("uname", '[[ "$1" == -s ]] && echo Linux || echo x86_64')
    self.command("getconf", "echo glibc 2.36")
    self.command("df", "echo Avail; echo 99999999")
    (folder / "calls").touch()

  def command(self, name: str, text: str) -> None:
    (self.bin / name).unlink(missing_ok=True)
    (self.bin / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
    (self.bin / name).chmod(0o755)

  def python(self, name="python3.11", version="3.11", implementation="CPython", has_venv="yes"):
    tools = {tool: shutil.which(tool) for tool in ("bash", "cp", "mkdir", "sleep")}
    text = _FAKE_PYTHON.format(
      version=version, implementation=implementation, has_venv=has_venv, **tools
    )
    (self.bin / name).write_text(text)
    (self.bin / name).chmod(0o755)

  def start(self, *command: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
      [str(self.project / command[0]), *command[1:]],
      env={"PATH": str(self.bin), "CALLS": str(self.folder / "calls"), **environment},
      cwd=self.folder,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
    process = self.start(*command, **environment)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)

  def calls(self) -> list[str]:
    """What Python was called for since the last time."""
    lines = (self.folder / "calls").read_text().splitlines()
    (self.folder / "calls").write_text("")
    return [line.replace(f"{self.project}/", "") for line in lines]

  def stamps(self) -> list[str]:
    return sorted(path.name for path in (self.project / ".venv").glob(".stamp-*"))


@pytest.fixture
def machine(tmp_path):
  return _Machine(tmp_path)


_SET_UP = ["venv", "pip -r requirements.hashes", "pip -e {project}"]


def _set_up_calls(machine):
  return [call.format(project=machine.project) for call in _SET_UP]


def _sweep(*arguments):
  return " ".join(("-m tff_superquantile.experiments.sweep", *arguments))


def _assert_one_sentence(result, *parts, after_announcement=False):
  assert result.returncode == 2
  assert result.stdout == ""
  lines = result.stderr.splitlines()
  if after_announcement:
    assert lines.pop(0).startswith("Installing ")
  assert len(lines) == 1, result.stderr
  assert re.fullmatch(r"Error: [A-Z].*[^.]\.", lines[0])
  for part in parts:
    assert part in lines[0]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["synthetic", "--quick", "--help"]])
def test_manual_needs_no_python_and_names_every_experiment(machine, arguments):
  for name in ("uname", "getconf", "df"):
    (machine.bin / name).unlink()
  result = machine.run("run_experiments.sh", *arguments)
  assert (result.returncode, result.stderr) == (0, "")
  headings = ("NAME", "SYNOPSIS", "EXPERIMENTS", "COMMANDS", "OPTIONS", "OUTPUT", "EXIT STATUS")
  for heading in headings:
    assert f"\n{heading}\n" in "\n" + result.stdout

  def described(heading, following):
    section = re.search(rf"\n{heading}\n(.*)\n{following}\n", result.stdout, re.DOTALL)[1]
    return re.findall(r"^ {4}(\w+)", section, re.MULTILINE)

  # Studies that need no finished runs are experiments of their own.
  needy = {*presets.PRESETS, "comparison", "communication"}
  alone = [name for name in studies.STUDIES if name not in needy]
  assert described("EXPERIMENTS", "COMMANDS") == [*presets.PRESETS, *alone]
  words = " ".join(result.stdout.split()).lower()
  for method in methods.METHODS.values():
    assert method.title.lower() in words
  assert described("COMMANDS", "OPTIONS") == ["doctor"]
  assert max(map(len, result.stdout.splitlines())) <= 80
  modules = re.findall(r"-m \\?\s*([\w.]+)", result.stdout)
  assert "tff_superquantile.doctor" in modules
  for module in modules:
    assert importlib.util.find_spec(module) is not None
  assert not (machine.project / ".venv").exists()


def test_help_of_the_tests_needs_no_python(machine):
  result = machine.run("run_tests.sh", "--help")
  assert (result.returncode, result.stderr) == (0, "")
  assert "--run_slow" in result.stdout
  assert not (machine.project / ".venv").exists()


def test_first_run_installs_and_later_ones_do_not(machine):
  machine.python()
  result = machine.run("run_experiments.sh")
  assert result.returncode == 0
  assert re.fullmatch(r"Installing \d\d packages into .venv, .*\n", result.stderr)
  assert machine.calls() == _set_up_calls(machine) + [_sweep("--experiment=default")]
  assert machine.stamps() == [".stamp-packages", ".stamp-project"]
  assert not (machine.project / ".venv/.unfinished").exists()

  result = machine.run("run_experiments.sh")
  assert (result.returncode, result.stderr) == (0, "")
  assert machine.calls() == [_sweep("--experiment=default")]


@pytest.mark.parametrize(
  "arguments, passed_on",
  [
    (["emnist_linear"], ["--experiment=emnist_linear"]),
    (["--quick"], ["--experiment=default", "--quick"]),
    (["synthetic", "--output_dir=a b"], ["--experiment=synthetic", "--output_dir=a b"]),
  ],
)
def test_arguments_and_directory_reach_the_experiment(machine, arguments, passed_on):
  machine.python()
  result = machine.run("run_experiments.sh", *arguments)
  assert machine.calls()[-1] == _sweep(*passed_on)
  assert f"in {machine.folder}, log level 3" in result.stdout


@pytest.mark.parametrize(
  "name,module",
  [
    ("private_quantile", "experiments.study private_quantile"),
    ("convergence", "experiments.study convergence"),
    ("nonconvex", "experiments.study nonconvex"),
    ("paper", "experiments.study paper"),
    ("doctor", "doctor"),
  ],
)
def test_what_is_no_sweep_is_a_module_of_its_own(machine, name, module):
  machine.python()
  result = machine.run("run_experiments.sh", name, "--output_dir=a b")
  assert result.returncode == 0
  assert machine.calls()[-1] == f"-m tff_superquantile.{module} --output_dir=a b"


def test_experiment_replaces_the_script(machine):
  """Then Ctrl-C and exit status are the experiment's own."""
  machine.python()
  process = machine.start(
    "run_experiments.sh",
    FAILING_MODULE="tff_superquantile.experiments.sweep",
    TF_CPP_MIN_LOG_LEVEL="0",
  )
  out, _ = process.communicate(timeout=60)
  assert out.startswith(f"pid {process.pid} in ") and "log level 0" in out
  assert process.returncode == 7


def test_works_through_a_link(machine):
  machine.python()
  (machine.folder / "link.sh").symlink_to(machine.project / "run_experiments.sh")
  assert machine.run("../link.sh").returncode == 0
  assert machine.stamps()


def test_no_python(machine):
  _assert_one_sentence(machine.run("run_experiments.sh"), "Found no Python", "3.11", "PYTHON=")


def test_only_a_too_new_python(machine):
  machine.python("python3", version="3.13")
  result = machine.run("run_experiments.sh")
  _assert_one_sentence(result, f"Found Python 3.13 ({machine.bin}/python3)", "3.9, 3.10 or 3.11")
  assert not (machine.project / ".venv").exists()


def test_another_implementation(machine):
  machine.python("python3", version="3.10", implementation="PyPy")
  _assert_one_sentence(machine.run("run_experiments.sh"), "Found PyPy 3.10")


def test_takes_the_first_python_that_runs(machine):
  machine.command("python3.11", "echo 'python3.11: command not found' >&2; exit 127")
  machine.python("python3.10", version="3.10", has_venv="no")
  machine.python("python3.9", version="3.9")
  machine.python("python3", version="3.13")
  assert machine.run("run_experiments.sh").returncode == 0
  assert '"CPython 3.9 yes"' in (machine.project / ".venv/bin/python").read_text()


def test_python_without_venv(machine):
  machine.python(has_venv="no")
  result = machine.run("run_experiments.sh")
  _assert_one_sentence(result, "without the modules venv", "apt install python3.11-venv")


def test_the_users_python_is_the_only_one_asked(machine):
  machine.python()
  machine.python("mine", version="3.12")
  result = machine.run("run_experiments.sh", PYTHON=str(machine.bin / "mine"))
  _assert_one_sentence(result, "Found Python 3.12")
  _assert_one_sentence(machine.run("run_experiments.sh", PYTHON="nowhere"), "PYTHON=nowhere")


@pytest.mark.parametrize("system, processor", [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_platform_without_wheels(machine, system, processor):
  machine.python()
  machine.command("uname", f'[[ "$1" == -s ]] && echo {system} || echo {processor}')
  result = machine.run("run_experiments.sh")
  _assert_one_sentence(result, f"Found {system} {processor}", "Linux x86_64")


def test_old_or_other_c_library(machine):
  machine.python()
  machine.command("getconf", "echo glibc 2.28")
  _assert_one_sentence(machine.run("run_experiments.sh"), "Found glibc 2.28", "2.31")
  machine.command("getconf", "exit 1")
  machine.command("ldd", "echo 'musl libc (x86_64)' >&2; exit 1")
  _assert_one_sentence(machine.run("run_experiments.sh"), "musl", "glibc 2.31")


def test_no_disk_space(machine):
  machine.python()
  machine.command("df", "echo Avail; echo 2048000")
  _assert_one_sentence(machine.run("run_experiments.sh"), "Found 2000 MB", "4096 MB")
  assert not (machine.project / ".venv").exists()
  result = machine.run("run_experiments.sh", TFF_SUPERQUANTILE_MIN_DISK_MB="1999")
  assert result.returncode == 0


@pytest.mark.parametrize(
  "said, told",
  [
    ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "check the network"),
    ("ERROR: No matching distribution found for jax==0.4.20", "distribution found for jax==0.4.20"),
    ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
    ("what", "pip failed"),
  ],
)
def test_failed_installation(machine, said, told):
  machine.python()
  result = machine.run("run_experiments.sh", PIP_SAYS=said)
  log = machine.project / ".venv/install.log"
  _assert_one_sentence(result, told, str(log), after_announcement=True)
  assert said in log.read_text()
  assert machine.stamps() == []
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.stamps() == [".stamp-packages", ".stamp-project"]


def test_killed_installation_starts_from_nothing(machine):
  machine.python()
  result = machine.run("run_experiments.sh", PIP_IS_KILLED="1")
  _assert_one_sentence(result, "pip was killed", after_announcement=True)
  (machine.project / ".venv/half_a_package").touch()
  machine.calls()
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.calls()[:-1] == _set_up_calls(machine)
  assert not (machine.project / ".venv/half_a_package").exists()


def test_interrupted_installation(machine):
  machine.python()
  process = machine.start("run_experiments.sh", PIP_TAKES="30")
  assert process.stderr.readline().startswith("Installing ")
  os.killpg(process.pid, signal.SIGINT)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 130
  assert err.startswith("Interrupted")
  assert machine.stamps() == []


def test_changed_lock_reinstalls(machine):
  machine.python()
  machine.run("run_experiments.sh")
  machine.calls()
  for name in ("requirements.lock", "requirements.hashes"):
    with open(machine.project / name, "a") as lock:
      lock.write("another==1.0\n")
  machine.run("run_experiments.sh")
  # The project, too: the lock is in its metadata.
  assert machine.calls()[:-1] == ["pip -r requirements.hashes", f"pip -e {machine.project}"]
  with open(machine.project / "setup.cfg", "a") as config:
    config.write("\n")
  machine.run("run_experiments.sh")
  assert machine.calls()[:-1] == [f"pip -e {machine.project}"]
  (machine.project / ".venv/.stamp-packages").write_text("another\n")
  machine.run("run_experiments.sh")
  assert machine.calls()[:-1] == ["pip -r requirements.hashes"]


def test_moved_project_gets_a_new_environment(machine):
  machine.python()
  machine.run("run_experiments.sh")
  machine.calls()
  machine.project = machine.project.rename(machine.folder / "moved")
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.calls()[:-1] == _set_up_calls(machine)


def test_environment_of_the_user_is_not_removed(machine):
  (machine.project / ".venv").mkdir()
  (machine.project / ".venv/mine").touch()
  _assert_one_sentence(machine.run("run_experiments.sh"), "did not make", "move it away")
  machine.python()
  (machine.project / ".venv/bin").mkdir()
  shutil.copy(machine.bin / "python3.11", machine.project / ".venv/bin/python")
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.calls()[:-1] == _set_up_calls(machine)[1:]
  assert (machine.project / ".venv/mine").exists()


@pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
def test_two_at_once_install_once(machine):
  machine.python()
  processes = [machine.start("run_experiments.sh", PIP_TAKES="0.3") for _ in range(2)]
  errors = "".join(process.communicate(timeout=60)[1] for process in processes)
  assert [process.returncode for process in processes] == [0, 0]
  assert errors.count("Installing") == 1 and errors.count("Waiting") == 1
  assert sorted(machine.calls()) == sorted(
    _set_up_calls(machine) + 2 * [_sweep("--experiment=default")]
  )


def test_tests_run_after_the_linter(machine):
  machine.python()
  machine.run("run_experiments.sh")
  machine.calls()
  result = machine.run("run_tests.sh", "-x", "tests/test_scripts.py")
  assert result.returncode == 0
  assert f"in {machine.project}," in result.stdout
  assert machine.calls() == [
    "pip -r requirements-dev.hashes",
    "-m ruff check .",
    "-m mypy",
    "-m pytest -x tests/test_scripts.py",
  ]
  assert machine.run("run_tests.sh", FAILING_MODULE="ruff").returncode == 7
  assert machine.calls() == ["-m ruff check ."]
  assert machine.run("run_tests.sh", FAILING_MODULE="mypy").returncode == 7
  assert machine.calls() == ["-m ruff check .", "-m mypy"]
  assert machine.run("run_tests.sh", FAILING_MODULE="pytest").returncode == 7


def _locked(name):
  lines = (_ROOT / name).read_text().splitlines()
  return [line for line in lines if line and not line.startswith("#")]


_LOCKS = ("requirements.lock", "requirements-dev.lock")


def test_locks_have_exact_versions_once_in_order():
  names, only_older, only_newer = [], set(), set()
  for lock in _LOCKS:
    lines = _locked(lock)
    for line in lines:
      match = re.fullmatch(
        r'([a-z0-9-]+)==[0-9][0-9a-z.]*(?: ; python_version (<|>=) "3\.1\d")?', line
      )
      assert match
      if match[2]:
        (only_older if match[2] == "<" else only_newer).add(line.replace(">=", "<"))
    in_lock = [line.split("==")[0] for line in lines]
    assert in_lock == sorted(in_lock)
    names += in_lock
  # What newer versions of Python get from the other lock is the same version.
  assert only_newer <= only_older
  assert len(names) - len(only_newer) == len(set(names))
  for name in ("tensorflow", "tensorflow-federated", "tensorflow-privacy", "pytest", "setuptools"):
    assert name in names


@pytest.mark.parametrize("lock", _LOCKS)
def test_every_locked_package_has_hashes(lock):
  text = (_ROOT / lock).with_suffix(".hashes").read_text()
  text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
  hashed = [re.split(r" \\\n +--hash=sha256:", entry) for entry in re.split(r"\n(?! )", text)]
  for _, *hashes in hashed:
    assert hashes and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes)
  # uv writes the markers in its own way.
  packages = [re.sub("_full(.*)'(.*)'", r'\1"\2"', package) for package, *_ in hashed]
  assert packages == _locked(lock)


def test_metadata_can_be_resolved_and_agree_with_the_locks():
  config = configparser.ConfigParser()
  config.read(_ROOT / "setup.cfg")
  # tensorflow-federated pins a jaxlib that is gone, and the others must match it.
  assert config["options"]["install_requires"].strip() == ""
  assert config["options"]["python_requires"] == ">=3.9,<3.12"
  in_dev_lock = {line.split("==")[0] for line in _locked("requirements-dev.lock")}
  for requirement in config["options.extras_require"]["dev"].split():
    name, version = requirement.split(">=")
    assert name in in_dev_lock and version


@pytest.mark.parametrize("name", ["run_experiments.sh", "run_tests.sh", ".ci/run"])
def test_scripts_can_be_executed(name):
  assert os.access(_ROOT / name, os.X_OK)
