"""Reads a release from the flags of `calibrate` and `spend`, which `meaning` has checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
import functools
import math
import os
from typing import Any

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import banded
from privacy.settings import command_line

# Coefficients of noise that is correlated over so many rounds take up to a minute.
_MOST_BANDED = 20_000
# A file of coefficients is no longer: more than so many rounds have.
_MOST_CHARACTERS = 40 * _MOST_BANDED

MOST_ROUNDS = 10**9  # `calibrate` takes some ten seconds for so many.


def rounds(number: int, times: int = 1) -> int:
  """Returns --num_rounds; a `ValueError` if they, or they --times so many, are too many."""
  if number * times > MOST_ROUNDS:
    several = f" --times={checks.whole('--times', times, 1):g}" if times != 1 else ""
    raise ValueError(
      f"Found --num_rounds={checks.whole('--num_rounds', number, 0):g}{several}; expected at most"
      f" {MOST_ROUNDS:g} rounds: no run has more, and their accounting takes minutes to hours."
    )
  return number


def delta_of(args: argparse.Namespace) -> float:
  """Returns --delta, or its default for the population."""
  if args.delta is None:
    return accounting.default_delta(args.population)
  return checks.fraction("delta", args.delta)


def _coefficients(args: argparse.Namespace, cohort: cohorts.Cohort) -> tuple[float, ...]:
  """Returns those of the noise over rounds that the flags ask for, best for these rounds."""
  if not cohort.is_one_mechanism:
    return banded.INDEPENDENT
  if args.coefficients is not None:
    if args.bands is not None:
      raise ValueError("Found --bands with --coefficients; expected one of them.")
    return banded.checked(_numbers(args.coefficients))
  if not 1 <= args.num_rounds <= _MOST_BANDED:
    raise ValueError(
      f"Found --num_rounds={args.num_rounds} with --sampling={args.sampling}; expected 1 to"
      f" {_MOST_BANDED}, for which coefficients are found in a minute."
    )
  participation = cohort.participation(args.num_rounds)
  assert participation is not None
  return banded.checked(banded.optimal(participation.bands(args.bands), participation))


def _numbers(text: str) -> list[float]:
  """Returns the numbers of --coefficients, or of the file that it names."""
  content, what = text, "which is neither"
  try:
    if os.path.isfile(text):
      # A sentence says the file's name alone: what is in it may be anything.
      what = "a file that has not"
      with open(text, encoding="utf-8") as file:
        content = file.read(_MOST_CHARACTERS + 1)
      if len(content) > _MOST_CHARACTERS:
        raise ValueError
    return [float(number) for number in content.replace(",", " ").split()]
  except (OSError, ValueError):
    raise ValueError(
      f"Found --coefficients={command_line.shown(text)}, {what} numbers; expected up to"
      f" {_MOST_BANDED} numbers with commas between them, or a file of them."
    ) from None


def _release(args: argparse.Namespace, fields: Mapping[Any, Mapping[str, Any]]) -> releases.Release:
  """Returns the release that the flags ask for; `fields` of each kind of part are no flags."""
  if 0.0 < args.clients_per_round < 1.0:
    q, n = args.clients_per_round, args.population
    raise ValueError(
      f"Found --clients_per_round={q:g}, a number of clients below 1; expected how many clients a"
      f" round has: a sampling rate of q = {q:g} means --clients_per_round={q * n:g}."
    )
  own = {name: getattr(args, name) for name in cohorts.own_flags()}
  cohort = cohorts.of(args.sampling, args.population, args.clients_per_round, **own)
  threshold, distributed = parts.private_kinds()[args.threshold], args.update_sum == "distributed"
  is_tree = parts.PrivateThreshold in fields and threshold is parts.Tree
  if distributed and args.num_parameters is None:
    raise ValueError(
      "Found --update_sum=distributed without --num_parameters; expected the number of parameters"
      " of the model."
    )
  clip_norm = 1.0 if args.clip_norm is None else args.clip_norm
  kinds: dict[Any, Callable[..., parts.ReleasedPart]] = {
    parts.PrivateThreshold: functools.partial(
      threshold, **{"num_bins": args.num_bins} if is_tree else {}
    ),
    parts.UpdateSum: functools.partial(
      parts.UpdateSum, num_parameters=args.num_parameters, clip_norm=clip_norm
    ),
  }
  return releases.Release(
    cohort=cohort,
    parts=tuple(kinds.get(kind, kind)(**fields[kind]) for kind in parts.kinds() if kind in fields),
    coefficients=_coefficients(args, cohort),  # It takes long, and the flags are checked by now.
    noise=cohorts.source(args.noise_shares, args.contacted_clients),
    relation=args.relation,
  )


def calibrated(args: argparse.Namespace, num_rounds: int, delta: float) -> releases.Release:
  """Returns the release that the flags of `calibrate` ask for."""
  ratios: dict[Any, Any] = {
    kind: getattr(args, kind.share_flag) for kind in parts.kinds() if kind.share_flag
  }
  is_alone = args.rho_ratio == math.inf
  if is_alone:
    ratios[parts.PrivateThreshold] = 1.0
  fields: dict[Any, dict[str, Any]] = {
    kind: {"share": checks.scale(kind.share_flag, ratio)} for kind, ratio in ratios.items() if ratio
  }
  for kind in fields if is_alone else ():
    if kind is not parts.PrivateThreshold:
      raise ValueError(
        f"Found {kind.share_flag} = {ratios[kind]:g} without weights; expected a finite rho_ratio."
      )
  if not is_alone:
    fields[parts.UpdateSum] = {}
  return calibration.calibrate(
    _release(args, fields), args.epsilon, delta, num_rounds, args.accounting
  )


def noisy(args: argparse.Namespace) -> releases.Release:
  """Returns the release with the noise of the flags of `spend`."""
  noise: dict[Any, Any] = {kind: getattr(args, kind.flag) for kind in parts.kinds()}
  fields = {kind: {"noise_multiplier": z} for kind, z in noise.items() if z is not None}
  return _release(args, fields)
