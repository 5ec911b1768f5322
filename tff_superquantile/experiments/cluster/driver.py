"""Has the workers of a scheduler carry out the runs of a sweep, with the face of the pool."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import secrets
import sys
import time
from typing import Any

import tqdm

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.cluster import door as door_lib
from tff_superquantile.experiments.cluster import facts
from tff_superquantile.experiments.cluster import hands
from tff_superquantile.experiments.config import flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import logs
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.run import run_folder

_SECONDS_BETWEEN_LOOKS = 1.0
# A machine's cache is its own: what is in it was checked as it was made.
_PATHS = tuple(name for name in flags.WHERE_DATA_IS if name != "cache_dir")


class LostError(RuntimeError):
  """Says that the scheduler has ended."""


def _everywhere(config: run_config.RunConfig) -> run_config.RunConfig:
  """Returns a config whose output and cache are the same from any folder, which changes no run."""
  places = {name: os.path.abspath(getattr(config, name)) for name in ("output_dir", "cache_dir")}
  return run_config.with_values(config, **places)


def _data(configs: Iterable[run_config.RunConfig]) -> tuple[str, ...]:
  """Returns the files and folders of data that runs read."""
  values = [config.values() for config in configs]
  return tuple(sorted({str(v[name]) for v in values for name in _PATHS if v.get(name)}))


class _Sweep:
  """The runs that workers carry out for one driver."""

  def __init__(self, client: Any, configs: Sequence[run_config.RunConfig], witness: pathlib.Path):
    self._client, self._witness = client, str(witness)
    self._folder = os.getcwd()
    takes_any = all(config.other_cpu == run_config.ALLOWED for config in configs)
    self._fixed = {facts.CPU} if takes_any else set()
    self._cpu = ""
    self._configs = configs
    self._number = 0
    self.waiting: dict[Any, run_config.RunConfig] = {}  # By the future of a run's outcome.

  def _needs(self, configs: Sequence[run_config.RunConfig]) -> facts.Needs:
    needs = facts.Needs(self._folder, self._witness, _data(configs))
    expected = {**facts.of_here(needs), facts.CPU: self._cpu}
    expected = {name: value for name, value in expected.items() if name not in self._fixed}
    return needs._replace(expected=expected)

  def check_workers(self) -> None:
    """Waits for a worker; a `ValueError` unless all that are there have what the runs need."""
    wait_for_a_worker(self._client)
    found = self._client.run(hands.facts_of, self._needs(self._configs))
    self._cpu = collections.Counter(one[facts.CPU] for one in found.values()).most_common(1)[0][0]
    needs = self._needs(self._configs)
    for address, one in found.items():
      if why := facts.difference(one, needs, address):
        raise ValueError(why)

  def submit(self, config: run_config.RunConfig) -> None:
    """Asks for a run."""
    order = hands.Order(tuple(pool.arguments(config)), self._needs([config]))
    run = hashlib.blake2b(repr(order.arguments).encode(), digest_size=8).hexdigest()
    # Two drivers that ask for the same run get the same one.
    key = f"carry_out-{run}{f'-{self._number}' if self._number else ''}"
    future = self._client.submit(hands.carry_out, key, order, key=key, pure=False, retries=0)
    self.waiting[future] = config

  def done(self) -> list[tuple[run_config.RunConfig, hands.Outcome]]:
    """Returns the runs that have ended since the last time, after a while if none has."""
    done = wait_for_any(self._client, list(self.waiting))
    ended = []
    for future in done:
      config = self.waiting.pop(future)
      outcome = _outcome(future, config)
      if outcome.code == hands.UNFIT:  # It has come later. It is sent away, and its run elsewhere.
        print(f"Warning: {outcome.why}", file=sys.stderr, flush=True)
        self._client.retire_workers([outcome.worker])
        self._number += 1
        self.submit(config)
      else:
        ended.append((config, outcome))
    return ended


def wait_for_a_worker(client: Any) -> None:
  """Waits until a scheduler has a worker."""
  if not client.scheduler_info()["workers"]:
    print("Waiting for a worker", file=sys.stderr, flush=True)
  while not client.scheduler_info()["workers"]:
    _check(client)
    time.sleep(_SECONDS_BETWEEN_LOOKS / 4)


def wait_for_any(client: Any, waiting: Sequence[Any]) -> Iterable[Any]:
  """Returns the futures that are over, after a while if none is."""
  distributed = door_lib.distributed()
  try:
    done, _ = distributed.wait(waiting, _SECONDS_BETWEEN_LOOKS, return_when="FIRST_COMPLETED")
  except (TimeoutError, concurrent.futures.TimeoutError):
    done = ()
  except concurrent.futures.CancelledError:
    raise LostError from None
  _check(client)
  found: Iterable[Any] = done
  return found


def _check(client: Any) -> None:
  """Raises a `LostError` if the scheduler is not there any more."""
  if client.status != "running":
    raise LostError


def _outcome(future: Any, config: run_config.RunConfig) -> hands.Outcome:
  """Returns how a run ended, also one of which the workers cannot tell."""
  if future.status == "finished":
    return hands.Outcome(*future.result())
  if future.status != "error":
    raise LostError
  error = future.exception()
  if isinstance(error, door_lib.distributed().KilledWorker):
    why = "each of four workers ended while it carried out this run; its last words are in"
    why += f" {logs.path(config)}"
  else:
    why = f"the worker said {type(error).__name__}: {error}"
  return hands.Outcome(cli.FAILED, why, (), "")


def _name(config: run_config.RunConfig) -> str:
  run = run_folder.of_config(config)
  return f"{run.task}/{run.method}/seed_{config.seed}"


@contextlib.contextmanager
def connected(scheduler: str, output_dir: str) -> Iterator[tuple[Any, pathlib.Path]]:
  """Connects to the scheduler of a file; yields a client of it and a file in the output directory.

  The file shows workers that they see the directory. A `ValueError` says that there is no such
  scheduler; one that ends meanwhile ends the command with a sentence.
  """
  door = door_lib.read(pathlib.Path(scheduler))
  distributed = door_lib.distributed()
  output = pathlib.Path(os.path.abspath(output_dir))
  atomic_files.make_folder("output_dir", output)
  witness = output / f".driver_{secrets.token_hex(8)}"
  try:
    client = distributed.Client(door.address, security=door.security(), timeout=door.silence)
  except (OSError, TimeoutError) as error:
    raise ValueError(
      f"Found no scheduler at {door.address}, which {scheduler} names ({error}); expected one that"
      f" runs: superquantile scheduler --scheduler={scheduler}"
    ) from None
  witness.touch()
  try:
    with client:
      yield client, witness
  except LostError:
    cli.fail(
      f"Found that the scheduler at {door.address} has ended; start it again, and run the same"
      " command: runs go on where they were.",
      cli.FAILED,
    )
  finally:
    witness.unlink(missing_ok=True)


def run_all(configs: Sequence[run_config.RunConfig], scheduler: str) -> list[str]:
  """Has runs carried out by a scheduler's workers; returns the names of those that failed.

  Args:
    configs: The runs.
    scheduler: The scheduler's file.

  Raises:
    ValueError: If there is no such scheduler, a worker has other versions, code, data or CPU than
      expected, or a run is refused; the other runs end, and save their states.
  """
  with connected(scheduler, configs[0].output_dir) as (client, witness):
    return _carry_out(_Sweep(client, configs, witness), [_everywhere(c) for c in configs])


def _carry_out(sweep: _Sweep, configs: Sequence[run_config.RunConfig]) -> list[str]:
  """Carries out the runs, and shows how many are done."""
  sweep.check_workers()
  failed = []
  bar = tqdm.tqdm(
    total=len(configs), unit="run", mininterval=0.5 if sys.stderr.isatty() else 20, desc="Runs done"
  )
  try:
    for config in configs:
      sweep.submit(config)
    while sweep.waiting:
      for config, outcome in sweep.done():
        name = _name(config)
        for warning in outcome.warnings:
          bar.write(f"Warning: {name}: {warning}", file=sys.stderr)
        if outcome.code == cli.USAGE_ERROR:
          raise ValueError(outcome.why)
        if outcome.code != 0:
          failed.append(name)
          bar.write(f"Failed: {name}: {outcome.why}", file=sys.stderr)
        bar.update()
      bar.refresh() if sys.stderr.isatty() else None
  finally:
    bar.close()
  return failed
