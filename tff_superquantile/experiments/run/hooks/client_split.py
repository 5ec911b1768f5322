"""How the clients of a run are split: by the id of each, or by a permutation of all."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from privacy.settings import part
import tasks
from tasks import request as request_lib
from tff_superquantile.experiments.config import flags as flags_lib
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook

_SPLIT_SEED = 0  # Of private runs.


def fill_in(config: run_config.RunConfig) -> tuple[run_config.RunConfig, run_folder.Run]:
  """Fills in --client_split and --split_seed: those of the run, which it returns, if it has begun.

  A run that begins splits by_id, and a private one by the same seed whatever its own is: clients
  that one run tests on would be protected by the next.
  """
  split, seed, run = config.task.client_split, config.task.split_seed, run_folder.of_config(config)
  # Folds, which a private run cannot have, take no seed.
  lacks_seed = seed is None and config.is_private and not config.task.folds
  if split is None or lacks_seed:
    split = split or run.flags.get("client_split", request_lib.BY_ID)
    if lacks_seed:
      seed = int(run.flags.get("split_seed", _SPLIT_SEED))
  return _with_task(config, client_split=split, split_seed=seed), run


def _with_task(config: run_config.RunConfig, **changes: Any) -> run_config.RunConfig:
  return dataclasses.replace(config, task=dataclasses.replace(config.task, **changes))


class ClientSplit(hook.Hook):
  """Fills in --client_split as `fill_in`, or None for a task that splits its clients by itself."""

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    config, run = fill_in(config)
    own = part.values(config.task.own)
    places = {n: os.path.abspath(own[n]) for n in flags_lib.WHERE_DATA_IS if own.get(n)}
    config = run_config.with_values(config, **places)
    if not task.follows_client_split:
      return _with_task(config, client_split=None)
    apart = dataclasses.replace(config.request(), client_split=None)
    if config.task.client_split == request_lib.SHUFFLED and task.protects(apart):
      raise ValueError(
        "Found --client_split=shuffled for a private run; expected by_id, as one client's presence"
        " would move others between training and test: leave it out."
      )
    if run.flags:
      return config
    for folder in sorted(run.path.parents[1].glob("*/seed_*")):
      flags = run_folder.Run(folder, 0).flags
      its = flags.get("client_split", config.task.client_split)
      if its != config.task.client_split:
        remedy = f", or split alike by --client_split={its}" * (not task.protects(apart))
        raise ValueError(
          f"Found runs in {run.path.parents[1]} whose clients are split otherwise, by"
          f" --client_split={its}; expected one split in a folder, whose runs are compared by seed:"
          f" choose another --output_dir{remedy}."
        )
    return config
