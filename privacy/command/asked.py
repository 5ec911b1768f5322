"""Reads a release from the flags of `calibrate` and `spend`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
import math
import os
import pathlib
from typing import Any

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import banded
from privacy.noise import shares
from privacy.noise import tree_mechanism

# Coefficients of noise that is correlated over so many rounds take up to a minute.
_MOST_BANDED = 20_000

MOST_ROUNDS = 10**9  # `calibrate` takes some ten seconds for so many.


def whole(name: str, value: float) -> int:
  """Returns a flag's number as an int; raises a `ValueError` if it is not whole."""
  if not (math.isfinite(value) and value == int(value)):
    raise ValueError(f"Found --{name}={value:g}; expected a whole number.")
  return int(value)


def rounds(value: float) -> int:
  """Returns --num_rounds as an int; a `ValueError` if it is not whole or too large."""
  number = whole("num_rounds", value)
  if number > MOST_ROUNDS:
    raise ValueError(
      f"Found --num_rounds={value:g}; expected at most {MOST_ROUNDS:g}: no run has more, and their"
      " accounting takes minutes to hours."
    )
  return number


def optional_whole(args: argparse.Namespace, name: str) -> int | None:
  """Returns `whole` of a flag that may be missing."""
  value = getattr(args, name)
  return None if value is None else whole(name, value)


def refuse(args: argparse.Namespace, flag: str, others: Sequence[str]) -> None:
  """Raises a `ValueError` if other flags stand beside one with which they mean nothing."""
  wrong = [name for name in others if getattr(args, name, None) is not None]
  if wrong:
    raise ValueError(f"Found --{wrong[0]} with {flag}; expected one of them.")


def delta_of(args: argparse.Namespace) -> float:
  """Returns --delta, or its default for the population."""
  if args.delta is None:
    return accounting.default_delta(args.population)
  return checks.fraction("delta", args.delta)


def _coefficients(args: argparse.Namespace, cohort: cohorts.Cohort) -> tuple[float, ...]:
  """Returns those of the noise over rounds that the flags ask for, best for these rounds."""
  bands = optional_whole(args, "bands")
  if not isinstance(cohort, cohorts.Known):
    for name in ("bands", "coefficients"):
      if getattr(args, name) is not None:
        raise ValueError(
          f"Found --{name}={getattr(args, name)} with --sampling={args.sampling}; noise is"
          f" correlated over rounds with {cohorts.known()} cohorts."
        )
    return banded.INDEPENDENT
  if args.coefficients is not None:
    refuse(args, "--coefficients", ("bands",))
    return banded.checked(_numbers(args.coefficients))
  num_rounds = whole("num_rounds", args.num_rounds)
  if not 1 <= num_rounds <= _MOST_BANDED:
    raise ValueError(
      f"Found --num_rounds={num_rounds} with --sampling={args.sampling}; expected 1 to"
      f" {_MOST_BANDED}, for which coefficients are found in a minute."
    )
  participation = banded.Participation(num_rounds, cohort.separation)
  return banded.checked(banded.optimal(participation.bands(bands), participation))


def _numbers(text: str) -> list[float]:
  """Returns the numbers of --coefficients, or of the file that it names."""
  if os.path.isfile(text):
    text = pathlib.Path(text).read_text(encoding="utf-8", errors="replace")
  try:
    return [float(one) for one in text.replace(",", " ").split()]
  except ValueError:
    raise ValueError(
      f"Found --coefficients={text[:50]}; expected numbers with commas between them, or a file of"
      " numbers."
    ) from None


def _release(
  args: argparse.Namespace,
  threshold: dict[str, Any] | None,
  updates: dict[str, Any] | None,
  numbers: Iterable[parts.ReleasedPart],
) -> releases.Release:
  """Returns the release that the flags ask for.

  `threshold` and `updates` are the fields of these parts that are no flags; None for no such part.
  """
  if 0.0 < args.clients_per_round < 1.0:
    q, n = args.clients_per_round, args.population
    raise ValueError(
      f"Found --clients_per_round={q:g}, a number of clients below 1; expected how many clients a"
      f" round has: a sampling rate of q = {q:g} means --clients_per_round={q * n:g}."
    )
  own = {name: optional_whole(args, name) for name in cohorts.own_flags()}
  cohort = cohorts.of(args.sampling, args.population, args.clients_per_round, **own)
  return releases.Release(
    cohort=cohort,
    parts=(*_threshold(args, threshold), *_updates(args, updates), *numbers),
    coefficients=_coefficients(args, cohort),  # It takes long, and the flags are checked by now.
    noise=cohorts.source(args.noise_shares, args.contacted_clients),
    relation=args.relation,
  )


def _threshold(
  args: argparse.Namespace, fields: dict[str, Any] | None
) -> Iterator[parts.ReleasedPart]:
  """Yields the threshold that the flags ask for, if they do."""
  kind = parts.private_kinds()[args.threshold]
  num_bins = optional_whole(args, "num_bins")
  if num_bins is not None and (fields is None or kind is not parts.Tree):
    raise ValueError(
      "Found num_bins without a tree threshold; expected a threshold with a budget, and the tree."
    )
  if fields is not None:
    yield parts.Tree(num_bins=num_bins, **fields) if kind is parts.Tree else kind(**fields)


def _updates(
  args: argparse.Namespace, fields: dict[str, Any] | None
) -> Iterator[parts.ReleasedPart]:
  """Yields the sum of updates that the flags ask for, with noise from the clients or without."""
  num_parameters = optional_whole(args, "num_parameters")
  distributed = args.update_sum == "distributed"
  if distributed != (num_parameters is not None):
    raise ValueError(
      f"Found --update_sum={args.update_sum} {'without' if distributed else 'with'}"
      " --num_parameters; expected the number of parameters of the model with distributed alone."
    )
  if fields is None and distributed:
    raise ValueError("Found a sum of updates without update_noise_multiplier; expected both.")
  if fields is not None:
    clip_norm = 1.0 if args.clip_norm is None else args.clip_norm
    yield parts.UpdateSum(num_parameters=num_parameters, clip_norm=clip_norm, **fields)


def calibrated(args: argparse.Namespace, delta: float) -> releases.Release:
  """Returns the release that the flags of `calibrate` ask for."""
  threshold, is_alone = None, args.rho_ratio == math.inf
  if args.rho_ratio:
    threshold = dict(share=checks.scale("rho_ratio", 1.0 if is_alone else args.rho_ratio))
  shares_of_numbers = {kind: getattr(args, kind.share_flag) for kind in parts.numbers()}
  numbers = [
    kind(share=checks.scale(kind.share_flag, share))
    for kind, share in shares_of_numbers.items()
    if share
  ]
  if numbers and is_alone:
    raise ValueError(
      f"Found {numbers[0].share_flag} = {numbers[0].share:g} without weights; expected a finite"
      " rho_ratio."
    )
  release = _release(args, threshold, None if is_alone else {}, numbers)
  num_rounds = rounds(args.num_rounds)
  return calibration.calibrate(release, args.epsilon, delta, num_rounds, args.accounting)


def noisy(args: argparse.Namespace) -> releases.Release:
  """Returns the release with the noise of the flags of `spend`."""
  z_q, z_w = args.threshold_noise_multiplier, args.update_noise_multiplier
  noise = {kind: getattr(args, kind.flag) for kind in parts.numbers()}
  num_bins, scale = optional_whole(args, "num_bins"), optional_whole(args, "scale")
  if args.sigma_update is not None:
    if z_w is not None or args.clip_norm is None:
      raise ValueError(
        "Found --sigma_update with --update_noise_multiplier or without --clip_norm; expected"
        " --sigma_update and --clip_norm, or the multiplier."
      )
    z_w = args.sigma_update / args.clip_norm
  if args.sigma_threshold is not None:
    if z_q is not None or scale is None or num_bins is None:
      raise ValueError(
        "Found --sigma_threshold with --threshold_noise_multiplier or without --scale and"
        " --num_bins; expected --sigma_threshold, --scale and --num_bins, or the multiplier."
      )
    if scale < 1:
      raise ValueError(f"Found --scale={scale}; expected a whole number of at least 1.")
    levels = tree_mechanism.check_num_bins(num_bins).bit_length() - 1
    z_q = shares.delivered_noise_multiplier(args.sigma_threshold, scale * math.sqrt(levels), 1)
  if num_bins is None and scale is not None:
    raise ValueError("Found --scale without --num_bins; expected both or neither.")
  scaled = {} if scale is None else dict(scale=scale)
  return _release(
    args,
    None if z_q is None else dict(noise_multiplier=z_q, **scaled),
    None if z_w is None else dict(noise_multiplier=z_w),
    (kind(noise_multiplier=z) for kind, z in noise.items() if z is not None),
  )
