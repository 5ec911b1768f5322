"""Defines a contender, and how its process talks to the driver. Needs numpy and nothing else.

A contender lives in a process of its own, so that no contender warms up, slows down or fills the
memory of another. The process reads commands from its standard input, a line each:

    round N     compute round N
    finish      write the weights and end

and answers each, and its own start, with one line of JSON on its standard output: {"ready": ...},
{"seconds": ..., "memory": ...}, {"weights": ..., "memory": ...}, or {"error": "one sentence"}.
Only the round itself is timed, by the contender, with its result computed to the last number.
"""

import abc
from collections.abc import Callable, Mapping
import json
import os
import sys
import time
import traceback
from typing import Any

import numpy as np

from benchmarks import child
from benchmarks import workloads

FIRST_WEIGHTS = "first_weights.npz"
LAST_WEIGHTS = "last_weights.npz"


class Contender(abc.ABC):
  """Computes rounds of federated learning."""

  def prepare(self, round_num: int) -> None:
    """Lays out what a round, from 0, needs; not timed.

    For what a user of this contender would have at hand: ids of clients, arrays in memory.
    """
    del round_num

  @abc.abstractmethod
  def run_round(self, round_num: int) -> None:
    """Computes a round, to the last number; timed."""

  @abc.abstractmethod
  def weights(self) -> list[np.ndarray]:
    """Returns the model's weights, in the workload's order and layout."""

  def describe(self) -> Mapping[str, Any]:
    """Tells the driver how the contender computes: threads, versions."""
    return {}


def _status(pid: int) -> dict[str, int]:
  """Returns the resident memory of a process in bytes, peak and now; {} if it has ended."""
  memory = {}
  try:
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
      for line in f:
        name, _, value = line.partition(":")
        if name in ("VmHWM", "VmRSS"):
          memory[name] = int(value.split()[0]) * 1024
  except OSError:
    pass
  return memory


def memory() -> dict[str, int]:
  """Measures the resident memory of this process and, added up, of its children, in bytes.

  They are "own_peak", "own", "children_peak" and "children".
  """
  own = _status(os.getpid())
  of_children = [_status(pid) for pid, _ in child.descendants(os.getpid())]
  return dict(
    own_peak=own.get("VmHWM", 0),
    own=own.get("VmRSS", 0),
    children_peak=sum(status.get("VmHWM", 0) for status in of_children),
    children=sum(status.get("VmRSS", 0) for status in of_children),
  )


def one_sentence(error: BaseException) -> str:
  """Returns an error as one line."""
  text = " ".join(str(error).split())
  return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _save(directory: str, name: str, weights: list[np.ndarray]) -> str:
  path = os.path.join(directory, name)
  np.savez(path, *[np.asarray(w) for w in weights])
  return path


def load_weights(path: str) -> list[np.ndarray]:
  """Returns the weights that a contender wrote."""
  with np.load(path) as arrays:
    return [arrays[f"arr_{i}"] for i in range(len(arrays.files))]


def _answer_commands(
  build: Callable[[workloads.Workload, Mapping[str, Any]], Contender],
  answer: Callable[..., None],
) -> None:
  directory, output_dir, options = sys.argv[1:]
  contender = build(workloads.read(directory), json.loads(options))
  answer(ready=contender.describe())
  is_first = True
  for line in sys.stdin:
    command, *arguments = line.split()
    if command == "round":
      round_num = int(arguments[0])
      contender.prepare(round_num)
      start = time.perf_counter()
      contender.run_round(round_num)
      seconds = time.perf_counter() - start
      if is_first:
        _save(output_dir, FIRST_WEIGHTS, contender.weights())
        is_first = False
      answer(seconds=seconds, memory=memory())
    elif command == "finish":
      peaks = memory()  # Before the weights are written, which is no part of the work.
      answer(weights=_save(output_dir, LAST_WEIGHTS, contender.weights()), memory=peaks)
      return
    else:
      raise ValueError(f"Found the command {line.strip()!r}; expected 'round N' or 'finish'.")


def serve(build: Callable[[workloads.Workload, Mapping[str, Any]], Contender]) -> None:
  """Runs a contender's process by its command line; `build` takes the workload and options."""
  # Libraries print what they like; the driver's answers go where no library writes.
  answers = child.take_output()

  def answer(**message):
    print(json.dumps(message), file=answers)

  try:
    _answer_commands(build, answer)
  except Exception as error:  # The driver reports any error.
    traceback.print_exc()
    answer(error=one_sentence(error))
    sys.exit(1)


def follow(build: Callable[[workloads.Workload, Mapping[str, Any]], Contender]) -> None:
  """Runs a process that computes its part of the rounds of a contender, which `build` makes.

  It takes the same arguments and commands as `serve`, and answers nothing.
  """
  directory, _, options = sys.argv[1:]
  contender = build(workloads.read(directory), json.loads(options))
  for line in sys.stdin:
    round_num = int(line.split()[1])
    contender.prepare(round_num)
    contender.run_round(round_num)
