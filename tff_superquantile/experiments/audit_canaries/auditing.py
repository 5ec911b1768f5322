"""Runs a private configuration with canaries, and bounds its epsilon from below."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from typing import Any

import numpy as np
from scipy import special
import tqdm

from privacy import accounting
from privacy import checks
from privacy import one_run
from privacy import releases
from tff_superquantile import noise_source
from tff_superquantile.engine import context
from tff_superquantile.experiments.audit_canaries import canaries as canaries_lib
from tff_superquantile.experiments.audit_canaries import watched
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import selection
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import client_files

# Canaries of a run, unless they are asked for: half of its clients, and at most so many.
_MOST_CANARIES = 1000
# At so many deltas, from the claim's to this one, the accountant says what else is claimed.
_NUM_DELTAS, _LARGEST_DELTA = 16, 0.9


@dataclasses.dataclass(frozen=True)
class Inquiry:
  """What to ask of a configuration.

  Attributes:
    num_canaries: m of each run; None for as many as half of its clients.
    num_runs: Runs, each with its own key, coins and canaries, whose guesses are counted together.
    confidence: That of all bounds together.
    known_cohorts: Whether the adversary knows who takes part in which round.
  """

  num_canaries: int | None = None
  num_runs: int = 1
  confidence: float = 0.95
  known_cohorts: bool = False

  def __post_init__(self) -> None:
    checks.whole("num_runs", self.num_runs, 1)
    checks.fraction("confidence", self.confidence)
    if self.num_canaries is not None:
      checks.whole("num_canaries", self.num_canaries, 1)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What came out.

  Attributes:
    config: The resolved config, with its noise.
    release: What a round is said to release.
    claim: The epsilon that is claimed, by delta; the first delta is the run's.
    knows_cohorts: Whether the adversary knew who took part in which round.
    coins: Whether each canary was in, bool [canaries of all runs].
    scores: The adversary's score of each, float.
    bounds: What follows.
  """

  config: run_config.RunConfig
  release: releases.Release
  claim: dict[float, float]
  knows_cohorts: bool
  coins: np.ndarray
  scores: np.ndarray
  bounds: one_run.Bounds

  @property
  def is_claimed(self) -> bool:
    """Whether the claim speaks of this adversary: by sampling, nobody knows the cohorts."""
    return self.release.cohort.is_public or not self.knows_cohorts


def audit(config: run_config.RunConfig, inquiry: Inquiry) -> Outcome:
  """Runs a configuration with canaries, and tries to tell who of them is in.

  Each run has the task, clients, method, sampling, noise and rounds of the configuration; `inquiry`
  makes some training clients canaries, as `canaries` describes. It begins with the model's own
  weights, evaluates nothing and writes nothing. Its key is drawn from the operating system for it
  alone, and kept nowhere.

  Args:
    config: A private config that was asked for.
    inquiry: Numbers of canaries and runs, and the adversary.

  Returns:
    The outcome.

  Raises:
    ValueError: If the config is not private or cannot be run, or there are too few clients.
  """
  if not config.is_private:
    raise ValueError(
      "Found a configuration without a budget, which claims nothing; expected --epsilon or"
      " --update_noise_multiplier."
    )
  context.limit_threads()
  task = build.get_task(config)
  config = build.resolve(config, task)
  model, splits = build.load_task(task, config)
  # A canary that is out of the run has no examples in it.
  files = splits["train"]
  files = dataclasses.replace(files, min_examples=max(files.min_examples, 1))
  build.check_cohort(config, files)
  population = len(files.client_ids)
  num_canaries = inquiry.num_canaries or max(1, min(population // 2, _MOST_CANARIES))
  if num_canaries > population:
    raise ValueError(
      f"Found --num_canaries={num_canaries} with {population} training clients, whose place they"
      f" take; expected at most {population}: more --num_runs have more canaries together."
    )
  num_weights = sum(np.size(weights) for weights in model.initial_weights[0])
  config, release = private.calibrate(config, population, num_weights, {})
  knows_cohorts = inquiry.known_cohorts or release.cohort.is_public
  claim = claimed(config, release)
  context.set_simulation_context(block_size=config.block_size or None, num_blocks=config.num_blocks)
  runs = [
    _run(config, model, files, release, num_canaries, secrets.token_bytes(noise_source.KEY_BYTES))
    for _ in range(inquiry.num_runs)
  ]
  coins = np.concatenate([run.canaries.coins for run in runs])
  scores = np.concatenate(
    [
      canaries_lib.scores(run.canaries, release, run.sums, run.there if knows_cohorts else None)
      for run in runs
    ]
  )
  # Directions that share no weight, in cohorts that are known or drawn client by client.
  are_independent = num_canaries <= num_weights and (knows_cohorts or release.cohort.size_varies)
  bounds = one_run.bounds(coins, scores, claim, inquiry.confidence, are_independent=are_independent)
  return Outcome(config, release, claim, knows_cohorts, coins, scores, bounds)


def claimed(config: run_config.RunConfig, release: releases.Release) -> dict[float, float]:
  """Returns the epsilons of a run of all its rounds by delta, from the claim's to larger ones."""
  assert config.privacy is not None and config.privacy.delta is not None
  delta, bound = config.privacy.delta, config.privacy.accounting
  odds = np.linspace(special.logit(delta), special.logit(max(delta, _LARGEST_DELTA)), _NUM_DELTAS)
  return {
    each: accounting.epsilon(release, config.num_rounds, each, bound).epsilon
    for each in dict.fromkeys([delta, *special.expit(odds[1:]).tolist()])
  }


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
  """What an adversary may see of a run, and the canaries that were in it.

  Attributes:
    canaries: The canaries.
    sums: <U_t, u> / C of each round and direction, float [T, directions].
    there: Whether each canary was drawn into the round with its data, bool [T, m].
  """

  canaries: canaries_lib.Canaries
  sums: np.ndarray
  there: np.ndarray


def _run(
  config: run_config.RunConfig,
  model: Any,
  files: client_files.ClientFiles,
  release: releases.Release,
  num_canaries: int,
  key: bytes,
) -> _Run:
  """Carries out the rounds of a calibrated config with canaries; all randomness is the key's."""
  num_weights = sum(np.size(weights) for weights in model.initial_weights[0])
  canaries = canaries_lib.draw(
    key, files, num_canaries, num_weights, config.num_rounds, release.relation
  )
  noise_key = noise_source.derive_key(key, "noise of a run with canaries")
  secret = hook.Secret(release, noise_key, key, 0, lambda round_num: 0.0)
  process = build.build_process(
    config, model, files, release, noise_key, functools.partial(_build_private, canaries)
  )
  select = selection.build_selection(files, config, secret)
  state, sums, there = process.initialize(), [], []
  for round_num in tqdm.trange(config.num_rounds, unit="round", delay=2.0, disable=None):
    handles, were_there = canaries.at_clients(select(round_num + 1), round_num)
    output = process.next(state, handles)
    state = output.state
    sums.append(np.asarray(output.metrics["aggregator"][watched.MEASUREMENT], np.float64))
    there.append(were_there)
  return _Run(canaries, np.array(sums), np.array(there))


def _build_private(canaries: canaries_lib.Canaries, *of_run: Any) -> watched.Watched:
  """Builds the `Private` of a run with canaries."""
  return watched.Watched.of(private.build_part(*of_run), canaries)
