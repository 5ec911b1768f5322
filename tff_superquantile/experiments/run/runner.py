"""Carries out one run: from its config to a folder with all its results."""

import functools

import numpy as np
import tensorflow_federated as tff

from tff_superquantile import atomic_files
from tff_superquantile.engine import context
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import manifest
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import selection
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import order
from tff_superquantile.simulation import training_loop


def train(config: run_config.RunConfig) -> run_folder.Run:
  """Carries out a run, or the rest of it, and returns the finished run.

      run = train(RunConfig(method=Superquantile(theta=0.25), num_rounds=100))
      run.metrics["test"]["error"]["p90"], run.rounds["train_loss"], run.weights

  Args:
    config: The config that was asked for.

  Raises:
    ValueError: If the run cannot be carried out; nothing has been computed then.
    training_loop.DivergedError: If training diverged.
  """
  context.limit_threads()  # Before reading the clients starts TensorFlow's threads.
  task = build.get_task(config)
  folder = names.run_path(config)
  run = build.resolve(config, task)
  manifest.check_same_data(folder, task.data_digest)
  with run_folder.lock(folder):
    earlier = run_folder.Run(folder, run.seed)
    _check_goes_on(run, earlier)
    job = hook.Job(run, task, earlier)
    job.load = functools.partial(_load, job)
    job.hooks = [kind(job) for kind in order.taking_part(run)]
    if earlier.finished and earlier.flags and run_config.ends_as(earlier.flags, run):
      print(f"Finished before: {folder}")
      for each in job.hooks:
        each.finished()
      return earlier
    run_files.remove_leftovers(folder)
    for mark in (run_folder.DIVERGED, run_folder.FAILED):
      (folder / mark).unlink(missing_ok=True)
    try:
      _train(job)
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


def _load(job: hook.Job) -> None:
  job.model, job.splits = build.load_task(job.task, job.config)
  job.trained = job.model


def _train(job: hook.Job) -> None:
  """Carries out the rounds and the final evaluation."""
  task, folder = job.task, job.folder
  print(task.description, end="\n" * bool(task.description), flush=True)
  job.load()
  clients = job.splits["train"]
  build.check_cohort(job.config, clients)
  context.set_simulation_context(block_size=job.config.block_size or None)
  for each in job.hooks:
    each.before()
  run, secret = job.config, job.secret
  of_private = () if secret is None else (secret.release, secret.noise_key)
  select_clients = selection.build_selection(clients, run, secret)
  process = build.build_process(run, job.trained, clients, *of_private)
  # Nothing above has failed, so from here on the folder is this run's.
  _begin(job)
  rounds = order.AllHooks(job.hooks)
  state_manager = (
    noise_key.SecretStateManager if run.is_private else tff.program.FileProgramStateManager
  )
  loop = training_loop.Loop(
    process=process,
    select_clients=select_clients,
    num_rounds=run.num_rounds,
    read_metrics=rounds.read_metrics,
    evaluate=rounds.evaluate,
    rounds_per_evaluation=run.rounds_per_evaluation,
    release_managers=[rounds],
    measure_time=not run.is_private,
    state_manager=state_manager(str(folder / "checkpoints"), keep_total=2, keep_first=False),
    seconds_per_checkpoint=run.seconds_per_checkpoint,
    initial_weights=job.start,
    keeper=rounds,
  )
  is_whole = False
  try:
    state = training_loop.run(loop)
    is_whole = True
  finally:
    for each in job.hooks:
      each.end(is_whole)
  job.weights = process.get_model_weights(state)
  _finish(job)


def _begin(job: hook.Job) -> None:
  """Writes what a folder has from the beginning of its run."""
  folder = job.folder
  flags = "\n".join(job.config.to_arguments()) + "\n"
  job.manifest = {**manifest.build(job, flags), **job.manifest}
  atomic_files.write_json(folder / "manifest.json", job.manifest)
  if job.task.columns:
    atomic_files.write(folder / run_folder.COLUMNS, job.task.columns)
  # With its flags the run has begun: what binds it is there before.
  atomic_files.write(folder / "flags.txt", flags)
  for each in job.hooks:
    each.begin()


def _finish(job: hook.Job) -> None:
  """Evaluates the model that a run leaves, and writes what a finished run has."""
  folder = job.folder
  history = run_folder.Run(folder, job.config.seed)  # It reads the files anew.
  job.manifest["rounds_done"] = job.manifest["kept_round"] = history.last_round
  for each in job.hooks:
    each.finish()
  job.manifest["finished"] = manifest.now()
  if not job.config.is_private:
    job.manifest["seconds_per_round"] = float(np.nanmedian(history.rounds["seconds"]))
  atomic_files.write_json(folder / "manifest.json", job.manifest)
  run_files.write_weights(folder / "weights.npz", job.weights)
  # This file comes last, as its presence says that the run is finished.
  atomic_files.write_json(folder / "metrics.json", job.metrics)
  print(f"Finished: {folder}")
  for each in job.hooks:
    each.finished()
