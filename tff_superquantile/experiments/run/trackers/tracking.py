"""Sends the values of a run to its trackers, which can neither end nor change the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging
import numpy as np

from privacy.settings import plugins
import tasks
from tff_superquantile import atomic_files
from tff_superquantile.experiments.run import hook
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import trackers
from tff_superquantile.experiments.run.trackers import tracker

FILE_NAME = "trackers.json"


def _row(round_num: int, values: Mapping[str, Any]) -> tracker.Row:
  return round_num, {name: float(v) for name, v in values.items() if not np.isnan(v)}


class Tracking(hook.Hook):
  """Brings the trackers of a run up to date, after each evaluation and at the end.

  The run's folder has `trackers.json`: {tracker: {"id", "last_round", "is_final"}}, by which a
  resumed run goes on. It is written after values are sent; a tracker that is opened again leaves
  out what has arrived nevertheless. Failures of a tracker become one warning.
  """

  def __init__(self, job: hook.Job):
    super().__init__(job)
    self._folder = job.folder
    self._asked = plugins.names(job.config.tracker)
    self._open: dict[str, tracker.Tracker] = {}
    self._failed: set[str] = set()
    self._unsent: list[tuple[int, Any]] = []  # To those that are open.

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return bool(plugins.names(config.tracker))

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    trackers.check(config.tracker)

  async def release(self, value: Any, key: int) -> None:
    """Sends the rows of rounds.csv up to an evaluation, whose own row has been written.

    Times of sending would tell the sizes of a private run's cohorts: it is sent at its end.
    """
    if self.job.config.is_private:
      return
    self._unsent.append((key, value))
    if key % self.job.config.rounds_per_evaluation == 0:
      for name in self._asked:
        if name not in self._failed:
          self._attempt(name, self._send_rows)
      self._unsent.clear()

  def end(self, is_whole: bool) -> None:
    """Ends an interrupted run at its trackers as one that may go on."""
    for name in [] if is_whole else list(self._open):
      self._attempt(name, self._interrupt)

  def finished(self) -> None:
    """Sends what is left of a finished run; a tracker that has failed gets one more chance."""
    for name in self._asked:
      self._attempt(name, self._finish)

  def _attempt(self, name: str, action: Callable[[str], None]) -> None:
    """Does something with a tracker; if that fails, the run goes on without it."""
    try:
      action(name)
    except Exception as error:  # Whatever a library raises that does not reach its server.
      self._open.pop(name, None)
      if name not in self._failed:
        logging.warning(
          "Found that --tracker=%s failed (%s: %s); the run goes on without it. Once the run is"
          " finished, the same command sends what is missing there.",
          name,
          type(error).__name__,
          " ".join(str(error).split())[:300],
        )
      self._failed.add(name)

  def _read(self) -> dict[str, Any]:
    return run_files.read_json(self._folder / FILE_NAME)

  def _note(self, name: str, **values: Any) -> None:
    noted = self._read()
    noted[name] = {**noted.get(name, {}), **values}
    atomic_files.write_json(self._folder / FILE_NAME, noted)

  def _run(self) -> run_folder.Run:
    return run_folder.Run(self._folder, self.job.config.seed)  # Its files are read anew.

  def _opened(self, name: str) -> tracker.Tracker:
    if name not in self._open:
      run = self._run()
      subject = tracker.Subject(
        output_dir=self._folder.parents[2],
        folder=self._folder,
        tags={"task": run.task, "method": str(run.method), "seed": str(run.seed)},
        params=run.flags,
      )
      known_id = self._read().get(name, {}).get("id")
      self._open[name] = trackers.TRACKERS[name](subject, known_id)
      self._note(name, id=self._open[name].id)
    return self._open[name]

  def _rows(self) -> list[tuple[int, Any]]:
    """Returns the rows of rounds.csv."""
    columns = dict(self._run().rounds)
    numbers = columns.pop("round", np.array([]))
    return [
      (int(number), dict(zip(columns, row))) for number, *row in zip(numbers, *columns.values())
    ]

  def _send_rows(self, name: str) -> None:
    last = self._read().get(name, {}).get("last_round", -1)
    # Reading the file at each evaluation would take time that grows with the square of the rounds.
    unsent = self._unsent if name in self._open else self._rows()
    rows = [_row(round_num, values) for round_num, values in unsent if round_num > last]
    if rows:
      tracker = self._opened(name)
      tracker.log(rows)
      self._note(name, last_round=rows[-1][0], is_final=False)

  def _interrupt(self, name: str) -> None:
    self._send_rows(name)
    self._open.pop(name).interrupt()

  def _finish(self, name: str) -> None:
    self._send_rows(name)
    if not self._read().get(name, {}).get("is_final"):
      tracker, run = self._opened(name), self._run()
      tracker.finish(run.numbers, run.last_round or 0)
      self._note(name, is_final=True)
      self._open.pop(name)
