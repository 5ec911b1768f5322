"""Processes that the tests have started, and their end when somebody ends the tests.

A plugin of pytest: whatever a worker computes or has started ends when the process that shares out
the tests is ended by a signal.
"""

import contextlib
import ctypes
import os
import pathlib
import signal

_PR_SET_CHILD_SUBREAPER = 36


def stat(pid):
  """(parent's id, start time) of a process that has not ended; None if it has."""
  try:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
  except (FileNotFoundError, ProcessLookupError):
    return None
  return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


def below(pid):
  """The process, and all that it or they started: {(process id, start time)}."""
  stats = {int(path.name): stat(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")}
  found, new = {pid}, True
  while new:
    new = {p for p, s in stats.items() if s and s[0] in found} - found
    found |= new
  return {(p, stats[p][1]) for p in found if stats.get(p)}


def _end(signum, frame):
  """Kills all that was started, and ends as the signal usually does."""
  for pid, _ in below(os.getpid()):
    if pid != os.getpid():
      with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
        os.kill(pid, signal.SIGKILL)
  signal.signal(signum, signal.SIG_DFL)
  os.kill(os.getpid(), signum)


def pytest_configure(config):
  """Has the process that shares out the tests take all with it; a worker just ends."""
  if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", 0):
    return
  # What a worker that has ended leaves becomes a child of this process, which so finds it.
  ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
  for signum in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, _end)
