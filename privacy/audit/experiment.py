"""The runs below some folders, and what one client loses by all of them together.

A run's ledger is about the run. An experiment publishes several: seeds, budgets, tuning, methods
without privacy. What its files tell of who is in which of them, and what they do not:

- Each run names the clients that it does not train on, with their exact losses and errors, in
  test_clients.csv and validation_clients.csv. All others of its data are its training clients, who
  are named nowhere. So if another run names a client that this one does not, this one trains on it,
  if both have the same data; and no epsilon is finite for a client whom one run protects and
  another one measures exactly. What a run without privacy releases may reveal all data of those
  whom it trains on.
- Whether two runs have the same data cannot be told: manifests have commitments to the clients, but
  each under its run's own key. So runs are taken to have the same clients, unless they are of
  different public data sets, as `_PUBLIC` names them. Tables of one's own may share people.
- Commitments to the key show whether two runs have one: these have the same cohorts and noise, and
  do not compose. If flags and clients agree besides, one is a copy of the other and releases
  nothing new.
- A client may be among the training clients of all runs that do not name it. So one client of all
  private runs is who loses most; the costs of these compose (`privacy.together`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import functools
import io
import os
import pathlib
from typing import Any

from privacy import ledger as ledger_lib
from privacy import together
from privacy.audit import flags as flags_lib
from privacy.audit import results as results_lib
from privacy.evaluation import entries

# The first words of tasks whose clients are known not to be those of the others.
_PUBLIC = ("emnist", "sent140", "shakespeare", "synthetic")
_OTHER = "other data"


@dataclasses.dataclass(frozen=True)
class Member:
  """A run's folder, private or not."""

  folder: pathlib.Path  # Its path.
  ledger: ledger_lib.Ledger | None  # That of a private run; None of any other.
  num_rounds: int  # The number of rounds that its files have.
  population: str  # The data set of its clients, as far as it is known.
  manifest: Mapping[str, Any]  # The content of manifest.json.
  named: frozenset[str]  # The clients of which it has exact numbers, by name.
  is_named: bool  # Whether these are all clients that it does not train on.

  @functools.cached_property
  def runs(self) -> list[together.Repeated]:
    """What it releases about its training clients, with noise."""
    if self.ledger is None:
      return []
    training = together.Repeated(self.ledger.release, self.num_rounds, self.ledger.accounting)
    queries = [entry.query for entry in entries.read(self.folder) if entry.split == "train"]
    return [training, *(together.Repeated(query.release, 1) for query in queries)]

  def binding(self, name: str) -> str:
    """Returns a commitment of its manifest; "" for none."""
    commitments = self.manifest.get("commitments")
    return str(commitments.get(name, "")) if isinstance(commitments, dict) else ""


def _names(folder: pathlib.Path, split: str) -> list[str]:
  """Returns the names in a file of clients; none where there is no file."""
  if not (folder / f"{split}_clients.csv").is_file():
    return []
  text = results_lib.read_text(folder, f"{split}_clients.csv")
  return [row[0] for row in list(csv.reader(io.StringIO(text)))[1:] if row]


def _read(folder: pathlib.Path) -> Member:
  text = (folder / "flags.txt").read_text("utf-8") if (folder / "flags.txt").is_file() else ""
  ledger, num_rounds = None, 0
  if (folder / ledger_lib.FILE_NAME).exists():
    ledger = results_lib.read_ledger(folder)
    results = results_lib.read(folder, has_begun=ledger.rounds_done > 0)
    num_rounds = max(results.num_rounds, ledger.rounds_done)
  try:
    manifest = results_lib.read_object(folder / "manifest.json") or {}
  except ValueError:
    manifest = {}
  numbers = results_lib.num_clients(manifest)
  names = {split: _names(folder, split) for split in ("test", "validation")}
  word = flags_lib.read(text).get("task", "").partition("_")[0]
  return Member(
    folder=folder,
    ledger=ledger,
    num_rounds=num_rounds,
    population=word if word in _PUBLIC else _OTHER,
    manifest=manifest,
    named=frozenset(name for of_split in names.values() for name in of_split),
    is_named=bool(numbers) and all(len(names[s]) == numbers.get(s, 0) for s in names),
  )


def read(folders: Sequence[str | os.PathLike[str]]) -> dict[str, list[Member]]:
  """Reads the runs in and below some folders, by the data set of their clients and by path."""
  members: dict[pathlib.Path, Member] = {}
  for folder in map(pathlib.Path, folders):
    if not folder.is_dir():
      raise ValueError(f"Found no folder {os.fspath(folder)!r}; expected that of private runs.")
    files = (path for name in ("flags.txt", ledger_lib.FILE_NAME) for path in folder.rglob(name))
    for path in sorted({file.parent for file in files}):
      if path.resolve() not in members:
        members[path.resolve()] = _read(path)
  populations: dict[str, list[Member]] = {}
  for member in members.values():
    populations.setdefault(member.population, []).append(member)
  private = {name: of for name, of in populations.items() if any(m.ledger for m in of)}
  if not private:
    raise ValueError(
      f"Found no {ledger_lib.FILE_NAME} in or below {', '.join(map(str, folders))}; expected"
      " the folder of a private run, or of several."
    )
  return private


@dataclasses.dataclass(frozen=True)
class Together:
  """What one client loses by all runs of one population."""

  members: Sequence[Member]  # The runs.
  # The cost for a client whom all private runs train on, and none measures exactly.
  spent: together.TotalCost
  # The names of clients whom one run protects and another measures exactly.
  measured: frozenset[str]
  # Sentences on why no epsilon is finite for some clients; empty if there are none.
  failures: tuple[str, ...]
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


def compose(members: Sequence[Member]) -> Together:
  """Accounts for all runs of one population, at least one of them private, for one client."""
  private = [member for member in members if member.ledger is not None]
  failures, copies = _one_key(private)
  runs = [run for member in private if member not in copies for run in member.runs]
  deltas = [member.ledger.claim["delta"] for member in private if member.ledger is not None]
  spent = together.spent(runs, max(deltas))
  measured, exposed = _measured(members, private)
  notes = [f"{member.folder} is a copy of another run, and counts once." for member in copies]
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
  return Together(
    members=members,
    spent=spent,
    measured=measured,
    failures=(*failures, *exposed),
    notes=(*notes, *_starts(private)),
  )


def _one_key(private: Sequence[Member]) -> tuple[list[str], list[Member]]:
  """Returns sentences on runs with the key of another, and copies of other runs."""
  failures, copies = [], []
  first: dict[str, Member] = {}
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


def _measured(
  members: Sequence[Member], private: Sequence[Member]
) -> tuple[frozenset[str], list[str]]:
  """Returns the clients whom a run protects and another measures, and sentences on these."""
  clients: set[str] = set()
  sentences = []
  for member in members:
    others = [other for other in private if other is not member]
    names = {name for other in others for name in member.named - other.named}
    clients |= names
    if names:
      number = sum(bool(member.named - other.named) for other in others)
      sentences.append(
        f"{member.folder} has exact numbers of {len(names)} clients, such as {min(names)}, whom"
        f" {number} of the other private runs may train on: they do not name them."
      )
  unnamed = [m for m in members if not m.is_named and len(members) > 1]
  if unnamed:
    sentences.append(
      f"{_such_as(unnamed)} not named all clients that it measures exactly, as where a run has not"
      " finished: it cannot be excluded that another run protects them."
    )
  public = [member for member in members if member.ledger is None]
  if public:
    sentences.append(
      f"{_such_as(public)} trained without privacy: what it releases may reveal all data of its"
      " training clients, also of those whom private runs protect."
    )
  return frozenset(clients), sentences


def _such_as(members: Sequence[Member]) -> str:
  """Names the subject of a sentence on some runs, with its verb."""
  if len(members) == 1:
    return f"{members[0].folder} has"
  return f"Each of {len(members)} runs, such as {members[0].folder}, has"


def _starts(private: Sequence[Member]) -> list[str]:
  """Returns sentences on runs whose models others start from, and which are not there."""
  folders = [member.folder.resolve().as_posix() for member in private]
  starts = {
    start.run: start
    for member in private
    if member.ledger is not None
    for start in member.ledger.starts
    if not any(folder.endswith(start.run) for folder in folders)
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
