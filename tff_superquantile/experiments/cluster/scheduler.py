"""Starts the scheduler that shares out the runs of sweeps among workers on many machines.

    superquantile scheduler --scheduler=FILE

Writes FILE, which workers and sweeps need: its address, and the key without which it lets nobody
in (TLS on both sides). FILE is for its owner alone, as whoever has it can run programs on all
machines. Ends by Ctrl-C or SIGTERM; then workers and sweeps end, too, and runs have saved their
states.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import pathlib
import signal
import sys
from typing import NoReturn

from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.cluster import door as door_lib


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("scheduler", str, "scheduler.json", "The file to write, on a disk that all machines see.")
  add("host", str, None, "The address to listen at; None for that of this machine.")
  add("port", int, 0, "The port; 0 for any that is free.", least=0)
  silence = "Seconds without a word after which a machine counts as lost; its runs go elsewhere."
  add("silence", float, 60.0, silence, least=5.0)


async def _serve(args: argparse.Namespace, path: pathlib.Path) -> None:
  """Writes the file and lets the scheduler work until a signal ends it."""
  over = asyncio.Event()
  for signum in (signal.SIGTERM, signal.SIGINT):
    asyncio.get_running_loop().add_signal_handler(signum, over.set)
  door = door_lib.make(door_lib.scheduler_of(path), args.silence)
  scheduler = door_lib.distributed().Scheduler(
    protocol="tls",
    host=args.host,
    port=args.port,
    security=door.security(),
    dashboard=False,
    dashboard_address="127.0.0.1:0",
    worker_ttl=args.silence,
  )
  try:
    await scheduler
  except RuntimeError as error:
    raise ValueError(
      f"Found that nothing can listen at {args.host or 'this machine'}, port {args.port}"
      f" ({error.__cause__}); expected an address of this machine and a free port: choose another"
      " --host or --port."
    ) from None
  async with scheduler:
    door_lib.write(path, door._replace(address=scheduler.address))
    print(f"Listening at {scheduler.address}; its file is {path}", flush=True)
    await over.wait()
  path.unlink(missing_ok=True)


def main(args: argparse.Namespace) -> None:
  path = pathlib.Path(args.scheduler).resolve()
  atomic_files.make_folder("scheduler", path.parent)

  def refuse() -> NoReturn:
    raise ValueError(f"Found that the scheduler of {path} is at work; expected one a file.")

  with atomic_files.lock(path.with_name(f".{path.name}.lock"), refuse):
    asyncio.run(_serve(args, path))


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
