"""Computes the answers of `calibrate` and `spend`."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from privacy import accounting
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy import server as server_lib
from privacy import statements
from privacy.command import answers
from privacy.command import asked
from privacy.command import flags
from privacy.noise import banded

_PLOT_POINTS = 40
# Entries of an answer that are those of the release's ledger, and attributes of its tree.
_OF_LEDGER = (
  "population",
  "clients_per_round",
  "sampling",
  "relation",
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
  missing = [f"--{name}" for name in flags.OF_RUN if getattr(args, name) is None]
  if missing:
    raise ValueError(f"Found no {', '.join(missing)}; expected it (--help lists them).")
  num_rounds = asked.rounds(args.num_rounds)
  delta = asked.delta_of(args)
  release = (asked.calibrated if args.command == "calibrate" else asked.given)(args, delta)
  entries = release.entries()
  z_w = entries[parts.UpdateSum.flag]
  threshold = release.find(parts.Threshold)
  warning = accounting.delta_warning(delta, release.cohort.population)
  optional: dict[str, Any] = {}
  if args.command == "calibrate":
    optional["target_epsilon"] = args.epsilon
  elif args.plot:
    optional["plot"] = args.plot
  if args.clip_norm is not None:
    optional["clip_norm"] = args.clip_norm
    optional["sigma_update"] = None if z_w is None else z_w * args.clip_norm
  found = answers.BudgetAnswer(
    command=args.command,
    accounting=args.accounting,
    is_guarantee=True,
    num_rounds=num_rounds,
    delta=delta,
    threshold=None if threshold is None else threshold.kind,
    sampling_probability=release.cohort.probability,
    neighboring_relation=release.neighboring_relation,
    effective_noise_multiplier=release.effective_noise_multiplier,
    noise=answers.Noise.of(release),
    **{name: entries[name] for name in _OF_LEDGER},
    **_costs(release, num_rounds, delta, args),
    **_noise_of_clients(release),
    **_over_rounds(release, num_rounds),
    **optional,
    guarantee=statements.guarantee(release),
    not_covered=statements.not_covered(release),
    warnings=[] if warning is None else [warning],
  )
  if "plot" in optional:
    _plot(args.plot, release, num_rounds, delta)
  return found


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
  rho = _rho(release, num_rounds)
  if rho is not None:
    found["rho"] = rho
  server = server_lib.server_epsilon(release, num_rounds, delta, participations)
  server_one = server_lib.server_epsilon(release, one, delta, min(1, server.participations))
  found.update(
    epsilon_server=server.epsilon,
    epsilon_server_one_round=server_one.epsilon,
    server_participations=server.participations,
    server=server.explanation,
  )
  return found


def _rho(release: releases.Release, num_rounds: int) -> float | None:
  """Returns rho of zCDP of a run that samples nobody and whose noise is the server's."""
  if release.cohort.probability < 1.0 or release.num_shares is not None or not num_rounds:
    return None
  if isinstance(release.cohort, cohorts.Known):
    return release.norm_of_run(num_rounds) ** 2 / 2.0
  pair = release.gaussian(1.0)
  return num_rounds * (pair.replaced if pair.replace_one else pair.removed) ** 2 / 2.0


def _noise_of_clients(release: releases.Release) -> dict[str, Any]:
  """Returns the entries on the noise of clients, if they make any."""
  found: dict[str, Any] = {}
  if release.num_shares is not None:
    found.update(noise_shares=release.noise.protocol, num_shares=release.num_shares)
  if release.has_coin:
    found["contacted_clients"] = release.contacted
  entries = release.entries()
  tree, summed = entries["tree"], entries["update_sum"]
  if tree is not None:
    found.update({name: getattr(tree, name) for name in _OF_TREE})
    found["sigma_threshold"] = tree.local_stddev * math.sqrt(tree.num_shares)
  if summed is not None:
    found.update(num_parameters=summed.num_entries, bits_per_update=summed.bits_per_client)
  return found


def _over_rounds(release: releases.Release, num_rounds: int) -> dict[str, Any]:
  """Returns the entries on noise over rounds, if cohorts are known."""
  cohort, c = release.cohort, release.coefficients
  if not isinstance(cohort, cohorts.Known):
    return {}
  participation = banded.Participation(num_rounds, cohort.separation)
  found: dict[str, Any] = dict(
    bands=len(c),
    separation=cohort.separation,
    participations=int(participation.earliest.sum()),
    sensitivity=banded.sensitivity(c, participation),
  )
  updates = release.find(parts.UpdateSum)
  if updates is not None:
    found["running_sums_noise"] = updates.z * banded.error(c, num_rounds)
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
  meter = accounting.Accountant(release, delta)
  figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
  axes.plot(rounds, [meter.epsilon(t) for t in rounds], label="observer of the models")
  server = [server_lib.server_epsilon(release, t, delta).epsilon for t in rounds]
  if None not in server:
    axes.plot(rounds, np.array(server, float), "--", label="aggregation server")
  axes.set(
    xlabel="rounds", ylabel=f"epsilon at delta = {delta:.3g}", xlim=(0, None), ylim=(0, None)
  )
  axes.set_title(
    release.neighboring_relation.split(" (")[0] + f", {release.cohort.sampling} sampling"
  )
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
