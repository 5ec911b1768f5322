"""Where the released values of rounds go: rounds.csv, TensorBoard's events and the bar."""

from __future__ import annotations

from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import progress
from tff_superquantile.simulation import release_managers


class RoundsTable(hook.Hook):
  """Writes rounds.csv, whose rows are final in a private run."""

  def before(self) -> None:
    self._manager = release_managers.RowReleaseManager(
      self.job.folder / "rounds.csv",
      final_until=self.job.secret and self.job.secret.released,
      may_differ=("epsilon",),
    )

  async def release(self, value: hook.Values, key: int) -> None:
    await self._manager.release(value, key)


class Shown(hook.Hook):
  """Shows the rounds on a bar, and as events, whose times would tell sizes of private cohorts."""

  def begin(self) -> None:
    job = self.job
    name = f"{job.config.task.name} {job.earlier.method} {job.folder.name}"
    self._bar = progress.ProgressBar(name, job.config.num_rounds, error=job.task.error)
    self._events = None
    if not job.config.is_private:
      self._events = release_managers.ScalarReleaseManager(job.folder / "tensorboard")

  async def release(self, value: hook.Values, key: int) -> None:
    self._bar.show(value, key)
    if self._events is not None:
      await self._events.release(value, key)

  def end(self, is_whole: bool) -> None:
    self._bar.close()
    if self._events is not None:
      self._events.close()
