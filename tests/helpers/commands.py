"""Commands as users start them: processes of their own, in a folder that has nothing of ours."""

import contextlib
import csv
import dataclasses
import itertools
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

from helpers import forks
from helpers import here
from helpers import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SECONDS = 400  # Of patience with a command, not what one takes.
_SECONDS_BETWEEN_LOOKS = 0.3
_SMALL = ("--num_train_clients=30", "--num_test_clients=15", "--clients_per_round=8")
_PACKAGE = "tff_superquantile.experiments"
METHOD = "synthetic/superquantile_theta_0.5"
# A command as a user starts it, but that it, and each fork of it, waits before it appends another
# row to its rounds.csv, until it is let go: it cannot end before a test has interrupted it.
_HELD = """
import os, runpy, sys, time
left = [{rows}]
def hook(event, arguments):
  if event != "open" or arguments[1] != "a" or not str(arguments[0]).endswith("/rounds.csv"):
    return
  left[0] -= 1
  if left[0] < 0:
    with open({place!r} + ".held", "w"):
      pass
    while not os.path.exists({place!r} + ".go"):
      time.sleep(0.02)
sys.addaudithook(hook)
sys.argv[0] = {module!r}
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
# What a process is where a shell starts it in the background of a script.
IN_BACKGROUND = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"


@dataclasses.dataclass(frozen=True)
class Result:
  """How a command ended."""

  code: int
  out: str
  err: str

  def errors(self):
    return [line for line in self.err.splitlines() if line.startswith("Error:")]

  def assert_fails_with_a_sentence(self, code, *parts):
    """One line that begins with "Error:" and holds `parts`; no traceback."""
    assert self.code == code, self.err
    assert "Traceback" not in self.err
    (line,) = self.errors()
    for part in parts:
      assert part in line

  def assert_refused(self, *parts):
    """Exit code 2 and a sentence, which is all that it says."""
    self.assert_fails_with_a_sentence(2, *parts)
    assert self.out == ""
    assert len(self.err.splitlines()) == 1, self.err


class Command:
  """A started command, and the processes that it was seen to start."""

  def __init__(self, arguments, folder, name, forked=False, is_whole=False):
    self._files = {kind: folder / f"{name}.{kind}" for kind in ("out", "err")}
    self._place = str(folder / name)  # Beginning of the paths of what holds it.
    self._seen = set()
    if forked:
      self.process = forks.Fork(arguments, folder, **self._files, is_whole=is_whole)
      return
    with open(self._files["out"], "w") as out, open(self._files["err"], "w") as err:
      self.process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        cwd=folder,
        env=forks.environment(),
      )

  def look(self):
    """Remembers the processes that are there now."""
    self._seen |= processes.below(self.process.pid)

  def wait_until(self, condition):
    """Waits until there is something to see, or the command has ended."""
    end = time.monotonic() + _SECONDS
    while self.process.poll() is None and not condition():
      assert time.monotonic() < end, "nothing happens"
      time.sleep(0.02)
    self.look()

  def wait(self, seconds=math.inf):
    """Returns how it ended, which it does within some seconds."""
    end = time.monotonic() + seconds
    while True:
      try:
        self.process.wait(_SECONDS_BETWEEN_LOOKS)
        break
      except subprocess.TimeoutExpired:
        self.look()
        assert time.monotonic() < end, f"it goes on: {self._files['out'].read_text()}"
    return Result(self.process.returncode, *(f.read_text() for f in self._files.values()))

  def wait_until_held(self):
    """Waits until the command, of `Lab.held`, does not go on."""
    self.wait_until(pathlib.Path(f"{self._place}.held").exists)

  def let_go(self):
    """Lets a command of `Lab.held` go on."""
    pathlib.Path(f"{self._place}.go").touch()

  def end_by(self, signum):
    """Sends the command a signal, lets it go if it is held, and waits for its end."""
    self.look()
    assert self.process.poll() is None, f"it ended before it could be interrupted: {self.wait()}"
    self.process.send_signal(signum)
    self.let_go()  # After the signal, which may have to wait until a row is written.
    return self.wait()

  def num_seen(self):
    """How many there were, with itself, up to now."""
    self.look()
    return len(self._seen)

  def left_behind(self, seconds=60.0):
    """The ids of processes that it started, and that are still there some seconds later."""
    end = time.monotonic() + seconds
    while True:
      left = [pid for pid, start in self._seen if (processes.stat(pid) or (0, 0))[1] == start]
      if not left or time.monotonic() > end:
        return left
      time.sleep(0.1)

  def kill(self):
    self.look()
    for pid in self.left_behind(0.0):
      with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
        os.kill(pid, signal.SIGKILL)


class Lab:
  """A folder in which commands run."""

  def __init__(self, folder, cache_dir):
    self.folder, self.cache_dir = folder, cache_dir
    self._commands = []
    self._numbers = itertools.count()  # Threads may start commands at once: one number, one name.

  def _name(self):
    return f"command_{next(self._numbers)}"

  def _command(self, arguments, name=None, **kwargs):
    command = Command(arguments, self.folder, name or self._name(), **kwargs)
    self._commands.append(command)
    return command

  def python(self, *arguments):
    """Starts Python."""
    return self._command(arguments)

  def fork(self, *arguments, is_whole=False):
    """Starts Python as a fork that has imported TensorFlow; a whole one ends as Python does."""
    return self._command(arguments, forked=True, is_whole=is_whole)

  def places(self, output_dir):
    """The values of the flags that say where a run is in this folder."""
    return dict(output_dir=str(self.folder / output_dir), cache_dir=str(self.cache_dir))

  def small(self, arguments):
    """The arguments, after the flags of a small task, which they override."""
    return [*_SMALL, f"--cache_dir={self.cache_dir}", *arguments]

  def start(self, module, *arguments):
    """Starts a command with the flags of a small task, which `arguments` override."""
    return self.python("-m", f"{_PACKAGE}.{module}", *self.small(arguments))

  def held(self, module, *arguments, rows, in_background=False):
    """Starts a command as a fork that is held after so many rows, and again in each of its own.

    One in the background ignores SIGINT, as a shell without a terminal has it.
    """
    name = self._name()
    place = str(self.folder / name)
    script = _HELD.format(rows=rows, place=place, module=f"{_PACKAGE}.{module}")
    script = IN_BACKGROUND * in_background + script
    return self._command(["-c", script, *self.small(arguments)], name, forked=True)

  def forked(self, module, *arguments):
    """Carries out a command, as a fork."""
    return self.fork("-m", f"{_PACKAGE}.{module}", *arguments).wait()

  def here(self, module, *arguments):
    """Carries out a command of any package in this process."""
    return carry_out(module, *arguments, folder=self.folder, name=self._name())

  def bare(self, module, *arguments):
    """Carries out a command in this process."""
    return self.here(f"{_PACKAGE}.{module}", *arguments)

  def study(self, *arguments):
    return self.here("paper.studies", *arguments)

  def train(self, *arguments):
    return self.bare("train", *self.small(arguments))

  def sweep(self, *arguments):
    return self.bare("sweep", *self.small(arguments))

  def close(self):
    for command in self._commands:
      command.kill()


def carry_out(module, *arguments, folder, name="command"):
  """Carries out a command as `python -m` does it, but in this process."""
  files = [folder / f"{name}.{kind}" for kind in ("out", "err")]
  code = here.run(module, arguments, folder, *files)
  return Result(code, *(file.read_text() for file in files))


def rows(run):
  """The rows of a run's rounds.csv, without what a clock measured."""
  with open(run / "rounds.csv", newline="") as file:
    return [
      {name: text for name, text in row.items() if name != "seconds"}
      for row in csv.DictReader(file)
    ]


def num_rows(run):
  """How many whole lines a rounds.csv in the making has, but for its header."""
  try:
    return max(0, (run / "rounds.csv").read_text().count("\n") - 1)
  except FileNotFoundError:
    return 0


def contents(folder, names=None):
  """What a folder holds, {path: bytes}, but the mark of the last attempt at a run."""
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.name != "lock" and (names is None or path.name in names)
  }


def assert_same_results(run, other):
  """Both runs computed the same, and said the same of it."""
  assert rows(run) == rows(other)
  names = ("metrics.json", "train_clients.csv", "validation_clients.csv", "test_clients.csv")
  assert contents(run, names) == contents(other, names)
  assert contents(run / "clients") == contents(other / "clients") != {}
