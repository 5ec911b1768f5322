"""Tables of clients in an experiment's folder, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import csv
import pathlib

from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_LONGEST_HEADER = 2**16


def find(
  places: Iterable[pathlib.Path], *others: pathlib.Path
) -> Iterator[tuple[pathlib.Path, set[str]]]:
  """Finds the tables among files and below folders, by links, too.

  Args:
    places: Files and folders.
    *others: Files that are passed over, and folders; as is what is called checkpoints.

  Yields:
    The path of each file with a column client_id, and the clients in it.
  """
  seen = {path.resolve() for path in others}
  waiting = list(places)
  while waiting:
    path = waiting.pop()
    if path.resolve() in seen or path.name == run_folder.CHECKPOINTS:
      continue
    seen.add(path.resolve())
    if path.is_dir():
      waiting += sorted(path.iterdir(), reverse=True)
    elif path.is_file() and (clients := _read(path)) is not None:
      yield path, clients


def clients_in(folder: pathlib.Path) -> set[str]:
  """Returns the clients of whom any table in a folder has a row."""
  return set().union(*(clients for _, clients in find([folder])))


def _read(path: pathlib.Path) -> set[str] | None:
  """Returns the clients of a table with a column client_id; None for another file."""
  with open(path, encoding="utf-8-sig", errors="replace", newline="") as stream:
    header = stream.readline(_LONGEST_HEADER)
    if "client_id" not in header:
      return None
    separator = next((mark for mark in ",;\t|" if mark in header), ",")
    try:
      columns = next(csv.reader([header], delimiter=separator))
      place = [column.strip() for column in columns].index("client_id")
      rows = csv.reader((line.replace("\0", "") for line in stream), delimiter=separator)
      return {run_files.unescape(row[place]) for row in rows if len(row) > place}
    except (csv.Error, StopIteration, ValueError):
      return None
