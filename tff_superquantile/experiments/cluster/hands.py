"""What a worker does: it carries out each run in a process that has a share of its cores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
import contextlib
from multiprocessing import connection as connections
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

from tff_superquantile import atomic_files
from tff_superquantile.engine.processes import dependent_process
from tff_superquantile.experiments import failures
from tff_superquantile.experiments.cluster import child
from tff_superquantile.experiments.cluster import door as door_lib
from tff_superquantile.experiments.cluster import facts
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.run import attempts
from tff_superquantile.experiments.run import run_folder

NAME = "hands"
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_SAVE = 10.0  # That an earlier attempt has before it is superseded.
_SECONDS_TO_TAKE_OVER = 120.0  # It may be in the middle of a round.
_INTERRUPTED = {128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
UNFIT = -1000  # In the place of an exit code: the worker has something else than expected.


class Order(NamedTuple):
  """A run that a driver asks for.

  Attributes:
    arguments: Its flags.
    needs: What the worker must have.
  """

  arguments: tuple[str, ...]
  needs: facts.Needs


class Outcome(NamedTuple):
  """How a run ended: its exit code or `UNFIT`, why it failed, what it warned of, and where."""

  code: int
  why: str
  warnings: tuple[str, ...]
  worker: str


class _Slot(pool.Worker):
  """Carries out runs in a process that is no fork, as a worker has threads."""

  def __init__(self, cores: Sequence[int], silence: float):
    super().__init__((), cores, 0)
    self._silence = silence

  def _begin(self, parent: connections.Connection, output: int) -> subprocess.Popen:
    module = [sys.executable, "-m", child.__name__, str(parent.fileno()), str(self._silence)]
    return dependent_process.DependentProcess(
      module,
      cores=self._cores,
      pass_fds=[parent.fileno()],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=output,
    )

  async def ended(self) -> None:
    """Waits for the end of its process."""
    while self._process is not None and self._process.poll() is None:
      self.send(child.ALIVE)
      await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)


class Hands:
  """The slots of a worker, as a plugin of it, which hears when a driver has gone.

  Attributes:
    name: The plugin's.
    address: The worker's.
    unfit: Why the worker is not fit for the runs that were asked of it; "" if it is.
    is_ending: Whether the worker is about to end.
  """

  name = NAME

  def __init__(self, shares: Sequence[Sequence[int]], door: door_lib.Door):
    # Less than after which the scheduler gives the runs to others, as they have to save.
    self._slots = [_Slot(cores, door.silence / 3) for cores in shares]
    self._free = list(self._slots)
    self._wanted: set[str] = set()  # The keys of the runs for which a driver waits.
    self._at_work: dict[str, _Slot] = {}
    self._scheduler = door.scheduler
    self.address = ""
    self.unfit, self.is_ending = "", False

  def transition(self, key: str, start: str, finish: str, **kwargs: Any) -> None:
    """Ends a run that nobody waits for any more."""
    if finish in ("cancelled", "released", "forgotten"):
      self._wanted.discard(key)
      if key in self._at_work:
        self._at_work[key].end()

  async def fits(self, needs: facts.Needs) -> bool:
    """Returns whether this machine has what is needed; the worker goes on meanwhile."""
    found = await asyncio.to_thread(facts.of_here, needs)
    self.unfit = facts.difference(found, needs, self.address)
    return not self.unfit

  @contextlib.contextmanager
  def _slot(self, key: str) -> Iterator[_Slot]:
    slot = self._at_work[key] = self._free.pop()
    try:
      yield slot
    finally:
      del self._at_work[key]
      slot.run = None
      self._free.append(slot)

  async def carry_out(self, key: str, order: Order) -> Outcome:
    """Carries out a run; see `carry_out`."""
    self._wanted.add(key)
    if not await self.fits(order.needs):
      return Outcome(UNFIT, self.unfit, (), self.address)
    config = child.config_of(order.arguments)
    folder = run_folder.of_config(config).path
    owner = attempts.owner(f"{self._scheduler} {order.arguments}")  # It has one attempt at a time.
    await _take_over(folder, owner)
    if self.is_ending or key not in self._wanted:
      raise door_lib.distributed().Reschedule()
    with self._slot(key) as slot:
      slot.start(child.Asked(order.arguments, order.needs.folder, owner), config)
      assert slot.run is not None
      told = time.monotonic()
      try:
        while (code := slot.poll()) is None:
          if time.monotonic() - told > 1.0:
            slot.send(child.ALIVE)
            told = time.monotonic()
          await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
      except asyncio.CancelledError:  # The worker has lost its scheduler.
        slot.end()
        raise
      if code in _INTERRUPTED or (self.is_ending and code != 0):  # It has not failed by itself.
        raise door_lib.distributed().Reschedule()
      why = slot.run.failure(code) if code else ""
      return Outcome(code, why, tuple(slot.run.messages[pool.WARNING]), self.address)

  async def end(self) -> None:
    """Ends all processes; lets runs that are at work save their states."""
    self.is_ending = True
    for slot in self._slots:
      slot.end()
    for slot in self._slots:
      await slot.ended()


async def _take_over(folder: pathlib.Path, owner: str) -> None:
  """Returns when a run's folder is free; has an earlier attempt of the same owner end."""
  atomic_files.make_folder("output_dir", folder)
  start, has_asked = time.monotonic(), False
  while True:
    try:
      with run_folder.lock(folder, patience=0.0):  # Nothing else of the worker is to wait.
        return
    except run_folder.OccupiedError:
      waited = time.monotonic() - start
      if not attempts.is_of(folder, owner) or waited > _SECONDS_TO_TAKE_OVER:
        raise
      if waited > _SECONDS_TO_SAVE and not has_asked:
        attempts.supersede(folder, owner)
        has_asked = True
    await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)


def _hands(worker: Any) -> Hands:
  found = worker.plugins[NAME]
  assert isinstance(found, Hands)
  return found


async def facts_of(needs: facts.Needs) -> dict[str, str]:
  """Returns the facts of the worker on which it is called, which goes on meanwhile."""
  return await asyncio.to_thread(facts.of_here, needs)


async def carry_out(key: str, order: Order) -> Outcome:
  """Carries out a run on the worker on which it is called, and returns how it ended.

  It raises nothing that the run is the reason of; `distributed.Reschedule` when the worker ends.
  """
  hands = _hands(door_lib.distributed().get_worker())
  try:
    return await hands.carry_out(key, order)
  except Exception as error:
    if isinstance(error, door_lib.distributed().Reschedule):
      raise
    failure = failures.describe(error)
    return Outcome(failure.code, failure.sentence, (), hands.address)
