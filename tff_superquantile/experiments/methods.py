"""From the flags of a run to its learning process."""

from collections.abc import Callable, Mapping
import functools
import os
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import tree_mechanism
import tasks
from tff_superquantile import algorithms
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.experiments import train_flags
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
  resolved = {
    name: task.defaults.get(name) if value is None else value for name, value in config.items()
  }
  if resolved["algorithm"] == "superquantile":
    superquantile.check_theta(resolved["theta"])
    if resolved["smoothing"] and resolved["threshold"] != "reweighting":
      raise ValueError(
        f"Found --smoothing={resolved['smoothing']} with --threshold={resolved['threshold']}; only"
        " reweighting is smoothed."
      )
    _check_noise_multiplier(resolved)
    build_threshold(resolved)  # Checks what remains.
  if resolved["data_dir"]:
    resolved["data_dir"] = os.path.abspath(resolved["data_dir"])  # flags.txt holds anywhere.
  for name in ("client_learning_rate", "learning_rate_decay"):
    if not 0.0 < resolved[name] < np.inf:
      raise ValueError(f"Found --{name}={resolved[name]}; expected a positive number.")
  return resolved


def _check_noise_multiplier(config: Mapping[str, Any]) -> None:
  is_private = config["threshold"] in train_flags.PRIVATE_THRESHOLDS
  if is_private and config["threshold_noise_multiplier"] is None:
    raise ValueError(
      f"Found --threshold={config['threshold']} without --threshold_noise_multiplier; give the"
      " noise's standard deviation over the sensitivity, for example 1.0."
    )
  if not is_private and config["threshold_noise_multiplier"] is not None:
    raise ValueError(
      f"Found --threshold_noise_multiplier with --threshold={config['threshold']}, which has no"
      f" noise; use one of {', '.join(train_flags.PRIVATE_THRESHOLDS)}."
    )


def tree(config: Mapping[str, Any]) -> tree_mechanism.TreeMechanism:
  """The parameters of --threshold=tree."""
  return tree_mechanism.build_tree_mechanism(
    config["threshold_noise_multiplier"],
    config["num_bins"],
    config["clients_per_round"],
  )


def build_threshold(config: Mapping[str, Any]) -> Union[str, Callable]:
  """What `build_superquantile_fed_avg` takes for a threshold."""
  if config["threshold"] == "tree":
    return functools.partial(
      threshold_lib.build_tree_quantile,
      mechanism=tree(config),
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
      seed=int(seeds.generator(config["seed"], "threshold_noise").integers(2**63 - 1)),
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


def build_process(
  config: Mapping[str, Any],
  model: tff.learning.models.FunctionalModel,
  examples_fn: tf.types.experimental.GenericFunction,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process that resolved flags ask for.

  Args:
    config: Values of the flags of `train_flags`.
    model: The task's model.
    examples_fn: From what a client holds, a handle of `client_files`, to its examples.

  Returns:
    A `tff.learning.templates.LearningProcess`.
  """
  weighting = tff.learning.ClientWeighting[config["client_weighting"].upper()]
  common = dict(
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(config["client_learning_rate"]),
    client_weighting=weighting,
    client_learning_rate_fn=_learning_rate_fn(config),
    local_epochs=config["local_epochs"],
    local_batch_size=config["batch_size"],
    l2=config["l2"],
    examples_fn=examples_fn,
  )
  if config["algorithm"] == "fed_avg":
    return algorithms.build_fed_avg(model, **common)
  return algorithms.build_superquantile_fed_avg(
    model,
    config["theta"],
    threshold=build_threshold(config),
    seed_fn=lambda handle: handle["seed"],
    **common,
  )
