"""Tries TensorFlow, the engines, a secure sum and data sets, in a process of its own.

Reads {"trial": name, "arguments": {...}} from standard input, a line each, and answers each with a
line on standard output, the fields of a `report.Finding`. Whatever else is printed goes to
standard error.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import dataclasses
import functools
import json
import pathlib
import secrets
import sys
import tempfile
import time

from tff_superquantile.doctor import report
from tff_superquantile.simulation import child

_NUM_CLIENTS = 100
_NUM_BINS = 64
_MAX_VALUE = 4.0
_NOISE_MULTIPLIER = 0.1  # Little: so that a wrong median differs from noise.
_STDDEVS = 6.0


def _values() -> list[float]:
  """Returns a number for each client, evenly from 0 to `_MAX_VALUE`."""
  return [_MAX_VALUE * (i + 0.5) / _NUM_CLIENTS for i in range(_NUM_CLIENTS)]


def tensorflow() -> report.Finding:
  """Imports TensorFlow and computes a sum."""
  start = time.monotonic()
  import tensorflow as tf

  total = float(tf.reduce_sum(tf.constant(_values())))
  if abs(total - sum(_values())) > 1e-3:
    return report.fail(f"Found a sum of {total:g}; expected {sum(_values()):g}.", "")
  return report.ok(f"{tf.__version__} computes, after {time.monotonic() - start:.1f} s")


def federated() -> report.Finding:
  """Imports TFF."""
  start = time.monotonic()
  import tensorflow_federated as tff

  return report.ok(f"{tff.__version__} imports, in {time.monotonic() - start:.1f} s")


def engine() -> report.Finding:
  """Carries out a federated computation."""
  start = time.monotonic()
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_superquantile.simulation import context

  @tff.tensorflow.computation(np.int32)
  def double(x: tf.Tensor) -> tf.Tensor:
    return 2 * x

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total_of_doubles(values: tff.Value) -> tff.Value:
    return tff.federated_sum(tff.federated_map(double, values))

  context.set_simulation_context()
  values = list(range(_NUM_CLIENTS))
  total = int(total_of_doubles(values))
  if total != 2 * sum(values):
    return report.fail(f"Found a federated sum of {total}; expected {2 * sum(values)}.", "")
  seconds = time.monotonic() - start
  return report.ok(f"sums over {_NUM_CLIENTS} clients, after {seconds:.1f} s")


def secure_sum() -> report.Finding:
  """Sums securely, which has to be exact, and takes a private median, near numpy's."""
  import numpy as np
  import tensorflow_federated as tff

  from privacy.noise import tree_mechanism
  from tff_superquantile import threshold
  from tff_superquantile.simulation import context

  context.set_simulation_context()
  modulus = 2 * _NUM_CLIENTS
  modular = tff.aggregators.SecureModularSumFactory(modulus).create(tff.TensorType(np.int32))

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def secure_sums(values: tff.Value) -> tuple[tff.Value, tff.Value]:
    summed = tff.federated_secure_sum(values, np.int32(_NUM_CLIENTS))
    return summed, modular.next(modular.initialize(), values).result

  integers = list(range(_NUM_CLIENTS))
  sums = tuple(int(s) for s in secure_sums(integers))
  expected_sums = (sum(integers), sum(integers) % modulus)
  if sums != expected_sums:
    return report.fail(
      f"Found secure sums {sums}, plain and modulo {modulus}; expected {expected_sums}.", ""
    )

  mechanism = tree_mechanism.build_tree_mechanism(_NOISE_MULTIPLIER, _NUM_BINS, _NUM_CLIENTS)
  quantile = threshold.build_tree_quantile(0.5, mechanism, _MAX_VALUE)
  values = _values()
  clients = [
    threshold.Client(np.frombuffer(secrets.token_bytes(16), np.int64), np.int32(i))
    for i in range(_NUM_CLIENTS)
  ]
  weights = [1.0] * _NUM_CLIENTS
  median = float(quantile.next(quantile.initialize(), values, weights, clients).result)
  # The count below a bin is a sum of at most one node a level. A threshold is the left edge of its
  # bin.
  noise = _STDDEVS * mechanism.num_levels**0.5 * mechanism.count_stddev / _NUM_CLIENTS
  low, high = np.quantile(values, [0.5 - noise, 0.5 + noise])
  low -= _MAX_VALUE / _NUM_BINS
  if not low <= median <= high:
    return report.fail(
      f"Found a private median of {median:.3f}; expected one in {low:.3f} to {high:.3f}, numpy's"
      f" being {np.median(values):.3f}.",
      "",
    )
  return report.ok(
    f"exact, plain and modular; private median {median:.3f}, numpy's {np.median(values):.3f}"
  )


def cluster(address: str, cache_dir: str) -> report.Finding:
  """Starts the workers of a cluster, which must have these versions and see this cache.

  Args:
    address: As for `train`.
    cache_dir: The folder. The clients in it are looked for, or else a file that is made for it.

  Returns:
    The finding.
  """
  start = time.monotonic()
  import tensorflow_federated as tff

  from tff_superquantile.simulation import context

  try:
    context.set_simulation_context(
      engine="ray", cluster=context.Cluster(address, worker_timeout=60.0)
    )
    on_cluster = tff.framework.get_context_stack().current
    folder = pathlib.Path(cache_dir).absolute()
    if folder.exists():
      with tempfile.NamedTemporaryFile(dir=folder) as file:
        on_cluster.check_files(sorted(map(str, folder.rglob("index.json"))) or [file.name])
  except (RuntimeError, ValueError) as error:  # Sentences, with what to do.
    found, _, remedy = str(error).partition(": ")
    return report.fail(f"{found.rstrip('.')}.", remedy[:1].upper() + remedy[1:])
  hosts = collections.Counter(on_cluster.hosts())
  each = ", ".join(f"{host} {number}" for host, number in sorted(hosts.items()))
  same = "versions and cache" if folder.exists() else "versions"
  seconds = time.monotonic() - start
  return report.ok(f"{sum(hosts.values())} workers ({each}), the same {same}, {seconds:.1f} s")


def _of_data(name: str, **arguments: str) -> report.Finding:
  """Carries out a check of `data`."""
  from tff_superquantile.doctor import data

  return getattr(data, name)(**arguments)


_TRIALS: dict[str, Callable[..., report.Finding]] = {
  "tensorflow": tensorflow,
  "federated": federated,
  "engine": engine,
  "secure_sum": secure_sum,
  "cluster": cluster,
  "data_dir": functools.partial(_of_data, "check_data_dir"),
  "data_set": functools.partial(_of_data, "check_data_set"),
  "word_vectors": functools.partial(_of_data, "check_word_vectors"),
}


def _answer(request: dict) -> report.Finding:
  try:
    return _TRIALS[request["trial"]](**request["arguments"])
  except Exception as error:  # Any error is the finding.
    message = " ".join(str(error).split())[:300]
    return report.fail(f"Found {type(error).__name__}: {message}", "")


def main() -> None:
  """Answers trial after trial."""
  answers = child.take_output()
  for line in sys.stdin:
    answers.write(json.dumps(dataclasses.asdict(_answer(json.loads(line)))) + "\n")


if __name__ == "__main__":
  main()
