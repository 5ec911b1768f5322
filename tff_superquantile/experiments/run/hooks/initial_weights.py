"""The model from which a run starts: that of a finished run, with what it has already cost."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from privacy import ledger
from privacy import statements
import tasks
from tff_superquantile.experiments.config import kept
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook

_STARTS = "starts"  # The entry of manifest.json.


def columns(config: run_config.RunConfig) -> str:
  """Returns what the columns of a table became in the start of a run; "" without such a file."""
  return "" if config.start is None else _run(config.start).columns


def _run(start: kept.Start) -> run_folder.Run:
  return run_folder.find_finished(pathlib.Path(start.folder))


def starts(config: run_config.RunConfig) -> list[statements.StartingModel]:
  """Returns the chain of runs from which the start descends, the latest first."""
  if config.start is None:
    return []
  run = _run(config.start)
  epsilon = delta = None
  if run.config is None or run.config.is_private:
    path = run.path / ledger.FILE_NAME
    if not path.exists():
      raise ValueError(
        f"Found no {ledger.FILE_NAME} in {run.path}, a private run; expected its ledger: bring it"
        " back, as the cost of the start belongs to this run."
      )
    entry = ledger.Ledger.from_json(path.read_text(encoding="utf-8"))
    epsilon, delta = entry.epsilon_spent, entry.claim["delta"]
  first = statements.StartingModel(
    run="/".join(run.path.parts[-3:]),
    task=run.flags.get("task", run.task),  # Its folder may have another name by now.
    same_population=True,
    fingerprint=config.start.fingerprint or "",
    epsilon=epsilon,
    delta=delta,
  )
  earlier = [statements.StartingModel(**start) for start in run.manifest.get(_STARTS, [])]
  return [
    dataclasses.replace(start, same_population=statements.may_share(start.task, config.task.name))
    for start in (first, *earlier)
  ]


class InitialWeights(hook.Hook):
  """Starts a run from the weights of another one; the manifest has the runs behind them."""

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    """Fills in where the start is, and the fingerprint of its weights, and refuses others."""
    start = config.start
    if start is None:
      return config
    folder = pathlib.Path(os.path.abspath(start.folder))
    run = run_folder.find_finished(folder)
    if run.weights is None:
      raise ValueError(f"Found no {run_folder.WEIGHTS} in {folder}; expected a run's model.")
    if start.fingerprint not in (None, run.fingerprint):
      raise ValueError(
        f"Found other weights in {folder}, of fingerprint {run.fingerprint}; expected those of"
        f" {start.fingerprint}, with which the run began: bring them back, or choose another"
        " --output_dir."
      )
    start = dataclasses.replace(start, folder=str(folder), fingerprint=run.fingerprint)
    return dataclasses.replace(config, start=start)

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.start is not None

  def prepare(self) -> hook.Job:
    job = self.job
    assert job.config.start is not None  # `takes_part` sees to it.
    weights = _run(job.config.start).weights_for(job.model)
    job.outcome.manifest[_STARTS] = [dataclasses.asdict(start) for start in starts(job.config)]
    return dataclasses.replace(job, start=weights)
