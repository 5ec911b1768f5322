"""Writes the workload of a task: a process of its own, so that the driver stays without TensorFlow.

    python -m benchmarks.make_workload OPTIONS_IN_JSON

`Options` says what it takes.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import json
import math
import os
import sys
from typing import Any

import numpy as np

from benchmarks import workloads

# The real handwriting that may lie beside the project.
_HANDWRITING = os.path.join("data", "handwriting_by_writer.npz")
_WRITERS, _IMAGES, _SIDE, _CLASSES = 440, 117, 28, 62
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Options:
  """Says which workload of a task to write to a directory, which is empty.

  `data_dir` has handwriting in a form that the task reads; "" for what is found or generated.
  `shared_dir` is a folder that may hold the real handwriting; "" for none. `cache_dir` is where the
  tasks keep what they convert or generate.
  """

  directory: str
  task: str
  clients_per_round: int
  num_rounds: int
  data_dir: str
  shared_dir: str
  cache_dir: str


def _real_writers(path: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields the writers of the archive with at least 100 images, as the tasks take them."""
  with np.load(path) as source:
    images, labels, offsets = source["images"], source["labels"], source["offsets"]
    ids = source["writer_ids"]
  for i, writer_id in enumerate(ids):
    rows = slice(offsets[i], offsets[i + 1])
    if offsets[i + 1] - offsets[i] >= 100:
      # There, ink is 255; here, paper is.
      yield f"writer_{int(writer_id):04d}", 255 - images[rows], labels[rows].astype(np.int32)


def _generated_writers() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields noise with the shapes of the real handwriting."""
  rng = np.random.default_rng(_SEED)
  for i in range(_WRITERS):
    x = rng.integers(0, 256, [_IMAGES, _SIDE, _SIDE], dtype=np.uint8)
    yield f"writer_{i:04d}", x, rng.integers(0, _CLASSES, _IMAGES).astype(np.int32)


def _load_clients(task: Any, options: Options) -> tuple[Any, str]:
  """Returns the training clients, and words for them."""
  from tasks import own_flags
  from tasks import task as task_lib
  from tff_superquantile.simulation import client_files

  request = task_lib.Request(options.cache_dir, seed=_SEED)
  if task.name.startswith("emnist"):
    if options.data_dir:
      request = dataclasses.replace(request, own=own_flags.FileFlags(data_dir=options.data_dir))
      return task.load_clients(request)["train"], options.data_dir
    path = os.path.join(options.shared_dir, _HANDWRITING)
    is_real = bool(options.shared_dir) and os.path.exists(path)
    files = client_files.write_client_files(
      os.path.join(options.directory, "clients"),
      _real_writers(path) if is_real else _generated_writers(),
      x_scale=1 / 255,
    )
    return files, "real handwriting" if is_real else "generated images"
  if task.open_standin is not None:
    request = dataclasses.replace(request, data="standin")
    return task.load_clients(request)["train"], "generated stand-in"
  return task.load_clients(request)["train"], "the task's own"


def _model_kind(weights: Sequence[np.ndarray]) -> str:
  if weights[0].ndim == 4:
    return "convnet"
  return "lstm" if len(weights) == 5 else "linear"


def _draw_cohorts(num_clients: int, options: Options) -> np.ndarray:
  """Draws int32 [rounds, places]: no client is twice in a round before all were there once."""
  rng = np.random.default_rng(_SEED)
  repeats = math.ceil(options.clients_per_round / num_clients)
  return np.stack(
    [
      np.concatenate([rng.permutation(num_clients) for _ in range(repeats)])[
        : options.clients_per_round
      ]
      for _ in range(options.num_rounds)
    ]
  ).astype(np.int32)


def _draw_orders(
  cohorts: np.ndarray, client_ids: Sequence[str], num_examples: np.ndarray, shuffle: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns seeds [rounds, places, 2], and the orders that client files draw from them."""
  import tensorflow as tf

  from tff_superquantile.simulation import seeds

  drawn, orders = np.empty((*cohorts.shape, 2), np.int64), []
  for round_num, cohort in enumerate(cohorts):
    seen: dict[int, int] = {}
    for place, client in enumerate(cohort):
      times = seen[client] = seen.get(client, 0) + 1
      name = client_ids[client] + (f", time {times}" if times > 1 else "")
      drawn[round_num, place] = seeds.client_seed(_SEED, round_num, name)
      order = tf.range(num_examples[client])
      if shuffle:
        order = tf.random.experimental.stateless_shuffle(order, drawn[round_num, place])
      orders.append(order.numpy().astype(np.int32))
  return drawn, orders


def make(options: Options) -> workloads.Workload:
  """Makes and writes a workload of a task that trains as every contender can."""
  import tasks

  task = tasks.get_task(options.task)
  if task.defaults["local_epochs"] != 1:
    raise ValueError(
      f"Found {task.defaults['local_epochs']} local epochs in task {task.name!r}; expected 1."
    )
  files, data = _load_clients(task, options)
  x, y, offsets = files.load()
  model = task.build_model_for(files, _SEED)
  initial_weights = [np.asarray(weights) for weights in model.initial_weights[0]]
  cohorts = _draw_cohorts(len(files.client_ids), options)
  batch_size = int(task.defaults["batch_size"])
  seeds, orders = _draw_orders(cohorts, files.client_ids, files.num_examples, batch_size > 0)
  kind = _model_kind(initial_weights)
  made = workloads.Workload(
    x=x,
    y=y,
    offsets=offsets,
    cohorts=cohorts,
    seeds=seeds,
    orders=np.concatenate(orders),
    order_offsets=np.cumsum([0] + [len(order) for order in orders]),
    initial_weights=initial_weights,
    settings=dict(
      task=task.name,
      model=kind,
      num_outputs=int(initial_weights[-1].shape[-1]),
      batch_size=batch_size,
      client_learning_rate=task.defaults["client_learning_rate"],
      client_weighting=task.defaults["client_weighting"],
      x_scale=files.x_scale,
      client_files=files.directory,
      client_ids=list(files.client_ids),
      data=data,
    ),
  )
  workloads.write(options.directory, made)
  return made


def main(arguments: list[str]) -> Any:
  try:
    make(Options(**json.loads(arguments[0])))
  except ValueError as error:
    sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
  main(sys.argv[1:])
