"""The register of an experiment: whom its runs protect, and of whom it has exact numbers.

Claim: no client whom a run of an experiment protects has an exact number in the experiment's
folder, outside of folders called `checkpoints`. An experiment is an OUTPUT_DIR with all below it,
the runs of its tuning among them.

Whoever is about to protect clients, or to write exact numbers of clients, enters that here first.
Under one lock of the experiment the new entry is compared with all others, and stands in the folder
before anything is computed; a refusal leaves everything as it was. Clients are the same if their
names are: whatever their table or task is called, all of a folder are one population.

An entry follows what it is about. The protection by a run ends with the run's folder; its numbers
count as long as the task's folder has more than runs, as reports repeat them; a run that never
began, and at which no process is at work any more, counts for nothing. What stands in the folder
without an entry is read into the register, on the safe side: a private run protects everybody but
those of whom it has tables, a run without privacy that is not finished measures everybody. Tables
of clients beside the runs are read each time.

`OUTPUT_DIR/checkpoints/` holds the register, and apart from it the key of its commitments to
clients (BLAKE2b, 96 bits). Whoever has both learns who is protected, so it is readable by the owner
alone and, as everything in folders of this name, not to be published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
import contextlib
import os
import pathlib
import secrets
from typing import Any

from privacy import tables
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.register import entries

Coverage = entries.Coverage
TOKEN = entries.TOKEN
_LOCK = "lock"
# From what it follows whom a private run trains on.
_OF_SPLIT = ("split_seed", "validation_fraction", "num_train_clients")


def of_run(config: run_config.RunConfig, splits: Mapping[str, Any]) -> Coverage:
  """Returns the clients of a run by its splits: a private one protects those that it trains on.

  Generated clients are nobody, whom anything may measure.
  """
  if entries.is_generated(config):
    return Coverage(frozenset(), frozenset())
  by_split = {split: set(files.client_ids) for split, files in splits.items()}
  train = by_split.pop("train") if config.is_private else set()
  return Coverage(train, set().union(*by_split.values()))


def enter(path: pathlib.Path, own: Coverage, config: run_config.RunConfig, token: str = "") -> str:
  """Enters a run that is about to begin, or to go on, into the experiments that it is part of.

  Args:
    path: The run's folder, OUTPUT_DIR/TASK/METHOD/seed_S, which exists and is locked.
    own: The clients whom the run protects and measures.
    config: The run's config. With `exact_siblings` "allowed" others may measure whom it protects.
    token: What `enter` returned when the run began, by its manifest; "" for a run that begins.

  Returns:
    The token, for the run's manifest.

  Raises:
    ValueError: If a client would be protected and measured exactly; nothing has been written then.
  """
  token = token or secrets.token_hex(8)
  is_allowed = config.exact_siblings == run_config.ALLOWED
  both = own.protected & own.measured
  _refuse([entries.Conflict(path, True, True, is_allowed, both)], config)
  with _opened(_experiments(path)) as registers:
    for register in registers:
      register.read_runs(except_for=path)
      if own.protected:  # Whom a table names, else nobody asks.
        register.read_tables(config.task.data_dir, config.cache_dir)
      _refuse(register.conflicts(own, path, is_allowed), config)
    for register in registers:
      register.put(path, own, entries.task_folder(path), token, is_allowed)
  return token


def enter_key(path: pathlib.Path, commitment: str) -> pathlib.Path | None:
  """Enters the commitment to an entered run's noise key; returns another run that has the key."""
  with _opened(_experiments(path)) as registers:
    for register in registers:
      if (other := register.with_key(commitment, except_for=path)) is not None:
        return other
    for register in registers:
      register.put_key(path, commitment)
  return None


def check_start(start: pathlib.Path, own: Coverage, config: run_config.RunConfig) -> None:
  """Refuses to protect a client whom the run in which a run starts measures exactly."""
  both = set(map(tables.same, own.protected)) & entries.clients_in(start)
  is_allowed = config.exact_siblings == run_config.ALLOWED
  _refuse([entries.Conflict(start, False, True, is_allowed, both)], config)


def withdraw(path: pathlib.Path) -> None:
  """Takes back what was entered for a run that did not begin, or for a file that is not written."""
  with _opened(_known_above(path)) as registers:
    for register in registers:
      register.remove(path)


@contextlib.contextmanager
def measuring(
  folder: pathlib.Path, clients: Set[str], is_allowed: bool, out: pathlib.Path | None = None
) -> Iterator[None]:
  """Keeps the place of exact numbers of clients under a finished run's model, for as long.

  Args:
    folder: The finished run's, as it was given: also in the experiments to which links in it lead,
      nobody may protect one of the clients.
    clients: The names of the clients who are about to be measured.
    is_allowed: Whether the user says that they are nobody's secret, so that nothing is compared.
    out: The file in which the numbers are to stand, in whichever experiment it lies. It is made
      here, without content, and entered; whoever is inside writes it. None if they are not written.

  Raises:
    ValueError: If a client is protected; there is no file then, nor after any error inside.
  """
  config = run_config.from_flags(run_folder.Run(folder, 0).flags)
  own = Coverage(frozenset(), frozenset() if entries.is_generated(config) else clients)
  of_run = _experiments(folder) if own.measured else []
  of_file = [] if out is None else [*_known_above(out), *(p for p in of_run if _is_in(out, p))]
  with _opened({*of_run, *of_file}, of_file) as registers:
    for register in () if is_allowed else registers:
      register.read_runs()
      # What a run says of its siblings, it does not say of its own evaluations.
      conflicts = [
        c._replace(is_allowed=c.is_allowed and c.place.resolve() != folder.resolve())
        for c in register.conflicts(own)
      ]
      _refuse(conflicts, config, is_evaluation=True)
    if out is not None:
      with open(out, "xb"):
        pass
      for register in registers:
        if register.root in of_file:
          register.put(out, own)
  try:
    yield
  except BaseException:
    if out is not None:
      withdraw(out)
      out.unlink(missing_ok=True)
    raise


def _experiments(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders of the experiments of a run, by links or not, in one order for all."""
  return sorted({entries.output_dir(path).resolve(), *_known_above(path)})


def _is_in(path: pathlib.Path, folder: pathlib.Path) -> bool:
  """Returns whether a path lies in a folder, as it is named or as links lead."""
  places = (pathlib.Path(os.path.abspath(path)), path.resolve())
  return any(place.is_relative_to(folder) for place in places)


def _known_above(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders above a path, as it is named and as links lead, that have a register."""
  above = {*pathlib.Path(os.path.abspath(path)).parents, *path.resolve().parents}
  return sorted(
    {p.resolve() for p in above if (p / run_folder.CHECKPOINTS / entries.FILE_NAME).exists()}
  )


@contextlib.contextmanager
def _opened(
  roots: Iterable[pathlib.Path], to_write: Sequence[pathlib.Path] | None = None
) -> Iterator[list[entries.Register]]:
  """Holds the locks of experiments; what is entered is written when no error has come between.

  Those that are not to be written, all are by default, may be on a disk that is read only.
  """
  with contextlib.ExitStack() as stack:
    registers = []
    for root in sorted(roots):  # Two processes that wait for each other would wait for ever.
      folder = root / run_folder.CHECKPOINTS
      if to_write is None or root in to_write:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
      stack.enter_context(atomic_files.lock(folder / _LOCK, lambda: None))
      registers.append(entries.Register(root))
    yield registers
    for register in registers:
      if to_write is None or register.root in to_write:
        register.write()


def _refuse(
  conflicts: Sequence[entries.Conflict], config: run_config.RunConfig, is_evaluation: bool = False
) -> None:
  """Raises a `ValueError` that names the clients' number and place, and the flags that mend it."""
  conflicts = [one for one in conflicts if one.clients and not one.is_allowed]
  if not conflicts:
    return
  of_kind = [c for c in conflicts if c.is_protected == conflicts[0].is_protected]
  first, number = of_kind[0], len(frozenset().union(*(c.clients for c in of_kind)))
  places = sorted({c.place for c in of_kind})
  more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
  known = "are" if first.is_certain else "may be"
  words = (
    f"are to be measured exactly, and {known} protected in"
    if first.is_protected
    else f"are to be protected, and {known} measured exactly in"
  )
  allowed = f"say that the clients are nobody's secret by --exact_siblings={run_config.ALLOWED}"
  if first.is_protected and not is_evaluation:
    allowed += ", in the run that protects them and from its beginning"
  remedy = f"choose another --output_dir, of which you publish one alone, or {allowed}"
  if is_evaluation:
    remedy = (
      "superquantile private_evaluation asks the clients of a run with a budget; or copy the run to"
      f" a folder of which you publish nothing, or {allowed}"
    )
  other = run_folder.Run(first.place, 0).config
  if config.is_private and other is not None and other.is_private and not is_evaluation:
    its, own = other.to_flags(), config.to_flags()
    its.setdefault("split_seed", its["seed"])
    alike = (f"--{name}={its[name]}" for name in _OF_SPLIT if its.get(name) != own.get(name))
    remedy = f"split alike, by {' '.join(alike)}, or {remedy}"
  raise ValueError(
    f"Found {number} client{'s' * (number != 1)} who {words} {first.place}{more}; expected none in"
    f" one experiment, as no epsilon is finite for them: {remedy}."
  )
