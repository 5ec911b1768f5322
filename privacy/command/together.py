"""The answers of `compose`, and of `audit` for several runs: what one client loses by all."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import shlex
from typing import Any

from privacy import accounting
from privacy import audit
from privacy import checks
from privacy import ledger as ledger_lib
from privacy import together
from privacy.audit import experiment
from privacy.command import answers
from privacy.command import asked

_INDEPENDENT = (
  "The releases have noise and cohorts of their own: no two runs have one key. A later one may be"
  " chosen by the results of earlier ones.",
  "The client is in all of them. Choices by results without noise on its data are not included.",
)


@dataclasses.dataclass(frozen=True)
class ComposeAnswer(answers.Answer):
  """The answer of `compose`."""

  command: str
  epsilon: float
  delta: float
  method: str
  relation: str
  neighboring_relation: str
  releases: Sequence[dict[str, Any]]
  guarantee: Sequence[str] = _INDEPENDENT

  def to_text(self) -> str:
    """Returns the answer for people."""
    by = {
      together.SUM: "epsilons and deltas added up",
      accounting.GAUSSIAN: "one Gaussian mechanism",
      accounting.RDP: "by RDP",
    }.get(self.method, "by PLD")
    return "\n".join(
      [
        f"epsilon = {self.epsilon:.5g} at delta = {self.delta:.4g} for one client of all"
        f" {len(self.releases)} releases together ({by}).",
        "  each by itself, at the same delta:",
        *(f"    {answers.as_text(one['epsilon']):<10}{one['release']}" for one in self.releases),
        *answers.paragraphs(
          "What epsilon is about:",
          [f"Neighbouring data sets: {self.neighboring_relation}.", *self.guarantee],
        ),
      ]
    )


def compose(
  args: argparse.Namespace, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> ComposeAnswer:
  """Returns the answer of `compose`.

  Args:
    args: The parsed flags.
    parse: Parses the flags of `spend`, and --times.

  Raises:
    ValueError: If there is no release, or one cannot be read.
  """
  runs: list[together.Run] = []
  labels: list[str] = []
  deltas: list[float] = []
  for path in map(pathlib.Path, args.ledgers):
    folder, name = (path, ledger_lib.FILE_NAME) if path.is_dir() else (path.parent, path.name)
    entry = ledger_lib.Ledger.from_json(audit.read_text(folder, name))
    runs.append(together.Run(entry.release, entry.rounds_done, entry.accounting))
    labels.append(f"{entry.rounds_done} rounds of {os.fspath(path)}")
    deltas.append(entry.claim["delta"])
  for text in args.run:
    own = parse(shlex.split(text))
    times = asked.whole("times", own.times)
    release = asked.given(own, asked.delta_of(own))
    run = together.Run(release, asked.rounds(own.num_rounds), own.accounting)
    runs += [run] * checks.whole("--times", times, 1)
    labels += [text] * times
    deltas.append(asked.delta_of(own))
  if not runs:
    raise ValueError(
      "Found nothing to compose; expected folders or ledgers of private runs, or --run='FLAGS' with"
      " the flags of spend, once for each release."
    )
  delta = max(deltas) if args.delta is None else checks.fraction("delta", args.delta)
  spent = together.spent(runs, delta)
  return ComposeAnswer(
    command="compose",
    epsilon=spent.epsilon,
    delta=spent.delta,
    method=spent.method,
    relation=spent.relation,
    neighboring_relation=spent.neighboring_relation,
    releases=[
      {"release": label, "epsilon": run.epsilon(delta)} for label, run in zip(labels, runs)
    ],
  )


@dataclasses.dataclass(frozen=True)
class ExperimentAnswer(answers.Answer):
  """The answer of `audit` for several runs: each claim, and what one client loses by all."""

  command: str
  folders: Sequence[str]
  holds: bool
  populations: Sequence[dict[str, Any]]

  @classmethod
  def of(cls, folders: Sequence[str]) -> ExperimentAnswer:
    """Audits all runs in and below some folders; a `ValueError` if one cannot be read."""
    found = []
    for population, members in experiment.read(folders).items():
      runs = []
      for member in members:
        entry: dict[str, Any] = {"folder": os.fspath(member.folder), "is_private": False}
        if member.ledger is not None:
          one = audit.audit_folder(member.folder)
          entry.update(
            is_private=True,
            holds=one.holds,
            claim=one.ledger.claim,
            epsilon=one.spent.epsilon,
            rounds_done=one.num_rounds,
            failures=one.failures,
          )
        runs.append(entry)
      of_all = experiment.compose(members)
      found.append(
        dict(
          population=population,
          sentence=of_all.sentence(),
          **dataclasses.asdict(of_all.spent),
          measured=sorted(of_all.measured),
          failures=of_all.failures,
          notes=of_all.notes,
          runs=runs,
        )
      )
    holds = all(
      not one["failures"] and all(run.get("holds", True) for run in one["runs"]) for one in found
    )
    return cls("audit", list(folders), holds, found)

  def to_text(self) -> str:
    """Returns the answer for people."""
    lines = []
    for one in self.populations:
      wrong_claims = sum(not run.get("holds", True) for run in one["runs"])
      claims = f"{wrong_claims} of the claims do NOT hold; " if wrong_claims else ""
      lines += [f"{', '.join(self.folders)} ({one['population']}): {claims}{one['sentence']}"]
      lines += [_row(run) for run in one["runs"]]
      wrong = [
        f"{run['folder']}: {failure}" for run in one["runs"] for failure in run.get("failures", ())
      ]
      lines += [
        *answers.paragraphs("Why no epsilon is finite for some:", one["failures"]),
        *answers.paragraphs("Why claims do not hold:", wrong),
        *answers.paragraphs(
          "What epsilon is about:",
          [f"Neighbouring data sets: {one['neighboring_relation']}.", *one["notes"]],
        ),
        "",
      ]
    return "\n".join(lines[:-1])


def _row(run: dict[str, Any]) -> str:
  """Returns the row of a run: its own epsilon, and whether its claim holds."""
  if not run["is_private"]:
    return f"  {'no privacy':<26}{run['folder']}"
  holds = "holds" if run["holds"] else "does NOT hold"
  return f"  {answers.as_text(run['epsilon']):<10}{holds:<16}{run['folder']}"
