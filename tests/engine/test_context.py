"""TFF's own context ends with its process, however that ends."""

import functools
import os
import signal
import time
import uuid

from helpers import commands
from helpers import forks
from helpers import processes
import pytest

from tff_superquantile.engine import context

_SECONDS = 600  # For a process to start; of patience, not of duration.

_SCRIPT = '''
import os, signal, sys, time
os.setsid()  # Of what a terminal's Ctrl-C reaches, it is alone.
import numpy as np
import tensorflow_federated as tff
from tff_superquantile.engine import context

@tff.tensorflow.computation(np.int32)
def double(x):
  return 2 * x

@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(tff.federated_map(double, values))

def start():
  tff.backends.native.set_sync_local_cpp_execution_context()
  assert total([1, 2, 3]) == 12

def workers():
  """The ids of this process' children that have not ended."""
  found = []
  for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
      state, parent = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[:2]
    except OSError:
      continue  # Ended meanwhile.
    if parent == str(os.getpid()) and state != "Z":
      found.append(pid)
  return found

start()
print(*workers(), flush=True)
'''


def wait_for_end(pids, seconds=60):
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    if not any(processes.stat(pid) for pid in pids):
      return True
    time.sleep(0.05)
  return False


class Script:
  """The script plus `lines`, in a process of its own that ends as Python does."""

  def __init__(self, folder, lines, before=""):
    name = uuid.uuid4().hex
    self._files = [folder / f"{name}.{kind}" for kind in ("out", "err")]
    for file in self._files:
      file.touch()
    self.process = forks.Fork(["-c", before + _SCRIPT + lines], folder, *self._files, is_whole=True)
    self._num_read = 0

  def _out(self):
    """What it has printed in whole lines, but for what was read before."""
    return self._files[0].read_text()[self._num_read :]

  def read_line(self):
    end = time.monotonic() + _SECONDS
    while "\n" not in self._out():
      assert self.process.poll() is None and time.monotonic() < end, self._files[1].read_text()
      time.sleep(0.05)
    line = self._out().partition("\n")[0] + "\n"
    self._num_read += len(line)
    return line

  @functools.cached_property
  def worker(self):
    """The worker's process id, once there is one."""
    (pid,) = self.read_line().split()
    return int(pid)

  def end(self):
    """Returns (return code, rest of stdout, stderr)."""
    try:
      code = self.process.wait(_SECONDS)
    finally:
      self.process.send_signal(signal.SIGKILL)
    return code, self._out(), self._files[1].read_text()


def assert_ends(pid):
  """The worker that this id names ends soon, by itself."""
  try:
    assert wait_for_end([pid]), "a worker was left behind"
  finally:
    if processes.stat(pid):
      os.kill(pid, signal.SIGKILL)


def test_no_worker_is_left_by_an_end_an_exception_or_a_signal(tmp_path):
  normal = Script(tmp_path, "")
  # The traceback holds the frame in which the context was used.
  failed = Script(tmp_path, "def f():\n  raise OSError(str(total([1])))\nf()")
  signums = (signal.SIGTERM, signal.SIGKILL)
  killed = [Script(tmp_path, "time.sleep(1000)") for _ in signums]
  workers = [script.worker for script in (normal, failed, *killed)]
  assert normal.end() == (0, "", "")
  code, _, err = failed.end()
  assert code == 1
  assert err.strip().endswith("OSError: 2") and "Exception ignored" not in err
  for script, signum in zip(killed, signums):
    script.process.send_signal(signum)
    assert script.end() == (-signum, "", "")
  for worker in workers:
    assert_ends(worker)


def test_ctrl_c_leaves_the_worker_to_its_parent(tmp_path):
  """A terminal sends it to every process of the group, and there is still something to save."""
  interrupted = Script(
    tmp_path,
    "try:\n  print('ready', flush=True); time.sleep(1000)\n"
    "except KeyboardInterrupt:\n  print(total([4]), *workers()); sys.exit(3)",
  )
  # Shells start the background jobs of a script with SIGINT ignored; TFF ends a worker by SIGINT
  # when another context takes its place, and waits for it.
  again = "start(); start(); print(*workers())"
  ignoring = Script(tmp_path, again, before=commands.IN_BACKGROUND)

  worker = interrupted.worker
  assert interrupted.read_line() == "ready\n"
  os.killpg(interrupted.process.pid, signal.SIGINT)
  assert interrupted.end() == (3, f"8 {worker}\n", "")
  assert_ends(worker)

  first = ignoring.worker
  code, out, err = ignoring.end()
  assert (code, err) == (0, "")
  (last,) = out.split()  # One, though the context was set three times.
  assert_ends(first)
  assert_ends(int(last))


@pytest.mark.parametrize("number", [0, -1])
def test_number_of_concurrent_calls_is_checked(number):
  with pytest.raises(ValueError, match=f"Found max_concurrent_computation_calls = {number}"):
    context.set_simulation_context(number)
