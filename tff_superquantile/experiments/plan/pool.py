"""Carries out runs, several at once, each in a process of its own on its share of the cores.

The processes are forks of this one, which has imported TensorFlow and computes nothing with it:
the import takes as long as 500 rounds of the default experiment.
"""

from collections.abc import Sequence
import csv
import json
import logging as stdlib_logging
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
from typing import TextIO

from absl import logging
import threadpoolctl
import tqdm

from tff_superquantile.engine.processes import dependent_process
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import train
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.simulation import progress

_SECONDS_BETWEEN_LOOKS = 0.5
_PACKAGE = pathlib.Path(__file__).parents[2]


def command(config: run_config.RunConfig) -> list[str]:
  """Returns the command that carries out a run."""
  module = "tff_superquantile.experiments.train"
  return [sys.executable, "-m", module, *config.to_arguments()]


class Messages(stdlib_logging.Handler):
  """What a fork tells its parent: the warnings that this project logs, and why the run failed."""

  def __init__(self) -> None:
    super().__init__(stdlib_logging.WARNING)
    self._file: TextIO = tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8")  # noqa: SIM115

  def emit(self, record: stdlib_logging.LogRecord) -> None:
    if (
      record.levelno == stdlib_logging.WARNING and _PACKAGE in pathlib.Path(record.pathname).parents
    ):
      self.write("warning", record.getMessage())

  def write(self, kind: str, text: str) -> None:
    self._file.write(json.dumps([kind, text]) + "\n")

  def read(self, kind: str) -> list[str]:
    """Returns the messages of a kind; of a fork that has ended, all of them."""
    self._file.seek(0)
    return [text for of, text in map(json.loads, self._file) if of == kind]


def _carry_out(config: run_config.RunConfig, num_cores: int, messages: Messages) -> int:
  """Carries out a run in a fork; returns the exit code."""
  logging.get_absl_logger().addHandler(messages)
  # The bars of this process, and what locks them, are none of the fork's.
  tqdm.tqdm._instances.clear()
  tqdm.tqdm.set_lock(threading.RLock())
  threadpoolctl.threadpool_limits(num_cores)  # NumPy has counted all cores.
  return cli.run_parsed(lambda: train.train(config), lambda why: messages.write("failure", why))


class _ActiveRun:
  """A run in a process of its own, with its output in the run's folder."""

  def __init__(self, config: run_config.RunConfig, cores: Sequence[int], position: int):
    self.cores = cores
    self.position = position
    self.folder = run_folder.of_config(config)
    self.name = f"{self.folder.task}/{self.folder.method}/seed_{config.seed}"
    self.bar = progress.ProgressBar(self.name, config.num_rounds, position)
    self.messages = Messages()
    with run_folder.lock(self.folder.path):  # Truncating the log would lose that of a run at work.
      log = open(self.folder.path / "log.txt", "w")  # noqa: SIM115  The child keeps it open.
    with log:
      self.process = dependent_process.DependentFork(
        lambda: _carry_out(config, len(cores), self.messages), output=log.fileno(), cores=cores
      )

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

  def failure(self) -> str:
    """Returns why the run failed, if it could still tell, or else what ended it."""
    code = self.process.returncode or 0
    ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    untold = f"{ended} ended it; its last words are in {self.folder.path / 'log.txt'}"
    return next(iter(self.messages.read("failure")), untold)


def _total(configs: Sequence[run_config.RunConfig], active: Sequence[_ActiveRun]) -> int | None:
  """Returns the rounds of all runs, of which some may leave theirs to the task; None if unknown."""
  of_task = next(filter(None, (run.num_rounds() for run in active)), None)
  numbers = [config.num_rounds or of_task for config in configs]
  return None if None in numbers else sum(filter(None, numbers))


def _stop(active: Sequence[_ActiveRun]) -> None:
  """Lets the runs save their state and end."""
  for run in active:
    if run.process.poll() is None:
      run.process.send_signal(signal.SIGINT)
  for run in active:
    run.process.wait()


def _prepare_report() -> None:
  """Imports what the report takes, while a core is idle; does nothing the second time."""
  from tff_superquantile.experiments.report import comparison  # noqa: F401


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
  # A slot is a share of the cores and a line of the terminal.
  free: list[tuple[Sequence[int], int]]
  free = [(share, 1 + i) for i, share in enumerate(core_shares(cores, len(configs), num_workers))]
  waiting = list(configs)
  active: list[_ActiveRun] = []
  failed = []
  bar = tqdm.tqdm(
    desc=f"0 of {len(configs)} runs done",
    total=_total(configs, ()),
    unit="round",
    position=0,
    mininterval=0.5 if sys.stderr.isatty() else 20,
    dynamic_ncols=sys.stderr.isatty(),
  )
  rounds_of_ended, num_ended = 0, 0
  try:
    while waiting or active:
      while waiting and free:
        active.append(_ActiveRun(waiting.pop(0), *free.pop()))
      if free:
        _prepare_report()
      time.sleep(_SECONDS_BETWEEN_LOOKS)
      for run in [run for run in active if run.process.poll() is not None]:
        run.bar.close()
        active.remove(run)
        free.append((run.cores, run.position))
        rounds_of_ended += run.last_round()[0]
        num_ended += 1
        for warning in run.messages.read("warning"):
          bar.write(f"Warning: {run.name}: {warning}", file=sys.stderr)
        if run.process.returncode == cli.USAGE_ERROR:
          raise ValueError(run.failure())
        if run.process.returncode != 0:
          failed.append(run.name)
          bar.write(f"Failed: {run.name}: {run.failure()}", file=sys.stderr)
      bar.total = bar.total or _total(configs, active)
      bar.set_description_str(f"{num_ended} of {len(configs)} runs done", refresh=False)
      bar.update(rounds_of_ended + sum(run.show_progress() for run in active) - bar.n)
  finally:
    for run in active:
      run.bar.close()
    bar.close()
    _stop(active)
  return failed
