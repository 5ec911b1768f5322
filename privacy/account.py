"""Privacy budgets on the command line.

    python privacy/account.py calibrate --epsilon=3 --delta=4e-4 --population=2500 \
        --clients_per_round=100 --num_rounds=1000 --rho_ratio=0.5 --num_bins=64 --clip_norm=1.3
    python privacy/account.py spend --threshold_noise_multiplier=3 --update_noise_multiplier=2 \
        --population=2500 --clients_per_round=100 --num_rounds=1000
    python privacy/account.py audit results/synthetic/superquantile_theta_0.5/seed_0

`calibrate` finds the noise for a budget, `spend` the cost of a run, and `audit` checks the claim in
a run's folder. Each answer explains its numbers; `--json` is for programs. The exit code is 0, or 1
if an audited claim does not hold, or 2 for a mistake in the flags or a bad folder. The module needs
no TensorFlow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import math
import os
import pathlib
import sys
from typing import Any, Optional, Union

if not __package__:
  # As a script it finds the package from any directory, and not its modules by themselves.
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from privacy import accounting
from privacy import answers
from privacy import audit
from privacy import calibration
from privacy import checks
from privacy import flags
from privacy import ledger
from privacy import paper
from privacy import releases
from privacy import server as server_lib
from privacy import shares
from privacy import statements
from privacy import tree_mechanism

SUCCESS = 0
CLAIM_FAILS = 1
USAGE_ERROR = 2
_INTERRUPTED = 130

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


def _whole(name: str, value: float) -> int:
  if not (math.isfinite(value) and value == int(value)):
    raise ValueError(f"Found --{name}={value:g}; expected a whole number.")
  return int(value)


def _optional_whole(name: str, value: Optional[float]) -> Optional[int]:
  return None if value is None else _whole(name, value)


def _sampling(args: argparse.Namespace) -> str:
  if args.sampling is not None:
    return args.sampling
  paper = args.accounting == ledger.PAPER and args.command == "calibrate"
  return releases.FIXED_SIZE if paper else releases.POISSON


def _delta(args: argparse.Namespace) -> float:
  if args.delta is None:
    return accounting.default_delta(args.population)
  return checks.fraction("delta", args.delta)


def _protection(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the fields of a release on neighbours and on the sources of noise."""
  return dict(
    threshold_kind=args.threshold,
    relation=args.relation,
    protocol=args.noise_shares,
    contacted=args.contacted_clients,
  )


def _calibrated(args: argparse.Namespace, delta: float) -> releases.Release:
  """Returns the release that the flags of `calibrate` ask for."""
  target: dict[str, Any] = dict(
    population=args.population,
    clients_per_round=args.clients_per_round,
    num_rounds=_whole("num_rounds", args.num_rounds),
    rho_ratio=args.rho_ratio,
    num_bins=_optional_whole("num_bins", args.num_bins),
    sampling=_sampling(args),
  )
  if args.accounting != ledger.PAPER:
    target.update(**_protection(args), **_distributed(args), accountant=args.accounting)
    return calibration.calibrate(args.epsilon, delta, **target)
  if args.threshold != releases.TREE:
    raise ValueError("Found --threshold=geometric; expected tree, the paper's only threshold.")
  return paper.calibrate(args.epsilon, delta, **target)


def _distributed(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the arguments of `calibration.complete` for updates with noise from the clients."""
  num_parameters = _optional_whole("num_parameters", args.num_parameters)
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


def _given(args: argparse.Namespace, delta: float) -> releases.Release:
  """Returns the release with the noise of the flags of `spend`."""
  z_q, z_w = args.threshold_noise_multiplier, args.update_noise_multiplier
  num_bins = _optional_whole("num_bins", args.num_bins)
  scale = _optional_whole("scale", args.scale)
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
    args.population, args.clients_per_round, z_q, z_w, _sampling(args), **_protection(args)
  )
  if num_bins is None and scale is not None:
    raise ValueError("Found --scale without --num_bins; expected both or neither.")
  release = calibration.complete(release, num_bins=num_bins, **_distributed(args))
  if scale is not None and num_bins is not None:
    tree = calibration.tree_for(release, num_bins, scale)
    release = dataclasses.replace(release, tree=tree)
  return release


def _budget_answer(args: argparse.Namespace) -> answers.BudgetAnswer:
  """Returns the answer of `calibrate` or `spend`."""
  if args.clip_norm is not None:
    checks.scale("--clip_norm", args.clip_norm)
  num_rounds = _whole("num_rounds", args.num_rounds)
  delta = _delta(args)
  release = (_calibrated if args.command == "calibrate" else _given)(args, delta)
  z_q, z_w = release.noise_multipliers
  is_paper = args.accounting == ledger.PAPER
  caveat = statements.paper_caveat(release, num_rounds, delta) if is_paper else []
  warning = accounting.delta_warning(delta, release.population)
  optional: dict[str, Any] = {}
  if args.command == "calibrate":
    optional["target_epsilon"] = args.epsilon
  elif args.plot:
    optional["plot"] = args.plot
  if args.clip_norm is not None:
    optional["clip_norm"] = args.clip_norm
    optional["sigma_update"] = None if z_w is None else z_w * args.clip_norm
  answer = answers.BudgetAnswer(
    command=args.command,
    accounting=args.accounting,
    is_guarantee=not is_paper,
    num_rounds=num_rounds,
    delta=delta,
    threshold=None if z_q is None else release.threshold_kind,
    **_entries(release, _OF_RELEASE),
    **_costs(release, num_rounds, delta, args),
    **_noise_of_clients(release),
    **optional,
    guarantee=caveat + statements.guarantee(release),
    warnings=[] if warning is None else [warning],
  )
  if "plot" in optional:
    _plot(args.plot, release, num_rounds, delta)
  return answer


def _entries(source: Any, names: Sequence[str]) -> dict[str, Any]:
  """Returns the attributes of an object with these names."""
  return {name: getattr(source, name) for name in names}


def _costs(
  release: releases.Release, num_rounds: int, delta: float, args: argparse.Namespace
) -> dict[str, Any]:
  """Returns the epsilons of an answer."""
  participations = _optional_whole("participations", args.participations)
  is_paper = args.accounting == ledger.PAPER
  accountant = accounting.TIGHTEST if is_paper else args.accounting
  one = min(1, num_rounds)
  spent = accounting.epsilon(release, num_rounds, delta, accountant)
  found: dict[str, Any] = dict(
    epsilon=ledger.spent(release, num_rounds, delta, args.accounting),
    epsilon_one_round=ledger.spent(release, one, delta, args.accounting),
    accountant=spent.accountant,
    epsilon_rdp=accounting.epsilon_or_none(release, num_rounds, delta, accounting.RDP),
    rdp_order=spent.rdp_order,
    epsilon_pld=accounting.epsilon_or_none(release, num_rounds, delta, accounting.PLD),
  )
  if is_paper:
    real = paper.real_cost(release, num_rounds, delta)
    found.update((f"epsilon_real_{name}", cost) for name, cost in vars(real).items())
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
  import matplotlib  # Its import is slow, and only this function needs it.

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  points = min(num_rounds, _PLOT_POINTS)
  rounds = sorted({max(1, round(num_rounds * (i + 1) / points)) for i in range(points)})
  meter = accounting.Meter(release, delta)
  figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
  axes.plot(rounds, [meter.epsilon(t) for t in rounds], label="observer of the models")
  server = [server_lib.server_epsilon(release, t, delta).epsilon for t in rounds]
  if None not in server:
    axes.plot(rounds, server, "--", label="aggregation server")
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


def _run(argv: Optional[Sequence[str]]) -> tuple[str, int]:
  """Returns the text to print, and the exit code."""
  args = flags.make_parser().parse_args(argv)
  code = SUCCESS
  answer: Union[answers.AuditAnswer, answers.BudgetAnswer]
  if args.command == "audit":
    found = audit.audit_folder(args.folder)
    answer = answers.AuditAnswer.of(found, os.fspath(args.folder))
    code = SUCCESS if found.holds else CLAIM_FAILS
  else:
    answer = _budget_answer(args)
  return answer.to_json() if args.json else answer.to_text(), code


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the command.

  Args:
    argv: Its arguments without its name; None for the process's.

  Returns:
    The exit code.
  """
  try:
    text, code = _run(argv)
  except ValueError as error:
    print(f"Error: {error}", file=sys.stderr, flush=True)
    return USAGE_ERROR
  except KeyboardInterrupt:
    return _INTERRUPTED
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # The reader has closed the pipe. Without this, Python would complain again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return code


if __name__ == "__main__":
  sys.exit(main())
