"""The cohorts of a run, with the handles of their clients."""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from privacy import cohorts as cohorts_lib
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds


def build_selection(
  files: client_files.ClientFiles,
  config: run_config.RunConfig,
  secret: hook.Secret | None = None,
) -> Callable[[int], list[Any]]:
  """Builds the function from a round's number to the handles of its cohort."""
  if secret is not None:
    return _build_private_selection(files, config, secret)
  sample = cohorts.build_sampler(config.cohort, files.client_ids, config.seed)
  size = config.method.num_trained(int(config.cohort.expected))

  def select(round_num: int) -> list[Any]:
    return [
      files.handle(client_id, seeds.client_seed(config.seed, round_num, client_id))
      for client_id in sample(round_num)[:size]
    ]

  return select


def _build_private_selection(
  files: client_files.ClientFiles, config: run_config.RunConfig, secret: hook.Secret
) -> Callable[[int], list[Any]]:
  """Builds the accounted cohorts from the key, or from the seed if all may know them."""
  release, key, contacted = secret.release, secret.key, secret.release.contacted
  sample = cohorts.build_sampler(
    dataclasses.replace(release.cohort, size=contacted),
    files.client_ids,
    config.seed if release.cohort.is_public else key,
    max_clients=release.num_shares,
  )
  helpers = coin = None
  if isinstance(release.noise, cohorts_lib.Helpers):
    assert release.num_shares is not None
    helpers = cohorts.build_helpers_sampler(files.client_ids, release.num_shares, key)
  if release.has_coin:
    coin = cohorts.build_coin(release.cohort.expected / contacted, key)

  def select(round_num: int) -> list[Any]:
    def seed(client_id: str) -> np.ndarray:
      return seeds.client_seed(secret.noise_key, round_num, client_id)

    cohort = sample(round_num)
    handles = [
      files.handle(client_id, seed(client_id))
      if coin is None or coin(round_num, client_id)
      else files.handle_without_examples(client_id, seed(client_id))
      for client_id in cohort
    ]
    if helpers is not None:
      handles += [
        files.handle_without_examples(client_id, seed(client_id))
        for client_id in helpers(round_num, cohort)
      ]
    return handles

  return select
