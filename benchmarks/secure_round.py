"""Compares the CPU time of private rounds: the server's noise, and secure sums of noisy integers.

    python -m benchmarks.secure_round [--tasks=synthetic,emnist_linear] [--rounds=12]

All take turns in one process, on the same clients. Handwriting is generated, of the same shapes.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

import tasks
from tff_superquantile.engine import context
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private

_CONTENDERS: dict[str, dict[str, Any]] = {
  "geometric, central": {},
  "tree, central": dict(threshold="tree"),
  "--secure": dict(secure=True),
}


def _seconds(task: tasks.task.Task, num_rounds: int, warm_up: int) -> dict[str, list[float]]:
  """Returns the CPU seconds of the contenders' rounds."""
  processes, handles = {}, []
  for name, values in _CONTENDERS.items():
    data: dict[str, Any] = {} if task.name == "synthetic" else {"data": "standin"}
    asked = run_config.from_values(
      task=task.name, epsilon=5.0, clip_norm=0.1, clients_per_round=100, **data, **values
    )
    config = build.resolve(asked, task)
    model, splits = build.load_task(task, config)
    files = splits["train"]
    num_parameters = sum(np.size(weights) for weights in model.initial_weights[0])
    config, release = private.calibrate(config, len(files.client_ids), num_parameters, {})
    processes[name] = build.build_process(config, model, files, release)
    handles = [files.handle(client, np.array([0, i])) for i, client in enumerate(files.client_ids)]
  states = {name: process.initialize() for name, process in processes.items()}
  times: dict[str, list[float]] = {name: [] for name in processes}
  for round_num in range(warm_up + num_rounds):
    drawn = np.random.default_rng(round_num).permutation(len(handles))[:100]
    for name, process in processes.items():
      start = time.process_time()
      states[name] = process.next(states[name], [handles[i] for i in drawn]).state
      times[name].append(time.process_time() - start)
  return {name: seconds[warm_up:] for name, seconds in times.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--tasks", default="synthetic,emnist_linear", help="Separated by commas.")
  parser.add_argument("--rounds", type=int, default=12, help="Counted rounds, after 4 others.")
  args = parser.parse_args()
  context.set_simulation_context(block_size=run_config.BLOCK_SIZE)
  for name in args.tasks.split(","):
    times = _seconds(tasks.get_task(name), args.rounds, warm_up=4)
    first = next(iter(times.values()))
    for contender, seconds in times.items():
      ratio = statistics.median(own / other for own, other in zip(seconds, first))
      print(f"{name}, {contender}: {statistics.median(seconds):.4f} CPU s a round, {ratio:.2f}")


if __name__ == "__main__":
  main()
