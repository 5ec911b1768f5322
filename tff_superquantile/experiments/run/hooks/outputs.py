"""Where what rounds release goes: rounds.csv, files of clients, TensorBoard's events, the bar."""

from __future__ import annotations

from collections.abc import Mapping
import datetime
import os
import typing

from tff_superquantile.experiments.run import evaluation_files
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import progress
from tff_superquantile.simulation import release_managers

if typing.TYPE_CHECKING:
  from tff_superquantile import evaluation as evaluation_lib


class RoundsTable(hook.Hook):
  """Writes rounds.csv, whose rows are final in a private run."""

  def prepare(self) -> None:
    self._manager = release_managers.RowReleaseManager(
      self.job.folder / "rounds.csv",
      final_until=self.job.secret and self.job.secret.released,
      may_differ=("epsilon",),
    )

  async def on_round(self, round_num: int, values: hook.Values) -> None:
    await self._manager.release(values, round_num)


class ClientResults(hook.Hook):
  """Writes the results of an evaluation as one file, when its round is released.

  Files that are later than the first round that a process releases were left by one that was
  killed, and go then; in a private run, whose releases are final, they stay. There all files have
  the time at which the run started, as times of writing would tell the sizes of its cohorts.
  """

  def prepare(self) -> None:
    self._folder = self.job.folder / run_files.CLIENTS
    self._removes_later = not self.job.config.is_private
    self._results: Mapping[str, evaluation_lib.ClientMetrics] = {}

  def on_evaluation(self, evaluation: hook.Evaluation) -> None:
    self._results = evaluation.results

  def on_round(self, round_num: int, values: hook.Values) -> None:
    """Writes the file of the round, if it was evaluated; `values` have their own file."""
    if self._removes_later:
      for number, path in evaluation_files.find(self._folder).items():
        if number >= round_num:
          path.unlink()
      self._removes_later = False
    if self._results:
      columns = {split: results.columns() for split, results in self._results.items()}
      path = evaluation_files.write(self._folder, round_num, columns)
      if self.job.config.is_private:
        started = datetime.datetime.fromisoformat(self.job.outcome.manifest["started"])
        os.utime(path, (started.timestamp(), started.timestamp()))
    self._results = {}


class Progress(hook.Hook):
  """Shows the rounds on a bar, and as events, whose times would tell sizes of private cohorts."""

  def on_start(self, round_num: int) -> None:
    job = self.job
    name = f"{job.config.task.name} {job.earlier.method} {job.folder.name}"
    self._bar = progress.ProgressBar(name, job.config.num_rounds, error=job.task.error)
    self._events = None
    if not job.config.is_private:
      self._events = release_managers.ScalarReleaseManager(job.folder / "tensorboard")

  async def on_round(self, round_num: int, values: hook.Values) -> None:
    self._bar.show(values, round_num)
    if self._events is not None:
      await self._events.release(values, round_num)

  def on_rounds_end(self, is_whole: bool) -> None:
    self._bar.close()
    if self._events is not None:
      self._events.close()
