"""What makes a run private: its noise from a budget, its ledger, what it must not write."""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff

from privacy import accounting
from privacy import ledger
from privacy import statements
from privacy import sum_mechanism
from privacy import tree_mechanism
from tff_superquantile import superquantile
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import run_folder

_RHO_RATIOS = {"geometric": 0.01, "tree": 0.5}
# Flags that follow from a budget and the number of clients.
CALIBRATED = ("threshold_noise_multiplier", "update_noise_multiplier", "delta")
_MULTIPLIERS = CALIBRATED[:2]


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
  """Fills in what a private run has by default and checks what can be checked without data.

  Args:
    config: Values of the flags of `train_flags`, of a private run.

  Returns:
    The values, with `sampling`, `threshold`, `rho_ratio` and `client_weighting`.

  Raises:
    ValueError: If flags contradict each other.
  """
  resolved = dict(config)
  has_threshold = resolved["algorithm"] == "superquantile" and resolved["theta"] < 1.0
  if not has_threshold:
    for name in ("threshold", "threshold_noise_multiplier", "rho_ratio"):
      if resolved[name] is not None:
        raise ValueError(
          f"Found --{name}={resolved[name]} for a private run without a threshold; leave it out."
        )
  if has_threshold:
    resolved["threshold"] = resolved["threshold"] or "geometric"
    if resolved["threshold"] not in method_names.PRIVATE_THRESHOLDS:
      raise ValueError(
        f"Found --threshold={resolved['threshold']} in a private run, which shows the server the"
        f" losses; use one of {', '.join(method_names.PRIVATE_THRESHOLDS)}."
      )
  if resolved["smoothing"]:
    raise ValueError(
      f"Found --smoothing={resolved['smoothing']} in a private run; only exact reweighting is"
      " smoothed, which shows the server the losses."
    )
  if resolved["client_weighting"] not in (None, "uniform"):
    raise ValueError(
      f"Found --client_weighting={resolved['client_weighting']} in a private run; each client must"
      " weigh the same (uniform), or one of many examples would weigh more than its noise hides."
    )
  resolved["client_weighting"] = "uniform"
  resolved["sampling"] = resolved["sampling"] or "poisson"
  clip_norm = resolved["clip_norm"]
  if clip_norm is None or not 0.0 < clip_norm < np.inf:
    found = "no --clip_norm" if clip_norm is None else f"--clip_norm={clip_norm}"
    raise ValueError(f"Found {found} in a private run; give a positive norm, such as 0.1.")
  multipliers = ["update_noise_multiplier"]
  if has_threshold:
    multipliers.append("threshold_noise_multiplier")
  given = [name for name in multipliers if resolved[name] is not None]
  if resolved["epsilon"] is not None:
    tree_mechanism.check_positive("--epsilon", resolved["epsilon"])
    if given:
      raise ValueError(f"Found --epsilon and --{given[0]}; the noise follows from the budget.")
    if has_threshold and resolved["rho_ratio"] is None:
      resolved["rho_ratio"] = _RHO_RATIOS[resolved["threshold"]]
  else:
    if len(given) < len(multipliers):
      missing = next(name for name in multipliers if name not in given)
      raise ValueError(f"Found no --{missing} and no --epsilon in a private run; give one.")
    if resolved["rho_ratio"] is not None:
      raise ValueError("Found --rho_ratio without --epsilon, which is what it splits.")
    for name in multipliers:
      tree_mechanism.check_positive(f"--{name}", resolved[name])
  return resolved


def check_resolved(config: Mapping[str, Any]) -> None:
  """Checks what depends on the task's defaults, before any data is read.

  Raises:
    ValueError: If a value is out of its range.
  """
  update_clip_norm(config)
  if config["algorithm"] == "superquantile":
    superquantile.check_theta(config["theta"])
  if config["threshold"] == "tree":
    tree_mechanism.check_num_bins(config["num_bins"])


def calibrate(
  config: Mapping[str, Any], population: int, earlier: Mapping[str, str]
) -> dict[str, Any]:
  """Fills in delta and the noise multipliers of a private run.

  Args:
    config: From `resolve`.
    population: The number of training clients.
    earlier: The flags of the run so far, empty if it has not begun: a run that goes on keeps its
      noise.

  Returns:
    The values of the flags.

  Raises:
    ValueError: If the noise cannot be found.
  """
  found = dict(config)
  delta: float = accounting.default_delta(population) if found["delta"] is None else found["delta"]
  found["delta"] = delta
  if found["epsilon"] is None:
    return found
  if earlier:
    found.update((name, float(earlier[name])) for name in _MULTIPLIERS if name in earlier)
    return found
  release = accounting.calibrate(
    config["epsilon"],
    delta,
    population=population,
    clients_per_round=config["clients_per_round"],
    num_rounds=config["num_rounds"],
    rho_ratio=config["rho_ratio"],
    sampling=config["sampling"],
    threshold_kind=config["threshold"] or accounting.TREE,
    num_bins=config["num_bins"] if config["threshold"] == "tree" else None,
    distributed_updates=config["update_sum"] == "distributed",
  )
  found.update((name, getattr(release, name)) for name in _MULTIPLIERS)
  return found


def update_clip_norm(config: Mapping[str, Any]) -> float:
  """C on the update, whatever --clip_unit says.

  Raises:
    ValueError: If the learning rate that turns gradients into updates is not one number.
  """
  if config["clip_unit"] == "update":
    return config["clip_norm"]
  if config["learning_rate_decay"] != 1.0:
    raise ValueError(
      "Found --clip_unit=gradient with a learning rate that decays; use --clip_unit=update."
    )
  return config["client_learning_rate"] * config["clip_norm"]


def build_release(
  config: Mapping[str, Any], population: int, num_parameters: int
) -> accounting.Release:
  """What a round of the run releases.

  Args:
    config: From `calibrate`.
    population: The number of training clients.
    num_parameters: How many numbers an update has.

  Returns:
    The release, with the parameters of what clients add noise to.

  Raises:
    ValueError: If a number is out of its range.
  """
  release = accounting.Release(
    population=population,
    clients_per_round=config["clients_per_round"],
    threshold_noise_multiplier=config["threshold_noise_multiplier"],
    update_noise_multiplier=config["update_noise_multiplier"],
    sampling=config["sampling"],
    threshold_kind=config["threshold"] or accounting.TREE,
  )
  num_rounds, delta = config["num_rounds"], config["delta"]
  tree = update_sum = None
  if config["threshold"] == "tree":
    tree = accounting.tree_for(release, config["num_bins"], num_rounds, delta)
  if config["update_sum"] == "distributed":
    min_clients, max_clients = accounting.cohort_bounds(
      population, config["clients_per_round"], num_rounds, delta, config["sampling"]
    )
    update_sum = sum_mechanism.build_sum_mechanism(
      config["update_noise_multiplier"],
      update_clip_norm(config),
      num_parameters,
      min_clients=min_clients,
      max_clients=max_clients,
    )
  return dataclasses.replace(release, tree=tree, update_sum=update_sum)


class Account:
  """A private run's account: what each round costs, and the ledger in its folder."""

  def __init__(self, config: Mapping[str, Any], release: accounting.Release, folder: pathlib.Path):
    """Opens the account.

    Args:
      config: From `calibrate`.
      release: From `build_release`.
      folder: The run's folder.

    Raises:
      ValueError: If all rounds together cost more than --epsilon.
    """
    self._release = release
    self._meter = accounting.Meter(self._release, config["delta"])
    self._config = config
    self._path = folder / ledger.FILE_NAME
    total = self._meter.epsilon(config["num_rounds"])
    if config["epsilon"] is not None and total > config["epsilon"] * (1.0 + 1e-9):
      raise ValueError(
        f"Found that {config['num_rounds']} rounds with the noise of this run cost epsilon"
        f" {total:.4g}, past --epsilon={config['epsilon']:g}; ask for fewer rounds."
      )

  def describe(self) -> str:
    """What the run will cost and with which noise, for the user, before it starts."""
    config, release = self._config, self._release
    lines = [
      f"Private: {config['num_rounds']} rounds cost epsilon"
      f" {self._meter.epsilon(config['num_rounds']):.4g} at delta {config['delta']:.3g}"
      f" ({release.neighboring_relation}).",
      f"Noise multiplier of the updates: {release.update_noise_multiplier:.4g}, on updates clipped"
      f" to {update_clip_norm(config):.4g}.",
    ]
    if release.threshold_noise_multiplier is not None:
      lines.append(
        f"Noise multiplier of the {config['threshold']} threshold:"
        f" {release.threshold_noise_multiplier:.4g}."
      )
    if release.tree is not None:
      lines.append(release.tree.describe())
    lines.append(
      f"Cohorts and noise follow from --seed={config['seed']}: where the result is to be published,"
      " take a large random seed for this run alone, and keep it, flags.txt, manifest.json and the"
      " checkpoints secret."
    )
    warnings = (
      accounting.delta_warning(config["delta"], release.population),
      statements.cohort_size_caveat(release),
    )
    return "\n".join(lines + [f"Warning: {warning}" for warning in warnings if warning])

  def epsilon(self, round_num: int) -> float:
    """What the rounds up to this one cost."""
    return self._meter.epsilon(round_num)

  def write(self, rounds_done: int) -> None:
    """Writes the ledger; before what a round released is written, so that it never lags."""
    config = self._config
    text = ledger.build_ledger(
      self._release,
      claim_epsilon=config["epsilon"],
      delta=config["delta"],
      clip_norm=update_clip_norm(config),
      num_rounds_planned=config["num_rounds"],
      rounds_done=rounds_done,
      meter=self._meter,
    ).to_json()
    run_folder.write_atomically(self._path, text)


class LedgerReleaseManager(tff.program.ReleaseManager):
  """Enters each round into the ledger."""

  def __init__(self, account: Account):
    self._account = account

  async def release(self, value: Any, key: int) -> None:
    self._account.write(key)
