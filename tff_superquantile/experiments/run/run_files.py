"""Formats of the files in a run's folder: CSV whose texts are safe in a spreadsheet, JSON, weights.

Readers tolerate a run in progress: a missing file reads as empty, and a row that is torn because
its writer was killed or has not got further yet is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import csv
import io
import json
import os
import pathlib
import shutil
from typing import Any, NamedTuple
import zipfile
import zlib

import numpy as np

from privacy import tables
from tff_superquantile import atomic_files

CLIENTS = "clients"  # The folder of `training.evaluation_files`.


class Weights(NamedTuple):
  """A model's weights, as arrays."""

  trainable: tuple[np.ndarray, ...]
  non_trainable: tuple[np.ndarray, ...]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Turns nested dicts into one, whose names join the levels by dots."""
  leaves: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      leaves.update(flatten(value, f"{prefix}{name}."))
    else:
      leaves[f"{prefix}{name}"] = value
  return leaves


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
  """Returns a CSV file's content, with its strings escaped; its lines end in a line feed."""
  lines = []
  for row in (names, *rows):
    line = io.StringIO(newline="")
    # With its usual line end, a writer quotes both of the characters that end lines.
    csv.writer(line).writerow(
      [tables.escape(cell) if isinstance(cell, str) else cell for cell in row]
    )
    lines.append(line.getvalue().removesuffix("\r\n") + "\n")
  return "".join(lines)


def read_columns(path: pathlib.Path, *, is_whole: bool) -> dict[str, np.ndarray]:
  """Reads the complete rows of a CSV file: `client_id` as strings, other columns as float64.

  No file reads as no columns. In a file in the making the last line may stop within a number, and
  0.5 of 0.5313 looks as good as any; in a whole one, to which nobody writes any more, the missing
  line end is an editor's doing.
  """
  # A machine that loses power can leave NUL bytes, which Python before 3.11 refuses to parse.
  text = read_text(path).replace("\0", "")
  if not is_whole:
    text = text[: text.rfind("\n") + 1]
  try:
    header, *rows = list(csv.reader(io.StringIO(text))) or [[]]
  except csv.Error as error:
    raise ValueError(
      f"Found that {path} is damaged ({str(error).partition(' - ')[0]}); expected a run's table:"
      " bring the file back, or remove the run's folder."
    ) from error
  rows = [row for row in rows if len(row) == len(header)]
  columns = {}
  for index, column in enumerate(header):
    values = [row[index] for row in rows]
    if column == "client_id":
      columns[column] = np.array([tables.unescape(value) for value in values], dtype=str)
    else:
      columns[column] = np.array([_to_float(value) for value in values], dtype=np.float64)
  return columns


def write_clients(
  path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]] | Mapping[str, np.ndarray]
) -> None:
  """Writes a row a client, like `atomic_files.write`; client ids are escaped."""
  rows = zip(*(np.asarray(column).tolist() for column in columns.values()))
  atomic_files.write(path, csv_text(columns, rows))


def write_weights(path: str | os.PathLike[str], weights: Any, **numbers: float) -> None:
  """Writes a model's weights, which `read_weights` reads, like `atomic_files.write`."""
  arrays: dict[str, Any] = {
    f"{kind}_{index}": np.asarray(array)
    for kind in Weights._fields
    for index, array in enumerate(getattr(weights, kind))
  }
  buffer = io.BytesIO()
  np.savez(buffer, **arrays, **dict[str, Any](numbers))
  atomic_files.write(path, buffer.getvalue())


def check_file(path: pathlib.Path) -> None:
  """Raises a `ValueError` if there is no file but, say, a pipe, which is read for ever."""
  if path.exists() and not path.is_file():
    raise ValueError(
      f"Found {path}, which is no file; expected the file of a run: remove it, or bring the file"
      " back."
    )


def read_weights(path: pathlib.Path) -> Weights | None:
  """Reads the file of `write_weights`; None where there is no file."""
  check_file(path)
  try:
    with np.load(path) as arrays:
      return Weights(
        *(
          tuple(arrays[f"{kind}_{i}"] for i in range(sum(n.startswith(kind) for n in arrays)))
          for kind in Weights._fields
        )
      )
  except FileNotFoundError:
    return None
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise ValueError(
      f"Found that {path} is damaged ({str(error).rstrip('.')}); expected a run's model: bring the"
      " file back, or run the experiment again in another folder."
    ) from error


def read_text(path: pathlib.Path) -> str:
  """Returns the content of a text file; an empty text where there is no file."""
  try:
    check_file(path)
    with open(path, encoding="utf-8", errors="replace", newline="") as stream:
      return stream.read()
  except (FileNotFoundError, NotADirectoryError):
    return ""


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; a file that is missing, torn or has another value reads as empty."""
  value = _read_json(path)
  return value if isinstance(value, dict) else {}


def read_json_list(path: pathlib.Path) -> list[Any]:
  """Reads a JSON array, like `read_json`."""
  value = _read_json(path)
  return value if isinstance(value, list) else []


def _read_json(path: pathlib.Path) -> Any:
  try:
    return json.loads(read_text(path))
  except ValueError:
    return None


def _to_float(text: str) -> float:
  try:
    return float(text)
  except ValueError:
    return np.nan


def make_secret(folder: pathlib.Path) -> None:
  """Makes a folder for its owner alone, or closes one that is there to others."""
  folder.mkdir(mode=0o700, exist_ok=True)
  folder.chmod(0o700)


def remove_leftovers(folder: pathlib.Path) -> None:
  """Removes half-written files of killed runs; the lock keeps other processes out."""
  checkpoints = folder / "checkpoints"
  for path in (folder, folder / CLIENTS, checkpoints):
    atomic_files.remove_temporaries(path)
  for path in checkpoints.glob("program_state_*_temp*"):  # TFF writes a checkpoint there first.
    shutil.rmtree(path)


def remove_if_empty(folder: pathlib.Path) -> None:
  """Removes the folder of a refused run if it holds nothing but its lock."""
  if [path.name for path in folder.iterdir()] == ["lock"]:
    (folder / "lock").unlink()
    for empty in (folder, *folder.parents[:2]):
      with contextlib.suppress(OSError):  # The method, or the task, has other runs.
        empty.rmdir()
