"""Times TFF's tutorials cell by cell, in TFF's runtime and in this process.

    python -m benchmarks.tff.tutorials [--only=own_algorithm] [--rounds=5]

CPU seconds, of TFF's worker too. The last cell but one of `--rounds` equal cells is a round.
"""

import argparse
import importlib
import os
import statistics
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
import tensorflow_federated as tff  # noqa: E402

from benchmarks import child  # noqa: E402
from benchmarks.tff import programs  # noqa: E402
import tff_superquantile as tsq  # noqa: E402

_TUTORIALS = (
  "own_algorithm",
  "core_language",
  "sequence_algorithm",
  "own_aggregators",
  "private_learning",
)


def _run(name: str, num_rounds: int) -> tuple[list[float], list[Any]]:
  """Returns the seconds and the results of the cells in the context that is set."""
  tf.random.set_seed(0)
  seconds, results = [], []
  start = child.cpu_seconds()
  for cell in importlib.import_module(f"benchmarks.tff.tutorials.{name}").build(num_rounds):
    results.append(cell())
    seconds.append(child.cpu_seconds() - start)
    start = child.cpu_seconds()
  return seconds, [part for part in tf.nest.flatten(results) if part is not None]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
  parser.add_argument("--only", default=",".join(_TUTORIALS), help="Separated by commas.")
  parser.add_argument("--rounds", type=int, default=5, help="Equal cells at a tutorial's end.")
  args = parser.parse_args()
  theirs = tff.backends.test.create_sync_test_cpp_execution_context()
  tsq.set_simulation_context()
  contexts = {"TFF": theirs, "here": tff.framework.get_context_stack().current}
  for context in contexts.values():  # Starts TFF's worker, and imports what this process needs.
    tff.framework.set_default_context(context)
    tff.tensorflow.computation(lambda: 1)()
  print(f"{'tutorial':20s} {'TFF':>7s} {'here':>7s}   a later round: {'TFF':>7s} {'here':>7s}")
  for name in args.only.split(","):
    rows = {}
    for which, context in contexts.items():
      tff.framework.set_default_context(context)
      rows[which] = _run(name, args.rounds)
    if programs.differ(rows["here"][1], rows["TFF"][1]):
      raise SystemExit(f"{name} gives other values here.")
    wholes = [sum(seconds) for seconds, _ in rows.values()]
    later = [statistics.median(seconds[-args.rounds + 1 :]) for seconds, _ in rows.values()]
    numbers = " ".join(f"{number:7.2f}" for number in wholes)
    print(f"{name:20s} {numbers}   {'':14s} " + " ".join(f"{n:7.3f}" for n in later), flush=True)


if __name__ == "__main__":
  main()
