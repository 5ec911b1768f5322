"""Forks that end when their parent does, and do nothing of what it has still to do."""

import os
import signal
import subprocess
import sys
import time

import pytest

_SECONDS = 120  # Of patience, not of duration.

# Carries out `function` in a fork, in a Python of its own, which has nothing of pytest.
_SCRIPT = """
import os, signal, sys, time
from tff_superquantile.engine.processes import dependent_process

def function():
{body}

try:
  print("once", end="")  # Not written yet when the process forks.
  with open(sys.argv[1], "w") as log:
    fork = dependent_process.DependentFork(function, output=log.fileno(), cores=[{core}])
  assert fork.pid != os.getpid()
{parent}
finally:
  print(" finally", os.getpid())
"""
_CODE = (
  "  print(' code', fork.wait(), fork.poll(), fork.returncode, end='')\n  fork.send_signal(15)"
)


@pytest.fixture
def start(tmp_path):
  """Starts a parent whose fork does `body`; returns its process and what the fork prints."""
  log = tmp_path / "log.txt"
  started = []

  def start(body, parent=_CODE):
    core = min(os.sched_getaffinity(0))
    body = "\n".join(f"  {line}" for line in body.splitlines())
    script = _SCRIPT.format(body=body, parent=parent, core=core)
    command = [sys.executable, "-c", script, str(log)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started.append(subprocess.Popen(command, text=True, **pipes))
    return started[-1], log

  yield start
  for process in started:
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
  "body, code, said",
  [
    ("return 7", 7, ""),
    ("print('it said'); return 0", 0, "it said\n"),
    ("raise KeyError('lost')", 1, "KeyError: 'lost'\n"),
    ("sys.exit(3)", 1, "SystemExit: 3\n"),
    ("raise KeyboardInterrupt", 1, "KeyboardInterrupt\n"),
    ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    ("print(repr(sys.stdin.read()), *os.sched_getaffinity(0)); return 0", 0, "'' {core}\n"),
    ("assert os.getsid(0) == os.getpid() != os.getsid(os.getppid()); return 0", 0, ""),
    ("assert not signal.pthread_sigmask(signal.SIG_BLOCK, []); return 0", 0, ""),
  ],
)
def test_a_function_is_carried_out_and_nothing_else(start, body, code, said):
  process, log = start(body)
  out, err = process.communicate("a line of the parent's", timeout=_SECONDS)
  # Said once, and by the parent alone.
  assert out == f"once code {code} {code} {code} finally {process.pid}\n", err
  assert log.read_text().endswith(said.format(core=min(os.sched_getaffinity(0))))
  assert said or not log.read_text()


def test_signals_do_what_they_usually_do_where_the_parent_ignores_them(start):
  ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
  process, log = start(
    "print('there', flush=True); time.sleep(3600); return 0",
    f"  {ignore}\n  while not os.path.getsize(sys.argv[1]): time.sleep(0.01)\n"
    "  fork.send_signal(signal.SIGINT)\n" + _CODE,
  )
  out, _ = process.communicate(timeout=_SECONDS)
  assert "code 1 " in out and log.read_text().endswith("KeyboardInterrupt\n")


# Another thread gets a signal while the main one forks, in a function that Python calls then.
_SIGNALLED = """
import os, signal, sys, threading, time
from tff_superquantile.engine.processes import dependent_process

for name in ("SIGTERM", "SIGINT", "SIGHUP"):
  signal.signal(getattr(signal, name), lambda number, frame: sys.exit(128 + number))
other = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
other.start()

def after():
  signal.pthread_kill(other.ident, signal.{name})
  time.sleep(0.2)

os.register_at_fork(after_in_parent=after)
dependent_process.DependentFork(lambda: 0, output=1)
print("went on")
"""


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_while_it_forks_is_not_lost(name, code):
  script = _SIGNALLED.format(name=name)
  found = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=_SECONDS)
  assert (found.returncode, found.stdout, found.stderr) == (code, b"", b"")


def test_it_ends_when_its_parent_is_killed(start):
  process, log = start("print(os.getpid(), flush=True); time.sleep(3600); return 0")
  end = time.monotonic() + _SECONDS
  while not (log.exists() and log.read_text().endswith("\n")):
    assert time.monotonic() < end
    time.sleep(0.01)
  fork = int(log.read_text())
  assert os.path.exists(f"/proc/{fork}")
  process.send_signal(signal.SIGKILL)
  while os.path.exists(f"/proc/{fork}") and "(zombie)" not in _status(fork):
    assert time.monotonic() < end
    time.sleep(0.01)


def _status(pid):
  try:
    with open(f"/proc/{pid}/status") as file:
      return file.read()
  except (FileNotFoundError, ProcessLookupError):
    return "(zombie)"
