"""TFF's worker: nobody but its starter reaches it."""

import os
import pathlib
import socket
import subprocess
import sys
import time

import grpc
import portpicker
import pytest
from tensorflow_federated.python.core.impl.executor_stacks import executor_factory

from tff_superquantile.simulation import dependent_process
from tff_superquantile.simulation import private_network
from tff_superquantile.simulation import worker

_BINARY = pathlib.Path(executor_factory.__file__).parents[4] / "data" / "worker_binary"
_SECONDS = 60
# Of this machine, and not the one that TFF connects to: as from outside.
_OTHER_ADDRESS = "127.0.0.2"


def _arguments():
  port = portpicker.pick_unused_port()
  return port, [str(_BINARY), f"--port={port}", "--max_concurrent_computation_calls=1"]


def _command_of(pid):
  try:
    return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
  except OSError:
    return ""  # It ended meanwhile.


def _is_refused(address, port):
  try:
    socket.create_connection((address, port), 5).close()
  except ConnectionRefusedError:
    return True
  return False


@pytest.fixture(scope="module")
def alone():
  """(worker, port) of a worker in a network of its own."""
  if not private_network.is_allowed():
    pytest.skip("the kernel allows no network namespace")
  port, arguments = _arguments()
  process = worker.Worker(arguments)
  yield process, port
  process.kill()
  process.wait()


def test_its_starter_connects(alone):
  process, port = alone
  assert process.alone
  channel = worker.connect(f"localhost:{port}")
  grpc.channel_ready_future(channel).result(_SECONDS)


def test_nobody_else_does(alone):
  _, port = alone
  assert all(_is_refused(address, port) for address in ("127.0.0.1", "::1", _OTHER_ADDRESS))


def test_the_way_to_it_is_for_its_user_alone(alone):
  _, port = alone
  path = pathlib.Path(worker.address(f"localhost:{port}").removeprefix("unix:"))
  assert path.is_socket() and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_worker_as_tff_starts_it_is_open():
  # What the tests above would find if nothing was done.
  port, arguments = _arguments()
  with dependent_process.DependentProcess(arguments, stderr=subprocess.DEVNULL) as process:
    try:
      channel = grpc.insecure_channel(f"{_OTHER_ADDRESS}:{port}")
      grpc.channel_ready_future(channel).result(_SECONDS)
    finally:
      process.kill()


def test_nothing_is_left(alone):
  port, arguments = _arguments()
  process = worker.Worker(arguments)
  folder = pathlib.Path(worker.address(f"localhost:{port}").removeprefix("unix:")).parent
  carrier = [
    pid
    for pid in filter(str.isdigit, os.listdir("/proc"))
    if pid != str(process.pid) and f"\0{port}\0" in _command_of(pid)
  ]
  assert len(carrier) == 1 and folder.is_dir()
  process.kill()
  process.wait()
  end = time.monotonic() + _SECONDS
  while folder.exists() or os.path.exists(f"/proc/{carrier[0]}"):
    assert time.monotonic() < end
    time.sleep(0.02)


def test_where_the_kernel_allows_no_network_it_is_said(monkeypatch):
  monkeypatch.setattr(worker, "_PROGRAM", [sys.executable, "-c", _NOT_ALLOWED])
  port, arguments = _arguments()
  with pytest.warns(RuntimeWarning, match=f"listens on port {port} at all addresses"):
    process = worker.Worker(arguments)
  try:
    assert not process.alone
    channel = worker.connect(f"localhost:{port}")
    grpc.channel_ready_future(channel).result(_SECONDS)
  finally:
    process.kill()
    process.wait()


_NOT_ALLOWED = f"""
import sys
sys.path.insert(0, {os.path.dirname(private_network.__file__)!r})
import private_network
private_network.is_allowed = lambda: False
private_network.main(sys.argv[1:])
"""


def test_a_worker_that_does_not_start_is_said(monkeypatch):
  monkeypatch.setattr(worker, "_PROGRAM", [sys.executable, "-c", ""])
  with pytest.raises(RuntimeError, match="Found that TFF's worker does not start"):
    worker.Worker(_arguments()[1])
