"""Computes the answer of `banded`: correlated noise for known cohorts, beside independent noise."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy import server as server_lib
from privacy.command import answers
from privacy.command import asked
from privacy.noise import banded

_GUARANTEE = (
  "Neighbouring data sets: {}, with the same rounds for every client.",
  "Mechanism: Gaussian noise, correlated over rounds (banded Toeplitz matrix mechanism), on all"
  " that a round releases as one vector; the guarantee holds for adaptive streams (Denisov et al."
  " 2022) and is that of one Gaussian mechanism for the whole run.",
  "Adversary: sees the releases of all rounds and knows who takes part in which round. The server"
  " that adds the noise is trusted.",
  "Cohorts: a client takes part in at most {} rounds, any two at least {} apart, which do not"
  " depend on anybody's data. The rounds must keep to this; no sampling amplifies.",
)


@dataclasses.dataclass(frozen=True)
class BandedAnswer(answers.Answer):
  """The answer of `banded`: the noise of a plan, and that of the running sums by other ways."""

  command: str
  population: int
  clients_per_round: float
  num_rounds: int
  delta: float
  relation: str
  coefficients: str
  epsilon: float = answers.labelled("epsilon, all rounds", "cohorts known to all")
  bands: int = answers.labelled("bands", "b")
  separation: int = answers.labelled("least distance of two rounds", "s")
  participations: int = answers.labelled("most rounds of a client", "k")
  sensitivity: float = answers.labelled("sensitivity of all rounds")
  error: float = answers.labelled("error of running sums", "RMS, for noise of 1")
  noise_multiplier: float = answers.labelled("noise multiplier", "over the sensitivity")
  effective_noise_multiplier: float = answers.labelled("noise before correlation", "all together")
  threshold_noise_multiplier: float = answers.labelled("  threshold")
  update_noise_multiplier: float = answers.labelled("  weights", "in clip norms")
  clip_count_noise_multiplier: float = answers.labelled("  updates within the clip norm")
  noise_banded: float = answers.labelled("banded, cohorts known")
  noise_independent: float = answers.labelled("independent, cohorts known")
  noise_poisson: float = answers.labelled("independent, Poisson, secret")
  epsilon_poisson_known: float = answers.labelled("  epsilon if cohorts are known")
  poisson_participations: int = answers.labelled("  for a client in so many rounds")
  noise_fixed_size: float = answers.labelled("independent, fixed size, secret")
  guarantee: Sequence[str] = ()
  warnings: Sequence[str] = ()

  def to_text(self) -> str:
    """Returns the answer for people."""
    first = [field.name for field in dataclasses.fields(self) if "label" in field.metadata]
    split = first.index("noise_banded")
    lines = [
      *answers.paragraphs("Warning:", self.warnings)[1:],
      f"{self.num_rounds} rounds of {self.clients_per_round:g} of {self.population} clients,"
      f" delta = {self.delta:.4g}:",
      *self.rows(*first[:split]),
      "",
      "Noise of the running sums of updates, RMS over rounds, in clip norms:",
      *self.rows(*first[split:]),
      *answers.paragraphs("What epsilon is about:", self.guarantee),
    ]
    return "\n".join(lines)


def _participation(args: argparse.Namespace) -> banded.Participation:
  """Returns the rounds that the flags allow a client."""
  num_rounds = asked.banded_rounds(args)
  apart = int(args.population / args.clients_per_round)
  separation = asked.optional_whole("separation", args.separation)
  if separation is not None and not 1 <= separation <= apart:
    raise ValueError(
      f"Found --separation={separation} with {args.clients_per_round:g} of {args.population:g}"
      f" clients a round; expected 1 to {apart}, since all clients of a round must"
      " have waited so long."
    )
  most = asked.optional_whole("participations", args.participations)
  return banded.Participation(num_rounds, apart if separation is None else separation, most)


def _norm(release: releases.Release) -> float:
  """Returns the norm of a client's contribution to a round over the noise, its parts together."""
  pair = release.gaussian(1.0)
  return pair.replaced if pair.replace_one else pair.removed


def _noise_of_updates(release: releases.Release) -> float:
  """Returns the noise multiplier of the updates' sum."""
  updates = release.find(parts.UpdateSum)
  if updates is None:
    raise ValueError(
      "Found --rho_ratio=inf, which leaves no budget to updates; expected a finite number."
    )
  return updates.z


def _secret(
  release: releases.Release, sampling: str, args: argparse.Namespace, delta: float, growth: float
) -> dict[str, Any]:
  """Returns the entries on independent noise with secret cohorts.

  Args:
    release: The release without noise.
    sampling: The sampling of secret cohorts.
    args: The flags.
    delta: Delta.
    growth: The RMS noise of running sums of independent noise of 1.
  """
  if sampling == cohorts.FIXED_SIZE and args.clients_per_round != int(args.clients_per_round):
    return {}
  cohort = cohorts.of(sampling, args.population, args.clients_per_round)
  num_rounds = int(args.num_rounds)
  found = calibration.calibrate(
    dataclasses.replace(release, cohort=cohort), args.epsilon, delta, num_rounds
  )
  entries: dict[str, Any] = {f"noise_{sampling}": _noise_of_updates(found) * growth}
  if sampling == cohorts.POISSON:
    most = max(1, server_lib.likely_participations(found, num_rounds))
    known = banded.epsilon(1.0 / (_norm(found) * most**0.5), delta)
    entries.update(epsilon_poisson_known=known, poisson_participations=most)
  return entries


def answer(args: argparse.Namespace) -> BandedAnswer:
  """Returns the answer of `banded`.

  Args:
    args: The parsed flags.

  Raises:
    ValueError: If the flags contradict each other, or no noise fulfils them.
  """
  delta = asked.delta_of(args)
  of_round = {**vars(args), "separation": None, "bands": None}
  release = asked.wanted(argparse.Namespace(**of_round))  # This checks the clients, too.
  unit = release.with_noise(1.0)
  _noise_of_updates(unit)
  z = banded.noise_multiplier(checks.positive("epsilon", args.epsilon), delta)
  participation = _participation(args)
  num_rounds = participation.num_rounds
  c = np.array(asked.coefficients(args, participation))
  most = int(participation.earliest.sum())
  independent = banded.square_root(1)

  def noisy(strategy: np.ndarray) -> releases.Release:
    """The release with the noise before correlation: each part's over its own sensitivity."""
    return release.with_noise(z * banded.sensitivity(strategy, participation) * _norm(unit))

  found, growth = noisy(c), banded.error(independent, num_rounds)
  multipliers: dict[str, Any] = found.noise_multipliers
  warning = accounting.delta_warning(delta, release.cohort.population)
  return BandedAnswer(
    command=args.command,
    population=release.cohort.population,
    clients_per_round=release.cohort.expected,
    num_rounds=num_rounds,
    delta=delta,
    relation=args.relation,
    coefficients=args.coefficients,
    epsilon=banded.epsilon(z, delta),
    bands=c.size,
    separation=participation.separation,
    participations=most,
    sensitivity=banded.sensitivity(c, participation),
    error=banded.error(c, num_rounds),
    noise_multiplier=z,
    effective_noise_multiplier=found.effective_noise_multiplier,
    **multipliers,
    noise_banded=_noise_of_updates(found) * banded.error(c, num_rounds),
    noise_independent=_noise_of_updates(noisy(independent)) * growth,
    **_secret(release, cohorts.POISSON, args, delta, growth),
    **_secret(release, cohorts.FIXED_SIZE, args, delta, growth),
    guarantee=[
      _GUARANTEE[0].format(release.neighboring_relation),
      *_GUARANTEE[1:3],
      _GUARANTEE[3].format(most, participation.separation),
      *_GUARANTEE[4:],
    ],
    warnings=[] if warning is None else [warning],
  )
