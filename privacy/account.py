"""Privacy budgets on the command line.

    superquantile account calibrate --epsilon=3 --delta=4e-4 --population=2500 \
        --clients_per_round=100 --num_rounds=1000 --rho_ratio=0.5 --num_bins=64 --clip_norm=1.3
    superquantile account spend --threshold_noise_multiplier=3 --update_noise_multiplier=2 \
        --population=2500 --clients_per_round=100 --num_rounds=1000
    superquantile account compose results/synthetic/superquantile_theta_0.5/seed_0 \
        --run="--update_noise_multiplier=2 --population=250 --clients_per_round=10 --num_rounds=99"
    superquantile account audit results/synthetic/superquantile_theta_0.5/seed_0

`calibrate` finds the noise for a budget, `spend` the cost of a run, `compose` that of several for
one client of all, and `audit` checks the claim in a run's folder, or those of all runs below a
folder and what they cost together. The first line of an answer is the answer; the rest explains it,
and `--json` is for programs. A flag that an answer would not count is refused. The exit code is 0,
or 1 if an audited claim does not hold, or 2 for a mistake in the flags or a bad folder. The module
needs no TensorFlow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import os
import pathlib
import sys

if not __package__:
  # As a script it finds the package from any directory, and not its modules by themselves.
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

try:
  from privacy import audit
  from privacy.audit import results
  from privacy.command import answers
  from privacy.command import budget
  from privacy.command import flags
  from privacy.command import meaning
  from privacy.command import one_mechanism
  from privacy.command import together
  from privacy.settings import command_line
except ModuleNotFoundError as missing:
  if (missing.name or "").partition(".")[0] == "privacy":
    raise
  print(
    f"Error: Found no package {missing.name}; expected dp-accounting, numpy and scipy: install them"
    " by `pip install .` in the project's folder, or use its .venv/bin/python.",
    file=sys.stderr,
  )
  sys.exit(2)

SUCCESS = 0
CLAIM_FAILS = 1
USAGE_ERROR = command_line.USAGE_ERROR
define = flags.define


def main(args: argparse.Namespace) -> int:
  """Prints the answer of a command; returns the exit code."""
  args = meaning.checked(args, args.command)
  try:
    answer = _answer(args)
  except OSError as error:  # Such as a folder that only others may read.
    raise ValueError(
      f"Found {command_line.shown(error.filename)}, which cannot be read ({error.strerror});"
      " expected files and folders of private runs."
    ) from None
  command_line.say(answer.printed(args.json))
  return SUCCESS if answer.holds else CLAIM_FAILS


def _answer(args: argparse.Namespace) -> answers.CommandAnswer:
  if args.command == "audit":
    files = [os.path.join(args.folders[0], name) for name in results.OF_RUN]
    is_run = len(args.folders) == 1 and any(map(os.path.exists, files))
    if is_run:
      return answers.of_audit(audit.audit_folder(args.folders[0]), args.folders[0])
    return together.audit_all(args.folders)
  if args.command == "compose":
    return together.compose(args, flags.release_parser().parse_args)
  return one_mechanism.answer(args) if meaning.way(args) else budget.answer(args)


def run(arguments: Sequence[str] | None = None) -> int:
  """Runs the command with arguments, None for the process's; returns the exit code.

  Args:
    arguments: The words that follow the command's name.

  Returns:
    0, or another code if a claim fails or the arguments are mistaken.

  Raises:
    SystemExit: If argparse ends the command, as after --help.
  """
  return command_line.run(sys.modules[__name__], arguments)


if __name__ == "__main__":
  sys.exit(run())
