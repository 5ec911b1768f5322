"""Computes blocks of cohorts for a worker, as functions that it is given, and ends with it.

Its arguments are the descriptor of a pipe to the worker, and the number of threads of the run, on
which bits depend. What it computes for is not known here: neither task nor flags nor keys.
"""

from __future__ import annotations

from multiprocessing import connection as connections
import pickle
import sys

from tff_superquantile.engine import context
from tff_superquantile.engine.cohort.stages import block_functions
from tff_superquantile.experiments import failures
from tff_superquantile.experiments.cluster import blocks

_MOST_SECONDS_IDLE = 600.0


def _serve(connection: connections.Connection) -> None:
  """Answers until the worker has gone, or asks for nothing."""
  contents: dict[str, bytes] = {}
  while connection.poll(_MOST_SECONDS_IDLE):
    asked: blocks.AskedBlock = connection.recv()
    if asked.content:
      contents[asked.function] = asked.content
    try:
      function = block_functions.of_content(contents[asked.function], asked.stage)
      found = pickle.dumps(function(pickle.loads(asked.block)))
      connection.send(blocks.BlockAnswer(blocks.DONE, found))
    except Exception as error:  # The driver says it.
      connection.send(blocks.BlockAnswer(blocks.FAILED, b"", failures.describe(error).sentence))


def main() -> None:
  context.limit_threads(int(sys.argv[2]))
  try:
    _serve(connections.Connection(int(sys.argv[1])))
  except (EOFError, OSError):
    pass  # The worker has ended.


if __name__ == "__main__":
  main()
