"""Computes the answers of `calibrate` and `spend`."""

from __future__ import annotations

import argparse
from typing import Any

from privacy import accounting
from privacy import checks
from privacy import parts
from privacy import releases
from privacy import server as server_lib
from privacy import statements
from privacy.command import answers
from privacy.command import asked
from privacy.command import flags
from privacy.noise import banded


def answer(args: argparse.Namespace) -> answers.CommandAnswer:
  """Returns the answer of `calibrate` or `spend`, or raises a `ValueError`: there is none."""
  if args.clip_norm is not None:
    checks.scale("--clip_norm", args.clip_norm)
  missing = [f"--{name}" for name in flags.OF_RUN if getattr(args, name) is None]
  if missing:
    raise ValueError(f"Found no {', '.join(missing)}; expected it (--help lists them).")
  num_rounds = asked.rounds(args.num_rounds)
  delta = asked.delta_of(args)
  release = (
    asked.calibrated(args, num_rounds, delta) if args.command == "calibrate" else asked.noisy(args)
  )
  values = _values(args, release, num_rounds, delta)
  return answers.CommandAnswer(values, _lines(values))


def _values(
  args: argparse.Namespace, release: releases.Release, num_rounds: int, delta: float
) -> dict[str, Any]:
  cohort, threshold = release.cohort, release.find(parts.PrivateThreshold)
  warning = accounting.delta_warning(delta, cohort.population)
  values = dict[str, Any](
    command=args.command,
    accounting=args.accounting,
    population=cohort.population,
    clients_per_round=cohort.expected,
    num_rounds=num_rounds,
    delta=delta,
    sampling=cohort.sampling,
    sampling_probability=cohort.probability,
    relation=release.relation,
    neighboring_relation=release.neighboring_relation,
    threshold=None if threshold is None else threshold.kind,
    effective_noise_multiplier=release.effective_noise_multiplier,
    **answers.noise_multipliers(release),
    **_over_rounds(release, num_rounds),
  )
  if args.command == "calibrate":
    values["target_epsilon"] = args.epsilon
  if args.clip_norm is not None:
    z_w = values[parts.UpdateSum.flag]
    values["clip_norm"] = args.clip_norm
    values["sigma_update"] = None if z_w is None else z_w * args.clip_norm
  values |= _costs(release, num_rounds, delta, args) | _noise_of_clients(release)
  return values | dict(
    guarantee=list(statements.guarantee(release).values()),
    not_covered=list(statements.not_covered(release).values()),
    warnings=[] if warning is None else [warning],
  )


def _lines(values: dict[str, Any]) -> list[str]:
  """Returns the answer for people."""
  run = "{num_rounds} rounds of {clients_per_round:g} of {population} clients".format(**values)
  delta = answers.as_delta(values["delta"])
  cost = f"epsilon = {answers.as_text(values['epsilon'])} at delta = {delta}"
  first = f"{cost} for {run}."
  if "target_epsilon" in values:
    noise = ((kind.symbol, values.get(kind.flag)) for kind in parts.kinds())
    words = ", ".join(f"{symbol} = {z:.5g}" for symbol, z in noise if z is not None)
    first = f"{words} for {cost} in {run}."
  return [
    first,
    *answers.paragraphs("Warning:", values["warnings"])[1:],
    *_epsilon_rows(values),
    *answers.rows(values, "epsilon_one_round", "rho", "epsilon_server", "epsilon_server_one_round"),
    "",
    *answers.noise_rows(values),
    *answers.rows(values, "sigma_update", "scale", "local_stddev", "bands", "separation"),
    *answers.rows(values, "participations", "sensitivity", "running_sums_noise"),
    *answers.rows(values, "bits_per_client", "bits_per_update", "num_shares"),
    *answers.explanations(values),
  ]


def _epsilon_rows(values: dict[str, Any]) -> list[str]:
  """Returns the rows of epsilon and of its bounds by other accountants."""
  by, beside = "by PLD", ["epsilon_rdp"]
  if values["accountant"] == accounting.GAUSSIAN:
    by, beside = "one Gaussian mechanism", []
  elif values["accountant"] == accounting.RDP:
    by, beside = "by RDP", ["epsilon_pld"]
    if values["rdp_order"] is not None:
      by += f", order {values['rdp_order']:g}"
  epsilon = answers.row("epsilon, all rounds", answers.as_text(values["epsilon"]), by)
  return [epsilon, *answers.rows(values, *beside)]


def _costs(
  release: releases.Release, num_rounds: int, delta: float, args: argparse.Namespace
) -> dict[str, Any]:
  """Returns the epsilons of an answer."""
  single = min(1, num_rounds)
  spent = accounting.epsilon(release, num_rounds, delta, args.accounting)
  server = server_lib.server_epsilon(release, num_rounds, delta, args.participations)
  server_one = server_lib.server_epsilon(release, single, delta, min(1, server.participations))
  rho = _rho(release, num_rounds)
  return dict(
    epsilon=spent.epsilon,
    epsilon_one_round=accounting.epsilon(release, single, delta, args.accounting).epsilon,
    accountant=spent.accountant,
    epsilon_rdp=accounting.epsilon_or_none(release, num_rounds, delta, accounting.RDP),
    rdp_order=spent.rdp_order,
    epsilon_pld=accounting.epsilon_or_none(release, num_rounds, delta, accounting.PLD),
    **({} if rho is None else {"rho": rho}),
    epsilon_server=server.epsilon,
    epsilon_server_one_round=server_one.epsilon,
    server_participations=server.participations,
    server=server.explanation,
  )


def _rho(release: releases.Release, num_rounds: int) -> float | None:
  """Returns rho of zCDP of a run that samples nobody and whose noise is the server's."""
  if release.cohort.probability < 1.0 or release.num_shares is not None or not num_rounds:
    return None
  if release.cohort.is_one_mechanism:
    return release.norm_of_run(num_rounds) ** 2 / 2.0
  return num_rounds * release.gaussian(1.0).distance ** 2 / 2.0


def _noise_of_clients(release: releases.Release) -> dict[str, Any]:
  """Returns the entries on the noise of clients, if they make any."""
  values: dict[str, Any] = {}
  if release.num_shares is not None:
    values |= dict(noise_shares=release.noise.protocol, num_shares=release.num_shares)
  if release.has_coin:
    values["contacted_clients"] = release.contacted
  entries = release.entries()
  tree, summed = entries["tree"], entries["update_sum"]
  if tree is not None:
    values |= dict(
      num_bins=tree.num_bins,
      scale=tree.scale,
      local_stddev=tree.local_stddev,
      bits_per_client=tree.bits_per_client,
    )
  if summed is not None:
    values |= dict(num_parameters=summed.num_entries, bits_per_update=summed.bits_per_client)
  return values


def _over_rounds(release: releases.Release, num_rounds: int) -> dict[str, Any]:
  """Returns the entries on a client's rounds, where no chance decides how many they are."""
  participation, c = release.cohort.participation(num_rounds), release.coefficients
  if release.cohort.rounds_vary or not release.cohort.is_sampled and participation is None:
    return {}
  if participation is None:
    return dict(participations=server_lib.likely_participations(release, num_rounds))
  entries: dict[str, Any] = dict(
    bands=len(c),
    separation=participation.separation,
    participations=int(participation.earliest.sum()),
    sensitivity=banded.sensitivity(c, participation),
  )
  updates = release.find(parts.UpdateSum)
  if updates is not None:
    entries["running_sums_noise"] = updates.z * banded.error(c, num_rounds)
  return entries
