"""A private run: its noise from the budget, its key, its account and its ledger."""

from __future__ import annotations

import numpy as np

import tasks
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.parts import privacy as privacy_lib


class PrivateRounds(hook.Hook):
  """Opens the account, and enters each round before anything of it is released."""

  @staticmethod
  def defaults(config: run_config.RunConfig, task: tasks.task.Task) -> hook.Values:
    """Returns those that the task would decide in a run without privacy, or nobody."""
    privacy = config.privacy
    if privacy is None:
      return {}
    shared = privacy.numbers if isinstance(privacy, privacy_lib.Budget) else ()
    return {
      "client_weighting": "uniform",
      "initial_clip_norm": privacy.clip.first_norm(privacy.clip_unit),
      **{number.share_flag: number.usual_share for number in shared},
    }

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.is_private

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    private.check(config)

  def before(self) -> None:
    job, earlier = self.job, self.job.earlier
    assert job.config.privacy is not None
    key, commitments = noise_key.load(earlier, job.config.privacy.noise_key_file, job.splits)
    population = len(job.splits["train"].client_ids)
    num_parameters = sum(np.size(weights) for weights in job.model.initial_weights[0])
    job.config, release = private.calibrate(job.config, population, num_parameters, earlier.flags)
    self._account = accounts.Account(job.config, release, job.folder, num_parameters, job.starts)
    of_noise = noise_key.of_noise(key, commitments, job.config, earlier)
    job.secret = hook.Secret(release, of_noise, key, self._account.released)
    job.manifest[noise_key.COMMITMENTS] = commitments
    # It follows from what is public.
    job.manifest[run_folder.RELATIVE_NOISE] = self._account.relative_noise
    print(self._account.describe(), flush=True)

  def begin(self) -> None:
    self._account.write(0)  # The ledger may have been lost, or be an old one.

  def of_round(self, round_num: int) -> hook.Values:
    return {"epsilon": self._account.epsilon(round_num)}

  async def release(self, value: hook.Values, key: int) -> None:
    self._account.write(key)
