"""What makes a run private: its noise from a budget, its ledger, what it must not write."""

from collections.abc import Mapping
import contextlib
import dataclasses
import math
import pathlib
import secrets
from typing import Any

import tensorflow_federated as tff

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import ledger
from privacy import releases
from privacy import server as server_lib
from privacy import shares
from privacy import statements
from privacy import tree_mechanism
from tff_superquantile import atomic_files
from tff_superquantile import noise_source
from tff_superquantile import superquantile
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import run_config

# Flags that follow from a budget and the number of clients.
CALIBRATED = ("threshold_noise_multiplier", "update_noise_multiplier", "delta", "rho_ratio")
_MULTIPLIERS = CALIBRATED[:2]
# Of a private run alone, and what other runs have there.
DEFAULTS = dict(
  delta=None,
  rho_ratio=None,
  clip_norm=None,
  clip_unit="update",
  update_sum="central",
  noise_shares=shares.COMPLEMENT,
  contacted_clients=None,
  relation=releases.ZERO_OUT,
  accounting=accounting.TIGHTEST,
  noise_key_file="",
)
_KEY_FILE = "noise_key"


def resolve(config: run_config.RunConfig) -> run_config.RunConfig:
  """Fills in what a private run has by default and checks what can be checked without data.

  Args:
    config: What a private run is asked for.

  Returns:
    The config, with `sampling`, `threshold` and `client_weighting`.

  Raises:
    ValueError: If flags contradict each other.
  """
  has_threshold = config.algorithm == "superquantile" and config.theta < 1.0
  if not has_threshold:
    for name in ("threshold", "threshold_noise_multiplier", "rho_ratio"):
      if getattr(config, name) is not None:
        raise ValueError(
          f"Found --{name}={getattr(config, name)} for a private run without a threshold; leave it"
          " out."
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
    threshold=config.threshold or ("geometric" if has_threshold else None),
    client_weighting="uniform",
    sampling=config.sampling or "poisson",
  )
  if has_threshold and resolved.threshold not in method_names.PRIVATE_THRESHOLDS:
    raise ValueError(
      f"Found --threshold={resolved.threshold} in a private run, which shows the server the"
      f" losses; use one of {', '.join(method_names.PRIVATE_THRESHOLDS)}."
    )
  _check_noise_shares(resolved)
  if resolved.clip_norm is None:
    raise ValueError("Found no --clip_norm in a private run; give one, such as 0.1.")
  checks.scale("--clip_norm", resolved.clip_norm)
  multipliers = ["update_noise_multiplier"]
  if has_threshold:
    multipliers.append("threshold_noise_multiplier")
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
  """Checks who makes the noise, given the threshold and the sampling."""
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
  """Checks what depends on the task's defaults, before any data is read.

  Raises:
    ValueError: If a value is out of its range.
  """
  update_clip_norm(config)
  if config.algorithm == "superquantile":
    superquantile.check_theta(config.theta)
  if config.threshold == "tree":
    tree_mechanism.check_num_bins(config.num_bins)


def calibrate(
  config: run_config.RunConfig, population: int, num_parameters: int, earlier: Mapping[str, str]
) -> run_config.RunConfig:
  """Fills in delta, the noise multipliers and how they divide the budget, of a private run.

  Args:
    config: From `resolve`.
    population: The number of training clients.
    num_parameters: How many numbers an update has.
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
    population=population,
    clients_per_round=config.clients_per_round,
    num_rounds=config.num_rounds,
    sampling=config.sampling,
    threshold_kind=config.threshold or releases.TREE,
    relation=config.relation,
    protocol=config.noise_shares,
    contacted=config.contacted_clients,
    accountant=config.accounting,
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


def _made_by_clients(config: run_config.RunConfig, num_parameters: int) -> dict[str, Any]:
  """What `calibration.complete` takes."""
  return dict(
    num_bins=config.num_bins if config.threshold == releases.TREE else None,
    distributed_updates=config.update_sum == "distributed",
    clip_norm=update_clip_norm(config),
    num_parameters=num_parameters,
  )


def update_clip_norm(config: run_config.RunConfig) -> float:
  """C on the update, whatever --clip_unit says.

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
  release = releases.Release(
    population=population,
    clients_per_round=config.clients_per_round,
    threshold_noise_multiplier=config.threshold_noise_multiplier,
    update_noise_multiplier=config.update_noise_multiplier,
    sampling=config.sampling,
    threshold_kind=config.threshold or releases.TREE,
    relation=config.relation,
    protocol=config.noise_shares,
    contacted=config.contacted_clients,
  )
  return calibration.complete(release, **_made_by_clients(config, num_parameters))


def noise_key(folder: pathlib.Path, key_file: str, has_begun: bool) -> bytes:
  """The key of a private run, from which its cohorts and its noise follow; kept for its resumption.

  It is in `checkpoints/noise_key` alone, readable by the owner alone, and nothing else that the run
  writes tells anything about it, but for the checkpoints beside it.

  Args:
    folder: The run's folder.
    key_file: `--noise_key_file`; empty to draw a key from the operating system's entropy.
    has_begun: Whether the run has done something already, with a key that must be there.

  Returns:
    16 bytes.

  Raises:
    ValueError: If a file cannot be read, is no key, or is not the run's.
  """
  given = _read_key(pathlib.Path(key_file), "--noise_key_file") if key_file else None
  path = folder / "checkpoints" / _KEY_FILE
  if path.exists():
    kept = _read_key(path, "the run's key")
    if given not in (None, kept):
      raise ValueError(
        f"Found another key in {key_file} than in {path}, with which the run began; give that one,"
        " or none."
      )
    return kept
  if has_begun and given is None:
    raise ValueError(
      f"Found no {path}, the key of a private run that has begun; it cannot go on without. Bring it"
      " back, give it by --noise_key_file, or choose another --output_dir."
    )
  key = given or secrets.token_bytes(noise_source.KEY_BYTES)
  path.parent.mkdir(mode=0o700, exist_ok=True)
  path.parent.chmod(0o700)
  atomic_files.write(path, key.hex() + "\n", mode=0o600)
  return key


def remove_noise_key(folder: pathlib.Path) -> None:
  """Removes the key of a run that has not begun, and its folder if there is nothing else in it."""
  (folder / "checkpoints" / _KEY_FILE).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    (folder / "checkpoints").rmdir()


def _read_key(path: pathlib.Path, name: str) -> bytes:
  try:
    with open(path, "rb") as stream:
      text = stream.read(1024)
    key = bytes.fromhex(text.decode("ascii").strip())
  except OSError as error:
    raise ValueError(f"Found that {name} {path} cannot be read ({error.strerror}).") from None
  except ValueError:
    key = b""
  if len(key) != noise_source.KEY_BYTES:
    raise ValueError(
      f"Found no key in {path}; expected {2 * noise_source.KEY_BYTES} hexadecimal digits, such as"
      f" `openssl rand -hex {noise_source.KEY_BYTES}` prints."
    )
  return key


class SecretStateManager(tff.program.FileProgramStateManager):
  """Keeps checkpoints for their owner alone: they hold the state of the server's noise."""

  def __init__(self, root_dir: str, **kwargs: Any):
    super().__init__(root_dir, **kwargs)
    self._folder = pathlib.Path(root_dir)
    self._folder.chmod(0o700)

  async def save(self, program_state: Any, version: int) -> None:
    # Until they are closed to others, nobody else gets into the folder.
    await super().save(program_state, version)
    for path in self._folder.rglob("*"):
      path.chmod(0o700 if path.is_dir() else 0o600)


class Account:
  """A private run's account: what each round costs, and the ledger in its folder."""

  def __init__(self, config: run_config.RunConfig, release: releases.Release, folder: pathlib.Path):
    """Opens the account.

    Args:
      config: From `calibrate`.
      release: From `build_release`.
      folder: The run's folder.

    Raises:
      ValueError: If all rounds together cost more than --epsilon.
    """
    assert config.delta is not None  # From `calibrate`.
    self._release = release
    self._meter = accounting.Meter(self._release, config.delta, config.accounting)
    self._config = config
    self._path = folder / ledger.FILE_NAME
    total = self._meter.epsilon(config.num_rounds)
    if config.epsilon is not None and total > config.epsilon * (1.0 + 1e-9):
      raise ValueError(
        f"Found that {config.num_rounds} rounds with the noise of this run cost epsilon"
        f" {total:.4g}, past --epsilon={config.epsilon:g}; ask for fewer rounds."
      )

  def describe(self) -> str:
    """What the run will cost and with which noise, for the user, before it starts."""
    config, release = self._config, self._release
    lines = [
      f"Private: {config.num_rounds} rounds cost epsilon"
      f" {self._meter.epsilon(config.num_rounds):.4g} at delta {config.delta:.3g}"
      f" ({release.neighboring_relation}).",
      f"Noise multiplier of the updates: {release.update_noise_multiplier:.4g}, on updates clipped"
      f" to {update_clip_norm(config):.4g}.",
    ]
    if release.threshold_noise_multiplier is not None:
      lines.append(
        f"Noise multiplier of the {config.threshold} threshold:"
        f" {release.threshold_noise_multiplier:.4g}."
      )
      if config.rho_ratio is not None:
        more = math.sqrt(1.0 + config.rho_ratio) - 1.0
        lines.append(
          f"The threshold has {config.rho_ratio:.3g} of the updates' budget (--rho_ratio), which"
          f" costs these {100.0 * more:.2g} % more noise."
        )
    if release.tree is not None:
      lines.append(release.tree.describe())
    said = statements.noise_shares(release)
    if said is not None:
      lines.append(said)
    server = server_lib.server_epsilon(release, config.num_rounds, self._meter.delta)
    if server.epsilon is not None:
      lines.append(f"Against the server epsilon is {server.epsilon:.4g}. {server.explanation}")
    lines.append(
      "Cohorts and noise follow from a secret key, in checkpoints/ alone: publish anything else of"
      " the run's folder."
    )
    warning = accounting.delta_warning(self._meter.delta, release.population)
    return "\n".join(lines + ([] if warning is None else [f"Warning: {warning}"]))

  def epsilon(self, round_num: int) -> float:
    """What the rounds up to this one cost at most."""
    return self._meter.epsilon_at_most(round_num, self._config.num_rounds)

  def write(self, rounds_done: int) -> None:
    """Writes the ledger; before what a round released is written, so that it never lags."""
    config = self._config
    text = ledger.build_ledger(
      self._release,
      claim_epsilon=config.epsilon,
      delta=self._meter.delta,
      clip_norm=update_clip_norm(config),
      num_rounds_planned=config.num_rounds,
      rounds_done=rounds_done,
      accountant=config.accounting,
      meter=self._meter,
    ).to_json()
    atomic_files.write(self._path, text)


class LedgerReleaseManager(tff.program.ReleaseManager):
  """Enters each round into the ledger."""

  def __init__(self, account: Account):
    self._account = account

  async def release(self, value: Any, key: int) -> None:
    self._account.write(key)
