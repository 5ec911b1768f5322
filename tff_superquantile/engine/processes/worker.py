"""TFF's worker, the process of TFF's C++ runtime, ends with the Python that started it.

Nothing of this project needs it: `context` computes all TFF programs in this process. A script that
uses TFF's default context starts one. Left alone, it outlives a Python that dies by a signal, holds
the terminal's output open, and dies too early on Ctrl-C, before Python can save anything.
"""

import atexit
from collections.abc import Sequence
import gc
import subprocess
import types
from typing import Any
import weakref

import grpc

from tff_superquantile.engine.processes import dependent_process

_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()
_channels: "weakref.WeakSet[grpc.Channel]" = weakref.WeakSet()


class Worker(dependent_process.DependentProcess):
  """A worker without output, which ends when this process ends."""

  def __init__(self, args: Sequence[str], **kwargs: Any):
    """Starts the worker; takes what `subprocess.Popen` takes."""
    kwargs.update(dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL))
    super().__init__(args, **kwargs)
    _workers.add(self)


def _connect(target: str, options: Any = None) -> grpc.Channel:
  """Opens a channel to a worker; takes what `grpc.insecure_channel` takes."""
  channel = grpc.insecure_channel(target, options)
  _channels.add(channel)
  return channel


def install() -> None:
  """Has TFF start its workers here, and end them with Python. TFF must be there, or on its way."""
  # The module that starts the worker is private to TFF. Nothing public reaches the process.
  from tensorflow_federated.python.core.impl.executor_stacks import executor_factory

  executor_factory.subprocess = types.SimpleNamespace(Popen=Worker)
  executor_factory.grpc = types.SimpleNamespace(insecure_channel=_connect)
  atexit.register(close)


def close() -> None:
  """Ends the workers and takes TFF's default context away, while its modules are still there."""
  # An open channel would report the end of its worker in a new thread, which Python 3.12 cannot
  # start at exit.
  for channel in _channels:
    channel.close()
  # TFF waits for a worker when the context is collected: now, or never if something such as a
  # traceback refers to it. So the workers are killed here, and not waited for.
  for process in _workers:
    if process.returncode is None:
      process.kill()
  # This module is private to TFF. The public functions would make another context, whose threads
  # Python cannot start at exit.
  from tensorflow_federated.python.core.impl.context_stack import set_default_context

  set_default_context.set_no_default_context()
  if _workers:
    gc.collect()
