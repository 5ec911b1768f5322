"""From the flags of a run to its learning process."""

from collections.abc import Callable, Mapping
import functools
import os
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import accounting
from privacy import tree_mechanism
import tasks
from tff_superquantile import algorithms
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.experiments import private_runs
from tff_superquantile.experiments import train_flags
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import seeds


def resolve(config: Mapping[str, Any], task: tasks.task.Task) -> dict[str, Any]:
  """Fills what was not given with the task's defaults and checks the rest.

  Args:
    config: Values of the flags of `train_flags`; None where the task decides.
    task: The task.

  Returns:
    The values with which the run goes.

  Raises:
    ValueError: If a value is out of its range.
  """
  if train_flags.is_private(config):
    config = private_runs.resolve(config)
  resolved = {
    name: task.defaults.get(name) if value is None else value for name, value in config.items()
  }
  resolved["sampling"] = resolved["sampling"] or "fixed_size"
  if train_flags.is_private(resolved):
    private_runs.check_resolved(resolved)
  else:
    _check_not_private(resolved)
    if resolved["algorithm"] == "superquantile":
      resolved["threshold"] = resolved["threshold"] or "exact"
      _check_threshold(resolved)
  if resolved["data_dir"]:
    resolved["data_dir"] = os.path.abspath(resolved["data_dir"])  # flags.txt holds anywhere.
  for name in ("client_learning_rate", "learning_rate_decay", "max_loss"):
    if not 0.0 < resolved[name] < np.inf:
      raise ValueError(f"Found --{name}={resolved[name]}; expected a positive number.")
  return resolved


def _check_not_private(config: Mapping[str, Any]) -> None:
  defaults = dict(delta=None, rho_ratio=None, clip_norm=None)
  defaults.update(clip_unit="update", update_sum="central")
  for name, default in defaults.items():
    if config[name] != default:
      raise ValueError(
        f"Found --{name}={config[name]} in a run that is not private; give --epsilon, too, or leave"
        " it out."
      )


def _check_threshold(config: Mapping[str, Any]) -> None:
  superquantile.check_theta(config["theta"])
  threshold, noise_multiplier = config["threshold"], config["threshold_noise_multiplier"]
  if config["smoothing"] and threshold != "reweighting":
    raise ValueError(
      f"Found --smoothing={config['smoothing']} with --threshold={threshold}; only reweighting is"
      " smoothed."
    )
  is_private = threshold in train_flags.PRIVATE_THRESHOLDS
  if is_private and noise_multiplier is None:
    raise ValueError(
      f"Found --threshold={threshold} without --threshold_noise_multiplier; give the noise's"
      " standard deviation over the sensitivity, for example 1.0."
    )
  if not is_private and noise_multiplier is not None:
    raise ValueError(
      f"Found --threshold_noise_multiplier with --threshold={threshold}, which has no noise; use"
      f" one of {', '.join(train_flags.PRIVATE_THRESHOLDS)}."
    )
  if threshold == "tree" and config["sampling"] == "poisson":
    raise ValueError(
      "Found --threshold=tree with --sampling=poisson in a run without a budget; the fewest clients"
      " of a round follow from one. Use --sampling=fixed_size."
    )
  _build_threshold(config, None)  # Checks what remains.


def _build_threshold(
  config: Mapping[str, Any], release: Optional[accounting.Release]
) -> Union[None, str, Callable]:
  """What the algorithms take for a threshold."""
  if config["threshold"] == "tree":
    if release is not None:
      mechanism = release.tree
    else:
      mechanism = tree_mechanism.build_tree_mechanism(
        config["threshold_noise_multiplier"], config["num_bins"], config["clients_per_round"]
      )
    return functools.partial(
      threshold_lib.build_tree_quantile,
      mechanism=mechanism,
      max_loss=config["max_loss"],
      secure_sum=config["secure_sum"],
      seeded=True,
    )
  if config["threshold"] == "geometric":
    return functools.partial(
      threshold_lib.build_geometric_quantile,
      noise_multiplier=config["threshold_noise_multiplier"],
      expected_clients=config["clients_per_round"],
      initial_estimate=config["max_loss"],
      seed=_noise_seed(config, "threshold noise"),
    )
  if config["threshold"] == "reweighting":
    return functools.partial(threshold_lib.build_exact_reweighting, smoothing=config["smoothing"])
  return config["threshold"]


def _learning_rate_fn(config: Mapping[str, Any]) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
  """gamma_t = gamma_0 c^floor(t / t_0), the paper's step decay; None for a constant rate."""
  if config["learning_rate_decay"] == 1.0:
    return None

  def learning_rate(round_num):
    decays = tf.cast(round_num // config["rounds_per_decay"], tf.float32)
    return config["client_learning_rate"] * tf.pow(config["learning_rate_decay"], decays)

  return learning_rate


def _noise_seed(config: Mapping[str, Any], purpose: str) -> int:
  return int(seeds.generator(config["seed"], purpose).integers(2**63 - 1))


def build_process(
  config: Mapping[str, Any],
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  release: Optional[accounting.Release] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process that resolved flags ask for.

  Args:
    config: Values of the flags of `train_flags`.
    model: The task's model.
    files: The training clients.
    release: What a round releases, for private runs.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose clients hold handles of `files`.
  """
  optimizer = tff.learning.optimizers.build_sgdm(config["client_learning_rate"])
  local_work = dict(
    client_learning_rate_fn=_learning_rate_fn(config),
    local_epochs=config["local_epochs"],
    local_batch_size=config["batch_size"],
    l2=config["l2"],
    examples_fn=client_files.build_examples_fn(
      files,
      shuffle=config["batch_size"] > 0,  # The order of one batch of all does not matter.
    ),
  )
  is_superquantile = config["algorithm"] == "superquantile"
  threshold = _build_threshold(config, release)
  if release is not None:
    return algorithms.build_private_superquantile_fed_avg(
      model,
      config["theta"] if is_superquantile else 1.0,
      optimizer,
      threshold=threshold,
      clip_norm=private_runs.update_clip_norm(config),
      noise_multiplier=config["update_noise_multiplier"],
      expected_clients=config["clients_per_round"],
      noise_seed=_noise_seed(config, "update noise"),
      update_sum=release.update_sum,
      seed_fn=_read_seed,
      **local_work,
    )
  weighting = tff.learning.ClientWeighting[config["client_weighting"].upper()]
  if not is_superquantile:
    return algorithms.build_fed_avg(model, optimizer, client_weighting=weighting, **local_work)
  return algorithms.build_superquantile_fed_avg(
    model,
    config["theta"],
    optimizer,
    threshold=threshold,
    client_weighting=weighting,
    seed_fn=_read_seed,
    **local_work,
  )


def _read_seed(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["seed"]
