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
from privacy import checks
from privacy import ledger as ledger_lib
from privacy import together
from privacy.audit import experiment
from privacy.audit import findings
from privacy.audit import members as members_lib
from privacy.audit import results
from privacy.command import answers
from privacy.command import asked
from privacy.command import flags
from privacy.command import meaning
from privacy.settings import command_line

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


@dataclasses.dataclass(frozen=True)
class _Counted:
  """Releases that `compose` counts, with the words for them and the delta that they state."""

  label: str
  run: together.Repeated
  delta: float


def compose(
  args: argparse.Namespace, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> answers.CommandAnswer:
  """Returns the answer of `compose`; `parse` parses the flags of a release within --run."""
  counted = _of_paths(args.ledgers)
  counted += [_of_flags(text, parse, args.delta is not None) for text in args.run or ()]
  if not counted:
    raise ValueError(
      "Found nothing to compose; expected folders or ledgers of private runs, or --run='FLAGS' with"
      " the flags of spend, once for each release."
    )
  deltas = (one.delta for one in counted)
  delta = max(deltas) if args.delta is None else checks.fraction("delta", args.delta)
  spent = dataclasses.asdict(together.spent([one.run for one in counted], delta))
  del spent["is_converted"]
  entries = [
    dict[str, Any](release=one.label, times=one.run.times, epsilon=one.run.epsilon(delta))
    for one in counted
  ]
  values = dict(command="compose", **spent, releases=entries, guarantee=_INDEPENDENT)
  lines = [
    f"epsilon = {spent['epsilon']:.5g} at delta = {answers.as_delta(delta)} for one client of all"
    f" {sum(one.run.times for one in counted)} releases together ({_METHODS[spent['method']]}).",
    "  each by itself, at the same delta:",
    *(f"    {answers.as_text(entry['epsilon']):<10}{entry['release']}" for entry in entries),
    *_about(spent, _INDEPENDENT),
  ]
  return answers.CommandAnswer(values, lines)


def _of_flags(
  text: str, parse: Callable[[Sequence[str]], argparse.Namespace], has_delta: bool
) -> _Counted:
  """Returns the releases of one --run, of which all share a delta if there `has_delta`."""
  try:
    words = shlex.split(text)
  except ValueError:
    raise ValueError(
      f"Found --run={command_line.shown(text)}, in which a quotation mark or a backslash has no"
      " end; expected flags with spaces between them, such as --run='--update_noise_multiplier=2"
      " --population=250': close it, or leave it out."
    ) from None
  own = meaning.checked(parse(words))
  missing = [f"--{name}" for name in flags.OF_RUN if getattr(own, name) is None]
  if missing:
    raise ValueError(f"Found no {', '.join(missing)} in --run; expected it (--help lists them).")
  if has_delta and own.delta is not None:
    raise ValueError(
      f"Found --delta={own.delta:g} in --run beside the --delta of all releases together; expected"
      " one of them."
    )
  times = 1 if own.times is None else checks.whole("--times", own.times, 1)
  num_rounds, delta = asked.rounds(own.num_rounds, times), asked.delta_of(own)
  run = together.Repeated(asked.noisy(own), num_rounds, own.accounting, times)
  return _Counted(command_line.shown(text), run, delta)


def _of_paths(paths: Sequence[str]) -> list[_Counted]:
  """Returns the releases of ledgers, and of the private runs in and below folders.

  A folder counts as in its audit: the training and the evaluations of training clients, and copies
  of a run once. A ledger by itself counts its rounds.
  """
  folders, counted = [], []
  for path in map(pathlib.Path, paths):
    if path.is_dir():
      folders.append(path)
    elif path.name == ledger_lib.FILE_NAME and (path.parent / "flags.txt").exists():
      folders.append(path.parent)  # What is beside a run's ledger is about its clients, too.
    else:
      entry = results.read_ledger(path.parent, path.name)
      run = together.Repeated(entry.release, entry.rounds_done, entry.accounting)
      label = f"{entry.rounds_done} rounds of {os.fspath(path)}"
      counted.append(_Counted(label, run, entry.claim["delta"]))
  if not folders:
    return counted
  found = members_lib.read(folders).populations.values()
  members = [one for of_one in found for one in of_one if one.ledger]
  failures, copies = experiment.one_key(members)
  if failures:
    raise ValueError(f"Found that {failures[0]} Expected runs with keys of their own.")
  for one in experiment.released(members, copies):
    what = "an evaluation beside" if one.is_evaluation else f"{one.run.num_rounds} rounds of"
    counted.append(_Counted(f"{what} {os.fspath(one.folder)}", one.run, one.delta))
  return counted


def audit_all(folders: Sequence[str]) -> answers.CommandAnswer:
  """Returns the answer of `audit` for all runs in and below folders: claims, and their sum."""
  found = members_lib.read(folders)
  populations = [
    _population(name, members, found.unread) for name, members in found.populations.items()
  ]
  holds = all(not entry["failures"] and not _wrong(entry) for entry in populations)
  values = dict(command="audit", folders=folders, holds=holds, populations=populations)
  lines = [line for entry in populations for line in _lines(entry, ", ".join(folders))]
  return answers.CommandAnswer(values, lines[:-1], holds)


def _population(
  name: str, members: Sequence[members_lib.Member], unread: Sequence[pathlib.Path]
) -> dict[str, Any]:
  """Returns the entry of the runs of one data set, and of tables beside them."""
  runs = []
  for member in members:
    run = dict[str, Any](folder=os.fspath(member.folder), is_private=member.ledger is not None)
    run["is_run"] = member.is_run
    if member.ledger is not None:
      audited = findings.audit_files(member.folder)
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
