"""What is entered in the register of one experiment, and its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import secrets
from typing import NamedTuple

from privacy import ledger
from privacy import tables
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import privacy
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

TOKEN = "register"  # The entry of manifest.json that binds a run to its entry in the register.
FILE_NAME = "clients.json"
_KEY, _KEY_BYTES = "clients_key", 16
_PROTECTED, _MEASURED = "protected", "measured"
# What the folder of a run may have before the run begins: of nothing else it is known.
_BEFORE_A_RUN = {"lock", run_folder.CHECKPOINTS, run_folder.FAILED, run_folder.LOG}


class Coverage(NamedTuple):
  """The names of the clients that are protected, and of those with exact numbers."""

  protected: Set[str]
  measured: Set[str]


@dataclasses.dataclass(frozen=True)
class _Entry:
  """What a run, or a file of exact numbers, says of an experiment's clients.

  Attributes:
    protected: Commitments to clients.
    measured: Commitments to clients.
    others: What clients may be who are in neither: "protected", "measured", or both.
    noise_key: The commitment to a private run's key; "" for none.
    task: The folder of its task in the experiment's, whose reports may repeat its numbers; "" for a
      file.
    is_allowed: Whether the run says, and its ledger with it, that other runs may measure whom it
      protects.
    token: What binds the entry to the run's manifest, or identifies the files it was read from.
  """

  protected: frozenset[str] = frozenset()
  measured: frozenset[str] = frozenset()
  others: tuple[str, ...] = ()
  noise_key: str = ""
  task: str = ""
  token: str = ""
  is_allowed: bool = False

  def common(self, role: str, clients: Set[str]) -> Set[str]:
    """Returns those of some clients, by their commitments, whom the entry has in a role."""
    other = self.measured if role == _PROTECTED else self.protected
    return clients - other if role in self.others else clients & getattr(self, role)


class Conflict(NamedTuple):
  """Clients who would be measured exactly and are protected in a place, or the other way round."""

  place: pathlib.Path
  is_protected: bool  # In that place.
  is_certain: bool
  is_allowed: bool  # By the run that protects them.
  clients: Set[str]  # Commitments.


class Register:
  """The register of one experiment, whose lock is held."""

  def __init__(self, root: pathlib.Path):
    self.root = root
    self._path = root / run_folder.CHECKPOINTS / FILE_NAME
    self._key = b""
    self._tables: list[tuple[pathlib.Path, frozenset[str]]] = []
    self._entries = self._load()
    self._written = dict(self._entries)

  def _load(self) -> dict[str, _Entry]:
    """Returns the entries by name, none where there is no file."""
    if not self._path.exists():
      return {}
    kept, entries = run_files.read_json(self._path), {}
    try:
      sets = {digest: frozenset(clients) for digest, clients in kept["sets"].items()}
      for name, values in kept["entries"].items():
        of_role = {role: sets[values[role]] for role in (_PROTECTED, _MEASURED)}
        entry = _Entry(**{**values, **of_role, "others": tuple(values["others"])})
        entries[self._name(self.root / name)] = entry  # A folder may have moved behind a link.
    except (AttributeError, KeyError, TypeError) as error:
      raise ValueError(
        f"Found that {self._path} is damaged; expected the register of the experiment's clients:"
        " bring the file back, or remove it, and each run there counts as one that the register"
        " does not know."
      ) from error
    return entries

  def put(
    self,
    path: pathlib.Path,
    own: Coverage,
    task: str = "",
    token: str = "",
    is_allowed: bool = False,
  ) -> None:
    """Enters what a run or a file says of its clients, in the place of what it said before."""
    before = self._entries.get(self._name(path), _Entry())
    self._entries[self._name(path)] = _Entry(
      self._commit(own.protected),
      self._commit(own.measured),
      noise_key=before.noise_key,
      task=task,
      token=token,
      is_allowed=is_allowed,
    )

  def put_key(self, path: pathlib.Path, commitment: str) -> None:
    """Adds the commitment to a run's key to its entry."""
    name = self._name(path)
    self._entries[name] = dataclasses.replace(self._entries[name], noise_key=commitment)

  def with_key(self, commitment: str, except_for: pathlib.Path) -> pathlib.Path | None:
    """Returns another run that has a key, by the commitment to it; None if there is none."""
    own = self._name(except_for)
    for name, entry in self._entries.items():
      if name != own and entry.noise_key == commitment and self._is_left(name, entry, _PROTECTED):
        return self.root / name
    return None

  def remove(self, path: pathlib.Path) -> None:
    """Removes the entry of a run or a file, if there is one."""
    self._entries.pop(self._name(path), None)

  def read_runs(self, except_for: pathlib.Path | None = None) -> None:
    """Reads the runs without an entry into the register; forgets those that never began."""
    own = None if except_for is None else self._name(except_for)
    runs = {self._name(folder): folder for folder in _runs(self.root)}
    for name, entry in list(self._entries.items()):
      if self._is_abandoned(name, entry):
        del self._entries[name]
    for name, folder in runs.items():
      token, kept = _token(folder), self._entries.get(name)
      if name != own and token and (kept is None or kept.token != token):
        self._entries[name] = self._read(folder, token)

  def read_tables(self, *data: str) -> None:
    """Reads the tables of clients beside the runs, but for files and folders of the run's data."""
    others = {self.root / name for name in self._entries}
    others |= {pathlib.Path(place).resolve() for place in data if place}
    found = _tables([self.root], others)
    self._tables = [(path, self._commit(clients)) for path, clients in found.items()]

  def conflicts(
    self, own: Coverage, except_for: pathlib.Path | None = None, is_allowed: bool = False
  ) -> list[Conflict]:
    """Returns where clients are protected that are to be measured exactly, and the reverse."""
    protected, measured = self._commit(own.protected), self._commit(own.measured)
    found = [
      Conflict(path, False, True, is_allowed, clients & protected) for path, clients in self._tables
    ]
    for name, entry in self._entries.items():
      if except_for is not None and name == self._name(except_for):
        continue
      for role, its in ((_PROTECTED, measured), (_MEASURED, protected)):
        if self._is_left(name, entry, role):
          is_certain = role not in entry.others
          both = entry.common(role, its)
          is_protected = role == _PROTECTED
          by_whom = entry.is_allowed if is_protected else is_allowed
          found.append(Conflict(self.root / name, is_protected, is_certain, by_whom, both))
    return found

  def write(self) -> None:
    """Writes the entries, if they are others than before, for their owner alone."""
    if self._entries == self._written:
      return
    folder = self._path.parent
    if not self._entries:
      for path in (self._path, folder / _KEY):
        path.unlink(missing_ok=True)
      return
    # Most runs have the same clients, which are written once.
    of_sets = {getattr(e, role) for e in self._entries.values() for role in (_PROTECTED, _MEASURED)}
    lists = {clients: sorted(clients) for clients in of_sets}
    digests = {clients: _digest(names) for clients, names in lists.items()}
    sets = {digests[clients]: names for clients, names in lists.items()}
    entries = {}
    for name, entry in self._entries.items():
      of_role = {role: digests[getattr(entry, role)] for role in (_PROTECTED, _MEASURED)}
      entries[name] = {**vars(entry), **of_role}
    folder.chmod(0o700)
    if self._key and not (folder / _KEY).exists():
      atomic_files.write(folder / _KEY, self._key.hex() + "\n", mode=0o600)
    content = json.dumps({"sets": sets, "entries": entries}, sort_keys=True)
    atomic_files.write(self._path, content + "\n", mode=0o600)

  def _name(self, path: pathlib.Path) -> str:
    """Returns the one name of a run or a file, whatever links lead to it."""
    path = path.resolve()
    return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

  def _commit(self, clients: Set[str]) -> frozenset[str]:
    """Returns commitments to clients under the register's key, which the first use makes."""
    if clients and not self._key:
      self._key = self._read_key()
    return frozenset(
      hashlib.blake2b(tables.same(client).encode(), key=self._key, digest_size=12).hexdigest()
      for client in clients
    )

  def _read_key(self) -> bytes:
    """Returns the key that is kept, or a new one before the first entry with clients."""
    path = self._path.parent / _KEY
    try:
      key = bytes.fromhex(path.read_text("ascii", errors="replace").strip())
    except FileNotFoundError:
      if not any(entry.protected or entry.measured for entry in self._entries.values()):
        return secrets.token_bytes(_KEY_BYTES)
      key = b""
    except ValueError:
      key = b""
    if len(key) != _KEY_BYTES:
      raise ValueError(
        f"Found no key in {path}, by which {self._path} names clients; bring the file back, or"
        " remove both, and each run there counts as one that the register does not know."
      )
    return key

  def _read(self, folder: pathlib.Path, token: str) -> _Entry:
    """Returns the entry of a run that has none, on the safe side."""
    run = run_folder.Run(folder, 0)
    is_usual = len(folder.relative_to(self.root).parts) >= len(("task", "method", "seed"))
    task = os.path.relpath(folder.parents[1] if is_usual else folder, self.root)
    commitments = run.manifest.get("commitments") or {}
    noise_key = str(commitments.get("noise_key", ""))
    is_allowed = run.flags.get("exact_siblings") == run_config.ALLOWED
    if run.config is not None and is_generated(run.config):
      return _Entry(noise_key=noise_key, task=task, token=token)
    measured = self._commit(clients_in(folder))
    others: list[str] = []
    if privacy.is_private(run.flags) or commitments or not run.flags:
      others.append(_PROTECTED)
    if not (privacy.is_private(run.flags) or run.finished and run.flags):
      others.append(_MEASURED)
    return _Entry(frozenset(), measured, tuple(others), noise_key, task, token, is_allowed)

  def _is_abandoned(self, name: str, entry: _Entry) -> bool:
    """Returns whether a file is gone, or a run never began and nobody is at work on it any more."""
    folder = self.root / name
    if not entry.task:
      return not folder.exists()
    if not folder.is_dir() or _token(folder):
      return False
    try:
      with open(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
      return True
    except OSError:
      return False
    return True

  def _is_left(self, name: str, entry: _Entry, role: str) -> bool:
    """Returns whether anything is left of what an entry says: of numbers also in reports.

    What lies behind a link is left as long as the task's folder: its disk may be elsewhere today.
    """
    place, task = self.root / name, self.root / entry.task
    if place.exists() or not entry.task:
      return place.exists()
    if os.path.isabs(name):
      return os.path.lexists(task)
    return role == _MEASURED and task.exists() and not all(map(_has_runs, task.iterdir()))


def _digest(commitments: Sequence[str]) -> str:
  return hashlib.blake2b("".join(commitments).encode(), digest_size=12).hexdigest()


def _has_runs(path: pathlib.Path) -> bool:
  return any(path.glob("seed_*"))


def _runs(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the folders of runs below an experiment's, by their place or by their files."""
  for path in tables.walk([root], [], lambda path: path.name == run_folder.CHECKPOINTS):
    if path.name in ("manifest.json", ledger.FILE_NAME):
      yield path.parent
    elif path.name.startswith("seed_") and path.is_dir():
      yield path


def _tables(
  places: Iterable[pathlib.Path], others: Set[pathlib.Path] = frozenset()
) -> dict[pathlib.Path, frozenset[str]]:
  """Returns the tables in some places, but for other files and folders, and for checkpoints."""
  return tables.find(
    places, lambda path: path.name == run_folder.CHECKPOINTS or path.resolve() in others
  ).names


def clients_in(folder: pathlib.Path) -> frozenset[str]:
  """Returns the clients of whom any table in a folder has a row."""
  return frozenset().union(*_tables([folder]).values())


def output_dir(path: pathlib.Path) -> pathlib.Path:
  """Returns the folder of a run's experiment, by the name that the run is given."""
  output_dir = pathlib.Path(os.path.abspath(path)).parents[2]
  return output_dir.parent if output_dir.name == names.TUNING else output_dir


def task_folder(path: pathlib.Path) -> str:
  """Returns the folder of a run's task in that of its experiment."""
  task = pathlib.Path(os.path.abspath(path)).parents[1]
  return os.path.relpath(task, output_dir(path))


def is_generated(config: run_config.RunConfig) -> bool:
  """Returns whether a run's clients are generated, so that they are nobody."""
  return config.task.name == "synthetic" or config.task.is_standin


def _token(folder: pathlib.Path) -> str:
  """Identifies a run's folder as it is; "" where nothing is there but what comes before a run."""
  manifest = run_files.read_text(folder / "manifest.json")
  try:
    token = str(json.loads(manifest).get(TOKEN, ""))
  except (AttributeError, ValueError):
    token = ""
  if token or {path.name for path in folder.iterdir()} <= _BEFORE_A_RUN:
    return token
  of_files = manifest + run_files.read_text(folder / "flags.txt")
  return "read " + hashlib.blake2b(of_files.encode(), digest_size=8).hexdigest()
