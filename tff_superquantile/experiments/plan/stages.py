"""The steps of an experiment of several runs: carries them out, or prints their commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib
import shlex
import sys

from tff_superquantile.experiments.cluster import door
from tff_superquantile.experiments.cluster import driver
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.run import run_folder

# The help of --scheduler.
SCHEDULER = (
  "The file of superquantile scheduler, whose workers carry out the runs; None for this machine"
  " alone."
)


def is_left(config: run_config.RunConfig) -> bool:
  """Returns whether a run has neither finished nor diverged; a `ValueError` for other flags.

  Personal models may be left of one that has finished. One that failed is left if it is tried.
  """
  run = run_folder.of_config(config)
  if run.flags:  # What is None here, the task has decided there.
    run.check_same(config, run_config.flags())
  is_shorter = config.num_rounds is not None and not run_config.is_done_by(run.flags, config)
  asked = config.personalization
  is_personal = asked is None or asked.is_done(run.metrics)
  return not run.diverged and (not run.finished or is_shorter or not is_personal)


class Stages:
  """The steps of an experiment, each a set of runs; later steps follow from earlier ones."""

  def __init__(
    self,
    num_workers: int | None,
    print_commands: bool,
    retry_failed: bool = False,
    scheduler: str | None = None,
  ):
    self._num_workers, self._scheduler = num_workers, scheduler
    if scheduler is not None:
      door.read(pathlib.Path(scheduler))  # Before anything is downloaded.
    self._print_commands, self._retry_failed = print_commands, retry_failed
    self.searches: list[tuning.Search] = []

  def carry_out(self, what: str, configs: Sequence[run_config.RunConfig]) -> list[str]:
    """Carries out runs and returns the names of those that failed; `what` is their purpose."""
    # Once each, as tuning may choose what runs anyway.
    configs = list({names.run_path(config): config for config in configs}.values())
    if not self._print_commands:
      print(f"{len(configs)} runs: {what}", flush=True)
      if self._scheduler is not None:
        return driver.run_all(configs, self._scheduler)
      return pool.run_all(configs, self._num_workers)
    left = [config for config in configs if is_left(config)]
    runs = [] if self._retry_failed else map(run_folder.of_config, left)
    failed = {str(run.path): run.failed for run in runs if run.failed}
    left = [config for config in left if str(names.run_path(config)) not in failed]
    for path, why in failed.items():
      print(f"Failed: {path}: {why}", file=sys.stderr)
    if left:
      print(*(shlex.join(pool.command(config)) for config in left), sep="\n")
      print(f"{len(left)} of {len(configs)} runs are left: {what}", file=sys.stderr)
      sys.exit(0)
    return list(failed)

  def search(self, what: str, searches: Sequence[tuning.Search]) -> list[Mapping[str, float]]:
    """Carries out grid searches side by side; returns the values that each has chosen."""
    configs = [candidate.config for search in searches for candidate in search.candidates]
    self.carry_out(what, configs)  # A candidate may well fail: then it is not chosen.
    self.searches += searches
    return [search.choose() for search in searches]


def key(settings: tuning.Settings) -> str:
  """Returns the settings that the runs of a method share before its parameters are chosen."""
  return repr([(name, value) for name, value in settings.items() if name != "seed"])
