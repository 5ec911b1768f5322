"""Carries out one run: from its config to a folder with all its results."""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff

import tasks
from tff_superquantile import atomic_files
from tff_superquantile import evaluation
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import manifest
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.parts import engines
from tff_superquantile.experiments.run.parts import kept
from tff_superquantile.experiments.run.trackers import tracking
from tff_superquantile.experiments.run.training import best_model
from tff_superquantile.experiments.run.training import client_results
from tff_superquantile.experiments.run.training import initial_weights
from tff_superquantile.experiments.run.training import measurements
from tff_superquantile.experiments.run.training import noise_key
from tff_superquantile.experiments.run.training import runtime
from tff_superquantile.experiments.run.training import selection
from tff_superquantile.simulation import context
from tff_superquantile.simulation import progress
from tff_superquantile.simulation import release_managers
from tff_superquantile.simulation import training_loop


class _ShowOnBar(tff.program.ReleaseManager):
  """Shows the released values on a bar, and nothing else."""

  def __init__(self, bar: progress.ProgressBar):
    self._bar = bar

  async def release(self, value: Any, key: int) -> None:
    self._bar.show(value, key)


def train(config: run_config.RunConfig) -> run_folder.Run:
  """Carries out a run, or the rest of it.

      run = train(RunConfig(theta=0.25, num_rounds=100, output_dir="results"))
      run.metrics["test"]["error"]["p90"], run.rounds["train_loss"], run.weights

  Args:
    config: The config that was asked for.

  Returns:
    The finished run.

  Raises:
    ValueError: If the run cannot be carried out; nothing has been computed then.
    training_loop.DivergedError: If training diverged.
  """
  context.limit_threads()  # Before reading the clients starts TensorFlow's threads.
  task = build.get_task(config)
  folder = names.run_path(config)
  config = build.resolve(config, task)
  manifest.check_same_data(folder, task.data_digest)
  atomic_files.make_folder("output_dir", folder)
  with run_folder.lock(folder):
    earlier = run_folder.Run(folder, config.seed)
    if earlier.flags:
      engine = config.engine
      if isinstance(engine, engines.Ray) and engine.num_blocks is None:
        if "num_blocks" in earlier.flags:  # There may be other workers now.
          engine = dataclasses.replace(engine, num_blocks=int(earlier.flags["num_blocks"]))
          config = dataclasses.replace(config, engine=engine)
      # These follow from the budget and the clients, and are not known yet.
      run_config.check_same(folder, earlier.flags, config, private.followed(config))
      if earlier.finished and int(earlier.flags["num_rounds"]) == config.num_rounds:
        print(f"Finished before: {folder}")
        tracking.Tracking(config, folder).finish()
        return earlier
      if (earlier.last_round or 0) > config.num_rounds:
        raise ValueError(
          f"Found {earlier.last_round} rounds done in {folder}, more than"
          f" --num_rounds={config.num_rounds}; ask for at least as many, choose another"
          " --output_dir, or remove that folder."
        )
    elif accounts.rounds_released(earlier):
      raise ValueError(
        f"Found rounds, but no flags.txt, in {folder}; bring the file back, without which nobody"
        " knows how the run goes on, choose another --output_dir, or remove that folder."
      )
    run_files.remove_leftovers(folder)
    (folder / run_folder.DIVERGED).unlink(missing_ok=True)
    try:
      _train(config, task, folder, earlier)
    except training_loop.DivergedError as error:
      atomic_files.write(folder / run_folder.DIVERGED, f"{error}\n")
      raise
    except Exception:
      if not (folder / "flags.txt").exists():  # Else the folder would pass for an unfinished run.
        noise_key.remove(folder)
        run_files.remove_if_empty(folder)
      raise
  return run_folder.Run(folder, config.seed)


def _train(
  config: run_config.ResolvedRun,
  task: tasks.task.Task,
  folder: pathlib.Path,
  earlier: run_folder.Run,
) -> None:
  """Carries out the rounds and the final evaluation."""
  print(task.description, end="\n" * bool(task.description), flush=True)
  model, splits = build.load_task(task, config)
  build.check_cohort(config, splits["train"])
  best_model.check_splits(config, splits)
  initial_weights.check_data(config, task, splits["train"].client_ids)
  weights = initial_weights.load(config, model)
  starts = initial_weights.starts(config)
  account = release = key = commitments = None
  num_parameters = sum(np.size(weights) for weights in model.initial_weights[0])
  if config.privacy is not None:
    key, commitments = noise_key.load(earlier, config.privacy.noise_key_file, splits)
    population = len(splits["train"].client_ids)
    config = private.calibrate(config, population, num_parameters, earlier.flags)
    release = private.build_release(config, population, num_parameters)
    account = accounts.Account(config, release, folder, starts)
  select_clients = selection.build_selection(splits["train"], config, release, key)
  config = runtime.set_context(config, splits)
  process = build.build_process(config, model, splits["train"], release, key)
  if account is not None:
    print(account.describe(num_parameters), flush=True)
  # The losses of training clients are not covered by a private run's accounting.
  evaluated = {s: files for s, files in splits.items() if account is None or s != "train"}
  on_ray = isinstance(config.engine, engines.Ray)
  evaluators = evaluation.build_evaluators(model, evaluated, federated=on_ray, error=task.error)

  released = None if account is None else account.released
  rows = release_managers.RowReleaseManager(
    folder / "rounds.csv", final_until=released, may_differ=("epsilon",)
  )
  best = None
  if isinstance(config.keep, kept.Best):
    best = best_model.BestModel(config.keep, config.rounds_per_evaluation, folder)
  # Nothing above has failed, so from here on the folder is this run's.
  described = manifest.build(config, task.error, task.data_digest)
  described.update(initial_weights.for_manifest(starts))
  described["num_clients"] = {split: len(files.client_ids) for split, files in splits.items()}
  flags = "\n".join(config.to_arguments()) + "\n"
  described.update(manifest.of_flags(flags, earlier.manifest))
  if account is not None:
    described[noise_key.COMMITMENTS] = commitments
  atomic_files.write_json(folder / "manifest.json", described)
  if task.columns:
    atomic_files.write(folder / run_folder.COLUMNS, task.columns)
  # With its flags the run has begun: what binds it is there before.
  atomic_files.write(folder / "flags.txt", flags)
  if account is not None:
    account.write(0)  # The ledger may have been lost, or be an old one.
  (folder / "metrics.json").unlink(missing_ok=True)

  # Times of files would tell the sizes of cohorts, as would those of events.
  clients = client_results.ClientsReleaseManager(
    folder / run_files.CLIENTS, manifest.seconds(described["started"]) if account else None
  )

  def evaluate(weights: Any, _round_num: int) -> dict[str, float]:
    splits_now = ["test"] if best is None else ["test", best_model.SPLIT]
    results = {split: evaluators[split](weights) for split in splits_now}
    clients.hold(results)
    values = measurements.of_test_clients(measurements.describe(results["test"]))
    if best is not None:
      values.update(best.measure(measurements.describe(results[best_model.SPLIT])))
    return values

  def read_metrics(metrics: Mapping[str, Any], round_num: int) -> dict[str, Any]:
    values = measurements.of_round(metrics)
    if account is not None:
      values["epsilon"] = account.epsilon(round_num)
    return values

  tracked = tracking.Tracking(config, folder)
  # Their times tell the sizes of cohorts: a private run has no events, and is tracked at its end.
  events = [] if account else [release_managers.ScalarReleaseManager(folder / "tensorboard")]
  name = f"{config.task} {earlier.method} {folder.name}"
  bar = progress.ProgressBar(name, config.num_rounds, error=task.error)
  state_manager = (
    tff.program.FileProgramStateManager if account is None else noise_key.SecretStateManager
  )
  loop = training_loop.Loop(
    process=process,
    select_clients=select_clients,
    num_rounds=config.num_rounds,
    read_metrics=read_metrics,
    evaluate=evaluate,
    rounds_per_evaluation=config.rounds_per_evaluation,
    release_managers=[
      *([] if account is None else [accounts.LedgerReleaseManager(account)]),
      rows,
      clients,
      *events,
      *([tracked] if account is None else []),
      _ShowOnBar(bar),
    ],
    measure_time=account is None,
    state_manager=state_manager(str(folder / "checkpoints"), keep_total=2, keep_first=False),
    seconds_per_checkpoint=config.seconds_per_checkpoint,
    initial_weights=weights,
    keeper=best,
  )
  try:
    state = training_loop.run(loop)
  except BaseException:
    tracked.interrupt()
    raise
  finally:
    bar.close()
    for manager in events:
      manager.close()

  history = dataclasses.replace(earlier)  # The copy reads the files anew.
  described["rounds_done"] = described["kept_round"] = history.last_round
  weights = process.get_model_weights(state)
  if best is not None:
    described["kept_round"], weights = best.round_num, best.weights
  metrics = {}
  for split, evaluator in evaluators.items():
    of_clients = evaluator(weights)
    run_files.write_clients(folder / f"{split}_clients.csv", of_clients.columns())
    metrics[split] = measurements.describe(of_clients, weighted=split == "train")
  described["finished"] = manifest.now()
  if account is None:
    described["seconds_per_round"] = float(np.nanmedian(history.rounds["seconds"]))
  atomic_files.write_json(folder / "manifest.json", described)
  run_files.write_weights(folder / "weights.npz", weights)
  # This file comes last, as its presence says that the run is finished.
  atomic_files.write_json(folder / "metrics.json", metrics)
  print(f"Finished: {folder}")
  tracked.finish()
