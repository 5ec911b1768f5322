"""Builds the resolved config of a run, its clients and its learning process."""

from collections.abc import Mapping
import dataclasses
import math
import os
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy import releases
from privacy.noise import shares
import tasks
from tff_superquantile import evaluation
from tff_superquantile.experiments.run import methods
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import thresholds
from tff_superquantile.experiments.run import trackers
from tff_superquantile.experiments.run.training import best_model
from tff_superquantile.experiments.run.training import client_split
from tff_superquantile.experiments.run.training import initial_weights
from tff_superquantile.experiments.run.training import schedules
from tff_superquantile.experiments.run.training import server_optimizers
from tff_superquantile.simulation import client_files


def get_task(config: run_config.RunConfig, columns: str | None = None) -> tasks.task.Task:
  """Returns the task of a run; it follows from the user's files where these are a table.

  Args:
    config: The run's.
    columns: What the columns of the table became, a finished run's `Run.columns`. None for a run
      that is to be trained: it takes those of its own folder if it has begun, so that it goes on
      with the same inputs, else those of the run from which it starts, so that the start is the
      same function of a row.

  Returns:
    The task.

  Raises:
    ValueError: If there is no such task, or the user's files cannot be used.
  """
  task = tasks.get_task(config.task)
  if columns is None and task.adapt is not None:
    config = client_split.fill_in(config)
    columns = run_folder.of_config(config).columns or initial_weights.columns(config)
  return task.for_request(tasks.task.Request.of_run(config, columns or ""))


def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
  """Fills in the task's defaults where a value is None, and checks the rest.

  Args:
    config: The config that was asked for; None where the task decides.
    task: The task.

  Returns:
    The config with which the run goes.

  Raises:
    ValueError: If a value is out of its range, or values contradict each other.
  """
  config = client_split.resolve(config, task)
  methods.check(config)
  schedules.check(config)
  trackers.check(config)
  config = initial_weights.resolve(config)
  if config.is_private:
    config = private.resolve(config)
  own: dict[str, Any] = {
    name: value
    for name, value in task.defaults.items()
    if getattr(config, name) is None and schedules.has_flag(config, name)
  }
  if config.server_learning_rate is None:
    row = server_optimizers.SERVER_OPTIMIZERS[config.server_optimizer]
    own["server_learning_rate"] = row.learning_rate
  own.setdefault("sampling", config.sampling or "fixed_size")
  has_threshold = methods.METHODS[config.algorithm].has_threshold
  if not config.is_private and has_threshold:
    own["threshold"] = config.threshold or "exact"
  for name in ("data_dir", "glove"):
    if getattr(config, name):
      own[name] = os.path.abspath(getattr(config, name))  # flags.txt holds in any directory.
  resolved = dataclasses.replace(config, **own)
  resolved = best_model.resolve(_resolve_engine(resolved))
  if resolved.is_private:
    private.check_resolved(resolved)
  else:
    private.check_not_private(resolved)
    if has_threshold:
      thresholds.check(resolved)
  for name in ("client_learning_rate", "server_learning_rate", "learning_rate_decay"):
    value = getattr(resolved, name)
    if schedules.has_flag(resolved, name) and not 0.0 < value < math.inf:
      raise ValueError(f"Found --{name}={value}; expected a positive number.")
  if not resolved.client_momentum < 1.0:
    raise ValueError(
      f"Found --client_momentum={resolved.client_momentum}; expected a number in [0, 1)."
    )
  checks.scale("--max_loss", resolved.max_loss)
  checks.scale("--threshold_step", resolved.threshold_step)
  return resolved


def _resolve_engine(config: run_config.RunConfig) -> run_config.RunConfig:
  """Fills in what only one engine has, and refuses it for the others."""
  own = {
    "in_process": ("block_size",),
    "ray": ("num_blocks", "threads_per_worker"),
  }[config.engine]
  for name in ("block_size", "num_blocks", "threads_per_worker"):
    if getattr(config, name) is not None and name not in own:
      raise ValueError(
        f"Found --{name}={getattr(config, name)} with --engine={config.engine}, which has no such"
        " thing; leave it out, or choose another engine."
      )
  if config.engine == "ray":
    return dataclasses.replace(config, threads_per_worker=config.threads_per_worker or 1)
  if config.block_size is None and "block_size" in own:
    if config.clients_per_round > run_config.BLOCK_SIZE:
      return dataclasses.replace(config, block_size=run_config.BLOCK_SIZE)
  return config


def load_task(
  task: tasks.task.Task, config: run_config.RunConfig, everybody: bool = False
) -> tuple[tff.learning.models.FunctionalModel, Mapping[str, client_files.ClientFiles]]:
  """Returns the model and the clients that resolved flags ask for, by split; or `everybody`.

  Raises:
    ValueError: If the data cannot be had, or has labels that the model does not know.
  """
  request = tasks.task.Request.of_run(config)
  pools = task.all_clients(request) if everybody else ()
  splits = {f"pool {i}": pool for i, pool in enumerate(pools)} or task.load_clients(request)
  model = task.build_model_for(next(iter(splits.values())), config.seed)
  num_classes = evaluation.num_classes(model)
  for files in splits.values():
    if files.num_classes > num_classes:
      raise ValueError(
        f"Found the label {files.num_classes - 1} in {files.directory}; expected at most"
        f" {num_classes - 1}, as the model of {task.name} tells {num_classes} classes apart: mend"
        " the data or the model."
      )
  return model, splits


def check_cohort(config: run_config.RunConfig, files: client_files.ClientFiles) -> None:
  """Raises a `ValueError` for cohorts of more clients than there are; it says why these are few."""
  num_clients = len(files.client_ids)
  if config.clients_per_round > num_clients:
    raise ValueError(
      f"Found --clients_per_round={config.clients_per_round} with {num_clients} training clients"
      f"{files.remark}; expected at most {num_clients}."
    )


def build_options(
  config: run_config.RunConfig,
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
) -> dict[str, Any]:
  """Builds the keyword arguments that all builders of `tff_superquantile.algorithms` take.

  Args:
    config: From `resolve`.
    model: The task's model.
    files: The training clients.

  Returns:
    The arguments, without `client_weighting`, which private algorithms do not have.
  """
  return dict(
    model_fn=model,
    # Without momentum there is no state for it.
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(
      config.client_learning_rate, config.client_momentum or None
    ),
    client_learning_rate_fn=schedules.build_learning_rate_fn(config),
    server_optimizer_fn=server_optimizers.build(config),
    local_epochs=config.local_epochs,
    local_batch_size=config.batch_size,
    l2=config.l2,
    examples_fn=client_files.build_examples_fn(
      files,
      shuffle=config.batch_size > 0,  # The order of one batch of all does not matter.
      may_lack_examples=config.noise_shares != shares.COMPLEMENT or files.min_examples > 0,
    ),
  )


def build_process(
  config: run_config.RunConfig,
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  release: releases.Release | None = None,
  key: bytes | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process that a resolved config asks for.

  Args:
    config: From `resolve`.
    model: The task's model.
    files: The training clients.
    release: The releases of a round, for private runs.
    key: The key from which their noise follows.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose clients hold handles of `files`.
  """
  method = methods.METHODS[config.algorithm]
  work = build_options(config, model, files)
  build = method.build
  if release is None:
    work["client_weighting"] = config.client_weighting
  else:
    assert method.build_private is not None  # `methods.check` sees to it.
    build = method.build_private
    work.update(
      clip_norm=private.clip_norm_of(config),
      noise_multiplier=config.update_noise_multiplier,
      noise_key=key,
      update_sum=release.update_sum,
      seed_fn=_read_seed,
    )
  return build(
    methods.Ingredients(
      config=config,
      work=work,
      **thresholds.build(config, release, key),
      num_clients=len(files.client_ids),
      seed_fn=_read_seed,
      index_fn=_read_index,
    )
  )


def _read_seed(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["seed"]


def _read_index(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["index"]
