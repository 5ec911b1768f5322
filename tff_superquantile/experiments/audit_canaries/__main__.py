"""Attacks a private configuration by canaries, in a run of its own.

    superquantile audit_canaries --task=synthetic --epsilon=8 --audit_dir=FOLDER

takes the flags of `train`, or --flagfile=RUN/flags.txt of a run that is there, makes some of the
training clients canaries, and carries out a private run. An adversary that sees the noisy sums of
all rounds, and so all models, guesses which canaries were in it. How often it is right bounds the
run's epsilon from below, with a confidence, beside the epsilon that is claimed from above. That
proves no privacy: a claim that is not contradicted may be wrong.

No other run is changed or read, no ledger has the audit's run, and no model of it is kept: FOLDER,
which must be new, gets canaries.json alone. The exit code is 0, 1 if the claim is contradicted, or
2 for a mistake in the flags.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import typing
from typing import Any

from privacy.command import answers
from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.config import flags as train_flags

if typing.TYPE_CHECKING:
  from tff_superquantile.experiments.audit_canaries import auditing

CONTRADICTED = 1
_FILE = "canaries.json"


def define(parser: command_line.Parser) -> None:
  own = parser.add_argument_group("the audit")
  add = functools.partial(command_line.add_flag, own)
  own.add_argument(
    "--audit_dir", type=pathlib.Path, metavar="FOLDER", required=True, help="a new folder for it"
  )
  add("json", bool, False, "print one JSON object")
  few = "None for half of the training clients, at most 1000"
  add("num_canaries", int, None, f"training clients that are canaries in a run; {few}")
  add("num_runs", int, 1, "runs, each with other canaries and another key, that count together")
  add("confidence", float, 0.95, "of all bounds together")
  add("known_cohorts", bool, False, "let the adversary know who takes part in which round")
  train_flags.define(parser)


def main(args: argparse.Namespace) -> None:
  config = train_flags.config(args)
  folder = args.audit_dir
  if folder.exists():
    raise ValueError(f"Found {folder} already there; expected another --audit_dir, a new one.")
  with cli.starting_tensorflow():  # --help does not get here.
    from tff_superquantile.experiments.audit_canaries import auditing

  inquiry = auditing.Inquiry(args.num_canaries, args.num_runs, args.confidence, args.known_cohorts)
  outcome = auditing.audit(config, inquiry)
  content = _content(outcome, inquiry)
  atomic_files.make_folder("audit_dir", folder)
  atomic_files.write_json(folder / _FILE, content)
  lines = [*_lines(outcome, inquiry), f"Written: {folder / _FILE}"]
  print(answers.CommandAnswer(content, lines).printed(args.json))
  if content["contradicts_claim_if_independent"]:  # It is if it is contradicted at all.
    cli.fail("", CONTRADICTED)


def _content(outcome: auditing.Outcome, inquiry: auditing.Inquiry) -> dict[str, Any]:
  """Returns what canaries.json has: no name, no model and no score of a client."""
  bounds, (delta, claimed) = outcome.bounds, next(iter(outcome.claim.items()))
  return {
    "what": "an audit by canaries, in a run of its own: no proof, and no ledger of another run",
    "epsilon_claimed": claimed,
    "delta": delta,
    "epsilon_at_least": bounds.epsilon,
    "epsilon_at_least_if_gaussian": bounds.gaussian_epsilon,
    "epsilon_at_least_if_gaussian_and_independent": bounds.independent_epsilon,
    "confidence": inquiry.confidence,
    "contradicts_claim": bounds.contradicts_claim if outcome.is_claimed else None,
    "contradicts_claim_if_independent": (
      bounds.contradicts_if_independent if outcome.is_claimed else None
    ),
    "relation": outcome.release.neighboring_relation,
    "knows_cohorts": outcome.knows_cohorts,
    "runs": inquiry.num_runs,
    "canaries": len(outcome.coins),
    "canaries_in": int(outcome.coins.sum()),
    "guesses": [{"made": g.made, "right": g.right} for g in bounds.guesses],
    "flags": outcome.config.to_flags(),
  }


def _lines(outcome: auditing.Outcome, inquiry: auditing.Inquiry) -> list[str]:
  """Returns the text for people."""
  bounds, (delta, claimed) = outcome.bounds, next(iter(outcome.claim.items()))
  sure, of_runs = f"{100.0 * inquiry.confidence:g} %", f"{inquiry.num_runs} runs"
  at_least = [
    (bounds.epsilon, "whatever the mechanism"),
    (bounds.gaussian_epsilon, "if its trade-off is a Gaussian's"),
    (bounds.independent_epsilon, "if it is, and no canary tells of another"),
  ]
  lines = [
    f"{len(outcome.coins)} canaries in {'one run' if inquiry.num_runs == 1 else of_runs} of"
    f" {outcome.config.num_rounds} rounds, {int(outcome.coins.sum())} of them in by secret coins.",
    *command_line.table(
      [("guesses", "right", "expected of chance")]
      + [(str(g.made), str(g.right), f"{g.made / 2:g}") for g in bounds.guesses],
      num_left=0,
    ).splitlines(),
    *command_line.table(
      [("claimed", f"epsilon <= {claimed:.4g} at delta {delta:.3g}")]
      + [
        ("found", f"epsilon >= {bound:.4g}, {where}")
        for bound, where in at_least
        if bound is not None
      ],
      num_left=2,
    ).splitlines(),
    f"The bounds hold with a confidence of {sure} together. They are bounds from below: they prove"
    " no privacy.",
  ]
  knows = "" if outcome.knows_cohorts else " does not know who takes part in which round, and"
  lines += answers.paragraphs(
    "The adversary:",
    [
      "It sees the noisy sums of updates of all rounds, and so all models, and knows the canaries,"
      f" what they send, and the mechanism. It{knows} knows neither the coins nor the noise. Of a"
      " threshold and of other releases it makes no use.",
      f"Of a canary, {outcome.release.neighboring_relation} changes what the coin decides.",
    ],
  )
  if not outcome.is_claimed:
    verdict = "The claim says nothing of an adversary that knows the cohorts."
  elif bounds.contradicts_claim:
    verdict = "The claim is contradicted: the run reveals more than it says."
  elif bounds.contradicts_if_independent:
    verdict = (
      "The claim is contradicted, if no canary tells of another, which is so of independent noise"
      " where canaries share no weight: the run reveals more than it says."
    )
  else:
    verdict = "The claim is not contradicted, which does not mean that it holds."
  return [
    *lines,
    verdict,
    "What is printed here follows from noisy releases about the other training clients. To publish"
    f" it spends the epsilon of {'one more run' if inquiry.num_runs == 1 else of_runs + ' more'}"
    " about them.",
  ]


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
