"""Reads the folders that runs leave, and writes the weights into them.

A run lives in `OUTPUT_DIR/TASK/METHOD/seed_S/`:

    flags.txt          the resolved flags, one `--name=value` a line
    manifest.json      versions, seed, machine, git revision, times, seconds a round
    rounds.csv         one row a round; evaluation columns are blank between evaluations
    test_clients.csv   `client_id,num_examples,loss,error` of every client (also `train_`,
                       `validation_`); errors are fractions
    weights.npz        the trained model, arrays trainable_0 ... and non_trainable_0 ...
    diverged.txt       why the run ended before its time; only there if its model diverged
    metrics.json       {split: {"loss" | "error": {statistic: number}}}; written last, so a folder
                       that has it is a finished run

Everything here tolerates a run in progress: a missing file reads as empty, and a row that is torn
because its writer was killed or has not got further yet is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import csv
import dataclasses
import fcntl
import functools
import io
import json
import os
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from tff_superquantile import atomic_files
from tff_superquantile.experiments import method_names

DIVERGED = "diverged.txt"
# What spreadsheets take for a formula, and what `escape` has made of it.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_SEED_FOLDER = re.compile(r"seed_(\d+)")


class Weights(NamedTuple):
  """A model's weights, as arrays."""

  trainable: tuple[np.ndarray, ...]
  non_trainable: tuple[np.ndarray, ...]


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[None]:
  """Keeps a second process out of a run's folder.

  Args:
    folder: The folder, which exists.

  Raises:
    ValueError: If another process is at work in it.
  """
  with open(folder / "lock", "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      raise ValueError(
        f"Found that another process is at work in {folder}; wait for it."
      ) from error
    yield


@dataclasses.dataclass(frozen=True)
class Run:
  """One run's folder. Files are read when first asked for, and once.

  Attributes:
    task: Name of the task, the first folder below the output directory.
    method: Folder name of the method, as it is on disk; `method_names.display_name` is for people.
    seed: The seed, a non-negative integer.
    path: The folder of the run.
  """

  task: str
  method: str
  seed: int
  path: pathlib.Path

  @property
  def finished(self) -> bool:
    """Whether the run left its metrics."""
    return bool(self.metrics)

  @property
  def diverged(self) -> bool:
    """Whether the run ended because its model diverged, as it would again."""
    return (self.path / DIVERGED).exists()

  @functools.cached_property
  def metrics(self) -> dict[str, Any]:
    """The content of `metrics.json`, errors as fractions; empty if the run is unfinished."""
    return read_json(self.path / "metrics.json")

  @functools.cached_property
  def manifest(self) -> dict[str, Any]:
    """The content of `manifest.json`; empty if there is none."""
    return read_json(self.path / "manifest.json")

  @functools.cached_property
  def flags(self) -> dict[str, str]:
    """Flag values by name; a flag given several times has its values joined by commas."""
    values: dict[str, list[str]] = {}
    for line in _read_text(self.path / "flags.txt").splitlines():
      if line.startswith("-"):
        name, equals, value = line.lstrip("-").partition("=")
        values.setdefault(name.strip(), []).append(value.strip() if equals else "true")
    return {name: ",".join(items) for name, items in values.items()}

  @functools.cached_property
  def numbers(self) -> dict[str, float]:
    """The numbers in `metrics.json` by dotted name, and `seconds_per_round` of the manifest.

    For example `test.error.p90`, a fraction, and `train.loss.mean`, in nats.
    """
    seconds = self.manifest.get("seconds_per_round")
    return {
      name: float(value)
      for name, value in flatten({**self.metrics, "seconds_per_round": seconds}).items()
      if isinstance(value, (int, float)) and not isinstance(value, bool)
    }

  @functools.cached_property
  def rounds(self) -> dict[str, np.ndarray]:
    """The columns of `rounds.csv`, float arrays of shape [number of rounds], NaN where blank.

    Sorted by round. A run that was killed after its last checkpoint repeats some rounds when it
    resumes: the last row of a round counts, it belongs to the history of the final model.
    """
    columns = self.read_columns("rounds.csv")
    if "round" not in columns:
      return {}
    last_row = {number: row for row, number in enumerate(columns["round"]) if np.isfinite(number)}
    rows = np.array([last_row[number] for number in sorted(last_row)], dtype=int)
    return {name: values[rows] for name, values in columns.items()}

  @property
  def last_round(self) -> int | None:
    """The last round in `rounds.csv`, or None before the first row."""
    numbers = self.rounds.get("round")
    return None if numbers is None or not len(numbers) else int(numbers[-1])

  def clients(self, split: str) -> dict[str, np.ndarray]:
    """Reads the per-client file of a split, once.

    Args:
      split: "train", "validation" or "test".

    Returns:
      Arrays of shape [number of clients] by column: `client_id` (strings), `num_examples`, `loss`
      (nats) and `error` (fraction of the client's examples); empty if there is no such file.
    """
    read = self.__dict__.setdefault("_clients", {})  # As cached properties do.
    if split not in read:
      read[split] = self.read_columns(f"{split}_clients.csv")
    return read[split]

  @functools.cached_property
  def weights(self) -> Weights | None:
    """The weights of the trained model; None where there is no `weights.npz`."""
    try:
      with np.load(self.path / "weights.npz") as arrays:
        return Weights(
          *(
            tuple(arrays[f"{kind}_{i}"] for i in range(sum(n.startswith(kind) for n in arrays)))
            for kind in Weights._fields
          )
        )
    except FileNotFoundError:
      return None

  def read_columns(self, name: str) -> dict[str, np.ndarray]:
    """Reads a CSV file of the folder, without the rows that are not complete.

    Args:
      name: Its name.

    Returns:
      Arrays by column, `client_id` as strings, the others as float64; empty if there is no file.
    """
    # A machine that loses power can leave NUL bytes, which Python before 3.11 refuses to parse.
    text = _read_text(self.path / name).replace("\0", "")
    # The last line of a file in the making may stop within a number, and 0.5 of 0.5313 looks as
    # good as any. In a finished run the missing line end is an editor's doing, the row is whole.
    if not self.finished:
      text = text[: text.rfind("\n") + 1]
    header, *rows = list(csv.reader(io.StringIO(text))) or [[]]
    rows = [row for row in rows if len(row) == len(header)]
    columns = {}
    for index, column in enumerate(header):
      values = [row[index] for row in rows]
      if column == "client_id":
        columns[column] = np.array([unescape(value) for value in values], dtype=str)
      else:
        columns[column] = np.array([_to_float(value) for value in values], dtype=np.float64)
    return columns


# Runs by method, as `group_by_method` makes them.
Groups = Mapping[str, Sequence[Run]]


def at_one_epsilon(groups: Groups) -> tuple[Groups, float | None]:
  """Private methods at one budget, so that they can be compared with each other.

  Args:
    groups: Runs by method.

  Returns:
    The methods of the middle budget, by their names without it, and that budget. Where there is
    nothing to compare at it but there is without privacy, the methods without privacy and None.
  """
  found = {method_names.epsilon_of(method) for method in groups}
  epsilons = sorted(epsilon for epsilon in found if epsilon is not None)
  if not epsilons:
    return groups, None
  epsilon = epsilons[len(epsilons) // 2]
  chosen = {
    method_names.without_epsilon(method): runs
    for method, runs in groups.items()
    if method_names.epsilon_of(method) == epsilon
  }
  public = {method: runs for method, runs in groups.items() if not method_names.epsilon_of(method)}
  if len(chosen) < 2 <= len(public):
    return public, None
  return chosen, epsilon


def find_runs(output_dir: str | os.PathLike) -> list[Run]:
  """Finds the runs of all tasks below a directory, finished or not.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders; it need not exist.

  Returns:
    The runs, sorted by task, method (as `method_names.order` has them) and seed.
  """
  runs = []
  for path in pathlib.Path(output_dir).glob("*/*/seed_*"):
    match = _SEED_FOLDER.fullmatch(path.name)
    method, task = path.parent.name, path.parent.parent.name
    if match and path.is_dir() and not task.startswith(".") and not method.startswith("."):
      runs.append(Run(task=task, method=method, seed=int(match[1]), path=path))
  return sorted(runs, key=lambda run: (run.task, method_names.order(run.method), run.seed))


def group_by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
  """Groups runs by method, FedAvg first; runs of a method keep their order."""
  groups: dict[str, list[Run]] = {}
  for run in sorted(runs, key=lambda run: method_names.order(run.method)):
    groups.setdefault(run.method, []).append(run)
  return groups


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Turns nested dicts into one, whose names join the levels by dots."""
  leaves: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      leaves.update(flatten(value, f"{prefix}{name}."))
    else:
      leaves[f"{prefix}{name}"] = value
  return leaves


def escape(text: str) -> str:
  """Marks as text, by an apostrophe before it, what a spreadsheet would compute."""
  return f"'{text}" if _FORMULA.match(text) else text


def unescape(text: str) -> str:
  """What `escape` was given."""
  return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
  """A CSV file's content, whose strings are escaped.

  Args:
    names: The names of the columns.
    rows: Strings and numbers.

  Returns:
    Lines that end in a line feed.
  """
  lines = []
  for row in (names, *rows):
    line = io.StringIO(newline="")
    # With its usual end of lines a writer quotes both of the characters that end lines.
    csv.writer(line).writerow([escape(cell) if isinstance(cell, str) else cell for cell in row])
    lines.append(line.getvalue().removesuffix("\r\n") + "\n")
  return "".join(lines)


def write_clients(path: str | os.PathLike, columns: Mapping[str, Sequence]) -> None:
  """Writes a row a client, like `atomic_files.write`; client ids are escaped.

  Args:
    path: The CSV file to write.
    columns: A value a client, by the name of the column.
  """
  rows = zip(*(np.asarray(column).tolist() for column in columns.values()))
  atomic_files.write(path, csv_text(columns, rows))


def write_weights(path: str | os.PathLike, weights: Any) -> None:
  """Writes a model's weights, which `Run.weights` reads, like `atomic_files.write`.

  Args:
    path: The .npz file to write.
    weights: What has `trainable` and `non_trainable`, structures of arrays without names.
  """
  arrays = {
    f"{kind}_{index}": np.asarray(array)
    for kind in Weights._fields
    for index, array in enumerate(getattr(weights, kind))
  }
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  atomic_files.write(path, buffer.getvalue())


def _read_text(path: pathlib.Path) -> str:
  try:
    with open(path, encoding="utf-8", errors="replace", newline="") as stream:
      return stream.read()
  except FileNotFoundError:
    return ""


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
  """Reads a JSON value; a file that is missing, torn or not of that kind reads as empty.

  Args:
    path: The file.
    kind: dict or list.

  Returns:
    The value.
  """
  try:
    value = json.loads(_read_text(path))
  except ValueError:
    return kind()
  return value if isinstance(value, kind) else kind()


def _to_float(text: str) -> float:
  try:
    return float(text)
  except ValueError:
    return np.nan
