"""Checks the config of private runs, and finds their noise from a budget."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import banded
from privacy.noise import shares
from tff_superquantile import algorithms
from tff_superquantile import noise_source
from tff_superquantile import secure_sums
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import privacy as privacy_lib
from tff_superquantile.experiments.config import run_config


def followed(config: run_config.RunConfig) -> list[str]:
  """Returns the flags that follow from a budget and the number of clients."""
  if config.privacy is None:
    return []
  return [*config.privacy.noise_multipliers(config.method.threshold), "delta", "rho_ratio"]


def check(config: run_config.RunConfig) -> None:
  """Checks all of a private run that needs no data."""
  assert config.privacy is not None
  _check_over_rounds(config, config.privacy)
  if config.local.weighting != "uniform":
    raise ValueError(
      f"Found --client_weighting={config.local.weighting} in a private run; each client must"
      " weigh the same (uniform), or one of many examples would weigh more than its noise hides."
    )
  _check_threshold(config.method)
  _check_noise_shares(config, config.privacy)
  config.privacy.clip.check(config.privacy.noise_by_clients)
  _check_noise(config, config.privacy)
  update_clip_norm(config)


def _check_over_rounds(config: run_config.RunConfig, privacy: privacy_lib.Privacy) -> None:
  """Checks what belongs to cohorts that all may know, and what cannot be with them."""
  sampling = config.cohort.sampling
  if not config.cohort.is_one_mechanism:
    if privacy.bands is not None:
      raise ValueError(
        f"Found --bands={privacy.bands} with --sampling={sampling}; noise is correlated over rounds"
        " with cyclic or spaced cohorts."
      )
    return
  banded.Participation(config.num_rounds, 1).bands(privacy.bands)  # Before clients are read.
  if privacy.accounting != accounting.TIGHTEST:
    raise ValueError(
      f"Found --accounting={privacy.accounting} with --sampling={sampling}, whose rounds are one"
      " Gaussian mechanism; leave it out, which is exact."
    )
  if isinstance(config.method.threshold, parts.Tree):
    raise ValueError(
      f"Found --threshold=tree with --sampling={sampling}, where the server makes all noise; use"
      " --threshold=primal_dual or geometric, and a method that can do without the histogram."
    )
  if privacy.noise_by_clients:
    raise ValueError(
      f"Found --update_sum=distributed with --sampling={sampling}, where the server makes all"
      " noise; leave it out."
    )


def _check_threshold(method: methods.Method) -> None:
  """Checks the threshold of a method's private run."""
  threshold = method.threshold
  if not isinstance(method, methods.Superquantile):
    return
  if method.theta == 1.0 and threshold is not None:
    raise ValueError(
      f"Found --threshold={threshold.kind} for a run without a threshold; leave it out."
    )
  if isinstance(threshold, parts.Reweighting) and threshold.smoothing:
    raise ValueError(
      f"Found --smoothing={threshold.smoothing} in a private run; only exact reweighting is"
      " smoothed, which shows the server the losses."
    )
  if threshold is not None and not parts.is_accounted(type(threshold)):
    raise ValueError(
      f"Found --threshold={parts.THRESHOLDS.name_of(type(threshold))} in a private run; use one of"
      f" {', '.join(parts.private_kinds())}, or a subclass of one that changes only its build."
    )


def _check_noise(config: run_config.RunConfig, privacy: privacy_lib.Privacy) -> None:
  """Checks that a run has a budget or all of its noise."""
  multipliers = privacy.noise_multipliers(config.method.threshold)
  shared = {number.share_flag: number.share for number in privacy.numbers}
  if isinstance(privacy, privacy_lib.Budget):
    checks.positive("--epsilon", privacy.epsilon)
    noises = [name for name, value in multipliers.items() if value is not None]
    if noises:
      raise ValueError(f"Found --epsilon and --{noises[0]}; the noise follows from the budget.")
    if privacy.rho_ratio is not None and config.method.threshold is None:
      raise ValueError(
        f"Found --rho_ratio={privacy.rho_ratio} for a run without a threshold; leave it out."
      )
    for name, ratio in {"rho_ratio": privacy.rho_ratio, **shared}.items():
      if ratio is not None:
        checks.scale(f"--{name}", ratio)
    return
  for name, value in multipliers.items():
    if value is None:
      raise ValueError(f"Found no --{name} and no --epsilon in a private run; give one.")
    checks.scale(f"--{name}", value)
  for name, ratio in shared.items():
    if ratio is not None:
      raise ValueError(f"Found --{name} without --epsilon, which is what it splits.")


def _check_noise_shares(config: run_config.RunConfig, privacy: privacy_lib.Privacy) -> None:
  """Checks the source of the noise, given the threshold and the sampling."""
  protocol = privacy.shares.protocol
  if protocol == shares.COMPLEMENT:
    return
  if not privacy.noise_by_clients and not isinstance(config.method.threshold, parts.Tree):
    raise ValueError(
      f"Found --noise_shares={protocol} in a run whose noise the server makes; give"
      " --threshold=tree or --update_sum=distributed, too, or leave it out."
    )
  if protocol not in config.cohort.protocols:
    raise ValueError(
      f"Found --noise_shares={protocol} with --sampling={config.cohort.sampling}, which does not"
      f" know it; use {cohorts.with_protocol(protocol)}."
    )


def calibrate(
  config: run_config.RunConfig, population: int, num_parameters: int, earlier: Mapping[str, str]
) -> tuple[run_config.RunConfig, releases.Release]:
  """Finds delta, the release of a round with its noise, and how that divides the budget."""
  privacy = config.privacy
  assert privacy is not None
  delta = accounting.default_delta(population) if privacy.delta is None else privacy.delta
  config = run_config.with_values(config, delta=delta)
  if isinstance(privacy, privacy_lib.Budget) and earlier:
    kept = (*privacy.noise_multipliers(config.method.threshold), "rho_ratio")
    config = run_config.with_values(config, **{n: float(earlier[n]) for n in kept if n in earlier})
  release = build_release(config, population, num_parameters)
  if release.is_calibrated:
    return config, release
  assert isinstance(privacy, privacy_lib.Budget)  # `resolve` sees to it.
  budget: dict[str, Any] = dict(num_rounds=config.num_rounds, accountant=privacy.accounting)
  threshold, ratio = release.find(parts.PrivateThreshold), privacy.rho_ratio
  if threshold is not None:
    others = tuple(part for part in release.parts if part is not threshold)
    if ratio is None:
      without = dataclasses.replace(release, parts=others)
      without = calibration.calibrate(without, privacy.epsilon, delta, **budget)
      theta = config.values()["theta"]
      best = calibration.default_share(threshold, without, num_parameters, theta, config.num_rounds)
      ratio = float(f"{best:.3g}")
    shared = dataclasses.replace(threshold, share=ratio)
    release = dataclasses.replace(release, parts=(shared, *others))
  release = calibration.calibrate(release, privacy.epsilon, delta, **budget)
  return run_config.with_values(config, rho_ratio=ratio, **release.noise_multipliers), release


def update_clip_norm(config: run_config.RunConfig) -> float:
  """Returns C, or that of the first round, in units of the update, whatever --clip_unit is."""
  assert config.privacy is not None
  norm = config.privacy.clip.norm
  assert norm is not None  # `resolve` sees to it.
  if config.privacy.clip_unit == "update":
    return norm
  if not config.local.schedule.is_constant:
    raise ValueError(
      "Found --clip_unit=gradient with a learning rate that decays; use --clip_unit=update."
    )
  return config.local.learning_rate * norm


def build_part(
  config: run_config.RunConfig, release: releases.Release, noise_key: noise_source.NoiseKey
) -> algorithms.Private:
  """Builds the `Private` of a run's process, with the noise of its release."""
  updates, norm = release.find(parts.UpdateSum), update_clip_norm(config)
  assert config.privacy is not None and updates is not None  # A run releases a model.
  clip = release.find(parts.AdaptiveClip)
  clip_norm: Any = norm
  if clip is not None:
    clip_norm = secure_sums.AdaptiveClipNorm(clip.z, norm, clip.clip_quantile)
  share_weight = getattr(config.method, "share_weight", None)
  return algorithms.Private(
    clip_norm=clip_norm,
    noise_multiplier=updates.z,
    expected_clients=release.cohort.mean_size(),
    noise_key=noise_key,
    update_sum=updates.mechanism,
    **({} if share_weight is None else {"share_weight": share_weight}),
  )


def build_release(
  config: run_config.RunConfig, population: int, num_parameters: int
) -> releases.Release:
  """Returns a round's release for `population` training clients, with the noise that is known."""
  privacy, threshold = config.privacy, config.method.threshold
  assert privacy is not None
  released: list[parts.ReleasedPart] = []
  if isinstance(threshold, parts.PrivateThreshold):
    released.append(threshold)
  by_clients: dict[str, Any] = {}
  if privacy.noise_by_clients:
    by_clients = dict(num_parameters=num_parameters, clip_norm=update_clip_norm(config))
  released.append(
    parts.UpdateSum(
      noise_multiplier=privacy.update_noise_multiplier,
      is_weighted=config.method.weighted_updates,
      **by_clients,
    )
  )
  released += privacy.numbers
  cohort = config.cohort.of(population)
  coefficients: tuple[float, ...] = banded.INDEPENDENT
  participation = cohort.participation(config.num_rounds)
  if participation is not None:
    bands = participation.bands(privacy.bands)
    coefficients = banded.checked(banded.optimal(bands, participation))
  return releases.Release(
    cohort=cohort,
    coefficients=coefficients,
    parts=tuple(released),
    noise=privacy.shares,
    relation=privacy.relation,
  )
