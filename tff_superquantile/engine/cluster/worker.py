"""What runs on a worker: the engine, for one block at a time."""

from collections.abc import Iterable, Sequence
import functools
import hashlib
import importlib.metadata
import os
import platform
import socket
from typing import NamedTuple

import numpy as np
import ray
import tensorflow as tf
import tensorflow_federated as tff

# A private module of TFF's, needed to read what `serialize_computation` gives.
from tensorflow_federated.proto.v0 import computation_pb2

from tff_superquantile.engine.cohort import programs
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import stages

# Arrays of some values, by their names.
Arrays = dict[str, list[np.ndarray]]
_PACKAGES = ("tensorflow-federated", "numpy")


def versions() -> dict[str, str]:
  """Returns what must be the same on all machines for the same results."""
  found = {name: importlib.metadata.version(name) for name in _PACKAGES}
  return {"python": platform.python_version(), "tensorflow": tf.version.VERSION, **found}


class Description(NamedTuple):
  """Describes a worker: its machine's name, its process, the versions of Python and of packages.

  `digests` has those of files by their paths; None for those that are not there.
  """

  host: str
  pid: int
  versions: dict[str, str]
  digests: dict[str, str | None]


def digest(path: str) -> str | None:
  """Returns the SHA-256 of a file's content, None if it cannot be read."""
  try:
    with open(path, "rb") as file:
      return hashlib.sha256(file.read()).hexdigest()
  except OSError:
    return None


def as_arrays(values: stages.Named) -> Arrays:
  """Returns the tensors of some values as arrays."""
  return {name: list(map(np.asarray, tensors)) for name, tensors in values.items()}


class Worker:
  """Computes any block of any stage. It remembers computations and files, and nothing of rounds."""

  def __init__(self, threads: int, max_bytes: int):
    """Initializes a worker of `threads` threads; `max_bytes` is as in `engine.CohortContext`."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    self._threads = threads
    self._store = reading.Store(max_bytes)
    self._programs: dict[bytes, programs.Program] = {}

  def describe(self, files: Sequence[str]) -> Description:
    """Describes where this worker is, and what of some files it finds there."""
    return Description(
      socket.gethostname(), os.getpid(), versions(), {path: digest(path) for path in files}
    )

  @ray.method(num_returns=2)
  def compute(
    self,
    key: bytes,
    serialized: bytes,
    index: int,
    arrays: list[np.ndarray | None],
    received: Arrays,
    carried: Arrays,
  ) -> tuple[list[np.ndarray], Arrays]:
    """Computes stage `index` of a block; an error names the host.

    `arrays` is the block's part of the argument, None for what is at the server, `received` what
    the stage reads of the server's values, `carried` what earlier stages of the block kept. The
    result is the partial aggregates, and what this stage keeps.
    """
    try:
      partials, kept = self._stages(key, serialized)[index](arrays, received, carried)
      return [tensor.numpy() for tensor in partials], as_arrays(kept)
    except Exception as error:  # TensorFlow's errors do not survive the way to another process.
      raise RuntimeError(f"{socket.gethostname()}: {_words(error)}") from None

  def add_up(
    self,
    key: bytes,
    serialized: bytes,
    index: int,
    partials: list[ray.ObjectRef],
    timeout: float,
  ) -> list[np.ndarray] | None:
    """Merges the partial aggregates of consecutive blocks, which come in the blocks' order.

    It waits `timeout` seconds for each. None if one cannot be had, since its machine has gone.
    """
    found = (ray.get(partial, timeout=timeout) for partial in partials)
    try:
      return merged(self._stages(key, serialized), index, found)
    except ray.exceptions.RayError:
      return None

  def _stages(self, key: bytes, serialized: bytes) -> stages.Stages:
    if key not in self._programs:
      proto = computation_pb2.Computation.FromString(serialized)
      comp = tff.framework.deserialize_computation(proto)
      self._programs[key] = programs.Program(comp, self._store, self._threads)
    cut = self._programs[key].stages
    if isinstance(cut, str):
      raise RuntimeError(cut)
    return cut


def _words(error: Exception) -> str:
  """Returns the line of an error that says what happened; TensorFlow adds lines around it."""
  lines = str(error).partition("\n\t [[")[0].splitlines()
  return next((line for line in reversed(lines) if line.strip()), type(error).__name__)


def merged(
  cut: stages.Stages, index: int, partials: Iterable[list[np.ndarray]]
) -> list[np.ndarray]:
  """Merges partial aggregates of a stage in their order; see `Worker.add_up`."""
  as_tensors = (list(map(tf.convert_to_tensor, part)) for part in partials)
  return [tensor.numpy() for tensor in functools.reduce(cut[index].merge, as_tensors)]
