"""The cohorts of a run, with the handles of their clients."""

from collections.abc import Callable
import dataclasses
from typing import Any

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
    cohort = sample(round_num)[:size]
    return files.handles(cohort, seeds.client_seeds(config.seed, round_num, cohort))

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

  # Without noise of clients they draw the order of their examples alone, which the accounting
  # takes as known. Blocks may be computed elsewhere, where nothing of the key may be.
  is_by_server = all(part.noise_by_server for part in release.parts)
  is_public = config.num_blocks is not None and is_by_server
  of_clients: seeds.Seed = config.seed if is_public else secret.noise_key

  def select(round_num: int) -> list[Any]:
    cohort = sample(round_num)
    are_in = [coin is None or coin(round_num, client_id) for client_id in cohort]
    if helpers is not None:
      helping = helpers(round_num, cohort)
      cohort, are_in = [*cohort, *helping], are_in + [False] * len(helping)
    return files.handles(cohort, seeds.client_seeds(of_clients, round_num, cohort), are_in)

  return select
