"""Checks the config of private runs, and finds their noise from a budget."""

from collections.abc import Mapping
import dataclasses
import types
from typing import Any

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import releases
from privacy.noise import shares
from privacy.noise import tree_mechanism
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.parts import methods
from tff_superquantile.experiments.run.parts import privacy as privacy_lib
from tff_superquantile.experiments.run.parts import thresholds
from tff_superquantile.secure_sums import AdaptiveClipNorm

# Values of private runs that the task would decide in others.
DEFAULTS = types.MappingProxyType({"client_weighting": "uniform", "sampling": "poisson"})


def noise_multipliers(config: run_config.ResolvedRun) -> dict[str, float | None]:
  """Returns the noise of what a round releases, by flag: threshold, updates, and count of clips."""
  assert config.privacy is not None
  found: dict[str, float | None] = {}
  if config.method.threshold is not None:
    found["threshold_noise_multiplier"] = config.method.threshold.noise_multiplier
  found["update_noise_multiplier"] = config.privacy.update_noise_multiplier
  if isinstance(config.privacy.clip, privacy_lib.AdaptiveClip):
    found["clip_count_noise_multiplier"] = config.privacy.clip.noise_multiplier
  return found


def followed(config: run_config.ResolvedRun) -> list[str]:
  """Returns the flags that follow from a budget and the number of clients."""
  return [] if config.privacy is None else [*noise_multipliers(config), "delta", "rho_ratio"]


def resolve(config: run_config.ResolvedRun) -> run_config.ResolvedRun:
  """Checks all of a private run that needs no data, and fills in how it clips.

  Args:
    config: The config of a private run, with the task's defaults and `DEFAULTS`.

  Returns:
    The config.

  Raises:
    ValueError: If flags contradict each other.
  """
  assert config.privacy is not None
  if config.sampling == "diurnal":
    raise ValueError(
      "Found --sampling=diurnal in a private run; the accounting is for cohorts drawn at random, so"
      " use poisson."
    )
  if config.local.weighting != "uniform":
    raise ValueError(
      f"Found --client_weighting={config.local.weighting} in a private run; each client must"
      " weigh the same (uniform), or one of many examples would weigh more than its noise hides."
    )
  _check_threshold(config.method)
  _check_noise_shares(config, config.privacy)
  config = dataclasses.replace(config, privacy=_resolve_clip(config.privacy))
  _check_noise(config)
  return config


def _check_threshold(method: methods.Method) -> None:
  """Checks the threshold of a method's private run."""
  threshold = method.threshold
  if not isinstance(method, methods.Superquantile):
    return
  if method.theta == 1.0 and threshold is not None:
    raise ValueError(
      f"Found --threshold={thresholds.name_of(threshold)} for a run without a threshold; leave it"
      " out."
    )
  if isinstance(threshold, thresholds.Reweighting) and threshold.smoothing:
    raise ValueError(
      f"Found --smoothing={threshold.smoothing} in a private run; only exact reweighting is"
      " smoothed, which shows the server the losses."
    )
  if threshold is not None and not threshold.is_private:
    raise ValueError(
      f"Found --threshold={thresholds.name_of(threshold)} in a private run; use one of"
      f" {', '.join(thresholds.private())}."
    )


def _resolve_clip(privacy: privacy_lib.Privacy) -> privacy_lib.Privacy:
  """Checks how updates are clipped, and fills in the defaults of an adaptive norm."""
  clip = privacy.clip
  if isinstance(clip, privacy_lib.FixedClip):
    if clip.norm is None:
      raise ValueError("Found no --clip_norm in a private run; give one, such as 0.1, or adaptive.")
    checks.scale("--clip_norm", clip.norm)
    return privacy
  assert isinstance(clip, privacy_lib.AdaptiveClip)
  if privacy.update_sum == "distributed":
    raise ValueError(
      "Found --clip_norm=adaptive with --update_sum=distributed, whose modulus follows from a fixed"
      " norm; give a number, or use --update_sum=central."
    )
  ratio = clip.clip_rho_ratio
  if ratio is None and isinstance(privacy, privacy_lib.Budget):
    ratio = calibration.CLIP_RHO_RATIO
  first = clip.first_norm(privacy.clip_unit)
  checks.scale("--initial_clip_norm", first)
  checks.fraction("--clip_quantile", clip.clip_quantile)
  clip = dataclasses.replace(clip, initial_clip_norm=first, clip_rho_ratio=ratio)
  return dataclasses.replace(privacy, clip=clip)


def _check_noise(config: run_config.ResolvedRun) -> None:
  """Checks that a run has a budget or all of its noise."""
  privacy, multipliers = config.privacy, noise_multipliers(config)
  assert privacy is not None
  clip_rho_ratio = _clip_rho_ratio(privacy)
  if isinstance(privacy, privacy_lib.Budget):
    checks.positive("--epsilon", privacy.epsilon)
    given = [name for name, value in multipliers.items() if value is not None]
    if given:
      raise ValueError(f"Found --epsilon and --{given[0]}; the noise follows from the budget.")
    if privacy.rho_ratio is not None and config.method.threshold is None:
      raise ValueError(
        f"Found --rho_ratio={privacy.rho_ratio} for a run without a threshold; leave it out."
      )
    ratios = {"rho_ratio": privacy.rho_ratio, "clip_rho_ratio": clip_rho_ratio}
    for name, ratio in ratios.items():
      if ratio is not None:
        checks.scale(f"--{name}", ratio)
    return
  for name, value in multipliers.items():
    if value is None:
      raise ValueError(f"Found no --{name} and no --epsilon in a private run; give one.")
  if clip_rho_ratio is not None:
    raise ValueError("Found --clip_rho_ratio without --epsilon, which is what it splits.")
  for name, value in multipliers.items():
    checks.scale(f"--{name}", value)


def _clip_rho_ratio(privacy: privacy_lib.Privacy) -> float | None:
  clip = privacy.clip
  return clip.clip_rho_ratio if isinstance(clip, privacy_lib.AdaptiveClip) else None


def _check_noise_shares(config: run_config.ResolvedRun, privacy: privacy_lib.Privacy) -> None:
  """Checks the source of the noise, given the threshold and the sampling."""
  protocol = privacy_lib.name_of(privacy.shares)
  if isinstance(privacy.shares, privacy_lib.PrivateCoin) and privacy.shares.contacted is None:
    raise ValueError(
      f"Found --noise_shares={protocol} without --contacted_clients; give the number of clients to"
      " contact."
    )
  if protocol == shares.COMPLEMENT:
    return
  by_clients = isinstance(config.method.threshold, thresholds.Tree)
  if not by_clients and privacy.update_sum != "distributed":
    raise ValueError(
      f"Found --noise_shares={protocol} in a run whose noise the server makes; give"
      " --threshold=tree or --update_sum=distributed, too, or leave it out."
    )
  if config.sampling != releases.POISSON:
    raise ValueError(
      f"Found --noise_shares={protocol} with --sampling={config.sampling}, whose cohorts have"
      " all shares of noise; use poisson."
    )


def check_resolved(config: run_config.ResolvedRun) -> None:
  """Checks the values that depend on the task's defaults, before any data is read.

  Raises:
    ValueError: If a value is out of its range.
  """
  update_clip_norm(config)
  if isinstance(config.method, methods.Superquantile):
    config.method.tail()
  if isinstance(config.method.threshold, thresholds.Tree):
    tree_mechanism.check_num_bins(config.method.threshold.num_bins)


def calibrate(
  config: run_config.ResolvedRun, population: int, num_parameters: int, earlier: Mapping[str, str]
) -> run_config.ResolvedRun:
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
  privacy = config.privacy
  assert privacy is not None
  delta = accounting.default_delta(population) if privacy.delta is None else privacy.delta
  config = run_config.replace(config, delta=delta)
  if not isinstance(privacy, privacy_lib.Budget):
    return config
  if earlier:
    kept = (*noise_multipliers(config), "rho_ratio")
    return run_config.replace(config, **{n: float(earlier[n]) for n in kept if n in earlier})
  budget: dict[str, Any] = dict(
    num_rounds=config.num_rounds,
    accountant=privacy.accounting,
    clip_rho_ratio=_clip_rho_ratio(privacy),
    **_of_every_noise(config, population),
    **_made_by_clients(config, num_parameters),
  )
  ratio = privacy.rho_ratio
  if config.method.threshold is not None and ratio is None:
    whole = calibration.calibrate(
      privacy.epsilon, delta, **{**budget, "num_bins": None, "rho_ratio": None}
    )
    best = calibration.default_rho_ratio(
      whole,
      num_parameters,
      num_bins=config.values()["num_bins"],
      theta=config.values()["theta"],
    )
    ratio = float(f"{best:.3g}")
  release = calibration.calibrate(privacy.epsilon, delta, **budget, rho_ratio=ratio)
  found = {name: getattr(release, name) for name in noise_multipliers(config)}
  return run_config.replace(config, rho_ratio=ratio, **found)


def _of_every_noise(config: run_config.ResolvedRun, population: int) -> dict[str, Any]:
  """Returns the keyword arguments of `releases.Release` that do not depend on the noise."""
  assert config.privacy is not None
  return dict(
    population=population,
    clients_per_round=config.clients_per_round,
    sampling=config.sampling,
    threshold_kind=thresholds.name_of(config.method.threshold) or releases.TREE,
    relation=config.privacy.relation,
    protocol=privacy_lib.name_of(config.privacy.shares),
    contacted=config.privacy.shares.contacted,
    weighted_updates=config.method.weighted_updates,
  )


def _made_by_clients(config: run_config.ResolvedRun, num_parameters: int) -> dict[str, Any]:
  """Returns the keyword arguments of `calibration.complete`."""
  privacy, threshold = config.privacy, config.method.threshold
  assert privacy is not None
  is_fixed = isinstance(privacy.clip, privacy_lib.FixedClip)
  return dict(
    num_bins=threshold.num_bins if isinstance(threshold, thresholds.Tree) else None,
    distributed_updates=privacy.update_sum == "distributed",
    clip_norm=update_clip_norm(config) if is_fixed else 1.0,
    num_parameters=num_parameters,
  )


def update_clip_norm(config: run_config.ResolvedRun) -> float:
  """Returns C, or that of the first round, in units of the update, whatever --clip_unit is.

  Raises:
    ValueError: If the learning rate that turns gradients into updates is not one number.
  """
  assert config.privacy is not None
  norm = config.privacy.clip.first_norm(config.privacy.clip_unit)
  assert norm is not None  # `resolve` sees to it.
  if config.privacy.clip_unit == "update":
    return norm
  if not config.local.schedule.is_constant:
    raise ValueError(
      "Found --clip_unit=gradient with a learning rate that decays; use --clip_unit=update."
    )
  return config.local.learning_rate * norm


def clip_norm_of(config: run_config.ResolvedRun) -> float | AdaptiveClipNorm:
  """Returns the `clip_norm` of the builders of private algorithms, from a calibrated config."""
  norm = update_clip_norm(config)
  assert config.privacy is not None
  clip = config.privacy.clip
  if not isinstance(clip, privacy_lib.AdaptiveClip):
    return norm
  assert clip.noise_multiplier is not None  # `resolve` and `calibrate` see to it.
  return AdaptiveClipNorm(clip.noise_multiplier, norm, clip.clip_quantile)


def build_release(
  config: run_config.ResolvedRun, population: int, num_parameters: int
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
  found: dict[str, Any] = {"threshold_noise_multiplier": None, **noise_multipliers(config)}
  release = releases.Release(**found, **_of_every_noise(config, population))
  return calibration.complete(release, **_made_by_clients(config, num_parameters))
