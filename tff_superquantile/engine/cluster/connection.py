"""Connects to Ray: to a cluster that is there, or to processes of its own, for nobody else.

Ray's processes on this machine listen at the loopback alone, and their folder, with sockets, logs
and values that do not fit into the memory, is open to its owner alone and goes with them.
"""

import atexit
from collections.abc import Iterator
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

import ray
from ray._private import utils as ray_utils  # Nothing public leaves signals to their handlers.

from tff_superquantile.engine.cluster import errors
from tff_superquantile.engine.processes import interruptions
from tff_superquantile.engine.processes import limits

_SECONDS_TO_CONNECT = 10.0
_LOOPBACK = "127.0.0.1"
# A socket's path has 107 characters; Ray takes so many after the folder of ours.
_MOST_OF_A_SOCKET = 107 - len(
  "/ray_12345678/r/session_2026-01-01_00-00-00_000000_1234567/sockets/raylet.1"
)

# Removes a folder when the process that started it ends, in any way. Processes that write there end
# later, and may make the folder again, so it is removed until it has been absent for a while.
_REMOVE = """
import os, shutil, signal, sys, time
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
  signal.signal(getattr(signal, name), signal.SIG_IGN)
orderly = os.read(0, 1)
end, away = time.monotonic() + 60.0, 0
while time.monotonic() < end and away < (1 if orderly else 30):
  away = 0 if os.path.exists(sys.argv[1]) else away + 1
  shutil.rmtree(sys.argv[1], ignore_errors=True)
  time.sleep(0.1)
"""


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
  """Silences the process but for Python's errors: Ray says which level of messages it was given."""
  own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nowhere, 2)
    yield
  finally:
    os.dup2(own, 2)
    os.close(own)
    os.close(nowhere)


@contextlib.contextmanager
def _own_signals(is_local: bool) -> Iterator[None]:
  """Keeps a command's handlers, in whose place Ray puts its own; they wait while Ray starts here.

  A signal would else end the command as a failure, perhaps before Ray knows what it has started.
  """
  is_main = threading.current_thread() is threading.main_thread()
  if not is_main or signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    yield
    return
  put, ray_utils.set_sigterm_handler = ray_utils.set_sigterm_handler, lambda handler: None
  try:
    with interruptions.deferred_signals() if is_local else contextlib.nullcontext():
      yield
  finally:
    ray_utils.set_sigterm_handler = put


def _make_folder() -> str:
  """Makes a folder for Ray's processes, which is removed after them."""
  place = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
  if len(place) > _MOST_OF_A_SOCKET and "RAY_TMPDIR" not in os.environ:
    place = "/tmp"
  outer = tempfile.mkdtemp(prefix="ray_", dir=place)  # Its owner alone may enter.
  command = [sys.executable, "-I", "-S", "-c", _REMOVE, outer]
  nowhere = subprocess.DEVNULL
  # In a session of its own, Ctrl-C does not end it.
  remover = subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
  )

  def end() -> None:
    ray.shutdown()
    remover.communicate(b".")

  atexit.register(end)
  return os.path.join(outer, "r")  # Ray opens its own folder to all.


def connect(address: str) -> None:
  """Connects to Ray at an address, as of `RayContext`, unless this process is connected."""
  if ray.is_initialized():
    return
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # No usage report is sent.
  os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Files have the logs.
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # It would warn of a change.
  options: dict[str, Any] = {}
  is_local = address == "local"
  host, _, port = address.rpartition(":")
  try:
    if host:  # Ray itself would try for minutes.
      socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT).close()
    with _own_signals(is_local):  # From before there is a folder that somebody must remove.
      if is_local:
        # Ray gives its workers a niceness of 15, with which they get little of a busy machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
        options = {"num_cpus": limits.num_cores(), "include_dashboard": False}
        options |= {"_node_ip_address": _LOOPBACK, "_temp_dir": _make_folder()}
      with _without_stderr():
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **options)
  except Exception as error:  # Ray raises a bare one where it starts too slowly.
    remedy = "try again when the machine has less to do" if is_local else "give --ray_address=local"
    raise errors.ClusterError(
      f"Found no Ray cluster at {address!r} ({error}); start one by `ray start --head`, or"
      f" {remedy}."
    ) from None
