"""Reads a release from the flags of `calibrate` and `spend`."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import releases
from privacy.noise import shares
from privacy.noise import tree_mechanism

MOST_ROUNDS = 10**9  # `calibrate` takes some ten seconds for so many.


def whole(name: str, value: float) -> int:
  """Returns a flag's number as an int; raises a `ValueError` if it is not whole."""
  if not (math.isfinite(value) and value == int(value)):
    raise ValueError(f"Found --{name}={value:g}; expected a whole number.")
  return int(value)


def rounds(value: float) -> int:
  """Returns --num_rounds as an int; a `ValueError` if it is not whole or too large."""
  found = whole("num_rounds", value)
  if found > MOST_ROUNDS:
    raise ValueError(
      f"Found --num_rounds={value:g}; expected at most {MOST_ROUNDS:g}: no run has more, and their"
      " accounting takes minutes to hours."
    )
  return found


def optional_whole(name: str, value: float | None) -> int | None:
  """Returns `whole` of a flag that may be missing."""
  return None if value is None else whole(name, value)


def delta_of(args: argparse.Namespace) -> float:
  """Returns --delta, or its default for the population."""
  if args.delta is None:
    return accounting.default_delta(args.population)
  return checks.fraction("delta", args.delta)


def _protection(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the fields of a release on sampling, neighbours and the sources of noise."""
  return dict(
    sampling=args.sampling,
    threshold_kind=args.threshold,
    relation=args.relation,
    protocol=args.noise_shares,
    contacted=args.contacted_clients,
  )


def calibrated(args: argparse.Namespace, delta: float) -> releases.Release:
  """Returns the release that the flags of `calibrate` ask for."""
  return calibration.calibrate(
    args.epsilon,
    delta,
    population=args.population,
    clients_per_round=args.clients_per_round,
    num_rounds=rounds(args.num_rounds),
    rho_ratio=args.rho_ratio,
    clip_rho_ratio=args.clip_rho_ratio,
    num_bins=optional_whole("num_bins", args.num_bins),
    accountant=args.accounting,
    **_protection(args),
    **_distributed(args),
  )


def _distributed(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the arguments of `calibration.complete` for updates with noise from the clients."""
  num_parameters = optional_whole("num_parameters", args.num_parameters)
  distributed = args.update_sum == "distributed"
  if distributed != (num_parameters is not None):
    raise ValueError(
      f"Found --update_sum={args.update_sum} {'without' if distributed else 'with'}"
      " --num_parameters; expected the number of parameters of the model with distributed alone."
    )
  return dict(
    distributed_updates=distributed,
    num_parameters=num_parameters,
    clip_norm=1.0 if args.clip_norm is None else args.clip_norm,
  )


def given(args: argparse.Namespace, delta: float) -> releases.Release:
  """Returns the release with the noise of the flags of `spend`."""
  z_q, z_w = args.threshold_noise_multiplier, args.update_noise_multiplier
  num_bins = optional_whole("num_bins", args.num_bins)
  scale = optional_whole("scale", args.scale)
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
  release = releases.Release(
    args.population,
    args.clients_per_round,
    z_q,
    z_w,
    **_protection(args),
    clip_count_noise_multiplier=args.clip_count_noise_multiplier,
  )
  if num_bins is None and scale is not None:
    raise ValueError("Found --scale without --num_bins; expected both or neither.")
  release = calibration.complete(release, num_bins=num_bins, **_distributed(args))
  if scale is not None and num_bins is not None:
    tree = calibration.tree_for(release, num_bins, scale)
    release = dataclasses.replace(release, tree=tree)
  return release
