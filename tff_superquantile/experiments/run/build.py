"""Builds the resolved config of a run, its clients and its learning process."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from privacy import parts
from privacy import releases
import tasks
from tff_superquantile import algorithms
from tff_superquantile import evaluation
from tff_superquantile import noise_source
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import privacy as privacy_lib
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.config import thresholds
from tff_superquantile.experiments.references import own_losses
from tff_superquantile.experiments.run import evaluating
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run.hooks import client_split
from tff_superquantile.experiments.run.hooks import initial_weights
from tff_superquantile.experiments.run.hooks import order
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import seeds


def get_task(config: run_config.RunConfig, columns: str | None = None) -> tasks.task.Task:
  """Returns the task of a run; it follows from the user's files where these are a table."""
  task = tasks.get_task(config.task.name)
  if columns is None and task.adapt is not None:
    config, run = client_split.fill_in(config)
    columns = run.columns or initial_weights.columns(config)
  return task.for_request(config.request(columns or ""))


def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
  """Fills in all that is None and that a round needs, and checks the rest."""
  if config.is_private and not privacy_lib.is_private(config.values()):
    raise ValueError("Found privacy without epsilon and update_noise_multiplier; give one of them.")
  methods.check(config.method, config.is_private, config.cohort)
  defaults: dict[str, Any] = dict(task.defaults)
  if config.num_blocks is not None and config.block_size is not None:
    raise ValueError(
      f"Found --num_blocks={config.num_blocks} beside --block_size={config.block_size}; expected"
      " one of them: leave the other out."
    )
  if (
    config.num_blocks is None
    and float(config.cohort.size or defaults["clients_per_round"]) > run_config.BLOCK_SIZE
  ):
    defaults["block_size"] = run_config.BLOCK_SIZE
  config = order.resolve(config, task)
  defaults["metric"] = evaluating.metric(config, task)
  run = run_config.with_defaults(config, defaults)
  order.check(run, task)
  if not run.is_private and run.method.threshold is not None:
    run.method.threshold.check(run.cohort)
  if run.server.averaged_rounds > run.num_rounds:
    raise ValueError(
      f"Found --averaged_rounds={run.server.averaged_rounds} with --num_rounds={run.num_rounds};"
      " expected at most as many: fewer rounds in the mean, or more in all."
    )
  return run


def load_task(
  task: tasks.task.Task, config: run_config.RunConfig, everybody: bool = False
) -> tuple[tff.learning.models.FunctionalModel, Mapping[str, client_files.ClientFiles]]:
  """Returns the model and the clients that resolved flags ask for, by split; or `everybody`."""
  request = config.request()
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
  if config.cohort.expected > num_clients:
    raise ValueError(
      f"Found --clients_per_round={config.cohort.expected} with {num_clients} training clients"
      f"{files.remark}; expected at most {num_clients}."
    )


def build_options(
  config: run_config.RunConfig,
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
) -> dict[str, Any]:
  """Builds the keywords that private and other builders of `algorithms` have in common."""
  may_send_none = config.privacy is not None and config.privacy.shares.may_send_none
  return dict(
    model_fn=model,
    # Without momentum there is no state for it.
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(
      config.local.learning_rate, config.local.momentum or None
    ),
    client_learning_rate_fn=None
    if config.local.schedule.is_constant
    else lambda round_num: config.learning_rate(tf.cast(round_num, tf.float32), tf.math),
    server_optimizer_fn=config.server.build(tff.learning.optimizers),
    local_epochs=config.local.epochs,
    local_batch_size=config.local.batch_size,
    l2=config.local.l2,
    examples_fn=client_files.build_examples_fn(
      files,
      shuffle=config.local.batch_size > 0,  # The order of one batch of all does not matter.
      may_lack_examples=may_send_none or files.min_examples > 0,
    ),
  )


def build_process(
  config: run_config.RunConfig,
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  release: releases.Release | None = None,
  key: bytes | None = None,
  build_private: Callable[..., algorithms.Private] = private.build_part,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process of a resolved config, whose clients hold handles of `files`.

  With a `release` it is private, by what `build_private` makes of (config, release, noise key).
  """
  work, num_clients = build_options(config, model, files), len(files.client_ids)
  if config.method.judges_gaps:
    table = own_losses.compute(model, files, config.local.l2, config.seed)
    work["reference_loss_fn"] = lambda handle: tf.gather(table, tf.maximum(handle["index"], 0))
  if release is None:
    process = _build_public(config, work, num_clients, key)
  else:
    assert key is not None  # Each run with a release has one.
    process = _build_private(config, work, num_clients, release, key, build_private)
  if config.server.averaged_rounds > 1:
    process = algorithms.build_averaged(process, config.server.averaged_rounds)
  return process


def _build_public(
  config: run_config.RunConfig, work: dict[str, Any], num_clients: int, key: bytes | None
) -> tff.learning.templates.LearningProcess:
  """Builds the process of a run without a budget, whose threshold alone may have noise."""
  # Without a budget there is no claim: noise may be as public as the seed.
  noise_key = key or seeds.client_seed(config.seed, 0, "noise of the server").tobytes()
  inputs = _inputs(config, work, num_clients, config.method.threshold, noise_key)
  if isinstance(inputs.threshold, parts.PrivateThreshold):
    mean_size = inputs.clients_per_round
    threshold = inputs.threshold.completed(round(mean_size), mean_size)
    inputs = dataclasses.replace(inputs, threshold=threshold)
  work["client_weighting"] = config.local.weighting
  return config.method.build(inputs)


def _build_private(
  config: run_config.RunConfig,
  work: dict[str, Any],
  num_clients: int,
  release: releases.Release,
  key: bytes,
  build_private: Callable[..., algorithms.Private],
) -> tff.learning.templates.LearningProcess:
  """Builds the process of a private run, whose threshold and noise are those of its release."""
  noise_key: noise_source.NoiseKey = key
  if len(release.coefficients) > 1:
    noise_key = noise_source.BandedKey(key, release.coefficients)
  assert isinstance(config.method, methods.PrivateMethod)  # `methods.check` sees to it.
  work.update(
    private=build_private(config, release, noise_key), seed_fn=_read_seed, index_fn=_read_index
  )
  threshold = release.find(parts.PrivateThreshold)
  return config.method.build_private(_inputs(config, work, num_clients, threshold, noise_key))


def _inputs(
  config: run_config.RunConfig,
  work: dict[str, Any],
  num_clients: int,
  threshold: parts.Threshold | None,
  noise_key: noise_source.NoiseKey,
) -> thresholds.BuildInputs:
  return thresholds.BuildInputs(
    work=work,
    num_clients=num_clients,
    threshold=threshold,
    clients_per_round=config.cohort.of(num_clients).mean_size(),
    max_loss=config.max_loss,
    noise_key=noise_key,
    seed_fn=_read_seed,
    index_fn=_read_index,
  )


def _read_seed(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["seed"]


def _read_index(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["index"]
