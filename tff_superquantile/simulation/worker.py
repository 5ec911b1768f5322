"""TFF's worker, the process in which TFF's C++ runtime computes: reachable by its starter alone.

Left alone, it outlives a Python that dies by a signal, holds the terminal's output open, and dies
too early on Ctrl-C, before Python can save anything. Here it lives exactly as long as the process
that started it.
"""

import atexit
from collections.abc import Sequence
import gc
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import types
from typing import Any
import warnings
import weakref

import grpc

from tff_superquantile.simulation import dependent_process
from tff_superquantile.simulation import private_network

_PORT_FLAG = "--port="
OPEN_PORT = (
  "TFF's worker listens on port {port} at all addresses of this machine while it runs, and obeys"
  " whoever connects: the kernel did not allow it a network of its own (user namespaces are off)."
  " Close the port to others by a firewall, or do not start the worker: see docs/security.md."
)

workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()
_channels: "weakref.WeakSet[grpc.Channel]" = weakref.WeakSet()
# The sockets of workers in a network of their own, by the address that TFF would connect to.
_sockets: dict[str, str] = {}


_PROGRAM = [sys.executable, "-I", "-S", private_network.__file__]


class Worker(dependent_process.DependentProcess):
  """A worker, silent, to which only this user can connect where the kernel allows that.

  Attributes:
    alone: Whether nobody else can connect.
  """

  def __init__(self, args: Sequence[str], **kwargs: Any):
    """Starts the worker.

    Args:
      args: The command, with the flag `--port`.
      **kwargs: As for `subprocess.Popen`.

    Raises:
      RuntimeError: If it does not start.
    """
    (port,) = (arg[len(_PORT_FLAG) :] for arg in args if arg.startswith(_PORT_FLAG))
    folder = tempfile.mkdtemp(prefix="tff_worker_")  # Its owner alone may enter.
    path = os.path.join(folder, "socket")
    kwargs.update(dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL))
    reader, status = os.pipe()
    with open(reader, "rb") as answer:
      with open(status, "wb"), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        inherited = (listener.fileno(), status)
        command = [*_PROGRAM, *map(str, inherited), port, *args]
        super().__init__(command, pass_fds=inherited, **kwargs)
      said = answer.read()
    self.alone = said == private_network.ALONE
    workers.add(self)
    if self.alone:
      _sockets[f"localhost:{port}"] = f"unix:{path}"
      return
    shutil.rmtree(folder)
    if said != private_network.OPEN:
      raise RuntimeError(f"Found that TFF's worker does not start: {' '.join(args)}")
    warnings.warn(OPEN_PORT.format(port=port), RuntimeWarning, stacklevel=2)


def address(target: str) -> str:
  """Returns the place of the worker that TFF takes to be at `target`, such as localhost:1234."""
  return _sockets.get(target, target)


def connect(target: str, options: Any = None) -> grpc.Channel:
  """Opens a channel to a worker; takes what `grpc.insecure_channel` takes."""
  channel = grpc.insecure_channel(address(target), options)
  _channels.add(channel)
  return channel


def install() -> None:
  """Has TFF start its workers here, and end them with Python. TFF must be there, or on its way."""
  # Private to TFF: the module that starts the worker. Nothing public reaches the child process.
  from tensorflow_federated.python.core.impl.executor_stacks import executor_factory

  executor_factory.subprocess = types.SimpleNamespace(Popen=Worker)
  executor_factory.grpc = types.SimpleNamespace(insecure_channel=connect)
  atexit.register(close)


def close() -> None:
  """Ends the workers and takes TFF's default context away. Called when Python exits.

  Until then there are the modules that a context needs for its end.
  """
  # A channel that is open tells that its worker is gone, by a thread that Python 3.12 cannot start
  # now.
  for channel in _channels:
    channel.close()
  # Killed, but not waited for: TFF does that when its context is collected, which may be now, or
  # never if something like a traceback still holds it.
  for process in workers:
    if process.returncode is None:
      process.kill()
  # Private to TFF: whatever is public makes another context, with threads that a Python which is
  # ending cannot start.
  from tensorflow_federated.python.core.impl.context_stack import set_default_context

  set_default_context.set_no_default_context()
  if workers:
    gc.collect()
