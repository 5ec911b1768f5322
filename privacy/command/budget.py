"""Computes the answers of `calibrate` and `spend`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from privacy import accounting
from privacy import checks
from privacy import releases
from privacy import server as server_lib
from privacy import statements
from privacy.command import answers
from privacy.command import asked

_PLOT_POINTS = 40
# Entries of an answer that are attributes of the release, and of its tree.
_OF_RELEASE = (
  "population",
  "clients_per_round",
  "sampling",
  "sampling_probability",
  "relation",
  "neighboring_relation",
  "effective_noise_multiplier",
  "threshold_noise_multiplier",
  "update_noise_multiplier",
)
_OF_TREE = ("num_bins", "scale", "local_stddev", "modulus", "bits_per_entry", "bits_per_client")


def answer(args: argparse.Namespace) -> answers.BudgetAnswer:
  """Returns the answer of `calibrate` or `spend`.

  Args:
    args: The parsed flags.

  Raises:
    ValueError: If the flags contradict each other, or no release fulfils them.
  """
  if args.clip_norm is not None:
    checks.scale("--clip_norm", args.clip_norm)
  num_rounds = asked.rounds(args.num_rounds)
  delta = asked.delta_of(args)
  release = (asked.calibrated if args.command == "calibrate" else asked.given)(args, delta)
  z_q, z_w, z_b = release.noise_multipliers
  warning = accounting.delta_warning(delta, release.population)
  optional: dict[str, Any] = {}
  if args.command == "calibrate":
    optional["target_epsilon"] = args.epsilon
  elif args.plot:
    optional["plot"] = args.plot
  if args.clip_norm is not None:
    optional["clip_norm"] = args.clip_norm
    optional["sigma_update"] = None if z_w is None else z_w * args.clip_norm
  if z_b is not None:
    optional["clip_count_noise_multiplier"] = z_b
  found = answers.BudgetAnswer(
    command=args.command,
    accounting=args.accounting,
    is_guarantee=True,
    num_rounds=num_rounds,
    delta=delta,
    threshold=None if z_q is None else release.threshold_kind,
    **_entries(release, _OF_RELEASE),
    **_costs(release, num_rounds, delta, args),
    **_noise_of_clients(release),
    **optional,
    guarantee=statements.guarantee(release),
    warnings=[] if warning is None else [warning],
  )
  if "plot" in optional:
    _plot(args.plot, release, num_rounds, delta)
  return found


def _entries(source: Any, names: Sequence[str]) -> dict[str, Any]:
  """Returns the attributes of an object with these names."""
  return {name: getattr(source, name) for name in names}


def _costs(
  release: releases.Release, num_rounds: int, delta: float, args: argparse.Namespace
) -> dict[str, Any]:
  """Returns the epsilons of an answer."""
  participations = asked.optional_whole("participations", args.participations)
  one = min(1, num_rounds)
  spent = accounting.epsilon(release, num_rounds, delta, args.accounting)
  found: dict[str, Any] = dict(
    epsilon=spent.epsilon,
    epsilon_one_round=accounting.epsilon(release, one, delta, args.accounting).epsilon,
    accountant=spent.accountant,
    epsilon_rdp=accounting.epsilon_or_none(release, num_rounds, delta, accounting.RDP),
    rdp_order=spent.rdp_order,
    epsilon_pld=accounting.epsilon_or_none(release, num_rounds, delta, accounting.PLD),
  )
  server = server_lib.server_epsilon(release, num_rounds, delta, participations)
  server_one = server_lib.server_epsilon(release, one, delta, min(1, server.participations))
  found.update(
    epsilon_server=server.epsilon,
    epsilon_server_one_round=server_one.epsilon,
    server_participations=server.participations,
    server=server.explanation,
  )
  return found


def _noise_of_clients(release: releases.Release) -> dict[str, Any]:
  """Returns the entries on the noise of clients, if they make any."""
  found: dict[str, Any] = {}
  if release.num_shares is not None:
    found.update(noise_shares=release.protocol, num_shares=release.num_shares)
  if release.contacted is not None:
    found["contacted_clients"] = release.contacted
  if release.tree is not None:
    found.update(_entries(release.tree, _OF_TREE))
    found["sigma_threshold"] = release.tree.local_stddev * math.sqrt(release.tree.num_shares)
  if release.update_sum is not None:
    found["num_parameters"] = release.update_sum.num_entries
    found["bits_per_update"] = release.update_sum.bits_per_client
  return found


def _plot(path: str, release: releases.Release, num_rounds: int, delta: float) -> None:
  """Draws epsilon against rounds."""
  if num_rounds < 1:
    raise ValueError(f"Found --num_rounds={num_rounds} with --plot; expected at least 1.")
  try:
    import matplotlib  # Its import is slow, and only this function needs it.
  except ImportError:
    raise ValueError(
      "Found no matplotlib with --plot; expected it: pip install matplotlib"
    ) from None

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  points = min(num_rounds, _PLOT_POINTS)
  rounds = sorted({max(1, round(num_rounds * (i + 1) / points)) for i in range(points)})
  meter = accounting.Meter(release, delta)
  figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
  axes.plot(rounds, [meter.epsilon(t) for t in rounds], label="observer of the models")
  server = [server_lib.server_epsilon(release, t, delta).epsilon for t in rounds]
  if None not in server:
    axes.plot(rounds, np.array(server, float), "--", label="aggregation server")
  axes.set(
    xlabel="rounds", ylabel=f"epsilon at delta = {delta:.3g}", xlim=(0, None), ylim=(0, None)
  )
  axes.set_title(release.neighboring_relation.split(" (")[0] + f", {release.sampling} sampling")
  axes.grid(alpha=0.3)
  axes.legend()
  try:
    figure.savefig(path, dpi=150)
  except (OSError, ValueError) as error:
    raise ValueError(
      f"Found --plot={path}, which cannot be written ({error}); expected a .png, .svg or .pdf file"
      " in a folder that exists."
    ) from None
  finally:
    plt.close(figure)
