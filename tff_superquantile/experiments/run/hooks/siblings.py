"""Enters a run into the register of its experiment, before it computes anything."""

from __future__ import annotations

import pathlib

from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook


class Siblings(hook.Hook):
  """Enters whom a run protects and measures; refuses it as `register.enter`.

  It refuses also a start that lacks its columns, and a private start that measured a client whom
  this run would protect: its statistics of the table, which the run takes over, follow from them.
  """

  def prepare(self) -> None:
    job, config = self.job, self.job.config
    own = register.of_run(config, job.splits)
    if config.start is not None:
      start = run_folder.find_finished(pathlib.Path(config.start.folder))
      start.check_columns(job.task)
      if start.config is None or start.config.is_private:
        register.check_start(start.path, own, config)
    if config.is_private or any(own):
      token = str(job.earlier.manifest.get(register.TOKEN, ""))
      job.outcome.manifest[register.TOKEN] = register.enter(job.folder, own, config, token)
