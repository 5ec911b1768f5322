"""Carries out runs, several at once, in processes that have a share of the cores each.

The processes are forks of this one, which has imported TensorFlow and computes nothing with it:
the import takes as long as 500 rounds of the default experiment. A process carries out runs one
after the other, so that it traces the programs that they have in common once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import csv
import dataclasses
import gc
import logging
import math
from multiprocessing import connection as connections
import os
import random
import signal
import subprocess
import sys
import threading
from typing import Any, Protocol

import threadpoolctl
import tqdm

from privacy.settings import part
from tff_superquantile.engine.processes import dependent_process
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import training
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import logs
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.simulation import progress

_SECONDS_BETWEEN_LOOKS = 0.5
_MOST_RUNS = 20  # Of a process; its memory is flat for as many.
_DONE, WARNING, _FAILURE = "done", "warning", "failure"  # What a fork tells its parent.
_LOGGER = "tff_superquantile"  # Above those of its modules and tasks.


def arguments(config: run_config.RunConfig) -> list[str]:
  """Returns the flags of a run that mean something there."""
  used = part.values(config)
  return [f"--{name}={text}" for name, text in config.to_flags().items() if name in used]


def command(config: run_config.RunConfig) -> list[str]:
  """Returns the command that carries out a run, and leaves the reason if it fails."""
  module = "tff_superquantile.experiments.plan.job"
  return [sys.executable, "-m", module, *arguments(config)]


class Parent(Protocol):
  """What a process that carries out runs hears of its parent, and tells it."""

  def recv(self) -> Any:
    """Returns what says which run comes next; None for no other."""

  def send(self, message: tuple[str, str], /) -> None:
    """Tells the parent one of `_DONE`, `WARNING` and `_FAILURE`, with a text."""


class _Warnings(logging.Handler):
  """Tells the parent of a fork the warnings that this project logs."""

  def __init__(self, parent: Parent) -> None:
    super().__init__(logging.WARNING)
    self._parent = parent

  def emit(self, record: logging.LogRecord) -> None:
    if record.levelno == logging.WARNING:
      self._parent.send((WARNING, record.getMessage()))


def work(load: Callable[[Any], run_config.RunConfig], num_cores: int, parent: Parent) -> int:
  """Carries out the runs that a parent asks for, until one fails; returns this process's code.

  `load` turns what the parent says into the run's config.
  """
  logging.getLogger(_LOGGER).addHandler(_Warnings(parent))
  # The bars of this process, and what locks them, are none of the fork's.
  tqdm.tqdm._instances.clear()
  tqdm.tqdm.set_lock(threading.RLock())
  threadpoolctl.threadpool_limits(num_cores)  # NumPy has counted all cores.

  def carry_out_runs() -> None:
    asked = parent.recv()
    while asked is not None:
      config = load(asked)
      with open(logs.path(config), "a") as log:
        for descriptor in (1, 2):
          os.dup2(log.fileno(), descriptor)
      training.train(config)
      sys.stdout.flush()
      parent.send((_DONE, ""))
      if (asked := parent.recv()) is not None:
        gc.collect()  # What the last run has left.

  return cli.run_parsed(carry_out_runs, lambda why: parent.send((_FAILURE, why)))


class _ActiveRun:
  """A run at work, with its output in the run's log."""

  def __init__(self, config: run_config.RunConfig, position: int):
    self.config, self.folder = config, run_folder.of_config(config)
    self.name = f"{self.folder.task}/{self.folder.method}/seed_{config.seed}"
    self.bar = progress.ProgressBar(self.name, config.num_rounds, position)
    self.messages: dict[str, list[str]] = {WARNING: [], _FAILURE: []}
    with run_folder.lock(self.folder.path):  # Truncating the log would lose that of a run at work.
      self.log = logs.begin(config)

  def last_round(self) -> tuple[int, dict[str, float]]:
    """Returns the number of rounds that are done and the releases of the last one."""
    try:
      with open(self.folder.path / "rounds.csv", "rb") as file:
        header = file.readline()
        # The end is enough, as this is read twice a second.
        file.seek(max(0, os.path.getsize(file.name) - 4096))
        last_line = file.read().split(b"\n")[-2]  # The rest is still being written.
      columns, values = csv.reader([header.decode(), last_line.decode()])
      row = {name: float(value) for name, value in zip(columns, values) if value}
      return int(row.pop("round")), row
    except (OSError, ValueError, LookupError):
      return 0, {}  # The file is not there yet.

  def num_rounds(self) -> int | None:
    """Returns the rounds of the run; None before it has found out."""
    flags = run_folder.Run(self.folder.path, self.folder.seed).flags
    return int(flags["num_rounds"]) if flags else None

  def show_progress(self) -> int:
    """Shows the run on its bar where there is a terminal; returns the rounds that are done."""
    done, values = self.last_round()
    if done and sys.stderr.isatty():
      self.bar.error = self.folder.error_kind  # Whose file was written before the first round.
      self.bar.num_rounds = self.num_rounds()
      self.bar.show(values, done)
    return done

  def failure(self, code: int) -> str:
    """Returns why the run failed, if it could still tell, or else what ended it."""
    ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    untold = f"{ended} ended it; its last words are in {self.log}"
    return next(iter(self.messages[_FAILURE]), untold)


class Worker:
  """Carries out runs one after the other on a share of the cores and a line of the terminal.

  They share a process until one fails, so that none suffers from what another did, or one goes on
  that had another number of threads, which no process can change.

  Attributes:
    run: The run at work; None for none.
  """

  def __init__(self, configs: Sequence[run_config.RunConfig], cores: Sequence[int], position: int):
    self._configs, self._cores, self._position = configs, cores, position
    self._process: dependent_process.DependentFork | subprocess.Popen | None = None
    self._threads: int | None = None  # Of its process, once a run has told.
    self._method: run_config.RunConfig | None = None  # That its process has traced last.
    self.run: _ActiveRun | None = None
    self._left = 0  # Runs that its process may still carry out.

  def choose(self, waiting: Mapping[int, run_config.RunConfig]) -> int:
    """Returns the number of the run that comes next: the first of its method, or of all."""
    return min(waiting, key=lambda number: _method(waiting[number]) != self._method)

  def start(self, asked: Any, config: run_config.RunConfig) -> None:
    """Has a run carried out, by what `work` turns into its config; the last one is over."""
    needed = run_folder.of_config(config).num_threads
    if self._process is not None and needed not in (None, self._threads):
      self.end()
      self.wait()
    self.run = _ActiveRun(config, self._position)
    self._method = _method(config)
    is_new = self._process is None or self._process.poll() is not None
    if is_new:
      self.connection, of_fork = connections.Pipe()
      self._left = _MOST_RUNS
    self.send(asked)
    self._left -= 1
    if not self._left:
      self.send(None)
    if is_new:
      with of_fork, open(self.run.log, "a") as log:
        self._process = self._begin(of_fork, log.fileno())

  def _begin(
    self, parent: connections.Connection, output: int
  ) -> dependent_process.DependentFork | subprocess.Popen:
    """Starts a process that carries out runs, and prints to the descriptor `output`."""
    return dependent_process.DependentFork(
      lambda: work(self._configs.__getitem__, len(self._cores), parent),
      output=output,
      cores=self._cores,
    )

  def send(self, message: Any) -> None:
    """Tells its process something."""
    with contextlib.suppress(OSError):  # Nobody is there any more, as `poll` will tell.
      self.connection.send(message)

  def poll(self) -> int | None:
    """Hears what the run says; returns its exit code, negative for a signal; None while it runs."""
    assert self._process is not None and self.run is not None
    try:
      while self.connection.poll():
        kind, text = self.connection.recv()
        if kind == _DONE:
          self._threads = run_folder.Run(self.run.folder.path, self.run.config.seed).num_threads
          return 0 if self._left else self._over()
        self.run.messages[kind].append(text)
    except (EOFError, OSError):
      return self._over()
    return None

  def _over(self) -> int | None:
    """Waits for the end of its process, and returns the exit code."""
    assert self._process is not None
    code = self._process.wait()
    self._process = self._method = None
    return code

  def end(self) -> None:
    """Ends its process; lets a run that is at work save its state."""
    if self._process is not None and self.run is not None:
      self.run.bar.close()
      self._process.send_signal(signal.SIGINT)
    elif self._process is not None:
      self.send(None)

  def wait(self) -> None:
    if self._process is not None:
      self._process.wait()


def _method(config: run_config.RunConfig) -> run_config.RunConfig:
  """Returns what the runs of a method have in common."""
  return dataclasses.replace(config, seed=0)


class _Rounds:
  """Foresees the rounds of all runs: each has those of its flags, or fewer where it may stop early.

  Where runs have ended before, others are taken to have as many rounds as they had on average.
  """

  def __init__(self) -> None:
    self.done = 0  # Of the runs that have ended.
    self._of_finished: list[int] = []
    self._is_any_early = False
    self._of_task: int | None = None  # Which some runs leave to the task.

  def end(self, run: _ActiveRun, has_failed: bool) -> None:
    """Takes notice of a run that has ended."""
    done, planned = run.last_round()[0], run.num_rounds()
    self.done += done
    if not has_failed:
      self._of_finished.append(done)
      self._is_any_early |= planned is not None and 0 < done < planned

  def total(
    self, waiting: Iterable[run_config.RunConfig], active: Iterable[_ActiveRun]
  ) -> int | None:
    """Returns the rounds of all runs, those that have ended among them; None if unknown."""
    at_work = [(run.num_rounds() or run.config.num_rounds, run.last_round()[0]) for run in active]
    self._of_task = self._of_task or next((planned for planned, _ in at_work if planned), None)
    total, most = self.done, math.inf
    if self._is_any_early:
      most = round(sum(self._of_finished) / len(self._of_finished))
    for own, done in [*((config.num_rounds, 0) for config in waiting), *at_work]:
      planned: int | None = own or self._of_task
      if planned is None:
        return None
      total += int(max(min(planned, most), done))
    return total


def core_shares(
  cores: Sequence[int], num_runs: int, num_workers: int | None
) -> list[Sequence[int]]:
  """Returns the cores of each run that may be at work at once.

  If there is one run more than cores, it would be alone at the end, on one core: all are done
  earlier if they share. With two runs a core there are too many for memory, and little is lost.
  """
  at_once = min(num_workers or len(cores), num_runs, len(cores))
  shares = [cores[i::at_once] for i in range(at_once)]
  if num_workers is None and len(cores) < num_runs < 2 * len(cores):
    num_more = num_runs - len(cores)
    shares += [cores[i::num_more] for i in range(num_more)]
  return shares


def run_all(configs: Sequence[run_config.RunConfig], num_workers: int | None) -> list[str]:
  """Carries out runs, each on its share of the cores; returns the names of those that failed."""
  with cli.starting_tensorflow():  # Here, once for all runs.
    import tasks
    from tff_superquantile.experiments.run import runner  # noqa: F401

    tasks.task_names()  # All modules of tasks.

  # Under a quota any of the machine's cores: other containers on it choose others.
  cores = sorted(random.sample(limits.cores(), limits.num_cores()))
  shares = core_shares(cores, len(configs), num_workers)
  workers = [Worker(configs, share, 1 + i) for i, share in enumerate(shares)]
  waiting = dict(enumerate(configs))
  failed = []
  rounds = _Rounds()
  bar = tqdm.tqdm(
    desc=f"0 of {len(configs)} runs done",
    total=rounds.total(configs, ()),
    unit="round",
    position=0,
    mininterval=0.5 if sys.stderr.isatty() else 20,
    dynamic_ncols=sys.stderr.isatty(),
  )
  num_ended = 0
  try:
    while num_ended < len(configs):
      for worker in (worker for worker in workers if worker.run is None and waiting):
        number = worker.choose(waiting)
        worker.start(number, waiting.pop(number))
      active = [worker for worker in workers if worker.run is not None]
      if len(active) < len(workers):  # A core is idle, on which the report's imports take no time.
        from tff_superquantile.experiments.report import comparison  # noqa: F401
      connections.wait([worker.connection for worker in active], _SECONDS_BETWEEN_LOOKS)
      for worker in active:
        run, code = worker.run, worker.poll()
        if run is None or code is None:
          continue
        run.bar.close()
        worker.run = None
        if not waiting:
          worker.end()
        rounds.end(run, code != 0)
        num_ended += 1
        for warning in run.messages[WARNING]:
          bar.write(f"Warning: {run.name}: {warning}", file=sys.stderr)
        if code == cli.USAGE_ERROR:
          raise ValueError(run.failure(code))
        if code != 0:
          failed.append(run.name)
          bar.write(f"Failed: {run.name}: {run.failure(code)}", file=sys.stderr)
      at_work = [worker.run for worker in workers if worker.run is not None]
      bar.total = rounds.total(waiting.values(), at_work)
      bar.set_description_str(f"{num_ended} of {len(configs)} runs done", refresh=False)
      bar.update(rounds.done + sum(run.show_progress() for run in at_work) - bar.n)
  finally:
    bar.close()
    for worker in workers:
      worker.end()
    for worker in workers:
      worker.wait()
  return failed
