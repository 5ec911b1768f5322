"""Carries out one run: from its config to a folder with all its results."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff

from privacy import releases
from privacy import statements
import tasks
from tff_superquantile import atomic_files
from tff_superquantile import evaluation
from tff_superquantile import measures as measures_lib
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import manifest
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.parts import engines
from tff_superquantile.experiments.run.parts import privacy as privacy_lib
from tff_superquantile.experiments.run.trackers import tracking
from tff_superquantile.experiments.run.training import best_model
from tff_superquantile.experiments.run.training import class_weights
from tff_superquantile.experiments.run.training import convergence
from tff_superquantile.experiments.run.training import initial_weights
from tff_superquantile.experiments.run.training import measurements
from tff_superquantile.experiments.run.training import noise_key
from tff_superquantile.experiments.run.training import selection
from tff_superquantile.experiments.run.training import siblings
from tff_superquantile.simulation import client_files
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


@dataclasses.dataclass(frozen=True)
class _Private:
  """The release, the keys and the account of a private run.

  The `key` is that of its cohorts. `relative_noise` is the length of the noise of a round's mean
  over that of the longest update.
  """

  release: releases.Release
  key: bytes
  noise_key: bytes
  commitments: Mapping[str, str]
  account: accounts.Account
  relative_noise: float


@dataclasses.dataclass(frozen=True)
class _Measures:
  """Measures the rounds of a run, for rounds.csv and for the files of clients' results.

  Its evaluators, by split, take the model's weights and return the results of the clients. A
  private run has none for its training clients, whose losses its accounting does not cover.
  `growth` ends a run that diverges, `ending` one that has converged; `best` is None where the last
  model is kept; `of_rounds` are measures beside loss and error.
  """

  rows: release_managers.RowReleaseManager
  evaluators: Mapping[str, Callable[[Any], evaluation.ClientMetrics]]
  clients: measurements.ClientsReleaseManager
  growth: measurements.Growth
  best: best_model.BestModel | None
  ending: convergence.Ending
  account: accounts.Account | None
  of_rounds: Collection[str]

  def evaluate(self, weights: Any, round_num: int) -> dict[str, float]:
    """Returns the values of an evaluation in a row of rounds.csv."""
    del round_num
    splits = ["test"] if self.best is None else ["test", best_model.SPLIT]
    results = {split: self.measured(split, weights, self.of_rounds).of_clients for split in splits}
    self.clients.hold(results)
    described = measurements.describe(results["test"])
    self.growth.hold(described["loss"])
    values = measurements.of_test_clients(described)
    if self.best is not None:
      values.update(self.best.measure(measurements.describe(results[best_model.SPLIT])))
    return values

  def measured(
    self, split: str, weights: Any, names: Collection[str] | None = None
  ) -> evaluation.Measured:
    """Returns the measures of a split's clients with these names, beside loss and error; None: all.

    On a cluster, which returns sums and no predictions, these are loss and error alone.
    """
    evaluator = self.evaluators[split]
    if isinstance(evaluator, evaluation.Evaluator) and (names is None or names):
      return evaluator.measure(weights, names)
    return evaluation.Measured(evaluator(weights), {})

  def read_metrics(self, metrics: Mapping[str, Any], round_num: int) -> dict[str, Any]:
    """Returns the values of a round in its row of rounds.csv."""
    values = measurements.of_round(metrics)
    if self.account is not None:
      values["epsilon"] = self.account.epsilon(round_num)
    self.ending.add(values, round_num)
    return values


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
  atomic_files.make_folder("output_dir", folder)
  with run_folder.lock(folder):
    earlier = run_folder.Run(folder, run.seed)
    run = _continue(run, earlier)
    if earlier.finished and earlier.flags and run_config.ends_as(earlier.flags, run):
      print(f"Finished before: {folder}")
      tracking.Tracking(run, folder).finish()
      return earlier
    run_files.remove_leftovers(folder)
    (folder / run_folder.DIVERGED).unlink(missing_ok=True)
    try:
      _train(run, task, earlier)
    except training_loop.DivergedError as error:
      atomic_files.write(folder / run_folder.DIVERGED, f"{error}\n")
      raise
    except Exception:
      if not (folder / "flags.txt").exists():  # Else the folder would pass for an unfinished run.
        noise_key.remove(folder)
        run_files.remove_if_empty(folder)
      raise
  return run_folder.Run(folder, run.seed)


def _continue(run: run_config.RunConfig, earlier: run_folder.Run) -> run_config.RunConfig:
  """Returns the config with which a run goes on; refuses other or lost flags and fewer rounds."""
  if not earlier.flags:
    if accounts.rounds_released(earlier):
      raise ValueError(
        f"Found rounds, but no flags.txt, in {earlier.path}; bring the file back, without which"
        " nobody knows how the run goes on, choose another --output_dir, or remove that folder."
      )
    return run
  engine = run.engine
  if isinstance(engine, engines.Ray) and engine.num_blocks is None:
    if "num_blocks" in earlier.flags:  # There may be other workers now.
      engine = dataclasses.replace(engine, num_blocks=int(earlier.flags["num_blocks"]))
      run = dataclasses.replace(run, engine=engine)
  # These follow from the budget and the clients, and are not known yet.
  run_config.check_same(earlier.path, earlier.flags, run, private.followed(run))
  if (earlier.last_round or 0) > run.num_rounds:
    raise ValueError(
      f"Found {earlier.last_round} rounds done in {earlier.path}, more than"
      f" --num_rounds={run.num_rounds}; ask for at least as many, choose another"
      " --output_dir, or remove that folder."
    )
  return run


def _train(run: run_config.RunConfig, task: tasks.task.Task, earlier: run_folder.Run) -> None:
  """Carries out the rounds and the final evaluation."""
  folder = earlier.path
  print(task.description, end="\n" * bool(task.description), flush=True)
  model, splits = build.load_task(task, run)
  build.check_cohort(run, splits["train"])
  best_model.check_splits(run, splits)
  of_splits = siblings.clients(run.is_private, splits)
  siblings.check(
    folder, run, lambda: task, of_splits, start=initial_weights.private_start(run, task)
  )
  weights = initial_weights.load(run, model)
  starts = initial_weights.starts(run)
  secret, account = None, None
  num_parameters = sum(np.size(weights) for weights in model.initial_weights[0])
  if run.privacy is not None:
    run, secret = _open_account(run, run.privacy, splits, num_parameters, earlier, starts)
    account = secret.account
  of_private = () if secret is None else (secret.release, secret.noise_key)
  of_cohorts = () if secret is None else (*of_private, secret.key)
  select_clients = selection.build_selection(splits["train"], run, *of_cohorts)
  run = dataclasses.replace(run, engine=_set_context(run.engine, splits))
  trained = class_weights.training_model(run, model, splits)
  process = build.build_process(run, trained, splits["train"], *of_private)
  if account is not None:
    print(account.describe(num_parameters), flush=True)
  # The losses of training clients are not covered by a private run's accounting.
  evaluated = {s: files for s, files in splits.items() if account is None or s != "train"}
  on_ray = isinstance(run.engine, engines.Ray)
  evaluators = evaluation.build_evaluators(model, evaluated, federated=on_ray, error=task.error)
  released = None if account is None else account.released
  rows = release_managers.RowReleaseManager(
    folder / "rounds.csv", final_until=released, may_differ=("epsilon",)
  )
  best = best_model.of_run(run, folder)
  # Nothing above has failed, so from here on the folder is this run's.
  described = _begin(run, task, splits, earlier, starts, secret)
  # Times of files would tell the sizes of cohorts, as would those of events.
  clients = measurements.ClientsReleaseManager(
    folder / run_files.CLIENTS, manifest.seconds(described["started"]) if account else None
  )
  growth = measurements.Growth(next(iter(earlier.rounds.get("test_loss_mean", ())), None))
  tracked = tracking.Tracking(run, folder)
  name = f"{run.task.name} {earlier.method} {folder.name}"
  bar = progress.ProgressBar(name, run.num_rounds, error=task.error)
  chosen_by = [run.metric, *([] if best is None else [best.quantity])]
  of_rounds = [name for name in measures_lib.MEASURES if name in chosen_by]
  ending = convergence.Ending(run, earlier, best)
  measures = _Measures(rows, evaluators, clients, growth, best, ending, account, of_rounds)
  state = _carry_out(run, process, select_clients, weights, measures, folder, tracked, bar)
  _finish(process.get_model_weights(state), measures, folder, described)
  tracked.finish()


def _open_account(
  run: run_config.RunConfig,
  privacy: privacy_lib.Privacy,
  splits: Mapping[str, client_files.ClientFiles],
  num_parameters: int,
  earlier: run_folder.Run,
  starts: Sequence[statements.StartingModel],
) -> tuple[run_config.RunConfig, _Private]:
  """Returns a private run with its noise, and what else it has."""
  key, commitments = noise_key.load(earlier, privacy.noise_key_file, splits)
  population = len(splits["train"].client_ids)
  run, release = private.calibrate(run, population, num_parameters, earlier.flags)
  account = accounts.Account(run, release, earlier.path, starts)
  relative_noise = account.relative_noise(num_parameters)
  of_noise = noise_key.of_noise(key, commitments, run, earlier)
  return run, _Private(release, key, of_noise, commitments, account, relative_noise)


def _set_context(
  engine: engines.Engine, splits: Mapping[str, client_files.ClientFiles]
) -> engines.Engine:
  """Sets the context of the rounds; returns the engine, with its number of blocks on a cluster."""
  if not isinstance(engine, engines.Ray):
    block_size = engine.block_size if isinstance(engine, engines.InProcess) else None
    context.set_simulation_context(engine="in_process", block_size=block_size or None)
    return engine
  cluster = context.Cluster(
    engine.ray_address, engine.num_blocks, engine.threads_per_worker, engine.worker_timeout
  )
  context.set_simulation_context(engine="ray", cluster=cluster)
  on_cluster = tff.framework.get_context_stack().current
  on_cluster.check_files(sorted({files.index_path for files in splits.values()}))
  return dataclasses.replace(engine, num_blocks=on_cluster.num_blocks)


def _begin(
  run: run_config.RunConfig,
  task: tasks.task.Task,
  splits: Mapping[str, client_files.ClientFiles],
  earlier: run_folder.Run,
  starts: list[statements.StartingModel],
  secret: _Private | None,
) -> dict[str, Any]:
  """Writes what a folder has from the beginning of its run; returns the run's manifest."""
  folder = earlier.path
  described = manifest.build(run, task.error, task.data_digest)
  described.update(initial_weights.for_manifest(starts))
  described["num_clients"] = {split: len(files.client_ids) for split, files in splits.items()}
  flags = "\n".join(run.to_arguments()) + "\n"
  described.update(manifest.of_flags(flags, earlier.manifest))
  if secret is not None:
    described[noise_key.COMMITMENTS] = secret.commitments
    described[run_folder.RELATIVE_NOISE] = secret.relative_noise  # It follows from what is public.
  atomic_files.write_json(folder / "manifest.json", described)
  if task.columns:
    atomic_files.write(folder / run_folder.COLUMNS, task.columns)
  # With its flags the run has begun: what binds it is there before.
  atomic_files.write(folder / "flags.txt", flags)
  if secret is not None:
    secret.account.write(0)  # The ledger may have been lost, or be an old one.
  (folder / "metrics.json").unlink(missing_ok=True)
  return described


def _carry_out(
  run: run_config.RunConfig,
  process: tff.learning.templates.LearningProcess,
  select_clients: Callable[[int], list[Any]],
  weights: run_files.Weights | None,
  measures: _Measures,
  folder: pathlib.Path,
  tracked: tracking.Tracking,
  bar: progress.ProgressBar,
) -> Any:
  """Carries out the rounds; returns the last state."""
  account = measures.account
  # Their times tell the sizes of cohorts: a private run has no events, and is tracked at its end.
  events = [] if account else [release_managers.ScalarReleaseManager(folder / "tensorboard")]
  state_manager = (
    tff.program.FileProgramStateManager if account is None else noise_key.SecretStateManager
  )
  loop = training_loop.Loop(
    process=process,
    select_clients=select_clients,
    num_rounds=run.num_rounds,
    read_metrics=measures.read_metrics,
    evaluate=measures.evaluate,
    rounds_per_evaluation=run.rounds_per_evaluation,
    release_managers=[
      *([] if account is None else [accounts.LedgerReleaseManager(account)]),
      measures.rows,
      measures.clients,
      *events,
      *([tracked] if account is None else []),
      _ShowOnBar(bar),
      measures.growth,
    ],
    measure_time=account is None,
    state_manager=state_manager(str(folder / "checkpoints"), keep_total=2, keep_first=False),
    seconds_per_checkpoint=run.seconds_per_checkpoint,
    initial_weights=weights,
    keeper=measures.ending,
  )
  try:
    return training_loop.run(loop)
  except BaseException:
    tracked.interrupt()
    raise
  finally:
    bar.close()
    for manager in events:
      manager.close()


def _finish(
  weights: Any, measures: _Measures, folder: pathlib.Path, described: dict[str, Any]
) -> None:
  """Evaluates the model that a run leaves, and writes what a finished run has."""
  history = run_folder.Run(folder, described["seed"])  # It reads the files anew.
  described["rounds_done"] = described["kept_round"] = history.last_round
  if measures.best is not None:
    described["kept_round"], weights = measures.best.round_num, measures.best.weights
  metrics = {}
  for split, evaluator in measures.evaluators.items():
    is_train = split == "train"
    found = (
      evaluation.Measured(evaluator(weights), {}) if is_train else measures.measured(split, weights)
    )
    run_files.write_clients(folder / f"{split}_clients.csv", found.of_clients.columns())
    metrics[split] = measurements.describe(found.of_clients, weighted=is_train)
    metrics[split].update({"pooled": found.pooled} if found.pooled else {})
  measures.growth.warn(metrics["test"]["loss"])
  described["finished"] = manifest.now()
  if measures.account is None:
    described["seconds_per_round"] = float(np.nanmedian(history.rounds["seconds"]))
  atomic_files.write_json(folder / "manifest.json", described)
  run_files.write_weights(folder / "weights.npz", weights)
  # This file comes last, as its presence says that the run is finished.
  atomic_files.write_json(folder / "metrics.json", metrics)
  print(f"Finished: {folder}")
