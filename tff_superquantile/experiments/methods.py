"""From the flags of a run to its learning process."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import os
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy import releases
from privacy import shares
from privacy import tree_mechanism
import tasks
from tff_superquantile import algorithms
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import private_runs
from tff_superquantile.experiments import run_config
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds


def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
  """Fills what was not given with the task's defaults and checks the rest.

  Args:
    config: What the run is asked for; None where the task decides.
    task: The task.

  Returns:
    The config with which the run goes.

  Raises:
    ValueError: If a value is out of its range.
  """
  _check_parameters(config)
  if config.is_private:
    config = private_runs.resolve(config)
  own: dict[str, Any] = {
    name: value for name, value in task.defaults.items() if getattr(config, name) is None
  }
  own.setdefault("sampling", config.sampling or "fixed_size")
  if not config.is_private and config.algorithm == "superquantile":
    own["threshold"] = config.threshold or "exact"
  for name in ("data_dir", "glove"):
    if getattr(config, name):
      own[name] = os.path.abspath(getattr(config, name))  # flags.txt holds anywhere.
  resolved = dataclasses.replace(config, **own)
  if resolved.is_private:
    private_runs.check_resolved(resolved)
  else:
    _check_not_private(resolved)
    if resolved.algorithm == "superquantile":
      _check_threshold(resolved)
  for name in ("client_learning_rate", "learning_rate_decay"):
    if not 0.0 < getattr(resolved, name) < np.inf:
      raise ValueError(f"Found --{name}={getattr(resolved, name)}; expected a positive number.")
  checks.scale("--max_loss", resolved.max_loss)
  return resolved


def _check_not_private(config: run_config.RunConfig) -> None:
  for name, default in private_runs.DEFAULTS.items():
    if getattr(config, name) != default:
      raise ValueError(
        f"Found --{name}={getattr(config, name)} in a run that is not private; give --epsilon, too,"
        " or leave it out."
      )


def _check_parameters(config: run_config.RunConfig) -> None:
  """Checks that the algorithm has its own parameters, and none of another's."""
  algorithm = config.algorithm
  own = method_names.PARAMETERS.get(algorithm, ())
  optional = ("moving_average_rate", "wanted_updates", "theta")
  for flag in sorted({flag for flags in method_names.PARAMETERS.values() for flag in flags}):
    value = getattr(config, flag)
    if flag in own and value is None and flag not in optional:
      raise ValueError(f"Found --algorithm={algorithm} without --{flag}; give one.")
    if flag not in own and value is not None and flag != "theta":  # Which has a default.
      owner = next(name for name, flags in method_names.PARAMETERS.items() if flag in flags)
      raise ValueError(
        f"Found --{flag}={value} with --algorithm={algorithm}; it belongs to {owner}."
      )
  if algorithm == "fed_avg_sub":
    superquantile.check_theta(config.theta)
    if config.sampling not in (None, "fixed_size"):
      raise ValueError(
        f"Found --algorithm=fed_avg_sub with --sampling={config.sampling}; it trains a fraction"
        " of cohorts of fixed size."
      )
  if algorithm != "superquantile":
    for flag in ("threshold", "smoothing", "threshold_noise_multiplier"):
      if getattr(config, flag) and not config.is_private:  # Which says so itself.
        raise ValueError(
          f"Found --{flag}={getattr(config, flag)} with --algorithm={algorithm}; it belongs to"
          " superquantile."
        )
  if config.is_private and algorithm not in method_names.PRIVATE_ALGORITHMS:
    raise ValueError(
      f"Found --algorithm={algorithm} in a private run; use one of"
      f" {', '.join(method_names.PRIVATE_ALGORITHMS)}."
    )
  if config.is_private and config.sampling == "diurnal":
    raise ValueError(
      "Found --sampling=diurnal in a private run; the accounting is for cohorts drawn at random, so"
      " use poisson."
    )


def _theta(config: run_config.RunConfig) -> Union[float, threshold_lib.AdaptiveTheta]:
  """The tail fraction, or how it follows from who turns up."""
  if config.wanted_updates is None:
    return superquantile.check_theta(config.theta)
  return threshold_lib.AdaptiveTheta(config.wanted_updates, config.min_theta, config.max_theta)


def _check_threshold(config: run_config.RunConfig) -> None:
  _theta(config)
  threshold, noise_multiplier = config.threshold, config.threshold_noise_multiplier
  if config.smoothing and threshold != "reweighting":
    raise ValueError(
      f"Found --smoothing={config.smoothing} with --threshold={threshold}; only reweighting is"
      " smoothed."
    )
  is_private = threshold in method_names.PRIVATE_THRESHOLDS
  if is_private and noise_multiplier is None:
    raise ValueError(
      f"Found --threshold={threshold} without --threshold_noise_multiplier; give the noise's"
      " standard deviation over the sensitivity, for example 1.0."
    )
  if not is_private and noise_multiplier is not None:
    raise ValueError(
      f"Found --threshold_noise_multiplier with --threshold={threshold}, which has no noise; use"
      f" one of {', '.join(method_names.PRIVATE_THRESHOLDS)}."
    )
  if threshold == "tree" and config.sampling != "fixed_size":
    raise ValueError(
      f"Found --threshold=tree with --sampling={config.sampling} in a run without a budget; the"
      " fewest clients of a round follow from one. Use --sampling=fixed_size."
    )
  _build_threshold(config, None, None)  # Checks what remains.


def _build_threshold(
  config: run_config.RunConfig, release: Optional[releases.Release], key: Optional[bytes]
) -> Union[None, str, threshold_lib.ThresholdFn]:
  """What the algorithms take for a threshold."""
  if key is None:
    # No budget and no claim: noise may be as public as the seed.
    key = seeds.client_seed(config.seed, 0, "noise of the server").tobytes()
  if config.threshold == "tree":
    if release is not None:
      mechanism = release.tree
    else:
      assert config.threshold_noise_multiplier is not None  # `_check_threshold` sees to it.
      mechanism = tree_mechanism.build_tree_mechanism(
        config.threshold_noise_multiplier, config.num_bins, config.clients_per_round
      )
    return functools.partial(
      threshold_lib.build_tree_quantile,
      mechanism=mechanism,
      max_loss=config.max_loss,
      secure_sum=config.secure_sum,
      noise_key=key,
    )
  if config.threshold == "geometric":
    return functools.partial(
      threshold_lib.build_geometric_quantile,
      noise_multiplier=config.threshold_noise_multiplier,
      expected_clients=config.clients_per_round,
      initial_estimate=config.max_loss,
      noise_key=key,
    )
  if config.threshold == "reweighting":
    return functools.partial(threshold_lib.build_exact_reweighting, smoothing=config.smoothing)
  return config.threshold


def _learning_rate_fn(config: run_config.RunConfig) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
  """gamma_t = gamma_0 c^floor(t / t_0), the paper's step decay; None for a constant rate."""
  if config.learning_rate_decay == 1.0:
    return None

  def learning_rate(round_num: tf.Tensor) -> tf.Tensor:
    decays = tf.cast(round_num // config.rounds_per_decay, tf.float32)
    return config.client_learning_rate * tf.pow(config.learning_rate_decay, decays)

  return learning_rate


def build_process(
  config: run_config.RunConfig,
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  release: Optional[releases.Release] = None,
  key: Optional[bytes] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process that resolved flags ask for.

  Args:
    config: From `resolve`.
    model: The task's model.
    files: The training clients.
    release: What a round releases, for private runs.
    key: From which their noise follows.

  Returns:
    A `tff.learning.templates.LearningProcess`, whose clients hold handles of `files`.
  """
  optimizer = tff.learning.optimizers.build_sgdm(config.client_learning_rate)
  local_work: dict[str, Any] = dict(
    client_learning_rate_fn=_learning_rate_fn(config),
    local_epochs=config.local_epochs,
    local_batch_size=config.batch_size,
    l2=config.l2,
    examples_fn=client_files.build_examples_fn(
      files,
      shuffle=config.batch_size > 0,  # The order of one batch of all does not matter.
      may_lack_examples=config.noise_shares != shares.COMPLEMENT,
    ),
  )
  is_superquantile = config.algorithm == "superquantile"
  threshold = _build_threshold(config, release, key)
  if release is not None:
    assert config.update_noise_multiplier is not None  # From `private_runs.calibrate`.
    assert not isinstance(threshold, str)  # `private_runs.resolve` knows no names.
    return algorithms.build_private_superquantile_fed_avg(
      model,
      _theta(config) if is_superquantile else 1.0,
      optimizer,
      threshold=threshold,
      clip_norm=private_runs.update_clip_norm(config),
      noise_multiplier=config.update_noise_multiplier,
      expected_clients=config.clients_per_round,
      noise_key=key,
      update_sum=release.update_sum,
      seed_fn=_read_seed,
      **local_work,
    )
  builders: dict[str, Callable[..., tff.learning.templates.LearningProcess]] = {
    "fed_avg": algorithms.build_fed_avg,
    "fed_avg_sub": algorithms.build_fed_avg,  # On a part of the cohort; see `build_selection`.
    "fed_prox": functools.partial(
      algorithms.build_fed_prox, proximal_strength=config.proximal_weight
    ),
    "q_fed_avg": functools.partial(algorithms.build_q_fed_avg, q=config.q),
    "tilted_erm": functools.partial(
      algorithms.build_tilted_erm,
      temperature=config.temperature,
      moving_average_rate=config.moving_average_rate or 0.0,
    ),
    "agnostic_fed_avg": functools.partial(
      algorithms.build_agnostic_fed_avg,
      ascent_rate=config.ascent_rate,
      num_clients=len(files.client_ids),
      index_fn=_read_index,
    ),
    "superquantile": functools.partial(
      algorithms.build_superquantile_fed_avg,
      theta=_theta(config),
      threshold=threshold,
      seed_fn=_read_seed,
    ),
  }
  return builders[config.algorithm](
    model,
    client_optimizer_fn=optimizer,
    client_weighting=config.client_weighting,
    **local_work,
  )


def build_selection(
  files: client_files.ClientFiles,
  config: run_config.RunConfig,
  release: Optional[releases.Release] = None,
  key: Optional[bytes] = None,
) -> Callable[[int], list[Any]]:
  """Builds the function from a round to its cohort, with what each client holds in it.

  All methods of a seed get the same cohorts, and all private methods of a key; FedAvg-Sub trains
  the first theta of a cohort, whose order is random: as many clients as superquantile aggregation
  with that theta.

  Args:
    files: The training clients.
    config: From `resolve`.
    release: What a round releases, for private runs.
    key: From which their cohorts and clients' noise follow.

  Returns:
    A function of the round's number that returns handles of `files`.
  """
  if release is not None:
    assert key is not None
    return _build_private_selection(files, release, key)
  samplers: dict[str, Callable[[Sequence[str], int, int], Callable[[int], list[str]]]] = {
    "fixed_size": cohorts.build_fixed_size_sampler,
    "poisson": cohorts.build_poisson_sampler,
    "diurnal": cohorts.build_diurnal_sampler,
  }
  sample = samplers[config.sampling](files.client_ids, config.clients_per_round, config.seed)
  size = None
  if config.algorithm == "fed_avg_sub":
    tail = config.theta * config.clients_per_round * (1 - superquantile.TAIL_MASS_TOLERANCE)
    size = math.ceil(tail)

  def select(round_num: int) -> list[Any]:
    return [
      files.handle(client_id, seeds.client_seed(config.seed, round_num, client_id))
      for client_id in sample(round_num)[:size]
    ]

  return select


def _build_private_selection(
  files: client_files.ClientFiles, release: releases.Release, key: bytes
) -> Callable[[int], list[Any]]:
  """`build_selection` of a private run: of what the accounting says, by a secret key."""
  contacted = release.contacted or release.clients_per_round
  if release.sampling == releases.POISSON:
    sample = cohorts.build_poisson_sampler(
      files.client_ids, contacted, key, max_clients=release.num_shares
    )
  else:
    sample = cohorts.build_fixed_size_sampler(files.client_ids, int(contacted), key)
  helpers = coin = None
  if release.protocol == shares.HELPERS:
    assert release.num_shares is not None
    helpers = cohorts.build_helpers_sampler(files.client_ids, release.num_shares, key)
  if release.protocol == shares.PRIVATE_COIN:
    coin = cohorts.build_coin(release.clients_per_round / contacted, key)

  def select(round_num: int) -> list[Any]:
    def seed(client_id: str) -> np.ndarray:
      return seeds.client_seed(key, round_num, client_id)

    cohort = sample(round_num)
    found = [
      files.handle(client_id, seed(client_id))
      if coin is None or coin(round_num, client_id)
      else files.handle_without_examples(client_id, seed(client_id))
      for client_id in cohort
    ]
    if helpers is not None:
      found += [
        files.handle_without_examples(client_id, seed(client_id))
        for client_id in helpers(round_num, cohort)
      ]
    return found

  return select


def _read_seed(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["seed"]


def _read_index(handle: Mapping[str, tf.Tensor]) -> tf.Tensor:
  return handle["index"]
