"""Carries out runs for a worker: its only argument is the descriptor of a pipe to it.

It ends, and a run saves its state, when its worker says nothing more: one that is stopped, or has
lost its scheduler, has lost its runs to other machines.
"""

from __future__ import annotations

import argparse
from multiprocessing import connection as connections
import os
import queue
import signal
import sys
import threading
from typing import Any, NamedTuple

from privacy.settings import command_line
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import training
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.run import attempts

ALIVE = "alive"  # What a worker says in between.
_SECONDS_TO_SAVE = 120.0


class Asked(NamedTuple):
  """A run that a worker asks for: flags, the folder to which they are relative, whose attempt."""

  arguments: tuple[str, ...]
  folder: str
  owner: str


def config_of(arguments: tuple[str, ...]) -> run_config.RunConfig:
  """Returns the config of a run's flags."""
  args: argparse.Namespace = command_line.parse(training, list(arguments))
  return run_config.from_values(**train_flags.values(args))


def _load(asked: Asked) -> run_config.RunConfig:
  os.chdir(asked.folder)
  if asked.folder not in sys.path:
    sys.path.append(asked.folder)  # For parts of the user's own, as commands do.
  attempts.act_for(asked.owner)
  return config_of(asked.arguments)


class _Worker:
  """The worker of this process, to which a thread listens while a run is carried out."""

  def __init__(self, connection: connections.Connection, silence: float):
    self._connection, self._silence = connection, silence
    self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=self._listen, daemon=True).start()

  def _listen(self) -> None:
    try:
      while self._connection.poll(self._silence):
        if (message := self._connection.recv()) != ALIVE:
          self._asked.put(message)
    except (EOFError, OSError):
      pass  # It has ended.
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(_SECONDS_TO_SAVE)
    os._exit(cli.INTERRUPTED)

  def recv(self) -> Any:
    return self._asked.get()

  def send(self, message: tuple[str, str]) -> None:
    self._connection.send(message)


def main() -> int:
  cli.begin()
  connection = connections.Connection(int(sys.argv[1]))
  return pool.work(_load, limits.num_cores(), _Worker(connection, float(sys.argv[2])))


if __name__ == "__main__":
  sys.exit(main())
