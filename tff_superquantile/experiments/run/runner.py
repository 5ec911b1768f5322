"""Carries out one run: from its config to a folder with all its results."""

from collections.abc import Mapping
import functools
from typing import Any, Protocol

import numpy as np

from tff_superquantile import atomic_files
from tff_superquantile.engine import context
from tff_superquantile.engine.cohort import stages
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import attempts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import evaluating
from tff_superquantile.experiments.run import manifest
from tff_superquantile.experiments.run import measurements
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import selection
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import order
from tff_superquantile.experiments.run.hooks import superseded
from tff_superquantile.simulation import training_loop


class Machines(Protocol):
  """Who computes the cohorts of a run in place of this process."""

  def check(self, config: run_config.RunConfig) -> None:
    """Raises a `ValueError` for a resolved config whose cohorts cannot be shared out."""

  def begin(self, directory: str, threads: int) -> stages.MapBlocks:
    """Returns who maps blocks, from the folder of client files and the run's number of threads."""


def train(config: run_config.RunConfig, machines: Machines | None = None) -> run_folder.Run:
  """Carries out a run, or the rest of it, and returns the finished run.

      run = train(RunConfig(method=Superquantile(theta=0.25), num_rounds=100))
      run.metrics["test"]["error"]["p90"], run.rounds["train_loss"], run.weights

  Args:
    config: The config that was asked for.
    machines: Who computes its cohorts; None for this process.

  Returns:
    The run, with its results.

  Raises:
    ValueError: If the run cannot be carried out; nothing has been computed then.
    training_loop.DivergedError: If training diverged.
  """
  folder = names.run_path(config)
  # Before reading the clients starts TensorFlow's threads.
  context.limit_threads(run_folder.Run(folder, config.seed).num_threads)
  task = build.get_task(config)
  run = build.resolve(config, task)
  if machines is not None:
    machines.check(run)
  manifest.check_same_data(folder, task.data_digest)
  with run_folder.lock(folder):
    earlier = run_folder.Run(folder, run.seed)
    _check_goes_on(run, earlier)
    load = functools.cache(functools.partial(build.load_task, task, run))
    job = hook.Job(run, task, earlier, load)
    hooks = order.AllHooks(job)
    if earlier.finished and earlier.flags and run_config.is_done_by(earlier.flags, run):
      print(f"Finished before: {folder}")
      hooks.on_finished()
      return earlier
    manifest.check_same_cpu(run, earlier)
    run_files.remove_leftovers(folder)
    for mark in (run_folder.DIVERGED, run_folder.FAILED):
      (folder / mark).unlink(missing_ok=True)
    attempts.begin(folder)
    try:
      _train(job, hooks, machines)
    except training_loop.DivergedError as error:
      atomic_files.write(folder / run_folder.DIVERGED, f"{error}\n")
      raise
    except BaseException:
      if not (folder / "flags.txt").exists():  # Else the folder would pass for an unfinished run.
        register.withdraw(folder)
        noise_key.remove(folder)
        run_files.remove_if_empty(folder)
      raise
  return run_folder.Run(folder, run.seed)


def _check_goes_on(run: run_config.RunConfig, earlier: run_folder.Run) -> None:
  """Raises a `ValueError` for other or lost flags and fewer rounds than there are."""
  if not earlier.flags:
    if accounts.rounds_released(earlier):
      raise ValueError(
        f"Found rounds, but no flags.txt, in {earlier.path}; bring the file back, without which"
        " nobody knows how the run goes on, choose another --output_dir, or remove that folder."
      )
    return
  # What follows from the budget and the clients is not known yet.
  earlier.check_same(run, private.followed(run))
  if (earlier.last_round or 0) > run.num_rounds:
    raise ValueError(
      f"Found {earlier.last_round} rounds done in {earlier.path}, more than"
      f" --num_rounds={run.num_rounds}; ask for at least as many, choose another"
      " --output_dir, or remove that folder."
    )


def _train(job: hook.Job, hooks: order.AllHooks, machines: Machines | None) -> None:
  """Carries out the rounds and the final evaluation."""
  task, folder = job.task, job.folder
  print(task.description, end="\n" * bool(task.description), flush=True)
  clients = job.splits["train"]
  build.check_cohort(job.config, clients)
  map_blocks: stages.MapBlocks = map
  if machines is not None:
    map_blocks = machines.begin(clients.directory, context.num_threads())
  context.set_simulation_context(
    block_size=job.config.block_size or None,
    num_blocks=job.config.num_blocks,
    map_blocks=map_blocks,
  )
  job = hooks.prepare(job)
  run, secret, outcome = job.config, job.secret, job.outcome
  evaluator = evaluating.RunEvaluator(job, hooks.measured)
  of_private = () if secret is None else (secret.release, secret.noise_key)
  select_clients = selection.build_selection(clients, run, secret)
  process = build.build_process(run, job.trained or job.model, clients, *of_private)
  # Nothing above has failed, so from here on the folder is this run's.
  _begin(job)
  state_manager = noise_key.SecretStateManager if run.is_private else superseded.StateManager
  loop = training_loop.Loop(
    process=process,
    select_clients=select_clients,
    num_rounds=run.num_rounds,
    read_metrics=functools.partial(_read_metrics, secret),
    evaluate=lambda weights, _: hooks.on_evaluation(evaluator.evaluate(weights)),
    rounds_per_evaluation=run.rounds_per_evaluation,
    measure_time=not run.is_private,
    state_manager=state_manager(str(folder / "checkpoints"), keep_total=2, keep_first=False),
    seconds_per_checkpoint=run.seconds_per_checkpoint,
    initial_weights=job.start,
    watcher=hooks,
  )
  is_whole = False
  try:
    outcome.weights = process.get_model_weights(training_loop.run(loop))
    outcome.manifest["rounds_done"] = outcome.manifest["kept_round"] = job.read().last_round
    is_whole = True
  finally:
    hooks.on_rounds_end(is_whole)
  outcome.metrics = evaluator.finish(outcome.weights)
  hooks.complete()
  _finish(job)
  hooks.on_finished()


def _read_metrics(
  secret: hook.Secret | None, metrics: Mapping[str, Any], round_num: int
) -> dict[str, Any]:
  """Returns the values of a round in its row of rounds.csv."""
  cost = {} if secret is None else {"epsilon": secret.epsilon(round_num)}
  return {**measurements.of_round(metrics), **cost}


def _begin(job: hook.Job) -> None:
  """Writes what a folder has from the beginning of its run."""
  folder, outcome = job.folder, job.outcome
  flags = "\n".join(job.config.to_arguments()) + "\n"
  outcome.manifest = {**manifest.build(job, flags), **outcome.manifest}
  atomic_files.write_json(folder / "manifest.json", outcome.manifest)
  if job.task.columns:
    atomic_files.write(folder / run_folder.COLUMNS, job.task.columns)
  # With its flags the run has begun: what binds it is there before.
  atomic_files.write(folder / "flags.txt", flags)
  (folder / "metrics.json").unlink(missing_ok=True)


def _finish(job: hook.Job) -> None:
  """Writes what the folder of a finished run has."""
  folder, outcome = job.folder, job.outcome
  outcome.manifest["finished"] = manifest.now()
  if not job.config.is_private:
    outcome.manifest["seconds_per_round"] = float(np.nanmedian(job.read().rounds["seconds"]))
  atomic_files.write_json(folder / "manifest.json", outcome.manifest)
  run_files.write_weights(folder / "weights.npz", outcome.weights)
  # This file comes last, as its presence says that the run is finished.
  atomic_files.write_json(folder / "metrics.json", outcome.metrics)
  print(f"Finished: {folder}")
