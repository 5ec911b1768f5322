"""Private evaluations of finished runs on the command line.

    superquantile private_evaluation RUN_DIR --epsilon=1

loads the model of a finished run, lets every client of a split compute its error, and releases the
distribution of these numbers with a budget of its own. It prints a table of estimates with their
standard errors and enters the release into RUN_DIR/evaluations.json. No exact number is printed or
written. Each call is one more release and spends again. The exit code is 0, or 2 for a mistake in
the flags or a bad folder, or another one for other errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import os
import sys

from privacy import ledger as ledger_lib
from privacy.command import answers
from privacy.evaluation import entries
from privacy.settings import command_line
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import flags as train_flags


def _answer(
  folder: str, evaluations: Sequence[entries.Evaluation], ledger: ledger_lib.Ledger | None
) -> answers.CommandAnswer:
  """Returns the answer on the last of a run's evaluations."""
  last, costs = evaluations[-1], entries.describe_costs(evaluations, ledger)
  query = last.query
  rows = [("", "estimate", "± standard error")]
  for name, numbers in last.estimates.items():
    estimate, error = (
      "none" if x is None else f"{x:.1f}" if name == "clients" else f"{x:.4f}" for x in numbers
    )
    rows.append((name, estimate, error))
  lines = [
    f"{folder}: {last.metric} of the {last.split} clients, epsilon = {query.epsilon:g},"
    f" delta = {query.delta:.3g}.",
    *command_line.table(rows).splitlines(),
  ]
  lines += answers.paragraphs("What it cost:", costs)
  lines += answers.paragraphs("What epsilon is about:", query.guarantee)
  return answers.CommandAnswer({"folder": folder, **last.to_dict(), "costs": costs}, lines)


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  finished_run.add_arguments(parser)
  add("json", bool, False, "print one JSON object")
  add("epsilon", float, None, "the budget of this release", required=True)
  add("delta", float, None, "delta of the budget; by default the smaller of 1e-5 and n^-1.1")
  add("split", str, "test", "the clients: test, validation or train")
  add("metric", str, "error", "of a client", choices=("error", "loss"))
  upper = "the upper end of the metric, chosen without a look at it; None for 1, the largest error"
  add("upper", float, None, f"{upper}, or for the run's --max_loss")
  add("num_bins", int, 64, "bins of the histogram, a power of two")


def main(args: argparse.Namespace) -> None:
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
    where_data_is=finished_run.passed_flags(args, train_flags.WHERE_DATA_IS),
  )
  evaluations, ledger = release.evaluate(request)
  print(_answer(os.fspath(args.folder), evaluations, ledger).printed(args.json))


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
