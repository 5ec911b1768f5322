"""Checks the config of private runs, and finds their noise from a budget."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import releases
from privacy.noise import shares
from privacy.noise import tree_mechanism
from tff_superquantile.experiments.run import methods
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import thresholds

# Flags that follow from a budget and the number of clients.
CALIBRATED = ("threshold_noise_multiplier", "update_noise_multiplier", "delta", "rho_ratio")
_MULTIPLIERS = CALIBRATED[:2]
# Flags of private runs alone.
_OF_PRIVATE_RUNS = (
  *("delta", "rho_ratio", "clip_norm", "clip_unit", "update_sum", "noise_shares"),
  *("contacted_clients", "relation", "accounting", "noise_key_file"),
)


def check_not_private(config: run_config.RunConfig) -> None:
  """Checks that a run that is not private has no flag of a private one.

  Raises:
    ValueError: If it has one.
  """
  defaults = run_config.RunConfig()
  for name in _OF_PRIVATE_RUNS:
    if getattr(config, name) != getattr(defaults, name):
      raise ValueError(
        f"Found --{name}={getattr(config, name)} in a run that is not private; give --epsilon, too,"
        " or leave it out."
      )


def resolve(config: run_config.RunConfig) -> run_config.RunConfig:
  """Fills in the defaults of a private run, and checks all that needs no data.

  Args:
    config: The config that was asked for, of a private run.

  Returns:
    The config, with `sampling`, `threshold` and `client_weighting` filled in.

  Raises:
    ValueError: If flags contradict each other.
  """
  if config.sampling == "diurnal":
    raise ValueError(
      "Found --sampling=diurnal in a private run; the accounting is for cohorts drawn at random, so"
      " use poisson."
    )
  method = methods.METHODS[config.algorithm]
  usual = "geometric" if method.has_threshold and config.theta < 1.0 else method.private_threshold
  if usual is None:
    for name in ("threshold", "threshold_noise_multiplier", "rho_ratio"):
      if getattr(config, name) is not None:
        raise ValueError(
          f"Found --{name}={getattr(config, name)} for a run without a threshold; leave it out."
        )
  if config.smoothing:
    raise ValueError(
      f"Found --smoothing={config.smoothing} in a private run; only exact reweighting is"
      " smoothed, which shows the server the losses."
    )
  if config.client_weighting not in (None, "uniform"):
    raise ValueError(
      f"Found --client_weighting={config.client_weighting} in a private run; each client must"
      " weigh the same (uniform), or one of many examples would weigh more than its noise hides."
    )
  resolved = dataclasses.replace(
    config,
    threshold=config.threshold or usual,
    client_weighting="uniform",
    sampling=config.sampling or "poisson",
  )
  allowed = (method.private_threshold,) if method.private_threshold else thresholds.private()
  if usual and resolved.threshold not in allowed:
    raise ValueError(
      f"Found --threshold={resolved.threshold} in a private run; use one of {', '.join(allowed)}."
    )
  _check_noise_shares(resolved)
  if resolved.clip_norm is None:
    raise ValueError("Found no --clip_norm in a private run; give one, such as 0.1.")
  checks.scale("--clip_norm", resolved.clip_norm)
  multipliers = _MULTIPLIERS if usual else _MULTIPLIERS[1:]
  given = [name for name in multipliers if getattr(resolved, name) is not None]
  if resolved.epsilon is not None:
    checks.positive("--epsilon", resolved.epsilon)
    if given:
      raise ValueError(f"Found --epsilon and --{given[0]}; the noise follows from the budget.")
    if resolved.rho_ratio is not None:
      checks.scale("--rho_ratio", resolved.rho_ratio)
  else:
    if len(given) < len(multipliers):
      missing = next(name for name in multipliers if name not in given)
      raise ValueError(f"Found no --{missing} and no --epsilon in a private run; give one.")
    if resolved.rho_ratio is not None:
      raise ValueError("Found --rho_ratio without --epsilon, which is what it splits.")
    for name in multipliers:
      checks.scale(f"--{name}", getattr(resolved, name))
  return resolved


def _check_noise_shares(config: run_config.RunConfig) -> None:
  """Checks the source of the noise, given the threshold and the sampling."""
  protocol, contacted = config.noise_shares, config.contacted_clients
  if (protocol == shares.PRIVATE_COIN) != (contacted is not None):
    raise ValueError(
      f"Found --noise_shares={protocol} with --contacted_clients={contacted}; give the number of"
      " clients to contact with private_coin, and with nothing else."
    )
  if protocol == shares.COMPLEMENT:
    return
  if config.threshold != releases.TREE and config.update_sum != "distributed":
    raise ValueError(
      f"Found --noise_shares={protocol} in a run whose noise the server makes; give"
      " --threshold=tree or --update_sum=distributed, too, or leave it out."
    )
  if config.sampling != releases.POISSON:
    raise ValueError(
      f"Found --noise_shares={protocol} with --sampling={config.sampling}, whose cohorts have"
      " all shares of noise; use poisson."
    )


def check_resolved(config: run_config.RunConfig) -> None:
  """Checks the values that depend on the task's defaults, before any data is read.

  Raises:
    ValueError: If a value is out of its range.
  """
  update_clip_norm(config)
  if methods.METHODS[config.algorithm].has_threshold:
    methods.theta_of(config)
  if config.threshold == "tree":
    tree_mechanism.check_num_bins(config.num_bins)


def calibrate(
  config: run_config.RunConfig, population: int, num_parameters: int, earlier: Mapping[str, str]
) -> run_config.RunConfig:
  """Fills in delta, the noise multipliers and how they divide the budget, of a private run.

  Args:
    config: From `resolve`.
    population: The number of training clients.
    num_parameters: The number of numbers in an update.
    earlier: The flags of the run so far, empty if it has not begun: a run that goes on keeps its
      noise.

  Returns:
    The config.

  Raises:
    ValueError: If the noise cannot be found.
  """
  delta: float = accounting.default_delta(population) if config.delta is None else config.delta
  epsilon = config.epsilon
  config = dataclasses.replace(config, delta=delta)
  if epsilon is None:
    return config
  if earlier:
    kept = (*_MULTIPLIERS, "rho_ratio")
    found: dict[str, Any] = {name: float(earlier[name]) for name in kept if name in earlier}
    return dataclasses.replace(config, **found)
  budget: dict[str, Any] = dict(
    num_rounds=config.num_rounds,
    accountant=config.accounting,
    **_of_every_noise(config, population),
    **_made_by_clients(config, num_parameters),
  )
  if config.threshold is not None and config.rho_ratio is None:
    whole = calibration.calibrate(epsilon, delta, **{**budget, "num_bins": None, "rho_ratio": None})
    ratio = calibration.default_rho_ratio(
      whole, num_parameters, num_bins=config.num_bins, theta=config.theta
    )
    config = dataclasses.replace(config, rho_ratio=float(f"{ratio:.3g}"))
  release = calibration.calibrate(epsilon, delta, **budget, rho_ratio=config.rho_ratio)
  return dataclasses.replace(config, **{name: getattr(release, name) for name in _MULTIPLIERS})


def _of_every_noise(config: run_config.RunConfig, population: int) -> dict[str, Any]:
  """Returns the keyword arguments of `releases.Release` that do not depend on the noise."""
  return dict(
    population=population,
    clients_per_round=config.clients_per_round,
    sampling=config.sampling,
    threshold_kind=config.threshold or releases.TREE,
    relation=config.relation,
    protocol=config.noise_shares,
    contacted=config.contacted_clients,
    weighted_updates=methods.METHODS[config.algorithm].weighted_updates,
  )


def _made_by_clients(config: run_config.RunConfig, num_parameters: int) -> dict[str, Any]:
  """Returns the keyword arguments of `calibration.complete`."""
  return dict(
    num_bins=config.num_bins if config.threshold == releases.TREE else None,
    distributed_updates=config.update_sum == "distributed",
    clip_norm=update_clip_norm(config),
    num_parameters=num_parameters,
  )


def update_clip_norm(config: run_config.RunConfig) -> float:
  """Returns C in units of the update, whatever --clip_unit is.

  Raises:
    ValueError: If the learning rate that turns gradients into updates is not one number.
  """
  assert config.clip_norm is not None  # `resolve` sees to it.
  if config.clip_unit == "update":
    return config.clip_norm
  if config.learning_rate_decay != 1.0:
    raise ValueError(
      "Found --clip_unit=gradient with a learning rate that decays; use --clip_unit=update."
    )
  return config.client_learning_rate * config.clip_norm


def build_release(
  config: run_config.RunConfig, population: int, num_parameters: int
) -> releases.Release:
  """Returns the releases of a round of the run.

  Args:
    config: From `calibrate`.
    population: The number of training clients.
    num_parameters: The number of numbers in an update.

  Returns:
    The release, with the parameters of the sums to which clients add noise.

  Raises:
    ValueError: If a number is out of its range.
  """
  release = releases.Release(
    threshold_noise_multiplier=config.threshold_noise_multiplier,
    update_noise_multiplier=config.update_noise_multiplier,
    **_of_every_noise(config, population),
  )
  return calibration.complete(release, **_made_by_clients(config, num_parameters))
