"""A private run: its noise from the budget, its key, its account and its ledger."""

from __future__ import annotations

import dataclasses

import numpy as np

from privacy.settings import part
import tasks
from tff_superquantile.experiments.config import privacy as privacy_lib
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import initial_weights


class PrivateRounds(hook.Hook):
  """Opens the account, and enters each round before anything of it is released."""

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    """Fills in what the task would decide in a run without privacy, or nobody."""
    privacy = config.privacy
    if privacy is None:
      return config
    shared = privacy.numbers if isinstance(privacy, privacy_lib.Budget) else ()
    values = {
      "client_weighting": "uniform",
      "initial_clip_norm": privacy.clip.first_norm(privacy.clip_unit),
      **{number.share_flag: number.usual_share for number in shared},
    }
    return part.fill(config, values)

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.is_private

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    private.check(config)

  def prepare(self) -> hook.Job:
    job, earlier = self.job, self.job.earlier
    assert job.config.privacy is not None
    key, commitments = noise_key.load(earlier, job.config.privacy.noise_key_file, job.splits)
    population = len(job.splits["train"].client_ids)
    num_parameters = sum(np.size(weights) for weights in job.model.initial_weights[0])
    config, release = private.calibrate(job.config, population, num_parameters, earlier.flags)
    starts = initial_weights.starts(config)
    self._account = account = accounts.Account(config, release, job.folder, num_parameters, starts)
    of_noise = noise_key.of_noise(key, commitments, config, earlier)
    secret = hook.Secret(release, of_noise, key, account.released, account.epsilon)
    job.outcome.manifest[noise_key.COMMITMENTS] = commitments
    # It follows from what is public.
    job.outcome.manifest[run_folder.RELATIVE_NOISE] = account.relative_noise
    print(account.describe(), flush=True)
    return dataclasses.replace(job, config=config, secret=secret)

  def on_start(self, round_num: int) -> None:
    self._account.write(0)  # The ledger may have been lost, or be an old one.

  def on_round(self, round_num: int, values: hook.Values) -> None:
    self._account.write(round_num)
