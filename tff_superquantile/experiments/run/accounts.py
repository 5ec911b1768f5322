"""The account of a private run: its ledger, and the text for its user."""

from collections.abc import Sequence
import math
import pathlib

from privacy import accounting
from privacy import ledger
from privacy import parts
from privacy import releases
from privacy import server as server_lib
from privacy import statements
from privacy.noise import banded
from tff_superquantile import atomic_files
from tff_superquantile.algorithms.private import private as private_lib
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import privacy as privacy_lib
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import evaluation_files
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

# The noise of a round over the clip norm up to which an adaptive one was stable on handwriting is
# 9, and the least one with which it was not 18.
_MOST_NOISE = 12.0


def rounds_released(run: run_folder.Run) -> int:
  """Returns the last round of which a run's folder has a row, results, a checkpoint or an entry."""
  entered = run_files.read_json(run.path / ledger.FILE_NAME).get("rounds_done")
  checkpoints = (run.path / run_folder.CHECKPOINTS).glob("program_state_*")
  numbers = [path.name.rpartition("_")[2] for path in checkpoints]
  evaluated = evaluation_files.find(run.path / run_files.CLIENTS)
  rounds = [run.last_round or 0, *evaluated, *(int(n) for n in numbers if n.isdecimal())]
  return max([*rounds, entered] if isinstance(entered, int) else rounds)


class Account:
  """A private run's account: the cost of each round, and the ledger in its folder.

  Attributes:
    released: The last round of which the folder had anything when the account was opened.
    relative_noise: The length of a round's noise over C, with the divisor at its most.
  """

  def __init__(
    self,
    config: run_config.RunConfig,
    release: releases.Release,
    folder: pathlib.Path,
    num_parameters: int,
    starts: Sequence[statements.StartingModel] = (),
  ):
    """Opens a calibrated run's account; refuses a total above --epsilon or a bad ledger."""
    privacy, updates = config.privacy, release.find(parts.UpdateSum)
    # `calibrate` sees to it, and a run releases a model.
    assert privacy is not None and privacy.delta is not None and updates is not None
    self._config, self._privacy, self._release, self._updates = config, privacy, release, updates
    self._meter = accounting.Accountant(release, privacy.delta, privacy.accounting)
    self._path = folder / ledger.FILE_NAME
    self._num_parameters, self._starts = num_parameters, tuple(starts)
    self._clip, self._clip_norm = release.find(parts.AdaptiveClip), private.update_clip_norm(config)
    self.relative_noise = self._relative_noise()
    total = self._meter.epsilon(config.num_rounds)
    if config.epsilon is not None and total > config.epsilon * (1.0 + 1e-9):
      raise ValueError(
        f"Found that {config.num_rounds} rounds with the noise of this run cost epsilon"
        f" {total:.4g}, past --epsilon={config.epsilon:g}; ask for fewer rounds."
      )
    self.released = rounds_released(run_folder.Run(folder, config.seed))
    if self._path.exists():  # Nothing is added to a ledger that cannot be read.
      earlier = ledger.Ledger.from_json(self._path.read_text(encoding="utf-8"))
      if earlier.release.coefficients != self._release.coefficients:
        raise ValueError(
          f"Found other coefficients of the noise over rounds in {self._path} than are found here,"
          " by another version of NumPy or SciPy; continue the run where it began, or begin it"
          " anew."
        )
    elif self.released and len(release.coefficients) > 1:
      raise ValueError(
        f"Found no {self._path}, which alone has the coefficients of the noise over rounds with"
        " which the run began; bring the file back, or choose another --output_dir."
      )

  def describe(self) -> str:
    """Returns lines of text for the user, before the run starts: its cost and its noise."""
    sentences = [
      self._cost(),
      self._noise_of_updates(),
      self._noise_of_mean(),
      self._noise_of_clip_counts(),
      *self._noise_of_threshold(),
      statements.noise_shares(self._release),
      *map(statements.initial_weights, self._starts),
      *statements.of_flags(self._config.to_flags()).values(),
      self._cost_against_server(),
      self._public(),
      self._secret(),
    ]
    warnings = [
      accounting.delta_warning(self._meter.delta, self._release.cohort.population),
      self._noise_warning(),
      self._clip_warning(),
    ]
    lines = [*sentences, *(f"Warning: {text}" for text in warnings if text is not None)]
    return "\n".join(line for line in lines if line is not None)

  def _cost(self) -> str:
    rounds, release = self._config.num_rounds, self._release
    return (
      f"Private: {rounds} rounds cost epsilon {self._meter.epsilon(rounds):.4g} at delta"
      f" {self._meter.delta:.3g} ({release.neighboring_relation})."
      f" {statements.secure_sums(release)}"
    )

  def _noise_of_updates(self) -> str:
    at_first = "" if self._clip is None else " at first"
    return (
      f"Noise multiplier of the updates: {self._updates.z:.4g}, on updates clipped to"
      f" {self._clip_norm:.4g}{at_first}."
    )

  def _noise_of_mean(self) -> str:
    # These divide by the sum of the clients' shares, at most their number.
    relative = (methods.OwnLossMethod, methods.RelativeMethod)
    bound = "at least" if isinstance(self._config.method, relative) else "about"
    later = ", but for what later noise cancels" if len(self._release.coefficients) > 1 else ""
    return (
      f"The noise of a round's mean is {bound} {self.relative_noise:.2g} times as long as a clipped"
      f" update can be{later}."
    )

  def _noise_of_clip_counts(self) -> str | None:
    if self._clip is None:
      return None
    return (
      "Noise multiplier of the count of updates within the clip norm, which adapts:"
      f" {self._clip.z:.4g}."
    )

  def _noise_of_threshold(self) -> list[str]:
    """Says the noise of a private threshold, its part of the budget, and what its tree adds."""
    threshold, privacy = self._release.find(parts.PrivateThreshold), self._privacy
    if threshold is None:
      return []
    sentences = [f"Noise multiplier of the {threshold.kind} threshold: {threshold.z:.4g}."]
    if isinstance(privacy, privacy_lib.Budget) and privacy.rho_ratio is not None:
      more = math.sqrt(1.0 + privacy.rho_ratio) - 1.0
      sentences.append(
        f"The threshold has {privacy.rho_ratio:.3g} of the updates' budget (--rho_ratio), which"
        f" costs these {100.0 * more:.2g} % more noise."
      )
    if isinstance(threshold, parts.Tree) and threshold.mechanism is not None:
      sentences.append(threshold.mechanism.describe())
    return sentences

  def _cost_against_server(self) -> str | None:
    server = server_lib.server_epsilon(self._release, self._config.num_rounds, self._meter.delta)
    if server.epsilon is None:
      return None
    return f"Against the server epsilon is {server.epsilon:.4g}. {server.explanation}"

  def _public(self) -> str:
    return (
      f"Public: the number of training clients, {self._release.cohort.population}, and all about"
      " the clients that are not trained on."
    )

  def _secret(self) -> str:
    what = "Noise follows" if self._release.cohort.is_public else "Cohorts and noise follow"
    return (
      f"{what} from a secret key, in checkpoints/ alone: publish anything else of the run's folder."
    )

  def _noise_warning(self) -> str | None:
    """Says that a round's noise is longer than its updates can be; None if it is not."""
    if self.relative_noise <= 1.0:
      return None
    norm, adapts = self._clip_norm, ", or --clip_norm=adaptive" if self._clip is None else ""
    return (
      f"Found that the noise of a round's mean is expected to be {self.relative_noise * norm:.3g}"
      f" long (noise multiplier {self._updates.z:.3g}, clip norm {norm:.3g},"
      f" {self._num_parameters} parameters, {self._config.cohort.expected} clients per round),"
      f" longer than any client's update, which is at most {norm:.3g}; ask for more clients per"
      f" round, a larger epsilon, or a smaller model{adapts}, or expect rounds to be mostly noise."
    )

  def _clip_warning(self) -> str | None:
    """Says that a clip norm that adapts may follow the noise; None if it does not."""
    if self._clip is None or self.relative_noise <= _MOST_NOISE:
      return None
    return (
      "Found a clip norm that adapts where a round is mostly noise; it may follow the noise upwards"
      " and lose the model: give --clip_norm a number, or ask for larger cohorts or a larger"
      " budget."
    )

  def _relative_noise(self) -> float:
    """Returns z_w sqrt(d) / D; of noise that later rounds cancel it counts what stays."""
    noise = self._updates.z
    left = banded.relative_error(self._release.coefficients, self._config.num_rounds)
    method, divisor = self._config.method, self._release.cohort.mean_size()
    if isinstance(method, methods.Superquantile):
      divisor *= method.theta
    elif isinstance(method, methods.OwnLossMethod):
      share_weight = method.share_weight or private_lib.SHARE_WEIGHT
      divisor = max(divisor, private_lib.least_divisor(noise, share_weight))
    return left * noise * math.sqrt(self._num_parameters) / divisor

  def epsilon(self, round_num: int) -> float:
    """Returns a bound on the cost of the rounds up to this one."""
    return self._meter.epsilon_at_most(round_num, self._config.num_rounds)

  def write(self, rounds_done: int) -> None:
    """Writes the ledger, with the most rounds ever begun: what was released is never taken back."""
    config = self._config
    text = ledger.build_ledger(
      self._meter,
      claim_epsilon=config.epsilon,
      clip_norm=self._clip_norm if self._clip is None else None,
      num_rounds_planned=config.num_rounds,
      rounds_done=max(rounds_done, self.released),
      starts=self._starts,
      flags=config.to_flags(),
    ).to_json()
    atomic_files.write(self._path, text)
