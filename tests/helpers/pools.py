"""Pools of clients without data, tasks' splits, and the examples of clients that have some."""

import numpy as np

import tasks
from tasks import request as request_lib
from tff_superquantile.simulation import client_files


def pool(counts, **changes):
  """The clients of {id: number of examples}, or of ids alone, each with one."""
  counts = counts if isinstance(counts, dict) else dict.fromkeys(counts, 1)
  sizes = np.array(list(counts.values()))
  return client_files.ClientFiles("/n", tuple(counts), sizes, (7,), "float32", 1.0, 2, **changes)


def load(name, data_dir, cache_dir, **changes):
  """A task's splits, with everything but the two directories as it is by default."""
  request = request_lib.of(str(cache_dir), name, data_dir=str(data_dir), **changes)
  return tasks.get_task(name).load_clients(request)


def by_client(splits):
  """{client: (x as the model sees it, y)} of the clients of all splits, or of one."""
  found = {}
  for files in splits.values() if isinstance(splits, dict) else [splits]:
    x, y, offsets = files.load()
    x = files.decode(x).numpy()
    for client, start, end in zip(files.client_ids, offsets, offsets[1:]):
      found[client] = (x[start:end], y[start:end])
  return found
