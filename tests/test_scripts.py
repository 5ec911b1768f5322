"""The shell scripts on machines of all kinds, which are folders of fake commands."""

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from paper import studies
import tff_superquantile
from tff_superquantile import commands
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.plan import presets

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FILES = (
  ".ci/run",
  "run_experiments.sh",
  "run_tests.sh",
  "scripts/venv.sh",
  "setup.cfg",
  "pyproject.toml",
  "requirements.lock",
  "requirements-dev.lock",
)
_COREUTILS = ("cat", "cut", "dirname", "env", "mkdir", "mv", "readlink", "rm")
_COREUTILS += ("mktemp", "seq", "sha256sum", "tail", "tr")
_OTHERS = ("bash", "grep", "flock")
_SECONDS = 120  # Of patience, not of duration.
# Answers as far as the scripts ask, and notes what was asked. VERSION and VENV are filled in.
_FAKE_PYTHON = """#!{bash}
[[ "$1" != -I ]] || shift
case "$1 $2" in
  "-c "*ensurepip*) echo "{implementation} {version} {has_venv}" ;;
  "-c "*numpy*) echo "Python {version}.0 with NumPy 2" ;;
  "-c "*) ;;
  "-m venv")
    echo "venv" >>"$CALLS"
    {mkdir} -p "$3/bin" && {cp} "$0" "$3/bin/python"
    ;;
  "-m pip")
    [[ "$3" != --version ]] || exit 0
    echo "pip ${{*: -2}}" >>"$CALLS"
    [[ -z "${{PIP_WAITS_FOR:-}}" ]] || : >"$PIP_WAITS_FOR.begun"
    while [[ -n "${{PIP_WAITS_FOR:-}}" && ! -e "$PIP_WAITS_FOR" ]]; do {sleep} 0.05; done
    [[ -z "${{PIP_SAYS:-}}" ]] || {{ echo "$PIP_SAYS"; exit 1; }}
    [[ -z "${{PIP_IS_KILLED:-}}" ]] || kill -KILL $$
    [[ -z "${{PIP_INTERRUPTS_ITS_PARENT:-}}" ]] || kill -INT $PPID
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
    self.command("git", f'{shutil.which("cp")} -r "$4" "$5"')
    (folder / "calls").touch()

  def command(self, name: str, text: str) -> None:
    (self.bin / name).unlink(missing_ok=True)
    (self.bin / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
    (self.bin / name).chmod(0o755)

  def python(self, name="python3.13", version="3.13", implementation="CPython", has_venv="yes"):
    """Puts a Python on the PATH, or somewhere else if the name is a path."""
    tools = {tool: shutil.which(tool) for tool in ("bash", "cp", "mkdir", "sleep")}
    text = _FAKE_PYTHON.format(
      version=version, implementation=implementation, has_venv=has_venv, **tools
    )
    (self.bin / name).parent.mkdir(exist_ok=True)
    (self.bin / name).write_text(text)
    (self.bin / name).chmod(0o755)

  def uv(self, folder: pathlib.Path, install: str) -> None:
    """Puts a uv on the PATH that finds the Python in a folder and installs by a command."""
    self.command(
      "uv",
      f"""echo "uv $1 $2" >>"$CALLS"
      case "$2" in
        find) [[ -x "{folder}/python" ]] && echo "{folder}/python" ;;
        install) {install} ;;
      esac""",
    )

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
    out, err = process.communicate(timeout=_SECONDS)
    return subprocess.CompletedProcess(command, process.returncode, out, err)

  def wait_until(self, process: subprocess.Popen, path: pathlib.Path) -> None:
    """Waits until a process has made a file."""
    end = time.monotonic() + _SECONDS
    while not path.exists():
      assert process.poll() is None and time.monotonic() < end, f"{path.name} is not made"
      time.sleep(0.01)

  def calls(self) -> list[str]:
    """What Python was called for since the last time."""
    lines = (self.folder / "calls").read_text().splitlines()
    (self.folder / "calls").write_text("")
    return [line.replace(f"{self.project}/", "") for line in lines]

  def stamps(self) -> list[str]:
    return sorted(path.name for path in (self.project / ".venv").glob(".stamp-*"))


@pytest.fixture
def machine(tmp_path):
  # Also where the tests run in the background: children inherit what is ignored.
  old = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield _Machine(tmp_path)
  signal.signal(signal.SIGINT, old)


_STACK = "-m tff_superquantile.install_tff"
_SET_UP = ["venv", "pip -r requirements.lock", "pip -e {project}", _STACK]


def _set_up_calls(machine):
  return [call.format(project=machine.project) for call in _SET_UP]


def _sweep(*arguments):
  return " ".join(("-m tff_superquantile.experiments.sweep", *arguments))


def _assert_one_sentence(result, *parts, after=None):
  assert result.returncode == 2
  assert result.stdout == ""
  lines = result.stderr.splitlines()
  if after:
    assert lines.pop(0).startswith(after)
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
  alone = ["tailbench", *(name for name in studies.STUDIES if name not in presets.PRESETS)]
  of_the_paper = ["convergence", "nonconvex", "paper"]
  assert described("EXPERIMENTS", "COMMANDS") == [*presets.PRESETS, *alone, *of_the_paper]
  words = " ".join(result.stdout.split()).lower()
  for method in methods.METHODS.values():
    assert method.title.lower() in words
  assert described("COMMANDS", "OPTIONS") == ["doctor", "download", "train"]
  assert max(map(len, result.stdout.splitlines())) <= 80
  for module in re.findall(r"-m \\?\s*([\w.]+)", result.stdout):
    assert importlib.util.find_spec(module) is not None
  names = re.findall(r"run_experiments\.sh (\w+) --help", result.stdout)
  assert len(names) >= 2 and set(names) <= {*commands.COMMANDS, *alone}
  assert not (machine.project / ".venv").exists()


def test_the_version_needs_no_environment(machine):
  result = machine.run("run_experiments.sh", "--version")
  version = tff_superquantile.__version__
  assert (result.returncode, result.stdout) == (0, f"tff_superquantile {version}\n")
  assert machine.run("run_experiments.sh", "help").stdout.startswith("NAME")
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
  "arguments, module",
  [
    (["emnist_linear"], "experiments.sweep --experiment=emnist_linear"),
    (["--quick"], "experiments.sweep --experiment=default --quick"),
    (["synthetic", "--a=b c"], "experiments.sweep --experiment=synthetic --a=b c"),
    # What is no sweep is a module of its own.
    (["doctor", "--a=b c"], "doctor --a=b c"),
    (["download"], "experiments.download"),
    (["private_quantile", "--a=b c"], "-m paper.studies private_quantile --a=b c"),
    (["sampling_noise", "--a=b c"], "-m paper.studies sampling_noise --a=b c"),
    (["tailbench"], "-m benchmarks.tailbench"),
    (["convergence"], "-m paper.convergence"),
    (["nonconvex"], "-m paper.nonconvex"),
    (["paper"], "-m paper.statements"),
  ],
)
def test_arguments_and_directory_reach_the_module(machine, arguments, module):
  machine.python()
  result = machine.run("run_experiments.sh", *arguments)
  assert result.returncode == 0 and f"in {machine.folder}, log level 3" in result.stdout
  expected = module if module.startswith("-m ") else f"-m tff_superquantile.{module}"
  assert machine.calls()[-1] == expected


def test_experiment_replaces_the_script(machine):
  """Then Ctrl-C and exit status are the experiment's own."""
  machine.python()
  process = machine.start(
    "run_experiments.sh",
    FAILING_MODULE="tff_superquantile.experiments.sweep",
    TF_CPP_MIN_LOG_LEVEL="0",
  )
  out, _ = process.communicate(timeout=_SECONDS)
  assert out.startswith(f"pid {process.pid} in ") and "log level 0" in out
  assert process.returncode == 7


@pytest.mark.parametrize("minor", range(8, 16))
def test_takes_four_pythons_and_no_other(machine, minor):
  machine.python("python3", version=f"3.{minor}")
  result = machine.run("run_experiments.sh")
  if 10 <= minor <= 13:
    assert result.returncode == 0
    assert machine.calls()[:-1] == _set_up_calls(machine)
  else:
    found = f"Found Python 3.{minor} ({machine.bin}/python3)"
    _assert_one_sentence(result, found, "Python 3.10, 3.11, 3.12 or 3.13", "install uv")
    assert not (machine.project / ".venv").exists()


def test_takes_the_first_python_that_runs(machine, tmp_path):
  machine.uv(tmp_path, "exit 1")
  machine.command("python3.13", "echo 'python3.13: command not found' >&2; exit 127")
  machine.python("python3.12", version="3.12", has_venv="no")
  machine.python("python3.11", version="3.11")
  machine.python("python3.10", version="3.10")
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.calls()[:-1] == _set_up_calls(machine)
  assert '"CPython 3.11 yes"' in (machine.project / ".venv/bin/python").read_text()


def test_a_python_of_uv(machine, tmp_path):
  machine.uv(tmp_path / "of uv", "exit 1")
  machine.python(tmp_path / "of uv/python", version="3.12")
  machine.python("python3", version="3.14")
  result = machine.run("run_experiments.sh")
  assert result.returncode == 0 and result.stderr.startswith("Installing ")
  calls = ["uv python find", *_set_up_calls(machine)]
  assert machine.calls()[:-1] == calls
  assert '"CPython 3.12 yes"' in (machine.project / ".venv/bin/python").read_text()


def test_uv_gets_a_python(machine, tmp_path):
  machine.python(tmp_path / "away/python")
  move = f"{shutil.which('mv')} '{tmp_path}/away' '{tmp_path}/of uv'"
  machine.uv(tmp_path / "of uv", move)
  machine.python("python3.11", version="3.11", has_venv="no")
  result = machine.run("run_experiments.sh")
  assert result.returncode == 0
  assert result.stderr.startswith("Getting Python 3.13 by uv ...\nInstalling ")
  calls = ["uv python find", "uv python install", "uv python find", *_set_up_calls(machine)]
  assert machine.calls()[:-1] == calls


def test_uv_gets_no_python(machine, tmp_path):
  says = "error: Failed to install\\n  cause: Request failed\\n  cause: Name not known\\n"
  machine.uv(tmp_path, f"printf '{says}' >&2; exit 1")
  result = machine.run("run_experiments.sh")
  parts = ("Found no Python", "uv could not (Name not known)", "PYTHON=")
  _assert_one_sentence(result, *parts, after="Getting Python 3.13 by uv")
  machine.python("python3.12", version="3.12", has_venv="no")
  result = machine.run("run_experiments.sh")
  _assert_one_sentence(result, "apt install python3.12-venv", after="Getting Python 3.13 by uv")


def test_the_users_python_is_the_only_one_asked(machine):
  machine.python()
  machine.uv(machine.bin, "exit 1")
  machine.python("mine", version="3.14")
  result = machine.run("run_experiments.sh", PYTHON=str(machine.bin / "mine"))
  _assert_one_sentence(result, "Found Python 3.14", "unset PYTHON")
  _assert_one_sentence(machine.run("run_experiments.sh", PYTHON="nowhere"), "PYTHON=nowhere")


@pytest.mark.parametrize(
  "python, other, parts",
  [
    (None, {}, ("Found no Python", "3.13", "curl -LsSf https://astral", "PYTHON=")),
    (dict(has_venv="no"), {}, ("without the modules venv", "apt install python3.13-venv")),
    (dict(name="python3", version="3.10", implementation="PyPy"), {}, ("Found PyPy 3.10",)),
    ({}, dict(uname='[[ "$1" == -s ]] && echo Darwin || echo arm64'), ("Darwin arm64", "x86_64")),
    (
      *({}, dict(uname='[[ "$1" == -s ]] && echo Linux || echo aarch64')),
      ("Found Linux aarch64", "Linux x86_64"),
    ),
    ({}, dict(getconf="echo glibc 2.28"), ("Found glibc 2.28", "2.31")),
    (
      *({}, dict(getconf="exit 1", ldd="echo 'musl libc (x86_64)' >&2; exit 1")),
      ("musl", "glibc 2.31"),
    ),
  ],
)
def test_what_the_machine_lacks_is_one_sentence(machine, python, other, parts):
  if python is not None:
    machine.python(**python)
  for name, text in other.items():
    machine.command(name, text)
  _assert_one_sentence(machine.run("run_experiments.sh"), *parts)


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
    (
      "ERROR: No matching distribution found for numpy==2.2.6",
      "distribution found for numpy==2.2.6",
    ),
    ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
    ("what", "pip failed"),
  ],
)
def test_failed_installation(machine, said, told):
  machine.python()
  result = machine.run("run_experiments.sh", PIP_SAYS=said)
  log = machine.project / ".venv/install.log"
  _assert_one_sentence(result, told, str(log), after="Installing ")
  assert said in log.read_text()
  assert machine.stamps() == []
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.stamps() == [".stamp-packages", ".stamp-project"]


def test_killed_installation_starts_from_nothing(machine):
  machine.python()
  result = machine.run("run_experiments.sh", PIP_IS_KILLED="1")
  _assert_one_sentence(result, "pip was killed", after="Installing ")
  (machine.project / ".venv/half_a_package").touch()
  machine.calls()
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.calls()[:-1] == _set_up_calls(machine)
  assert not (machine.project / ".venv/half_a_package").exists()


@pytest.mark.parametrize("pip_outlives_it", [False, True])
def test_interrupted_installation(machine, pip_outlives_it):
  """Where pip outlives it, the script's own trap runs while its stderr is pip's log."""
  machine.python()
  if pip_outlives_it:
    process = machine.start("run_experiments.sh", PIP_INTERRUPTS_ITS_PARENT="1")
  else:
    process = machine.start("run_experiments.sh", PIP_WAITS_FOR=str(machine.folder / "never"))
    machine.wait_until(process, machine.folder / "never.begun")
    os.killpg(process.pid, signal.SIGINT)
  _, err = process.communicate(timeout=_SECONDS)
  assert process.returncode == 130
  assert err.splitlines()[1:] == ["Interrupted: the next run starts the installation again."]
  assert machine.stamps() == []


def test_what_changed_is_installed_again(machine):
  machine.python()
  machine.run("run_experiments.sh")
  machine.calls()
  with open(machine.project / "requirements.lock", "a") as lock:
    lock.write("another==1.0\n")
  machine.run("run_experiments.sh")
  assert machine.calls()[:-1] == ["pip -r requirements.lock"]
  with open(machine.project / "setup.cfg", "a") as config:
    config.write("\n")
  machine.run("run_experiments.sh")
  assert machine.calls()[:-1] == [f"pip -e {machine.project}", _STACK]
  (machine.project / ".venv/.stamp-packages").write_text("another\n")
  machine.run("run_experiments.sh")
  assert machine.calls()[:-1] == ["pip -r requirements.lock"]


def test_import_that_cannot_be_prepared(machine):
  machine.python()
  result = machine.run("run_experiments.sh", FAILING_MODULE="tff_superquantile.install_tff")
  _assert_one_sentence(result, "Could not prepare the import of TFF", after="Installing ")
  assert machine.stamps() == [".stamp-packages"]


def test_moved_project_gets_a_new_environment(machine):
  machine.python()
  machine.run("run_experiments.sh")
  machine.calls()
  before = machine.project
  machine.project = machine.project.rename(machine.folder / "moved")
  result = machine.run("run_experiments.sh")
  assert result.returncode == 0
  removed, installed = result.stderr.splitlines()
  assert removed == (
    f"Removing {machine.project}/.venv, to make it anew: it was made for {before}, and copied or"
    " moved."
  )
  assert installed.startswith("Installing ")
  assert machine.calls()[:-1] == _set_up_calls(machine)


def test_environment_of_the_user_is_not_removed(machine):
  (machine.project / ".venv").mkdir()
  (machine.project / ".venv/mine").touch()
  _assert_one_sentence(machine.run("run_experiments.sh"), "did not make", "move it away")
  machine.python()
  (machine.project / ".venv/bin").mkdir()
  shutil.copy(machine.bin / "python3.13", machine.project / ".venv/bin/python")
  assert machine.run("run_experiments.sh").returncode == 0
  assert machine.calls()[:-1] == _set_up_calls(machine)[1:]
  assert (machine.project / ".venv/mine").exists()


@pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
def test_two_at_once_install_once(machine):
  machine.python()
  go = machine.folder / "go"
  first = machine.start("run_experiments.sh", PIP_WAITS_FOR=str(go))
  machine.wait_until(first, machine.folder / "go.begun")
  second = machine.start("run_experiments.sh")
  assert second.stderr.readline().startswith("Waiting ")
  go.touch()
  errors = [process.communicate(timeout=_SECONDS)[1] for process in (first, second)]
  assert [process.returncode for process in (first, second)] == [0, 0]
  assert errors[0].startswith("Installing ") and errors[0].count("\n") == 1 and errors[1] == ""
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
    "pip -r requirements-dev.lock",
    "-m ruff check .",
    "-m mypy",
    "-m pytest -x tests/test_scripts.py",
  ]
  assert machine.run("run_tests.sh", FAILING_MODULE="ruff").returncode == 7
  assert machine.calls() == ["-m ruff check ."]
  assert machine.run("run_tests.sh", FAILING_MODULE="mypy").returncode == 7
  assert machine.calls() == ["-m ruff check .", "-m mypy"]
  assert machine.run("run_tests.sh", FAILING_MODULE="pytest").returncode == 7


@pytest.fixture
def checks(machine, tmp_path):
  """Starts .ci/run where no temporary folder may stay."""
  (tmp_path / "tmp").mkdir()

  def start(cores="2", **environment):
    machine.command("nproc", f"echo {cores}")
    return machine.start(".ci/run", TMPDIR=str(tmp_path / "tmp"), **environment)

  yield start
  assert list((tmp_path / "tmp").iterdir()) == [] and not (machine.project / ".venv").exists()


@pytest.mark.parametrize("cores", ["2", "8"])
def test_every_python_is_checked_and_the_newest_by_everything(machine, checks, tmp_path, cores):
  machine.python("python3.12", version="3.12")
  machine.python("python3.11", version="3.11", has_venv="no")
  (tmp_path / "pyenv/versions/3.11.7").mkdir(parents=True)
  machine.python(tmp_path / "pyenv/versions/3.11.7/bin/python", version="3.11")
  machine.python("python3.10", version="3.10")
  process = checks(cores, PYENV_ROOT=str(tmp_path / "pyenv"))
  out, err = process.communicate(timeout=_SECONDS)
  assert process.returncode == 0, out + err
  lines = [line for line in out.splitlines() if "Python" in line]
  assert lines == [
    "Found no Python 3.13: it is not checked.",
    "Python 3.11.0 with NumPy 2: the quick checks are fine.",
    "Python 3.10.0 with NumPy 2: the quick checks are fine.",
    "Python 3.12.0 with NumPy 2",
  ]
  calls = [call.rstrip() for call in machine.calls()]
  sweep = _sweep("--experiment=default", "--quick", "--thetas=0.5")
  counts = {"-m mypy": 3, sweep: 3, "-m pytest --quick": 2, "-m pytest": 1}
  assert {call: calls.count(call) for call in counts} == counts and calls[-1] == "-m pytest"


def test_a_python_on_which_types_are_wrong_is_told(machine, checks):
  machine.python()
  machine.python("python3.11", version="3.11")
  other = machine.bin / "python3.11"
  other.write_text(other.read_text().replace('"${FAILING_MODULE:-}"', "mypy"))
  process = checks()
  out, _ = process.communicate(timeout=_SECONDS)
  assert process.returncode == 1
  assert "Python 3.11: failed, see above.\n" in out
  assert [call.rstrip() for call in machine.calls()][-2:] == ["-m mypy", "-m pytest"]


@pytest.mark.parametrize("pythons", [("3.13",), ("3.13", "3.10")])
def test_interrupted_checks_leave_nothing(machine, checks, pythons):
  for version in pythons:
    machine.python(f"python{version}", version=version)
  process = checks(PIP_WAITS_FOR=str(machine.folder / "never"))
  machine.wait_until(process, machine.folder / "never.begun")
  os.killpg(process.pid, signal.SIGINT)
  # Until nobody has its output any more.
  process.communicate(timeout=_SECONDS)
  assert process.returncode == 130


def test_checks_need_a_python(checks):
  out, err = (process := checks()).communicate(timeout=_SECONDS)
  assert process.returncode == 2 and out.count("Found no Python 3.1") == 4
  assert "Found no Python, but Python 3.10, 3.11, 3.12 or 3.13 is needed" in err
