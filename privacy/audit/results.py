"""Reads what a private run leaves beside its ledger and its flags."""

from collections.abc import Mapping
import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import pathlib
import re
from typing import Any
import zipfile
import zlib

import numpy as np

from privacy import ledger as ledger_lib

_FALSE = ("", "None", "0", "0.0", "False", "false")
_EVALUATED = re.compile(r"round_(\d+)\.parquet")
# A private run never writes these: they hold exact numbers of its training clients, or times.
_NEVER = ("train_clients.csv", "tensorboard")
OF_RUN = ("privacy.json", "flags.txt", "rounds.csv")  # A run's folder has one of these.


@dataclasses.dataclass(frozen=True)
class Rounds:
  """The content of `rounds.csv`."""

  done: int = 0  # The number of rounds, the largest of all rows.
  missing: int = 0  # The number of these rounds that have no row.
  repeated: int = 0  # The number of rows of rounds that have another row.
  aborted: int | None = None  # The number of rounds without a result; None without such a column.
  columns: frozenset[str] = frozenset()  # The names of the columns but for `round`.
  # Each row's round and its entry of the column `epsilon`, nan for what is no number.
  epsilons: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class RunRecords:
  """What a run has left."""

  rounds: Rounds  # The content of `rounds.csv`.
  manifest: Mapping[str, Any] | None  # The content of `manifest.json`; None where there is none.
  metrics: Mapping[str, Any] | None  # The content of `metrics.json`; None where there is none.
  flags_digest: str  # The SHA-256 of `flags.txt`.
  # The number of trained weights in `weights.npz`; None where there is none.
  num_parameters: int | None
  last_evaluated: int  # The largest round of the files in `clients/`.
  spare: tuple[str, ...]  # Names in the folder that no private run writes.

  @property
  def manifest_rounds(self) -> int | None:
    """The number of rounds of a finished run by its manifest; None where it says none."""
    done = (self.manifest or {}).get("rounds_done")
    return done if isinstance(done, int) and not isinstance(done, bool) else None

  @property
  def num_rounds(self) -> int:
    """The largest number of rounds in any file."""
    return max(self.rounds.done, self.manifest_rounds or 0, self.last_evaluated)


def read(folder: pathlib.Path, has_begun: bool) -> RunRecords:
  """Reads the files of a run; if it `has_begun` by its ledger, there must be a rounds.csv."""
  rounds = Rounds()
  if has_begun or (folder / "rounds.csv").exists():
    rounds = read_rounds(read_text(folder, "rounds.csv"))
  names = os.listdir(folder / "clients") if (folder / "clients").is_dir() else []
  return RunRecords(
    rounds=rounds,
    manifest=read_object(folder / "manifest.json"),
    metrics=read_object(folder / "metrics.json"),
    flags_digest=hashlib.sha256(_read_bytes(folder, "flags.txt")).hexdigest(),
    num_parameters=_num_parameters(folder / "weights.npz"),
    last_evaluated=max((int(m[1]) for m in map(_EVALUATED.fullmatch, names) if m), default=0),
    spare=tuple(name for name in _NEVER if (folder / name).exists()),
  )


def read_text(folder: pathlib.Path, name: str) -> str:
  """Returns the text of a file without which a folder is not that of a private run."""
  return _read_bytes(folder, name).decode("utf-8", errors="replace")


def _read_bytes(folder: pathlib.Path, name: str) -> bytes:
  if (folder / name).exists() and not (folder / name).is_file():  # A pipe is read for ever.
    raise ValueError(
      f"Found {name}, which is no file, in {os.fspath(folder)!r}; expected the folder of a private"
      " run."
    )
  try:
    return (folder / name).read_bytes()
  except FileNotFoundError:
    raise ValueError(
      f"Found no {name} in {os.fspath(folder)!r}; expected the folder of a private run."
    ) from None


def read_ledger(folder: pathlib.Path, name: str = ledger_lib.FILE_NAME) -> ledger_lib.Ledger:
  """Reads the ledger of a private run; a `ValueError` if there is none."""
  return ledger_lib.Ledger.from_json(read_text(folder, name))


def read_rounds(text: str) -> Rounds:
  """Reads `rounds.csv`; a last line without an end is one that its writer has not finished."""
  table = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]), restval="")
  header = table.fieldnames or [""]
  if header[0] != "round":
    raise ValueError("Found a rounds.csv without the column round; expected it to be the first.")
  rows = []
  for row in table:
    number = _number(row["round"])
    if not (number >= 0 and number.is_integer()):
      raise ValueError(f"Found round {row['round']!r} in rounds.csv; expected a whole number.")
    if number > 0:  # Round 0 evaluates the initial model.
      rows.append((int(number), row))
  done = {number for number, _ in rows}
  last = max(done, default=0)
  aborted = {number for number, row in rows if row.get("aborted", "").strip() not in _FALSE}
  epsilons = rows if "epsilon" in header else []
  return Rounds(
    done=last,
    missing=last - len(done),
    repeated=len(rows) - len(done),
    aborted=len(aborted) if "aborted" in header else None,
    columns=frozenset(header[1:]),
    epsilons=tuple((number, _number(row["epsilon"])) for number, row in epsilons),
  )


def _number(text: str) -> float:
  try:
    return float(text)
  except ValueError:
    return math.nan


def num_clients(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the numbers of clients that a manifest has, by split."""
  numbers = manifest.get("num_clients")
  return numbers if isinstance(numbers, dict) else {}


def read_object(path: pathlib.Path) -> Mapping[str, Any] | None:
  """Returns the object of a JSON file, None where there is no file; a `ValueError` for others."""
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise ValueError(f"Found that {path} is not JSON ({error}); bring it back.") from None
  if not isinstance(content, dict):
    raise ValueError(f"Found that {path} is no JSON object; bring it back.")
  return content


def _num_parameters(path: pathlib.Path) -> int | None:
  try:
    with np.load(path) as arrays:
      return sum(int(arrays[name].size) for name in arrays if name.startswith("trainable"))
  except FileNotFoundError:
    return None
  except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
    raise ValueError(f"Found that {path} is damaged ({error}); bring it back.") from None
