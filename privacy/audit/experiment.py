"""The runs below some folders, and what one client loses by all of them together.

A run's ledger is about the run. An experiment publishes several: seeds, budgets, tuning, methods
without privacy. This reads all files below the folders (`tables`) and believes no run, and no
record of a run, about the others. What the files tell of who is in which of the runs, and what they
do not:

- Each run names the clients that it does not train on, with their exact losses and errors, in
  test_clients.csv and validation_clients.csv. All others of its data are its training clients, who
  are named nowhere. So if any other table, of a run or not, names a client that a private run does
  not, this one trains on it, if both have the same data; and no epsilon is finite for a client whom
  one run protects and another table measures exactly. What a run without privacy releases may
  reveal all data of those whom it trains on, and so may a run that starts from its model.
- Whether two runs have the same data cannot be told: manifests have commitments to the clients, but
  each under its run's own key. So runs are taken to have the same clients, unless they are of
  different public data sets (`statements.population`). Tables of one's own may share people.
  Of a table that no run has written nothing is known: it may be about the clients of any run.
- Commitments to the key show whether two runs have one: these have the same cohorts and noise, and
  do not compose. If flags and clients agree besides, one is a copy of the other and releases
  nothing new.
- A client may be among the training clients of all runs that do not name it. So one client of all
  private runs is who loses most; the costs of these compose (`privacy.together`).
- A start is among the runs if one of these has its weights, by their SHA-256.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import NamedTuple

from privacy import statements
from privacy import tables
from privacy import together
from privacy.audit import findings
from privacy.audit import members as members_lib
from privacy.evaluation import entries


@dataclasses.dataclass(frozen=True)
class Together:
  """What one client loses by all runs of one population."""

  members: Sequence[members_lib.Member]  # The runs, and tables of clients beside them.
  # The cost for a client whom all private runs train on, and none measures exactly.
  spent: together.TotalCost
  # The names of clients whom one run protects and another table measures exactly.
  measured: frozenset[str]
  # Sentences on why no epsilon is finite for some clients; empty if there are none.
  failures: tuple[str, ...]
  limits: tuple[str, ...]  # What the guarantees of private runs leave out by the runs' flags.
  notes: tuple[str, ...]  # Further remarks, in sentences.

  def sentence(self) -> str:
    """Returns the answer in one sentence."""
    cost = f"epsilon = {self.spent.epsilon:.4g} at delta = {self.spent.delta:.3g}"
    num_private = sum(member.ledger is not None for member in self.members)
    whom = "one client of the one private run"
    if num_private > 1:
      whom = f"one client of all {num_private} private runs"
    if not self.failures:
      return f"{cost} for {whom} together."
    who = f"{len(self.measured)} clients" if self.measured else "some clients"
    return f"NO finite epsilon for {who}; {cost} for {whom} whom no other run measures exactly."


def audit_folder(folder: str | os.PathLike[str]) -> findings.Audit:
  """Recomputes the budget of a run, and looks for its training clients in the tables of its folder.

  Args:
    folder: As of `findings.audit_files`.

  Returns:
    Its findings, with what the tables contradict.

  Raises:
    ValueError: As by `findings.audit_files`.
  """
  audited = findings.audit_files(folder)
  member = members_lib.read_run(pathlib.Path(folder), tables.find([pathlib.Path(folder)]).names)
  return dataclasses.replace(audited, failures=(*audited.failures, *_measured_beside(member)[1]))


def compose(members: Sequence[members_lib.Member], unread: Sequence[pathlib.Path] = ()) -> Together:
  """Accounts for all runs of one population for one client.

  Args:
    members: The runs, at least one of them private, and tables of clients beside them.
    unread: Files beside them that may be such tables, too, and cannot be read.

  Returns:
    The cost of all runs together, and what fails, limits or remarks on it.

  Raises:
    ValueError: If no cost follows, as of too little noise.
  """
  private = [member for member in members if member.ledger is not None]
  failures, copies = one_key(private)
  counted = released(private, copies)
  spent = together.spent([one.run for one in counted], max(one.delta for one in counted))
  measured, exposed = _measured(members, private)
  notes = [f"{member.folder} is a copy of another run: its rounds count once." for member in copies]
  if len(members) > 1:
    notes.append(
      "Which clients train in which run is in no file: a client is taken to be in all of them"
      f" ({members[0].population}), unless a run names it among those that it does not train on."
      " Commitments to the clients cannot be compared without the keys."
    )
  if spent.is_converted:
    notes.append(
      "The runs claim different neighbouring relations. All are accounted for in the stronger one"
      " of them, in which those that claim the weaker one cost more than their own epsilons say."
    )
  if spent.method == together.SUM:
    notes.append("Epsilons and deltas are added up: they are out of reach of privacy losses.")
  if unread:
    notes.append(
      f"Not read: {len(unread)} files, such as {unread[0]}, which are neither text nor Parquet that"
      " can be read here (by pyarrow): whether they have numbers of clients is not known."
    )
  limits = _limits(private)
  return Together(
    members=members,
    spent=spent,
    measured=measured,
    failures=(*failures, *exposed, *_exposing_starts(private)),
    limits=limits,
    notes=(*notes, *_starts(private), *limits),
  )


class Released(NamedTuple):
  """What a private run releases about its training clients, with noise."""

  folder: pathlib.Path
  is_evaluation: bool
  run: together.Repeated
  delta: float  # That of the run.


def released(
  private: Sequence[members_lib.Member], copies: Sequence[members_lib.Member]
) -> list[Released]:
  """Returns the rounds of runs, but for copies of others, and all evaluations, each once.

  A copy has the rounds and the evaluations of its original, and evaluations of its own.
  """
  found: dict[tuple[str, int], Released] = {}
  for member in private:
    seen = collections.Counter[str]()
    ledger = member.ledger
    assert ledger is not None
    delta = ledger.claim["delta"]
    if member not in copies:
      rounds = together.Repeated(ledger.release, member.num_rounds, ledger.accounting)
      found[os.fspath(member.folder), 0] = Released(member.folder, False, rounds, delta)
    for content in entries.load(member.folder):
      entry = entries.Evaluation.from_dict(content)
      if entry.split == entries.TRAINING_SPLIT:
        query = together.Repeated(entry.query.release, 1)
        name = entries.identity(content)
        seen[name] += 1
        found.setdefault((name, seen[name]), Released(member.folder, True, query, delta))
  return list(found.values())


def one_key(private: Sequence[members_lib.Member]) -> tuple[list[str], list[members_lib.Member]]:
  """Returns sentences on runs with the key of another, and copies of other runs."""
  failures, copies = [], []
  first: dict[str, members_lib.Member] = {}
  for member in sorted(private, key=lambda member: -member.num_rounds):
    key = member.binding("noise_key")
    other = first.setdefault(key, member) if key else member
    if other is member:
      continue
    same = (member.manifest.get("flags"), member.binding("clients"))
    if same == (other.manifest.get("flags"), other.binding("clients")):
      copies.append(member)
    else:
      failures.append(
        f"{member.folder} and {other.folder} have one key, so that their cohorts and noise are the"
        " same: what they release together has no bound."
      )
  return failures, copies


def _measured_beside(member: members_lib.Member) -> tuple[frozenset[str], list[str]]:
  """Returns whom a private run may train on and its own folder measures, and a sentence on them."""
  own = member.measures(member) if member.ledger is not None else frozenset()
  if not own:
    return own, []
  return own, [
    f"{member.folder} has exact numbers of {len(own)} clients, such as {min(own)}, in a table"
    " beside those of its test and validation clients: it may train on them."
  ]


def _measured(
  members: Sequence[members_lib.Member], private: Sequence[members_lib.Member]
) -> tuple[frozenset[str], list[str]]:
  """Returns the clients whom a run protects and another measures, and sentences on these."""
  clients: set[str] = set()
  sentences = []
  for member in members:
    names = {other.folder: member.measures(other) for other in private if other is not member}
    of_others = frozenset[str]().union(*names.values())
    if of_others:
      number = sum(map(bool, names.values()))
      sentences.append(
        f"{member.folder} has exact numbers of {len(of_others)} clients, such as {min(of_others)},"
        f" whom {number} of the {'other ' * member.is_run}private runs may train on: they do not"
        " name them."
      )
    own, beside = _measured_beside(member)
    sentences += beside
    clients |= of_others | own
  unnamed = [m for m in members if not m.is_named and len(members) > 1]
  if unnamed:
    sentences.append(
      f"{_such_as(unnamed)} not named all clients that it measures exactly, as where a run has not"
      " finished: it cannot be excluded that another run protects them."
    )
  public = [member for member in members if member.ledger is None and member.is_run]
  if public:
    sentences.append(
      f"{_such_as(public)} trained without privacy: what it releases may reveal all data of its"
      " training clients, also of those whom private runs protect."
    )
  return frozenset(clients), sentences


def _such_as(members: Sequence[members_lib.Member]) -> str:
  """Names the subject of a sentence on some runs, with its verb."""
  if len(members) == 1:
    return f"{members[0].folder} has"
  return f"Each of {len(members)} runs, such as {members[0].folder}, has"


def _limits(private: Sequence[members_lib.Member]) -> tuple[str, ...]:
  """Returns what flags of private runs say of the limits of their guarantees, with the runs."""
  by_sentence: dict[str, list[members_lib.Member]] = {}
  for member in private:
    for sentence in statements.of_flags(member.flags).values():
      by_sentence.setdefault(sentence, []).append(member)
  return tuple(
    f"Outside the guarantee of {_example(of)}: {sentence}" for sentence, of in by_sentence.items()
  )


def _example(members: Sequence[members_lib.Member]) -> str:
  """Names some runs by the first."""
  more = f" and {len(members) - 1} more" if len(members) > 1 else ""
  return f"{members[0].folder}{more}"


def _exposing_starts(private: Sequence[members_lib.Member]) -> list[str]:
  """Returns sentences on models without privacy that have seen whom later runs protect."""
  by_start: dict[str, list[members_lib.Member]] = {}
  for member in private:
    for start in member.exposing:
      by_start.setdefault(start.run, []).append(member)
  return [
    f"{run}, from whose model {_example(of)} started, was trained without privacy on what may be"
    " the same clients: it may reveal all data of its training clients."
    for run, of in by_start.items()
  ]


def _starts(private: Sequence[members_lib.Member]) -> list[str]:
  """Returns sentences on runs whose models others start from, and which are not there."""
  there = {member.fingerprint for member in private}
  starts = {
    start.fingerprint or start.run: start
    for member in private
    if member.ledger is not None
    for start in member.ledger.starts
    if start.fingerprint not in there - {""} and start not in member.exposing
  }
  return [
    f"Not included: {start.run}, from whose model a run starts"
    + (
      ", was trained without privacy."
      if start.epsilon is None
      else f": epsilon = {start.epsilon:.4g} at delta = {start.delta:.3g} comes on top."
    )
    for start in starts.values()
  ]
