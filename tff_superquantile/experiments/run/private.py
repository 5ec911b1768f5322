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
from tff_superquantile.experiments.run.training import schedules
from tff_superquantile.secure_sums import AdaptiveClipNorm

_MULTIPLIERS = (
  *("threshold_noise_multiplier", "update_noise_multiplier", "clip_count_noise_multiplier"),
)
# Flags that follow from a budget and the number of clients.
CALIBRATED = (*_MULTIPLIERS, "delta", "rho_ratio")
# Flags of --clip_norm=adaptive alone.
_OF_ADAPTIVE_CLIPPING = (
  *("initial_clip_norm", "clip_quantile", "clip_rho_ratio", "clip_count_noise_multiplier"),
)
# C of its first round, by --clip_unit.
_INITIAL_CLIP_NORMS = {"update": 0.1, "gradient": 1.0}
# Flags of private runs alone.
_OF_PRIVATE_RUNS = (
  *("delta", "rho_ratio", "clip_norm", "clip_unit", "update_sum", "noise_shares"),
  *("contacted_clients", "relation", "accounting", "noise_key_file", "share_weight"),
  *_OF_ADAPTIVE_CLIPPING,
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
  resolved = _resolve_clip_norm(resolved)
  applies = (usual is not None, True, is_adaptive(resolved))
  multipliers = [name for name, found in zip(_MULTIPLIERS, applies) if found]
  given = [name for name in multipliers if getattr(resolved, name) is not None]
  if resolved.epsilon is not None:
    checks.positive("--epsilon", resolved.epsilon)
    if given:
      raise ValueError(f"Found --epsilon and --{given[0]}; the noise follows from the budget.")
    for name in ("rho_ratio", "clip_rho_ratio"):
      if getattr(resolved, name) is not None:
        checks.scale(f"--{name}", getattr(resolved, name))
  else:
    if len(given) < len(multipliers):
      missing = next(name for name in multipliers if name not in given)
      raise ValueError(f"Found no --{missing} and no --epsilon in a private run; give one.")
    for name in ("rho_ratio", "clip_rho_ratio"):
      if getattr(resolved, name) is not None:
        raise ValueError(f"Found --{name} without --epsilon, which is what it splits.")
    for name in multipliers:
      checks.scale(f"--{name}", getattr(resolved, name))
  return resolved


def is_adaptive(config: run_config.RunConfig) -> bool:
  """Returns whether the clip norm of a private run follows its updates."""
  return config.clip_norm == run_config.ADAPTIVE


def _resolve_clip_norm(config: run_config.RunConfig) -> run_config.RunConfig:
  """Checks the flags of the clip norm, and fills in the defaults of an adaptive one."""
  if config.clip_norm is None:
    raise ValueError("Found no --clip_norm in a private run; give one, such as 0.1, or adaptive.")
  if not is_adaptive(config):
    checks.scale("--clip_norm", config.clip_norm)
    for name in _OF_ADAPTIVE_CLIPPING:
      if getattr(config, name) is not None:
        raise ValueError(
          f"Found --{name}={getattr(config, name)} with --clip_norm={config.clip_norm:g}; it"
          " belongs to --clip_norm=adaptive."
        )
    return config
  if config.update_sum == "distributed":
    raise ValueError(
      "Found --clip_norm=adaptive with --update_sum=distributed, whose modulus follows from a fixed"
      " norm; give a number, or use --update_sum=central."
    )
  defaults: dict[str, Any] = {
    "initial_clip_norm": _INITIAL_CLIP_NORMS[config.clip_unit],
    "clip_quantile": 0.5,
  }
  if config.epsilon is not None:
    defaults["clip_rho_ratio"] = calibration.CLIP_RHO_RATIO
  missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
  config = dataclasses.replace(config, **missing)
  checks.scale("--initial_clip_norm", config.initial_clip_norm)
  checks.fraction("--clip_quantile", config.clip_quantile)
  return config


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
    clip_rho_ratio=config.clip_rho_ratio,
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
    clip_norm=1.0 if is_adaptive(config) else update_clip_norm(config),
    num_parameters=num_parameters,
  )


def update_clip_norm(config: run_config.RunConfig) -> float:
  """Returns C, or that of the first round, in units of the update, whatever --clip_unit is.

  Raises:
    ValueError: If the learning rate that turns gradients into updates is not one number.
  """
  norm: Any = config.initial_clip_norm if is_adaptive(config) else config.clip_norm
  if config.clip_unit == "update":
    return norm
  if not schedules.is_constant(config):
    raise ValueError(
      "Found --clip_unit=gradient with a learning rate that decays; use --clip_unit=update."
    )
  return config.client_learning_rate * norm


def clip_norm_of(config: run_config.RunConfig) -> float | AdaptiveClipNorm:
  """Returns the `clip_norm` of the builders of private algorithms, from a calibrated config."""
  norm = update_clip_norm(config)
  if not is_adaptive(config):
    return norm
  count_noise, quantile = config.clip_count_noise_multiplier, config.clip_quantile
  assert count_noise is not None and quantile is not None  # `resolve` and `calibrate` see to it.
  return AdaptiveClipNorm(count_noise, norm, quantile)


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
    clip_count_noise_multiplier=config.clip_count_noise_multiplier,
    **_of_every_noise(config, population),
  )
  return calibration.complete(release, **_made_by_clients(config, num_parameters))
