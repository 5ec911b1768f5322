"""The paper's privacy accounting on the command line. Its epsilon is NOT a guarantee.

    python -m paper.account calibrate --epsilon=3 --delta=4e-4 --population=2500 \
        --clients_per_round=100 --num_rounds=1000 --rho_ratio=0.5 --num_bins=64
    python -m paper.account spend --update_noise_multiplier=1.3741 --delta=4e-4 \
        --population=2500 --clients_per_round=100 --num_rounds=1000

`calibrate` finds the noise that the paper would take for an epsilon, `spend` the epsilon that it
would state for given noise. Both show the real cost of that noise. `--json` is for programs. The
exit code is 0, or 2 for a mistake in the flags. `python -m privacy.account` has guarantees.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from paper import accounting as paper_accounting
from paper import real_costs
from privacy import account
from privacy import accounting
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.command import answers
from privacy.command import asked
from privacy.command import flags
from privacy.settings import command_line


def _lines(values: dict[str, Any]) -> list[str]:
  """Returns the answer for people."""
  epsilon = answers.as_text(values["epsilon"])
  fixed = answers.as_text(values["epsilon_real_fixed_size"])
  if values["epsilon_real_fixed_size_at_least"] is not None:
    fixed = f"{answers.as_text(values['epsilon_real_fixed_size_at_least'])} to {fixed}"
  run = "{num_rounds} rounds of {clients_per_round:g} of {population} clients, delta = {delta:.4g}:"
  return [
    *answers.paragraphs("Warning:", values["warnings"])[1:],
    run.format(**values),
    answers.row("epsilon, all rounds", epsilon, "by the paper's formulas, NOT a guarantee"),
    *answers.rows(values, "epsilon_one_round", "epsilon_real_poisson"),
    answers.row("  really, fixed cohorts", fixed, "replace one"),
    "",
    *answers.noise_rows(values),
    *answers.rows(values, "scale", "local_stddev"),
    *answers.paragraphs("What epsilon is about:", values["caveat"]),
  ]


def define(parser: command_line.Parser) -> None:
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

  def command(name: str, text: str) -> Any:
    subparser = commands.add_parser(name, help=text)
    command_line.add_flag(subparser, "json", bool, False, "print one JSON object")
    flags.run_flags(subparser)
    return subparser

  calibrate = command("calibrate", "finds the noise that the paper would take for an epsilon")
  add = command_line.add_flag
  add(calibrate, "epsilon", float, None, "that the paper would state", required=True)
  ratio = "r, the budget of the threshold over that of the weights; None for no threshold"
  add(calibrate, "rho_ratio", float, None, ratio)
  bins = "bins of the threshold's histogram, a power of two"
  add(calibrate, "num_bins", int, None, bins, metavar="B")
  spend = command("spend", "finds the epsilon that the paper would state for given noise")
  updates = "z_w, noise on the sum of updates over C"
  add(spend, "update_noise_multiplier", float, None, updates, metavar="Z")
  threshold = "z_q, noise of the threshold over its sensitivity"
  add(spend, "threshold_noise_multiplier", float, None, threshold, metavar="Z")


def _release(args: argparse.Namespace, num_rounds: int, delta: float) -> releases.Release:
  """Returns the release that the flags ask for."""
  if args.command == "calibrate":
    return paper_accounting.calibrate(
      args.epsilon,
      delta,
      population=args.population,
      clients_per_round=args.clients_per_round,
      num_rounds=num_rounds,
      rho_ratio=args.rho_ratio,
      num_bins=args.num_bins,
    )
  released = (
    parts.Tree(noise_multiplier=args.threshold_noise_multiplier),
    parts.UpdateSum(noise_multiplier=args.update_noise_multiplier),
  )
  return releases.Release(
    cohort=cohorts.FixedSize(args.population, args.clients_per_round),
    parts=tuple(part for part in released if part.noise_multiplier is not None),
  )


def main(args: argparse.Namespace) -> int:
  num_rounds, delta = asked.rounds(args.num_rounds), asked.delta_of(args)
  release = _release(args, num_rounds, delta)
  real = real_costs.real_cost(release, num_rounds, delta)
  warning = accounting.delta_warning(delta, release.cohort.population)
  tree: dict[str, Any] = {}
  entries = release.entries()
  if entries["tree"] is not None:
    tree = {name: getattr(entries["tree"], name) for name in ("num_bins", "scale", "local_stddev")}
  values = dict[str, Any](
    command=args.command,
    is_guarantee=False,
    population=release.cohort.population,
    clients_per_round=release.cohort.expected,
    num_rounds=num_rounds,
    delta=delta,
    sampling=release.cohort.sampling,
    epsilon=paper_accounting.epsilon(release, num_rounds, delta),
    epsilon_one_round=paper_accounting.epsilon(release, min(1, num_rounds), delta),
    **{f"epsilon_real_{name}": cost for name, cost in vars(real).items()},
    effective_noise_multiplier=release.effective_noise_multiplier,
    **{kind.flag: entries[kind.flag] for kind in (parts.Tree, parts.UpdateSum)},
    **tree,
    caveat=real_costs.caveat(real),
    warnings=[] if warning is None else [warning],
  )
  command_line.say(answers.CommandAnswer(values, _lines(values)).printed(args.json))
  return account.SUCCESS


if __name__ == "__main__":
  sys.exit(command_line.run(sys.modules[__name__]))
