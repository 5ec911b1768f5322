"""Reads the folders that runs leave, and writes files that are never half there.

A run lives in `OUTPUT_DIR/TASK/METHOD/seed_S/`:

    flags.txt          the resolved flags, one `--name=value` a line
    manifest.json      versions, seed, machine, git revision, times, seconds a round
    rounds.csv         one row a round; evaluation columns are blank between evaluations
    test_clients.csv   `client_id,num_examples,loss,error` of every client (also `train_`,
                       `validation_`); errors are fractions
    metrics.json       {split: {"loss" | "error": {statistic: number}}}; written last, so a folder
                       that has it is a finished run

Everything here tolerates a run in progress: a missing file reads as empty, and a row that is torn
because its writer was killed or has not got further yet is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import csv
import dataclasses
import functools
import io
import json
import os
import pathlib
import re
import secrets
from typing import Any

import numpy as np

FED_AVG = "fed_avg"

_SEED_FOLDER = re.compile(r"seed_(\d+)")
# What `train_flags.method_name` makes.
_METHOD_FOLDER = re.compile(
  r"(?:fed_avg|superquantile_theta_(?P<theta>\d+(?:\.\d+)?))"
  r"(?P<threshold>_reweighting|_tree|_geometric)?"
  r"(?P<distributed>_distributed)?"
  r"(?P<numbers>(?:_(?:smoothing|epsilon|z|update_z)_\d+(?:\.\d+)?(?:e[-+]?\d+)?)*)"
)
_NUMBER = re.compile(r"_(smoothing|epsilon|update_z|z)_([^_]+)")
_SYMBOLS = {"smoothing": "ν", "epsilon": "ε", "z": "z", "update_z": "update z"}


@dataclasses.dataclass(frozen=True)
class Run:
  """One run's folder. Files are read when first asked for, and once.

  Attributes:
    task: Name of the task, the first folder below the output directory.
    method: Folder name of the method, as it is on disk; `display_name` is for people.
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

  @functools.cached_property
  def metrics(self) -> dict[str, Any]:
    """The content of `metrics.json`, errors as fractions; empty if the run is unfinished."""
    return _read_json(self.path / "metrics.json")

  @functools.cached_property
  def manifest(self) -> dict[str, Any]:
    """The content of `manifest.json`; empty if there is none."""
    return _read_json(self.path / "manifest.json")

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
    columns = self._read_columns("rounds.csv")
    if "round" not in columns:
      return {}
    last_row = {number: row for row, number in enumerate(columns["round"]) if np.isfinite(number)}
    rows = np.array([last_row[number] for number in sorted(last_row)], dtype=int)
    return {name: values[rows] for name, values in columns.items()}

  @property
  def last_round(self) -> int | None:
    """The last round in `rounds.csv`, or None before the first row."""
    numbers = self.rounds.get("round", ())
    return int(numbers[-1]) if len(numbers) else None

  @functools.cached_property
  def test_clients(self) -> dict[str, np.ndarray]:
    """`clients('test')`, read once."""
    return self.clients("test")

  def clients(self, split: str) -> dict[str, np.ndarray]:
    """Reads the per-client file of a split.

    Args:
      split: "train", "validation" or "test".

    Returns:
      Arrays of shape [number of clients] by column: `client_id` (strings), `num_examples`, `loss`
      (nats) and `error` (fraction of the client's examples); empty if there is no such file.
    """
    return self._read_columns(f"{split}_clients.csv")

  def _read_columns(self, name: str) -> dict[str, np.ndarray]:
    """Reads a CSV file as arrays by column, without the rows that are not complete."""
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
      columns[column] = np.array(
        values if column == "client_id" else [_to_float(value) for value in values],
        dtype=str if column == "client_id" else np.float64,
      )
    return columns


# Runs by method, as `group_by_method` makes them.
Groups = Mapping[str, Sequence[Run]]


@dataclasses.dataclass(frozen=True)
class Aggregate:
  """A metric over the seeds of a method, in the unit of the runs' files.

  Attributes:
    mean: Mean over seeds; NaN if a seed's is (its run diverged).
    sd: Standard deviation over seeds with divisor n - 1; NaN for one seed.
    num_seeds: The number n of runs that have the metric.
  """

  mean: float
  sd: float
  num_seeds: int

  @classmethod
  def of(cls, values: Sequence[float]) -> Aggregate:
    """Aggregates one value a seed; there must be at least one."""
    sd = np.std(values, ddof=1) if len(values) > 1 else np.nan
    return cls(float(np.mean(values)), float(sd), len(values))


def at_one_epsilon(groups: Groups) -> tuple[Groups, float | None]:
  """Private methods at one budget, so that they can be compared with each other.

  Args:
    groups: Runs by method.

  Returns:
    The methods of the middle budget, by their names without it, and that budget; where no method
    has one, all of them and None.
  """
  epsilons = sorted({epsilon_of(method) for method in groups} - {None})
  if not epsilons:
    return groups, None
  epsilon = epsilons[len(epsilons) // 2]
  chosen = {
    without_epsilon(method): runs
    for method, runs in groups.items()
    if epsilon_of(method) == epsilon
  }
  return chosen, epsilon


def aggregate(runs: Sequence[Run]) -> dict[str, Aggregate]:
  """Averages every metric of a method over its runs.

  Args:
    runs: Finished runs of one method, one for each seed.

  Returns:
    An aggregate for each name in `Run.numbers` of any of them.
  """
  values: dict[str, list[float]] = {}
  for run in runs:
    for name, value in run.numbers.items():
      values.setdefault(name, []).append(value)
  return {name: Aggregate.of(items) for name, items in values.items()}


def find_runs(output_dir: str | os.PathLike) -> list[Run]:
  """Finds the runs of all tasks below a directory, finished or not.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders; it need not exist.

  Returns:
    The runs, sorted by task, method (as `method_order` has them) and seed.
  """
  runs = []
  for path in pathlib.Path(output_dir).glob("*/*/seed_*"):
    match = _SEED_FOLDER.fullmatch(path.name)
    method, task = path.parent.name, path.parent.parent.name
    if match and path.is_dir() and not task.startswith(".") and not method.startswith("."):
      runs.append(Run(task=task, method=method, seed=int(match[1]), path=path))
  return sorted(runs, key=lambda run: (run.task, method_order(run.method), run.seed))


def group_by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
  """Groups runs by method, FedAvg first; runs of a method keep their order."""
  groups: dict[str, list[Run]] = {}
  for run in sorted(runs, key=lambda run: method_order(run.method)):
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


def theta_of(method: str) -> float | None:
  """The tail fraction theta, in (0, 1], of a method's folder name; None for other methods."""
  match = _METHOD_FOLDER.fullmatch(method)
  return float(match["theta"]) if match and match["theta"] else None


def epsilon_of(method: str) -> float | None:
  """The privacy budget in a method's folder name; None for methods without."""
  match = _METHOD_FOLDER.fullmatch(method)
  numbers = dict(_NUMBER.findall(match["numbers"])) if match else {}
  return float(numbers["epsilon"]) if "epsilon" in numbers else None


def without_epsilon(method: str) -> str:
  """The folder name that a method would have without its privacy budget."""
  return re.sub(r"_epsilon_[^_]+", "", method)


def method_order(method: str) -> tuple[float, int, float, str]:
  """Sorting key: FedAvg, then superquantiles from the widest tail (FedAvg-like) down, then others.

  Private methods by their budgets, after those without.

  Args:
    method: Folder name of a method.

  Returns:
    A key to sort by.
  """
  epsilon = epsilon_of(method) or 0.0
  if without_epsilon(method) == FED_AVG:
    return (epsilon, 0, 0.0, method)
  theta = theta_of(method)
  return (epsilon, 2, 0.0, method) if theta is None else (epsilon, 1, -theta, method)


def display_name(method: str) -> str:
  """The name of a method for people.

  Args:
    method: Folder name of a method; may hold any characters. Not escaped for HTML or Markdown.

  Returns:
    "FedAvg", "Superquantile θ = 0.5", "FedAvg, ε = 5", or the folder name itself, where characters
    that do not print (they could move a terminal's cursor) are replaced.
  """
  match = _METHOD_FOLDER.fullmatch(method)
  if match:
    words = [f"Superquantile θ = {match['theta']}" if match["theta"] else "FedAvg"]
    if match["threshold"]:
      words.append(match["threshold"].lstrip("_"))
    if match["distributed"]:
      words.append("distributed noise")
    words += [f"{_SYMBOLS[name]} = {value}" for name, value in _NUMBER.findall(match["numbers"])]
    return ", ".join(words)
  return "".join(
    letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in method
  )


def write_atomically(path: str | os.PathLike, text: str) -> None:
  """Writes a text file such that a reader, or a crash, finds the old file or the new, whole.

  Args:
    path: The file to write, replaced if it exists. Its folder must exist.
    text: The content, written as UTF-8 with line ends as they are.

  Raises:
    OSError: If the folder does not exist or cannot be written. No temporary file is left.
  """
  path = pathlib.Path(path)
  # In the same folder, because a rename is atomic only within one file system. An ordinary `open`
  # rather than `tempfile`, whose files nobody but their owner can read.
  temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
  try:
    with open(temporary, "x", encoding="utf-8", errors="replace", newline="") as stream:
      stream.write(text)
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def write_json_atomically(path: str | os.PathLike, value: Any) -> None:
  """Writes a value as indented JSON, like `write_atomically`.

  Args:
    path: The file to write.
    value: Dicts, lists, strings and numbers; NumPy scalars and arrays are converted.

  Raises:
    OSError: As `write_atomically`.
    TypeError: If a value is none of the above.
  """
  write_atomically(path, json.dumps(value, indent=2, default=_to_builtin) + "\n")


def drop_torn_line(path: str | os.PathLike) -> None:
  """Cuts off what a killed writer left of a text file's last line, so that lines can be appended.

  Args:
    path: The file; it need not exist.
  """
  try:
    with open(path, "rb+") as stream:
      stream.truncate(stream.read().rfind(b"\n") + 1)
  except FileNotFoundError:
    pass


def _to_builtin(value: Any) -> Any:
  if isinstance(value, (np.ndarray, np.generic)):
    return value.tolist()
  raise TypeError(f"Only plain values and NumPy arrays can be written. Found {type(value)}.")


def _read_text(path: pathlib.Path) -> str:
  try:
    with open(path, encoding="utf-8", errors="replace", newline="") as stream:
      return stream.read()
  except FileNotFoundError:
    return ""


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; a file that is missing, torn or not an object reads as empty."""
  try:
    value = json.loads(_read_text(path))
  except ValueError:
    return {}
  return value if isinstance(value, dict) else {}


def _to_float(text: str) -> float:
  try:
    return float(text)
  except ValueError:
    return np.nan
