"""Privacy budgets on the command line.

    python privacy/account.py calibrate --epsilon=3 --delta=4e-4 --population=2500 \
        --clients_per_round=100 --num_rounds=1000 --rho_ratio=0.5 --num_bins=64 --clip_norm=1.3
    python privacy/account.py spend --threshold_noise_multiplier=3 --update_noise_multiplier=2 \
        --population=2500 --clients_per_round=100 --num_rounds=1000
    python privacy/account.py audit results/synthetic/superquantile_theta_0.5/seed_0

`calibrate` answers which noise a budget asks for, `spend` what a run costs, `audit` whether the
claim in a run's folder holds. Each answer says what it is about; `--json` is for programs. The exit
code is 0, or 1 if an audited claim does not hold, or 2 for a mistake in the flags or a bad folder.
Needs no TensorFlow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import re
import sys
import textwrap
from typing import Any, NoReturn, Optional

if not __package__:
  # As a script: find the package, wherever it is called from, and not its modules by themselves.
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from privacy import accounting
from privacy import audit as audit_lib
from privacy import calibration
from privacy import checks
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

_WIDTH = 100
_LABEL_WIDTH = 34
_PLOT_POINTS = 40


class _Parser(argparse.ArgumentParser):
  """A parser whose mistakes are sentences like all others."""

  def error(self, message: str) -> NoReturn:
    raise ValueError(_as_sentence(message))


def _as_sentence(message: str) -> str:
  """argparse's message as "Found ...; expected ..."."""
  for pattern, sentence in (
    (
      r"argument (?P<a>[^:]+): invalid number value: '(?P<v>.*)'",
      "Found {a}={v}; expected a number",
    ),
    (
      r"argument (?P<a>[^:]+): invalid choice: '(?P<v>.*)' \(choose from (?P<c>.*)\)",
      "Found {a}={v}; expected one of {c}",
    ),
    (
      r"argument (?P<a>[^:]+): expected one argument",
      "Found {a} without a value; expected {a}=VALUE",
    ),
    (
      r"the following arguments are required: (?P<a>.*)",
      "Found no {a}; expected it",
    ),
    (
      r"unrecognized arguments: (?P<a>.*)",
      "Found {a} among the flags; expected only those that exist",
    ),
  ):
    match = re.fullmatch(pattern, message, re.DOTALL)
    if match:
      found = {name: value.replace("'", "") for name, value in match.groupdict().items()}
      return f"{sentence.format(**found)} (--help lists them)."
  return f"Found flags that cannot be read: {message} (--help lists them)."


def number(text: str) -> float:
  """A flag's number; argparse names this function in its message."""
  return float(text)


def _make_parser() -> _Parser:
  parser = _Parser(
    prog="account.py",
    description="Privacy budgets: the noise that one asks for, what a run costs, whether a claim"
    " holds.",
    epilog="`account.py COMMAND --help` lists a command's flags. Exit code: 0, or 1 if an audited"
    " claim does not hold, or 2 for a mistake in the flags or a bad folder.",
    allow_abbrev=False,
  )
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

  def command(name: str, text: str) -> _Parser:
    found = commands.add_parser(
      name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    found.add_argument("--json", action="store_true", help="print one JSON object")
    return found

  def flag(group: Any, name: str, text: str, metavar: str = "X", **kwargs: Any) -> None:
    group.add_argument(f"--{name}", type=number, metavar=metavar, help=text, **kwargs)

  def run_flags(found: _Parser) -> None:
    group = found.add_argument_group("the run")
    flag(group, "population", "n, how many clients there are", "N", required=True)
    flag(group, "clients_per_round", "m, the (expected) size of a cohort", "M", required=True)
    flag(group, "num_rounds", "T, how many rounds", "T", required=True)
    flag(
      group,
      "delta",
      "of (epsilon, delta)-differential privacy; by default 1e-5 or n^-1.1, whichever is smaller",
    )
    group.add_argument(
      "--sampling",
      choices=releases.SAMPLINGS,
      help="poisson: everybody takes part with probability m / n; fixed_size: m clients without"
      " replacement; none: as if all took part in all rounds. Default: poisson; with"
      " --accounting=paper calibrate, fixed_size",
    )
    group.add_argument(
      "--relation",
      choices=releases.RELATIONS,
      default=releases.ZERO_OUT,
      help="neighbouring data sets: one client's data removed, or replaced by any other (default:"
      " zero_out)",
    )
    group.add_argument(
      "--threshold",
      choices=releases.THRESHOLD_KINDS,
      default=releases.TREE,
      help="how the threshold is found: by a histogram or a one-bit count (default: tree)",
    )
    flag(group, "num_bins", "bins of the histogram, a power of two", "B")
    group.add_argument(
      "--update_sum",
      choices=("central", "distributed"),
      default="central",
      help="who makes the noise of the updates: the server, or the clients (default: central)",
    )
    flag(group, "num_parameters", "d, numbers in an update; for --update_sum=distributed", "D")
    group.add_argument(
      "--noise_shares",
      choices=shares.PROTOCOLS,
      default=shares.COMPLEMENT,
      help="where clients make noise, who makes what a cohort lacks: the server (complement), other"
      " clients (helpers), or more clients than add data, by a coin of their own (private_coin)"
      " (default: complement)",
    )
    flag(
      group,
      "contacted_clients",
      "for --noise_shares=private_coin: how many clients a round is expected to contact, of which M"
      " add data",
      "K",
    )
    flag(group, "clip_norm", "C, to which a client's update is clipped", "C")
    flag(
      group,
      "participations",
      "for epsilon against the server: in how many rounds a client takes part; by default so many"
      " that one client in a thousand takes part in more",
      "K",
    )
    group.add_argument(
      "--accounting",
      choices=ledger.ACCOUNTINGS,
      default=accounting.TIGHTEST,
      help="whose bound: the smaller of both (tightest), privacy loss distributions (pld), Renyi"
      " divergences (rdp), or the paper's formulas, NOT a guarantee (paper) (default: tightest)",
    )

  calibrate = command("calibrate", "the noise that a privacy budget asks for")
  run_flags(calibrate)
  budget = calibrate.add_argument_group("the budget")
  flag(budget, "epsilon", "of the whole run", required=True)
  flag(
    budget,
    "rho_ratio",
    "r, the budget of the threshold over that of the weights; by default there is no threshold,"
    " as in DP-FedAvg",
    "R",
  )

  spend = command("spend", "what a run costs")
  run_flags(spend)
  noise = spend.add_argument_group("the noise, of the weights, the threshold or both")
  flag(noise, "update_noise_multiplier", "z_w, noise on the sum of updates over C", "Z")
  flag(noise, "threshold_noise_multiplier", "z_q, noise of the threshold over its sensitivity", "Z")
  flag(noise, "sigma_update", "z_w C in place of z_w, with --clip_norm", "S")
  flag(
    noise,
    "sigma_threshold",
    "standard deviation on a scaled node of the histogram, (z_q^2 c^2 log2 b + 2)^(1/2), in place"
    " of z_q; with --scale and --num_bins",
    "S",
  )
  flag(noise, "scale", "c, with which the counts of the histogram are multiplied", "C")
  spend.add_argument(
    "--plot", metavar="FILE", help="draw epsilon against rounds (.png, .svg, .pdf)"
  )

  audit = command("audit", "whether the claim of a finished or running experiment holds")
  audit.add_argument("folder", metavar="FOLDER", help="with privacy.json, rounds.csv, flags.txt")
  return parser


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


def _calibrated(args: argparse.Namespace, delta: float) -> releases.Release:
  """The release that `calibrate`'s flags ask for."""
  target: dict[str, Any] = dict(
    population=args.population,
    clients_per_round=args.clients_per_round,
    num_rounds=_whole("num_rounds", args.num_rounds),
    rho_ratio=args.rho_ratio,
    num_bins=_optional_whole("num_bins", args.num_bins),
    sampling=_sampling(args),
  )
  if args.accounting == ledger.PAPER:
    if args.threshold != releases.TREE:
      raise ValueError("Found --threshold=geometric; expected tree, the paper's only threshold.")
    return paper.calibrate(args.epsilon, delta, **target)
  return calibration.calibrate(
    args.epsilon,
    delta,
    **target,
    accountant=args.accounting,
    threshold_kind=args.threshold,
    relation=args.relation,
    protocol=args.noise_shares,
    contacted=args.contacted_clients,
    **_distributed(args),
  )


def _distributed(args: argparse.Namespace) -> dict[str, Any]:
  """What `calibration.complete` takes for updates whose noise the clients make."""
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
  """The release with the noise of `spend`'s flags."""
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
    args.population,
    args.clients_per_round,
    z_q,
    z_w,
    _sampling(args),
    threshold_kind=args.threshold,
    relation=args.relation,
    protocol=args.noise_shares,
    contacted=args.contacted_clients,
  )
  if num_bins is None and scale is not None:
    raise ValueError("Found --scale without --num_bins; expected both or neither.")
  release = calibration.complete(release, num_bins=num_bins, **_distributed(args))
  if scale is not None and num_bins is not None:
    tree = calibration.tree_for(release, num_bins, scale)
    release = dataclasses.replace(release, tree=tree)
  return release


def _answer(args: argparse.Namespace) -> dict[str, Any]:
  """What `calibrate` and `spend` answer, as it is printed with --json."""
  if args.clip_norm is not None:
    checks.scale("--clip_norm", args.clip_norm)
  num_rounds = _whole("num_rounds", args.num_rounds)
  delta = _delta(args)
  release = (_calibrated if args.command == "calibrate" else _given)(args, delta)
  paper = args.accounting == ledger.PAPER
  z_q, z_w = release.threshold_noise_multiplier, release.update_noise_multiplier
  answer: dict[str, Any] = dict(
    command=args.command,
    accounting=args.accounting,
    is_guarantee=not paper,
    population=release.population,
    clients_per_round=release.clients_per_round,
    num_rounds=num_rounds,
    delta=delta,
    sampling=release.sampling,
    sampling_probability=release.sampling_probability,
    relation=release.relation,
    neighboring_relation=release.neighboring_relation,
    threshold=None if z_q is None else release.threshold_kind,
    effective_noise_multiplier=release.effective_noise_multiplier,
    threshold_noise_multiplier=z_q,
    update_noise_multiplier=z_w,
  )
  if args.command == "calibrate":
    answer["target_epsilon"] = args.epsilon
  if args.clip_norm is not None:
    answer.update(
      clip_norm=args.clip_norm, sigma_update=None if z_w is None else z_w * args.clip_norm
    )
  answer.update(_costs(release, num_rounds, delta, args))
  if release.num_shares is not None:
    answer.update(noise_shares=release.protocol, num_shares=release.num_shares)
  if release.contacted is not None:
    answer["contacted_clients"] = release.contacted
  if release.tree is not None:
    answer.update(_tree_entries(release.tree))
  if release.update_sum is not None:
    answer.update(
      num_parameters=release.update_sum.num_entries,
      bits_per_update=release.update_sum.bits_per_client,
    )
  answer["guarantee"] = statements.guarantee(release)
  if paper:
    answer["guarantee"] = statements.paper_caveat(release, num_rounds, delta) + answer["guarantee"]
  answer["not_covered"] = list(statements.NOT_COVERED)
  warning = accounting.delta_warning(delta, release.population)
  answer["warnings"] = [] if warning is None else [warning]
  if getattr(args, "plot", None):
    _plot(args.plot, release, num_rounds, delta)
    answer["plot"] = args.plot
  return answer


def _costs(
  release: releases.Release, num_rounds: int, delta: float, args: argparse.Namespace
) -> dict[str, Any]:
  """The epsilons of an answer."""
  participations = _optional_whole("participations", args.participations)
  accountant = accounting.TIGHTEST if args.accounting == ledger.PAPER else args.accounting
  spent = accounting.epsilon(release, num_rounds, delta, accountant)
  found: dict[str, Any] = dict(
    epsilon=spent.epsilon,
    epsilon_one_round=accounting.epsilon(release, min(1, num_rounds), delta, accountant).epsilon,
    accountant=spent.accountant,
    epsilon_rdp=accounting.epsilon_or_none(release, num_rounds, delta, accounting.RDP),
    rdp_order=spent.rdp_order,
    epsilon_pld=accounting.epsilon_or_none(release, num_rounds, delta, accounting.PLD),
  )
  if args.accounting == ledger.PAPER:
    real = paper.real_cost(release, num_rounds, delta)
    found["epsilon"] = paper.epsilon(release, num_rounds, delta)
    found["epsilon_one_round"] = paper.epsilon(release, min(1, num_rounds), delta)
    found.update(
      epsilon_real_poisson=real.poisson,
      epsilon_real_fixed_size=real.fixed_size,
      epsilon_real_fixed_size_at_least=real.fixed_size_at_least,
    )
  server = server_lib.server_epsilon(release, num_rounds, delta, participations)
  server_one = server_lib.server_epsilon(
    release, min(1, num_rounds), delta, min(1, server.participations)
  )
  found.update(
    epsilon_server=server.epsilon,
    epsilon_server_one_round=server_one.epsilon,
    server_participations=server.participations,
    server=server.explanation,
  )
  return found


def _tree_entries(tree: tree_mechanism.TreeMechanism) -> dict[str, Any]:
  return dict(
    num_bins=tree.num_bins,
    scale=tree.scale,
    local_stddev=tree.local_stddev,
    sigma_threshold=tree.local_stddev * math.sqrt(tree.num_shares),
    modulus=tree.modulus,
    bits_per_entry=tree.bits_per_entry,
    bits_per_client=tree.bits_per_client,
  )


def _number_text(value: Optional[float]) -> str:
  return "none" if value is None else f"{value:.5g}"


def _server_text(value: Optional[float], explanation: str) -> str:
  if value is None and explanation.endswith("it is trusted."):
    return "none; it is trusted"
  return _number_text(value)


def _lines(rows: Sequence[tuple[str, str]]) -> list[str]:
  return [f"  {label:<{_LABEL_WIDTH}}{value}" for label, value in rows]


def _paragraphs(title: str, sentences: Sequence[str]) -> list[str]:
  """Sentences as a list below a title; nothing for none."""
  if not sentences:
    return []
  found = ["", title]
  for sentence in sentences:
    found.extend(textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    "))
  return found


def _cost_rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
  """The rows on epsilon of an answer."""
  text = _number_text
  paper = answer["accounting"] == ledger.PAPER
  by, beside = "by PLD", "rdp"
  if paper:
    by = "by the paper's formulas, NOT a guarantee"
  elif answer["accountant"] == accounting.RDP:
    order = answer["rdp_order"]
    by, beside = "by RDP" if order is None else f"by RDP, order {order:g}", "pld"
  rows = [("epsilon, all rounds", f"{text(answer['epsilon'])}  ({by})")]
  if not paper:
    other = answer[f"epsilon_{beside}"]
    rows.append((f"  by {beside.upper()}", "not computed" if other is None else text(other)))
  else:
    fixed = text(answer["epsilon_real_fixed_size"])
    if answer["epsilon_real_fixed_size_at_least"] is not None:
      fixed = f"{text(answer['epsilon_real_fixed_size_at_least'])} to {fixed}"
    rows += [
      ("  really, Poisson cohorts", f"{text(answer['epsilon_real_poisson'])}  (zero-out)"),
      ("  really, fixed cohorts", f"{fixed}  (replace one)"),
    ]
  rows += [
    ("  one round", text(answer["epsilon_one_round"])),
    ("epsilon against the server", _server_text(answer["epsilon_server"], answer["server"])),
    ("  one round", _server_text(answer["epsilon_server_one_round"], answer["server"])),
  ]
  return rows


def _text(answer: dict[str, Any]) -> str:
  """An answer of `calibrate` or `spend` for people."""
  text = _number_text
  rows = [
    (
      "noise multiplier, together",
      f"{text(answer['effective_noise_multiplier'])}  (z_eff)",
    ),
    ("  threshold", f"{text(answer['threshold_noise_multiplier'])}  (z_q)"),
    ("  weights", f"{text(answer['update_noise_multiplier'])}  (z_w)"),
  ]
  if "sigma_update" in answer:
    rows.append(
      ("noise on the sum of updates", f"{text(answer['sigma_update'])}  (sigma_W = z_w C)")
    )
  if "num_bins" in answer:
    rows += [
      ("histogram's scale", f"{answer['scale']}  (c)"),
      ("noise of a client, scaled", f"{text(answer['local_stddev'])}  (sigma_local)"),
      ("modulus", f"{answer['modulus']}, {answer['bits_per_entry']} bits  (M)"),
      ("bits per client and round", f"{answer['bits_per_client']}"),
    ]
  if "bits_per_update" in answer:
    rows.append(("bits per update", f"{answer['bits_per_update']}"))
  if "num_shares" in answer:
    rows.append(("shares of noise, most clients", f"{answer['num_shares']}  (K)"))
  head = (
    f"{answer['num_rounds']} rounds of {answer['clients_per_round']:g} of {answer['population']}"
    f" clients, delta = {answer['delta']:.4g}:"
  )
  lines = [*_paragraphs("Warning:", answer["warnings"])[1:], head]
  lines += _lines(_cost_rows(answer)) + [""] + _lines(rows)
  lines += _paragraphs("What epsilon is about:", answer["guarantee"])
  lines += _paragraphs("Against the server:", [answer["server"]])
  lines += _paragraphs("Outside the guarantee:", answer["not_covered"])
  if "plot" in answer:
    lines += ["", f"Plot: {answer['plot']}"]
  return "\n".join(lines)


def _plot(path: str, release: releases.Release, num_rounds: int, delta: float) -> None:
  """Draws epsilon against rounds."""
  if num_rounds < 1:
    raise ValueError(f"Found --num_rounds={num_rounds} with --plot; expected at least 1.")
  import matplotlib  # Slow to import, and needed here only.

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


def _audit_answer(found: audit_lib.Audit, folder: str) -> dict[str, Any]:
  """What `audit` answers, as it is printed with --json."""
  entry = found.ledger
  guarantee = statements.guarantee(entry.release)
  return dict(
    command="audit",
    folder=folder,
    holds=found.holds,
    failures=list(found.failures),
    notes=list(found.notes),
    accounting=entry.accounting,
    claim=entry.claim,
    num_rounds_planned=entry.num_rounds_planned,
    rounds_done=found.num_rounds,
    rounds_in_csv=found.rounds.done,
    rounds_in_ledger=entry.rounds_done,
    rounds_aborted=found.rounds.aborted,
    threshold_noise_multiplier=entry.release.threshold_noise_multiplier,
    update_noise_multiplier=entry.release.update_noise_multiplier,
    effective_noise_multiplier=entry.release.effective_noise_multiplier,
    epsilon=found.spent.epsilon,
    epsilon_rdp=found.epsilon_rdp,
    epsilon_planned=found.epsilon_planned,
    rdp_order=found.spent.rdp_order,
    delta=found.spent.delta,
    epsilon_server=found.server.epsilon,
    server_participations=found.server.participations,
    server=found.server.explanation,
    guarantee=guarantee,
    not_covered=list(statements.NOT_COVERED),
  )


def _audit_text(answer: dict[str, Any]) -> str:
  """An answer of `audit` for people."""
  text = _number_text
  claim = answer["claim"]
  verdict = "The claim holds." if answer["holds"] else "The claim does NOT hold."
  rows = [
    ("claimed epsilon", f"{text(claim['epsilon'])}  (delta = {claim['delta']:.4g})"),
    ("rounds done, of those planned", f"{answer['rounds_done']} of {answer['num_rounds_planned']}"),
    (
      "rounds aborted",
      "not recorded" if answer["rounds_aborted"] is None else str(answer["rounds_aborted"]),
    ),
    ("noise multiplier, together", f"{text(answer['effective_noise_multiplier'])}  (z_eff)"),
    ("  threshold", f"{text(answer['threshold_noise_multiplier'])}  (z_q)"),
    ("  weights", f"{text(answer['update_noise_multiplier'])}  (z_w)"),
    ("epsilon, recomputed", text(answer["epsilon"])),
    ("  by RDP", "not computed" if answer["epsilon_rdp"] is None else text(answer["epsilon_rdp"])),
    ("  after all planned rounds", text(answer["epsilon_planned"])),
    ("epsilon against the server", _server_text(answer["epsilon_server"], answer["server"])),
  ]
  lines = [f"{answer['folder']}: {verdict}", *_lines(rows)]
  lines += _paragraphs("Why it does not hold:", answer["failures"])
  lines += _paragraphs("Notes:", answer["notes"])
  lines += _paragraphs("What epsilon is about:", answer["guarantee"])
  lines += _paragraphs("Against the server:", [answer["server"]])
  lines += _paragraphs("Outside the guarantee:", answer["not_covered"])
  return "\n".join(lines)


def _run(argv: Optional[Sequence[str]]) -> tuple[str, int]:
  """What is to be printed, and the exit code."""
  args = _make_parser().parse_args(argv)
  if args.command == "audit":
    found = audit_lib.audit_folder(args.folder)
    answer, as_text = _audit_answer(found, os.fspath(args.folder)), _audit_text
    code = SUCCESS if found.holds else CLAIM_FAILS
  else:
    answer, as_text, code = _answer(args), _text, SUCCESS
  return json.dumps(answer, indent=2) if args.json else as_text(answer), code


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
    # Whoever read the answer has seen enough. Python would complain once more when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return code


if __name__ == "__main__":
  sys.exit(main())
