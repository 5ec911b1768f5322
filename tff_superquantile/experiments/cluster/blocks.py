"""What a worker does for a cohort: it computes blocks in processes that have TensorFlow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from multiprocessing import connection as connections
import subprocess
import sys
from typing import Any, NamedTuple

from tff_superquantile.engine.processes import dependent_process
from tff_superquantile.experiments.cluster import door as door_lib
from tff_superquantile.experiments.cluster import facts
from tff_superquantile.experiments.cluster import hands

NAME = "blocks"
_MODULE = "tff_superquantile.experiments.cluster.block_child"
_MOST_FUNCTIONS = 16  # Whose content a worker keeps.
# How a block ended. It was computed, or failed by itself; its process was killed; the worker does
# not know the function, or has something else than the run needs.
DONE, FAILED, DIED, LACKS, UNFIT = "done", "failed", "died", "lacks", "unfit"


class BlockOrder(NamedTuple):
  """A block that a driver asks for.

  Attributes:
    needs: What the worker must have.
    run: Whose cohort it is; a process computes for one run.
    threads: The run's number of threads.
    function: A digest of the content of the function.
    stage: The number of the function's stage.
    block: The pickled block.
  """

  needs: facts.Needs
  run: str
  threads: int
  function: str
  stage: int
  block: bytes


class AskedBlock(NamedTuple):
  """What a process is asked: a block of a function, with its content if that is new."""

  function: str
  content: bytes
  stage: int
  block: bytes


class BlockAnswer(NamedTuple):
  """How a block ended, its pickled results, why it has none, and where."""

  kind: str
  results: bytes = b""
  why: str = ""
  worker: str = ""


class _Slot:
  """Computes one block at a time in a process, which stays for the next one of the run."""

  def __init__(self, cores: Sequence[int]):
    self._cores = cores
    self._process: subprocess.Popen | None = None
    self._run: tuple[str, int] | None = None
    self._known: set[str] = set()

  def prepare(self, order: BlockOrder) -> None:
    """Starts a process unless there is one of the run.

    A thread that lives as long as the worker is to call it.
    """
    run = order.run, order.threads
    if self._process is not None and self._process.poll() is None and self._run == run:
      return
    self.end()
    self.connection, child = connections.Pipe()
    with child:
      self._process = dependent_process.DependentProcess(
        [sys.executable, "-m", _MODULE, str(child.fileno()), str(order.threads)],
        cores=self._cores,
        pass_fds=[child.fileno()],
        stdin=subprocess.DEVNULL,
      )
    self._run, self._known = run, set()

  def compute(self, order: BlockOrder, content: bytes) -> BlockAnswer:
    """Has a block computed, and waits for it."""
    new = b"" if order.function in self._known else content
    self._known.add(order.function)
    try:
      self.connection.send(AskedBlock(order.function, new, order.stage, order.block))
      answer: BlockAnswer = self.connection.recv()
      return answer
    except (EOFError, OSError):
      return BlockAnswer(DIED)

  def end(self) -> None:
    if self._process is not None:
      self._process.kill()
      self._process.wait()
      self.connection.close()
    self._process = None


class Blocks:
  """The processes of a worker that compute blocks, as a plugin of it."""

  name = NAME

  def __init__(self, shares: Sequence[Sequence[int]], own: hands.Hands):
    self._hands = own
    self._slots = [_Slot(cores) for cores in shares]
    self._free = list(self._slots)
    self._contents: dict[str, bytes] = {}
    self._fit_for: set[str] = set()

  def learn(self, function: str, content: bytes) -> None:
    """Keeps the content of a function."""
    self._contents[function] = content
    while len(self._contents) > _MOST_FUNCTIONS:
      del self._contents[next(iter(self._contents))]

  async def compute(self, order: BlockOrder) -> BlockAnswer:
    """Computes a block; see `compute`."""
    own = self._hands
    if order.run not in self._fit_for:
      if not await own.fits(order.needs):
        return BlockAnswer(UNFIT, why=own.unfit, worker=own.address)
      self._fit_for.add(order.run)
    if order.function not in self._contents:
      return BlockAnswer(LACKS, worker=own.address)
    if own.is_ending:
      raise door_lib.distributed().Reschedule()
    slot = self._free.pop()
    try:
      slot.prepare(order)
      work = asyncio.to_thread(slot.compute, order, self._contents[order.function])
      return (await work)._replace(worker=own.address)
    except asyncio.CancelledError:  # The worker has lost its scheduler.
      slot.end()
      raise
    finally:
      self._free.append(slot)

  def end(self) -> None:
    """Ends all processes; blocks that are at work are computed elsewhere."""
    for slot in self._slots:
      slot.end()


def _blocks(worker: Any) -> Blocks:
  found = worker.plugins[NAME]
  assert isinstance(found, Blocks)
  return found


async def learn(function: str, content: bytes, dask_worker: Any = None) -> None:
  """Gives the worker on which it is called the content of a function."""
  _blocks(dask_worker).learn(function, content)


async def compute(order: BlockOrder) -> BlockAnswer:
  """Computes a block on the worker on which it is called, and returns how it ended."""
  return await _blocks(door_lib.distributed().get_worker()).compute(order)
