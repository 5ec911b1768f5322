"""The runs below some folders, private or not, and the tables of clients beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import os
import pathlib
import re
from typing import Any, NamedTuple

from privacy import ledger as ledger_lib
from privacy import statements
from privacy import tables
from privacy.audit import findings
from privacy.audit import flags as flags_lib
from privacy.audit import results as results_lib

_HELD_OUT = ("test", "validation")
_EVALUATION = re.compile(r"round_[0-9]+\.parquet")
# What a run's folder holds that is no text, and has no table.
_OF_MODEL = ("checkpoints", "tensorboard", "weights.npz")


@dataclasses.dataclass(frozen=True)
class Member:
  """A run's folder, private or not, or a table of clients that no run has written."""

  folder: pathlib.Path  # Its path, or that of the table.
  ledger: ledger_lib.Ledger | None  # That of a private run; None of any other.
  num_rounds: int  # The number of rounds that its files have.
  population: str | None  # The data set of its clients; None where it may be any.
  manifest: Mapping[str, Any]  # The content of manifest.json.
  named: frozenset[str]  # The clients of which it has exact numbers, by name.
  is_named: bool  # Whether these are all clients that it measures.
  held_out: frozenset[str] = frozenset()  # Those of `named` whom it does not train on.
  beside: frozenset[str] = frozenset()  # Those of `named` in tables that are not the run's own.
  flags: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Those of the run, as texts.
  is_run: bool = True

  @functools.cached_property
  def fingerprint(self) -> str:
    """Identifies its model, as `StartingModel.fingerprint`; "" where there is none."""
    path = self.folder / "weights.npz"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""

  @property
  def exposing(self) -> list[statements.StartingModel]:
    """The starts without privacy that may have seen its training clients."""
    return [] if self.ledger is None else findings.exposing(self.ledger, self.flags.get("task", ""))

  def binding(self, name: str) -> str:
    """Returns a commitment of its manifest; "" for none."""
    commitments = self.manifest.get("commitments")
    return str(commitments.get(name, "")) if isinstance(commitments, dict) else ""

  def measures(self, private: Member) -> frozenset[str]:
    """Returns the clients of whom it has exact numbers, and whom a private run may train on."""
    return (self.beside if self is private else self.named) - private.held_out


class Members(NamedTuple):
  """What is below some folders."""

  populations: Mapping[str, list[Member]]  # By the data set of their clients, and by path.
  unread: tuple[pathlib.Path, ...]  # Files that may be tables of clients, and cannot be read.


def read_run(folder: pathlib.Path, names: Mapping[pathlib.Path, frozenset[str]]) -> Member:
  """Reads a run's folder, in which tables name clients."""
  is_begun = (folder / "flags.txt").is_file()
  flags = flags_lib.read(folder) if is_begun else {}
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
  own = {split: names.get(folder / f"{split}_clients.csv", frozenset()) for split in _HELD_OUT}
  is_named = bool(numbers) and all(len(own[s]) == numbers.get(s, 0) for s in _HELD_OUT)
  held_out = frozenset[str]().union(*own.values())
  others = [
    clients
    for path, clients in names.items()
    # Of a run that is not finished the names of those whom it evaluates are nowhere else.
    if is_named or not (path.parent == folder / "clients" and _EVALUATION.fullmatch(path.name))
  ]
  return Member(
    folder=folder,
    ledger=ledger,
    num_rounds=num_rounds,
    population=statements.population(flags.get("task", "")) if flags else None,
    manifest=manifest,
    named=held_out.union(*names.values()),
    is_named=is_named,
    held_out=held_out,
    beside=frozenset[str]().union(*others) - held_out,
    flags=flags,
  )


def _table(path: pathlib.Path, clients: frozenset[str]) -> Member:
  """Returns a table that no run has written, of clients of whatever data."""
  return Member(path, None, 0, None, {}, clients, is_named=True, is_run=False)


def read(folders: Sequence[str | os.PathLike[str]]) -> Members:
  """Reads the runs in and below some folders, and the tables of clients beside them.

  Args:
    folders: Each is searched with all folders below it.

  Returns:
    The runs and the tables, by population.

  Raises:
    ValueError: If a folder is not there, a private run's files cannot be read, or none is private.
  """
  paths = list(map(pathlib.Path, folders))
  for folder in paths:
    if not folder.is_dir():
      raise ValueError(f"Found no folder {os.fspath(folder)!r}; expected that of private runs.")
  found = tables.find(paths)
  runs: dict[pathlib.Path, dict[pathlib.Path, frozenset[str]]] = {
    folder: {}
    for folder in sorted(found.folders)
    if any((folder / name).exists() for name in results_lib.OF_RUN)
  }
  members = []
  for path, clients in found.names.items():
    home = next((parent for parent in path.parents if parent in runs), None)
    if home is None:
      members.append(_table(path, clients))
    else:
      runs[home][path] = clients
  members = [*(read_run(folder, names) for folder, names in runs.items()), *members]
  private = (member.population for member in members if member.ledger is not None)
  populations = list(dict.fromkeys(population or statements.OTHER_DATA for population in private))
  if not populations:
    raise ValueError(
      f"Found no {ledger_lib.FILE_NAME} in or below {', '.join(map(str, folders))}; expected"
      " the folder of a private run, or of several."
    )
  unread = (
    path
    for path in found.unread
    if not any(path.is_relative_to(run / name) for run in runs for name in _OF_MODEL)
  )
  return Members(
    {name: [m for m in members if m.population in (name, None)] for name in populations},
    tuple(unread),
  )
