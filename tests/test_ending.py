"""Tests that somebody ends leave nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from helpers import processes
import pytest

_SECONDS = 120  # Of patience, not of duration.
_COMPUTES = """
import os, pathlib, subprocess, sys
def test_computes():
  # A command in a session of its own, and an orphan.
  subprocess.Popen(["sleep", "1000"], start_new_session=True)
  subprocess.run(["sh", "-c", "sleep 1000 & echo $! > orphan"], check=True)
  pathlib.Path("worker").write_text(str(os.getpid()))
  while True:
    pass
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_no_worker_nor_what_it_started_is_left(tmp_path, signum):
  (tmp_path / "test_long.py").write_text(_COMPUTES)
  tests = str(pathlib.Path(processes.__file__).parents[1])
  # Not itself a worker of whoever runs this test.
  environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
  pytest_itself = subprocess.Popen(
    [sys.executable, "-m", "pytest", "-p", "helpers.processes", "-n", "1", "test_long.py"],
    cwd=tmp_path,
    env={**environment, "PYTHONPATH": tests},
    stdout=subprocess.DEVNULL,
  )
  try:
    end = time.monotonic() + _SECONDS
    while not (tmp_path / "worker").exists():
      assert pytest_itself.poll() is None and time.monotonic() < end
      time.sleep(0.05)
    started = processes.below(pytest_itself.pid)
    ids = {pid for pid, _ in started}
    assert len(ids) >= 4 and int((tmp_path / "orphan").read_text()) in ids
    pytest_itself.send_signal(signum)
    assert pytest_itself.wait(_SECONDS) == -signum
    while left := [pid for pid, start in started if (processes.stat(pid) or (0, 0))[1] == start]:
      assert time.monotonic() < end, left
      time.sleep(0.05)
  finally:
    for pid, _ in processes.below(pytest_itself.pid):
      os.kill(pid, signal.SIGKILL)
    pytest_itself.wait()
