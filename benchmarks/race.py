"""Lets contenders take turns: a process each, a few rounds a turn, in an order that rotates."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import sys
import time
from typing import Any

import tqdm

from benchmarks import child
from benchmarks import contender
from benchmarks import lineup

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PATIENCE_SECONDS = 1800.0  # Any one answer may take as long.


class ContenderError(Exception):
  """A contender failed; the message is one sentence."""


@dataclasses.dataclass
class Record:
  """Keeps the measurements of a contender.

  Attributes:
    entry: The contender.
    start_seconds: Seconds from the start of its process until it was ready.
    details: The contender's own description.
    seconds: Seconds of each round, the first one and the warm-up included.
    resident: Resident bytes after each round, of itself and its children.
    own_peak: The most bytes that it had at once.
    children_peak: The same of its children, added up.
    first_weights: The file of its weights after the first round.
    last_weights: The file of its weights after the last one.
    load: The machine's largest load after one of its turns, processes that wanted to run in the
      last minute on average; the race itself takes no more than the cores.
    error: The reason why it failed, or None.
  """

  entry: lineup.Entry
  start_seconds: float = 0.0
  details: dict[str, Any] = dataclasses.field(default_factory=dict)
  seconds: list[float] = dataclasses.field(default_factory=list)
  resident: list[int] = dataclasses.field(default_factory=list)
  own_peak: int = 0
  children_peak: int = 0
  first_weights: str = ""
  last_weights: str = ""
  load: float = 0.0
  error: str | None = None


class ContenderProcess:
  """The process of a contender, as the driver sees it; it ends with the driver."""

  def __init__(
    self,
    entry: lineup.Entry,
    *,
    python: str,
    workload_dir: str,
    output_dir: str,
    patience: float = _PATIENCE_SECONDS,
  ):
    """Starts the process of an entry by a Python, and waits until it is ready.

    An entry's module without a dot is one of `benchmarks.contenders`. `output_dir` is an empty
    folder for its weights and its log; `patience` are the seconds that it may take for any one
    answer. Failures are a `ContenderError`.
    """
    self._patience = patience
    module = entry.module if "." in entry.module else f"benchmarks.contenders.{entry.module}"
    paths = [str(_ROOT)]
    if entry.peer is None and os.environ.get("PYTHONPATH"):  # Not for another environment.
      paths.append(os.environ["PYTHONPATH"])
    start = time.perf_counter()
    # Unbuffered, so that what a library prints does not come after its last words.
    self._child = child.Child(
      [python, "-u", "-m", module, workload_dir, output_dir, json.dumps(entry.options)],
      log=os.path.join(output_dir, "log.txt"),
      cwd=output_dir,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    self.details = self._checked(self._child.answer)["ready"]
    self.start_seconds = time.perf_counter() - start

  def _checked(self, answer: Callable[[float], bytes]) -> dict[str, Any]:
    """Returns the message that `answer` waits for; ends the process if there is none."""
    with contextlib.ExitStack() as stack:
      stack.callback(self.close)
      try:
        line = answer(self._patience)
        message = json.loads(line)
      except child.NoAnswer as error:
        raise ContenderError(self._explain(error)) from None
      except ValueError:
        raise ContenderError(f"It answered {line[:200]!r}, which is not JSON.") from None
      if "error" in message:
        raise ContenderError(message["error"])
      stack.pop_all()
    return message

  def _explain(self, error: child.NoAnswer) -> str:
    if error.code is None:
      return f"It did not answer for {self._patience:g} seconds."
    how = f"by {error.signal_name}" if error.signal_name else f"with exit code {error.code}"
    words = f"its last words were {error.last_words[:300]!r}"
    return f"Its process ended {how}; {words if error.last_words else 'it said nothing'}."

  def ask(self, command: str) -> dict[str, Any]:
    """Sends a command of `contender` and waits for its answer."""
    return self._checked(functools.partial(self._child.ask, command))

  def close(self) -> None:
    """Ends the process and what it started."""
    self._child.end(with_group=True)


def _run_round(record: Record, process: ContenderProcess, round_num: int) -> None:
  """Runs a round, and records its seconds and memory."""
  answer = process.ask(f"round {round_num}")
  record.seconds.append(answer["seconds"])
  record.resident.append(answer["memory"]["own"] + answer["memory"]["children"])


def _finish(record: Record, process: ContenderProcess) -> None:
  """Ends a contender's rounds, and records its peak memory and its weights."""
  answer = process.ask("finish")
  record.own_peak = answer["memory"]["own_peak"]
  record.children_peak = answer["memory"]["children_peak"]
  record.last_weights = answer["weights"]
  record.first_weights = os.path.join(os.path.dirname(answer["weights"]), contender.FIRST_WEIGHTS)


def run(
  entries: Sequence[lineup.Entry],
  *,
  python_of: Callable[[lineup.Entry], str],
  workload_dir: str,
  output_dir: str,
  num_rounds: int,
  rounds_per_turn: int = 1,
  title: str,
) -> list[Record]:
  """Runs all rounds of a workload, warm-up included, with all contenders.

  Those that fail are left out from then on. A contender runs `rounds_per_turn` before it is the
  next one's turn. `output_dir` is for folders of each; `title` says to people what it is.
  """
  records = [Record(entry) for entry in entries]
  processes: dict[str, ContenderProcess] = {}
  terminal = sys.stderr.isatty()
  progress = tqdm.tqdm(
    desc=title,
    total=len(records) * num_rounds,
    unit="round",
    leave=False,
    mininterval=0.2 if terminal else 20,
    dynamic_ncols=terminal,
  )

  def attempt(record: Record, action: Callable[[], None]) -> None:
    try:
      action()
    except ContenderError as error:
      record.error = str(error)
      processes.pop(record.entry.name, None)

  def start(record: Record) -> None:
    name = record.entry.name
    folder = os.path.join(output_dir, name)
    os.makedirs(folder)
    process = processes[name] = ContenderProcess(
      record.entry, python=python_of(record.entry), workload_dir=workload_dir, output_dir=folder
    )
    record.start_seconds, record.details = process.start_seconds, process.details

  try:
    # One after the other: they would slow down one another's start.
    for record in records:
      progress.set_postfix_str(f"starting {record.entry.title}")
      attempt(record, functools.partial(start, record))
    for turn, first in enumerate(range(0, num_rounds, rounds_per_turn)):
      for place in range(len(records)):
        record = records[(place + turn) % len(records)]
        for round_num in range(first, min(first + rounds_per_turn, num_rounds)):
          if record.entry.name not in processes:
            break
          progress.set_postfix_str(record.entry.title, refresh=False)
          attempt(
            record,
            functools.partial(_run_round, record, processes[record.entry.name], round_num),
          )
          progress.update()
        record.load = max(record.load, os.getloadavg()[0])
    for record in records:
      if record.entry.name in processes:
        attempt(record, functools.partial(_finish, record, processes[record.entry.name]))
  finally:
    progress.close()
    for process in processes.values():
      process.close()
  return records
