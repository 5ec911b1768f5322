"""Carries out runs of sweeps, and blocks of cohorts, on this machine, as a scheduler shares them.

    superquantile worker --scheduler=FILE --slots=4

FILE is what `superquantile scheduler` wrote; a worker waits for it. Start one on each machine, at
any time. It needs the same code, versions and kind of CPU as the others, and sees the folders of
data and results by the same paths. Ctrl-C and SIGTERM end it: its runs save their states, and go on
elsewhere. Without a scheduler for --patience seconds it ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import pathlib
import signal
import sys
import tempfile
import time

from privacy.settings import command_line
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.cluster import blocks as blocks_lib
from tff_superquantile.experiments.cluster import door as door_lib
from tff_superquantile.experiments.cluster import hands as hands_lib
from tff_superquantile.experiments.plan import pool

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_LEAVE = 10.0


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("scheduler", str, "scheduler.json", "The file that superquantile scheduler has written.")
  add("slots", int, None, "Runs at once, which share the cores; None for one a core.", least=1)
  add("host", str, None, "The address to listen at; None for that of this machine.")
  add("patience", float, 600.0, "Seconds to wait for a scheduler.", least=0.0)


async def _serve(
  args: argparse.Namespace, door: door_lib.Door, over: asyncio.Event, scratch: str
) -> str | None:
  """Works for one scheduler; returns why not for it, None if it is not there (any more)."""
  cores = limits.cores()[: limits.num_cores()]
  slots = args.slots or len(cores)
  shares = pool.core_shares(cores, slots, slots)
  distributed = door_lib.distributed()
  kind = type("Plugin", (hands_lib.Hands, distributed.WorkerPlugin), {})  # As it asks of plugins.
  of_slots = [shares[i % len(shares)] for i in range(slots)]
  hands = kind(of_slots, door)
  of_cohorts = type("Plugin", (blocks_lib.Blocks, distributed.WorkerPlugin), {})
  blocks = of_cohorts(of_slots, hands)
  worker = distributed.Worker(
    door.address,
    nthreads=slots,
    host=args.host,
    security=door.security(),
    memory_limit=0,
    dashboard=False,
    dashboard_address="127.0.0.1:0",
    local_directory=scratch,
    plugins=[hands, blocks],
    death_timeout=_SECONDS_TO_LEAVE,
  )
  try:
    await worker
  except (OSError, TimeoutError, RuntimeError) as error:
    if isinstance(error, RuntimeError) and not isinstance(error.__cause__, (OSError, TimeoutError)):
      raise
    print(f"Trying again: {error.__cause__ or error}", file=sys.stderr, flush=True)
    return None
  hands.address = worker.address
  print(f"Working for {door.address} with {slots} slots", flush=True)
  waits = [asyncio.ensure_future(one) for one in (over.wait(), worker.finished())]
  await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
  leaving = asyncio.ensure_future(worker.close_gracefully())
  blocks.end()
  await hands.end()
  await asyncio.wait([leaving], timeout=_SECONDS_TO_LEAVE)
  for one in (*waits, leaving):
    one.cancel()
  await worker.close(timeout=_SECONDS_TO_LEAVE)
  return hands.unfit or None


async def _work(args: argparse.Namespace, path: pathlib.Path) -> str:
  """Works for the scheduler of a file, one after the other; returns why it ends."""
  over = asyncio.Event()
  for signum in (signal.SIGTERM, signal.SIGINT):
    asyncio.get_running_loop().add_signal_handler(signum, over.set)
  last = time.monotonic()
  with tempfile.TemporaryDirectory() as scratch:
    while not over.is_set():
      if path.exists():
        began = time.monotonic()
        if unfit := await _serve(args, door_lib.read(path), over, scratch):
          return unfit
        if time.monotonic() - began > 2 * _SECONDS_TO_LEAVE:
          last = time.monotonic()
      if time.monotonic() - last > args.patience:
        return f"Found no scheduler of {path} for {args.patience:g} seconds; expected one at work."
      try:
        await asyncio.wait_for(over.wait(), _SECONDS_BETWEEN_LOOKS)
      except (TimeoutError, asyncio.TimeoutError):
        pass
  return ""


def main(args: argparse.Namespace) -> None:
  door_lib.distributed()
  why = asyncio.run(_work(args, pathlib.Path(args.scheduler).resolve()))
  if why:
    cli.fail(why, cli.FAILED)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
