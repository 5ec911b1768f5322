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
from privacy.audit import results
from privacy.command import answers
from privacy.command import asked

_INDEPENDENT = (
  "The releases have noise and cohorts of their own: no two runs have one key. A later one may be"
  " chosen by the results of earlier ones.",
  "The client is in all of them. Choices by results without noise on its data are not included.",
)
_METHODS = {
  together.SUM: "epsilons and deltas added up",
  accounting.GAUSSIAN: "one Gaussian mechanism",
  accounting.RDP: "by RDP",
  accounting.PLD: "by PLD",
}


def compose(
  args: argparse.Namespace, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> answers.Answer:
  """Returns the answer of `compose`; `parse` parses the flags of `spend`, and --times."""
  runs: list[together.Repeated] = []
  labels: list[str] = []
  deltas: list[float] = []
  for path in map(pathlib.Path, args.ledgers):
    folder, name = (path, ledger_lib.FILE_NAME) if path.is_dir() else (path.parent, path.name)
    entry = results.read_ledger(folder, name)
    runs.append(together.Repeated(entry.release, entry.rounds_done, entry.accounting))
    labels.append(f"{entry.rounds_done} rounds of {os.fspath(path)}")
    deltas.append(entry.claim["delta"])
  for text in args.run:
    own = parse(shlex.split(text))
    delta = asked.delta_of(own)
    run = together.Repeated(asked.noisy(own), asked.rounds(own.num_rounds), own.accounting)
    runs += [run] * checks.whole("--times", own.times, 1)
    labels += [text] * own.times
    deltas.append(delta)
  if not runs:
    raise ValueError(
      "Found nothing to compose; expected folders or ledgers of private runs, or --run='FLAGS' with"
      " the flags of spend, once for each release."
    )
  delta = max(deltas) if args.delta is None else checks.fraction("delta", args.delta)
  spent = dataclasses.asdict(together.spent(runs, delta))
  del spent["is_converted"]
  epsilons = [run.epsilon(delta) for run in runs]
  entries = [dict(release=label, epsilon=epsilon) for label, epsilon in zip(labels, epsilons)]
  values = dict(command="compose", **spent, releases=entries, guarantee=_INDEPENDENT)
  lines = [
    f"epsilon = {spent['epsilon']:.5g} at delta = {delta:.4g} for one client of all"
    f" {len(runs)} releases together ({_METHODS[spent['method']]}).",
    "  each by itself, at the same delta:",
    *(f"    {answers.as_text(epsilon):<10}{label}" for label, epsilon in zip(labels, epsilons)),
    *_about(spent, _INDEPENDENT),
  ]
  return answers.Answer(values, lines)


def audit_all(folders: Sequence[str]) -> answers.Answer:
  """Returns the answer of `audit` for all runs in and below folders: claims, and their sum."""
  found = experiment.read(folders)
  populations = [
    _population(name, members, found.unread) for name, members in found.populations.items()
  ]
  holds = all(not entry["failures"] and not _wrong(entry) for entry in populations)
  values = dict(command="audit", folders=folders, holds=holds, populations=populations)
  lines = [line for entry in populations for line in _lines(entry, ", ".join(folders))]
  return answers.Answer(values, lines[:-1], holds)


def _population(
  name: str, members: Sequence[experiment.Member], unread: Sequence[pathlib.Path]
) -> dict[str, Any]:
  """Returns the entry of the runs of one data set, and of tables beside them."""
  runs = []
  for member in members:
    run = dict[str, Any](folder=os.fspath(member.folder), is_private=member.ledger is not None)
    run["is_run"] = member.is_run
    if member.ledger is not None:
      audited = audit.audit_folder(member.folder)
      run |= dict(
        holds=audited.holds,
        claim=audited.ledger.claim,
        epsilon=audited.spent.epsilon,
        rounds_done=audited.num_rounds,
        failures=audited.failures,
      )
    runs.append(run)
  of_all = experiment.compose(members, unread)
  return dict(
    population=name,
    sentence=of_all.sentence(),
    **dataclasses.asdict(of_all.spent),
    measured=sorted(of_all.measured),
    failures=of_all.failures,
    notes=of_all.notes,
    runs=runs,
  )


def _wrong(population: dict[str, Any]) -> list[dict[str, Any]]:
  """Returns the runs whose claims do not hold."""
  return [run for run in population["runs"] if not run.get("holds", True)]


def _lines(population: dict[str, Any], folders: str) -> list[str]:
  """Returns the answer on the runs of one data set for people."""
  wrong = _wrong(population)
  claims = f"{len(wrong)} of the claims do NOT hold; " if wrong else ""
  failures = [f"{run['folder']}: {failure}" for run in wrong for failure in run["failures"]]
  return [
    f"{folders} ({population['population']}): {claims}{population['sentence']}",
    *map(_row, population["runs"]),
    *answers.paragraphs("Why no epsilon is finite for some:", population["failures"]),
    *answers.paragraphs("Why claims do not hold:", failures),
    *_about(population, population["notes"]),
    "",
  ]


def _about(spent: dict[str, Any], sentences: Sequence[str]) -> list[str]:
  """Returns the paragraph on the meaning of a cost."""
  neighbors = f"Neighbouring data sets: {spent['neighboring_relation']}."
  return answers.paragraphs("What epsilon is about:", [neighbors, *sentences])


def _row(run: dict[str, Any]) -> str:
  """Returns the row of a run: its own epsilon, and whether its claim holds."""
  if not run["is_private"]:
    return f"  {'no privacy' if run['is_run'] else 'table of clients':<26}{run['folder']}"
  holds = "holds" if run["holds"] else "does NOT hold"
  return f"  {answers.as_text(run['epsilon']):<10}{holds:<16}{run['folder']}"
