"""Tries a round and a secure sum, and looks at data sets, in a process of its own.

Takes the doctor's options as JSON in its argument, and prints a line of JSON for each finding, the
fields of a `Finding`. Whatever else is printed goes to standard error.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
import json
import os
import pathlib
import secrets
import sys
import tempfile
import time
from typing import Any

from tff_superquantile.doctor import machine

_NUM_CLIENTS = 100
_NUM_BINS = 64
_MAX_VALUE = 4.0
_NOISE_MULTIPLIER = 0.1  # Little: so that a wrong median differs from noise.
_STDDEVS = 6.0


def check_imports() -> machine.Finding:
  """Imports TensorFlow, TFF and this library, whose packages a user's folder may hide."""
  start = time.monotonic()
  import tensorflow as tf
  import tensorflow_federated as tff

  import privacy
  import tasks

  for package in (privacy, tasks):
    path = pathlib.Path(package.__file__ or "nowhere").resolve()
    if path.parents[1] != pathlib.Path(__file__).resolve().parents[2]:
      return machine.Finding(
        "FAIL",
        "imports",
        f"Found {path} for the package {package.__name__}; expected the one of this project.",
        "Start Python from another directory, or rename that folder.",
      )
  seconds = time.monotonic() - start
  return machine.Finding(
    "ok", "imports", f"TensorFlow {tf.__version__} and TFF {tff.__version__}, {seconds:.1f} s"
  )


def _use_cluster(address: str, cache_dir: str) -> str:
  """Makes the workers of a cluster the ones that compute; returns where they are."""
  import tensorflow_federated as tff

  from tff_superquantile.simulation import context

  cluster = context.Cluster(address, worker_timeout=60.0)
  context.set_simulation_context(engine="ray", cluster=cluster)
  workers = tff.framework.get_context_stack().current
  folder = pathlib.Path(cache_dir).absolute()
  if folder.exists():
    with tempfile.NamedTemporaryFile(dir=folder) as file:
      workers.check_files(sorted(map(str, folder.rglob("index.json"))) or [file.name])
  hosts = collections.Counter(workers.hosts())
  each = ", ".join(f"{host} {number}" for host, number in sorted(hosts.items()))
  return f" on {sum(hosts.values())} workers ({each})"


def check_round(address: str, cache_dir: str) -> machine.Finding:
  """Sums securely, which has to be exact, and takes a private median, near numpy's."""
  start = time.monotonic()
  import numpy as np
  import tensorflow_federated as tff

  from privacy.noise import tree_mechanism
  from tff_superquantile import threshold
  from tff_superquantile.simulation import context

  if address:
    place = _use_cluster(address, cache_dir)
  else:
    place = ""
    context.set_simulation_context()
  modulus = 2 * _NUM_CLIENTS
  modular = tff.aggregators.SecureModularSumFactory(modulus).create(tff.TensorType(np.int32))

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def secure_sums(values: tff.Value) -> tuple[tff.Value, tff.Value]:
    plain = tff.federated_secure_sum(values, np.int32(_NUM_CLIENTS))
    return plain, modular.next(modular.initialize(), values).result

  integers = list(range(_NUM_CLIENTS))
  sums = tuple(int(s) for s in secure_sums(integers))
  expected = (sum(integers), sum(integers) % modulus)
  if sums != expected:
    return machine.Finding(
      "FAIL",
      "round",
      f"Found secure sums {sums}, plain and modulo {modulus}; expected {expected}.",
      machine.REINSTALL,
    )
  mechanism = tree_mechanism.build_tree_mechanism(_NOISE_MULTIPLIER, _NUM_BINS, _NUM_CLIENTS)
  quantile = threshold.build_tree_quantile(0.5, mechanism, _MAX_VALUE)
  values = [_MAX_VALUE * (i + 0.5) / _NUM_CLIENTS for i in range(_NUM_CLIENTS)]
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
  numpys = f"numpy's {np.median(values):.3f}"
  if not low <= median <= high:
    return machine.Finding(
      "FAIL",
      "round",
      f"Found a private median of {median:.3f}; expected {low:.3f} to {high:.3f}, near {numpys}.",
      machine.REINSTALL,
    )
  seconds = time.monotonic() - start
  return machine.Finding(
    "ok",
    "round",
    f"secure sums exact, private median {median:.3f}, {numpys}{place}, {seconds:.1f} s",
  )


def check_data(data_dir: str, cache_dir: str) -> Iterator[machine.Finding]:
  """Yields what is in the path that the user named, or else which data sets were downloaded."""
  import tasks

  data_sets = [tasks.get_task(name).data_set for name in tasks.task_names()]
  known = {data_set.name: data_set for data_set in data_sets if data_set is not None}
  contents, reasons = [], []
  for name, data_set in known.items():
    place = data_dir or data_set.downloads[0].find(cache_dir)
    try:
      state = data_set.describe(place) if place else ""
    except ValueError as error:
      reasons.append(f"{name}: {str(error).rstrip('.')}.")
      if not data_dir:
        yield machine.Finding(
          "FAIL", name, f"Found that {error}.", f"Delete {place}; it is loaded anew."
        )
      continue
    if data_dir:
      contents.append(f"{name}: {state}")
    else:
      yield (
        machine.Finding("ok", name, state)
        if place
        else machine.Finding("note", name, "not here", data_set.remedy)
      )
  if contents:
    yield machine.Finding("ok", "--data_dir", " and ".join(contents))
  elif data_dir:
    yield machine.Finding(
      "FAIL",
      "--data_dir",
      f"Found no data set in --data_dir={data_dir}; expected one of {', '.join(known)}.",
      "\n".join([*reasons, "Name another directory or file, or get the data again."]),
    )


def check_word_vectors(glove: str, data_dir: str, cache_dir: str) -> Iterator[machine.Finding]:
  """Yields whether GloVe's word vectors are where the user says, beside the data or downloaded."""
  from tasks.sent140 import glove as glove_lib

  remedy = f"{glove_lib.REMEDY}."
  try:
    path = glove_lib.find_file(glove, data_dir, cache_dir)
  except ValueError:
    path = ""
  dimension = glove_lib.peek_dimension(path) if path else 0
  if dimension:
    yield machine.Finding("ok", "word vectors", f"{dimension} numbers a word, {path}")
  elif glove or path:
    yield machine.Finding(
      "FAIL",
      "word vectors",
      f"Found no word vectors in {path or glove}; expected GloVe's text.",
      remedy,
    )
  else:
    yield machine.Finding("note", "word vectors", "not here", remedy)


def guarded(
  name: str, check: Callable[[], machine.Finding | Iterator[machine.Finding]]
) -> Iterator[machine.Finding]:
  """Yields the findings of a check; whatever it raises is a finding of that name."""
  try:
    findings = check()
    yield from [findings] if isinstance(findings, machine.Finding) else findings
  except Exception as error:  # Any error is the finding.
    message = " ".join(str(error).split())[:300]
    yield machine.Finding(
      "FAIL", name, f"Found {type(error).__name__}: {message}.", machine.REINSTALL
    )


def _all(options: dict[str, Any]) -> Iterator[machine.Finding]:
  """Yields all findings; without imports there are no others."""
  data_dir, cache_dir = options["data_dir"], options["cache_dir"]
  imports = list(guarded("imports", check_imports))
  yield from imports
  if imports[0].status == "ok":
    yield from guarded("round", lambda: check_round(options["ray_address"], cache_dir))
    yield from guarded("data", lambda: check_data(data_dir, cache_dir))
    places = (options["glove"], data_dir, cache_dir)
    yield from guarded("word vectors", lambda: check_word_vectors(*places))


def main() -> None:
  """Prints finding after finding."""
  answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
  os.dup2(2, 1)
  for finding in _all(json.loads(sys.argv[1])):
    answers.write(json.dumps(finding._asdict()) + "\n")


if __name__ == "__main__":
  main()
