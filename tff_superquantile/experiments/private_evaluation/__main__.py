"""Private evaluations of finished runs on the command line.

    python -m tff_superquantile.experiments.private_evaluation RUN_DIR --epsilon=1

loads the model of a finished run, lets every client of a split compute its error, and releases the
distribution of these numbers with a budget of its own. It prints a table of estimates with their
standard errors and enters the release into RUN_DIR/evaluations.json. No exact number is printed or
written. Each call is one more release and spends again. The exit code is 0, or 2 for a mistake in
the flags or a bad folder, or another one for other errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import os
import sys

from privacy import ledger as ledger_lib
from privacy.command import answers
from privacy.command import flags
from privacy.evaluation import entries
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments import train_flags

_ROW = "  {:<14}{:>10}{:>18}"


def _answer(
  folder: str, evaluations: Sequence[entries.Evaluation], ledger: ledger_lib.Ledger | None
) -> answers.Answer:
  """Returns the answer on the last of a run's evaluations."""
  last, costs = evaluations[-1], entries.describe_costs(evaluations, ledger)
  query = last.query
  lines = [
    f"{folder}: {last.metric} of the {last.split} clients, epsilon = {query.epsilon:g},"
    f" delta = {query.delta:.3g}.",
    _ROW.format("", "estimate", "± standard error"),
  ]
  for name, numbers in last.estimates.items():
    texts = [
      "none" if x is None else f"{x:.1f}" if name == "clients" else f"{x:.4f}" for x in numbers
    ]
    lines.append(_ROW.format(name, *texts))
  lines += answers.paragraphs("What it cost:", costs)
  lines += answers.paragraphs("What epsilon is about:", query.guarantee)
  return answers.Answer({"folder": folder, **last.to_dict(), "costs": costs}, lines)


def make_parser() -> flags.Parser:
  """Makes the parser; a mistake in the flags is a ValueError with a sentence."""
  parser = flags.Parser(
    prog="python -m tff_superquantile.experiments.private_evaluation",
    description="Releases the distribution of a finished run's error over clients with differential"
    " privacy: percentiles, the mean and that of the worst 10 %, each with its standard error. Each"
    " call is a release of its own and spends again; RUN_DIR/evaluations.json has all of them.",
    epilog="Exit code: 0, or 2 for a mistake in the flags or a bad folder.",
    allow_abbrev=False,
  )
  finished_run.add_arguments(parser)
  parser.add_argument("--json", action="store_true", help="print one JSON object")

  flags.number_flag(parser, "epsilon", "the budget of this release", required=True)
  flags.number_flag(
    parser, "delta", "delta of the budget; by default the smaller of 1e-5 and n^-1.1"
  )
  parser.add_argument(
    "--split", default="test", metavar="SPLIT", help="the clients: test, validation or train"
  )
  parser.add_argument("--metric", choices=("error", "loss"), default="error", help="of a client")
  flags.number_flag(
    parser,
    "upper",
    "the upper end of the metric, chosen without a look at it; by default 1 for error, and the"
    " run's --max_loss for loss",
  )
  histogram = "bins of the histogram, a power of two (default: 64)"
  flags.number_flag(parser, "num_bins", histogram, type=flags.whole, default=64)
  parser.add_argument(
    "--noise_key_file",
    metavar="FILE",
    help="a secret key of 32 hexadecimal digits, from which the noise follows together with all"
    " that is asked; by default noise is fresh",
  )
  return parser


def _evaluate(args: argparse.Namespace) -> None:
  # It imports TensorFlow, which --help and mistakes in the flags spare.
  from tff_superquantile.experiments.private_evaluation import release

  request = release.Inquiry(
    folder=args.folder,
    epsilon=args.epsilon,
    delta=args.delta,
    split=args.split,
    metric=args.metric,
    upper=args.upper,
    num_bins=args.num_bins,
    noise_key_file=args.noise_key_file,
    where_data_is=finished_run.given(args, train_flags.WHERE_DATA_IS),
  )
  evaluations, ledger = release.evaluate(request)
  print(_answer(os.fspath(args.folder), evaluations, ledger).printed(args.json))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command with arguments (None for the process's), and returns its exit code."""
  return cli.run_parser(make_parser(), _evaluate, argv)


if __name__ == "__main__":
  sys.exit(main())
