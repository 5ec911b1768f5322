"""A TFF context whose cohorts are computed by Ray's actors, a block of clients each."""

from collections.abc import Sequence
import hashlib
from typing import Any
import weakref

import numpy as np
import ray
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cluster import connection
from tff_superquantile.engine.cluster import errors
from tff_superquantile.engine.cluster import pool
from tff_superquantile.engine.cluster import worker
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import programs
from tff_superquantile.engine.cohort import stages
from tff_superquantile.engine.cohort.graphs import errors as engine_errors

_SECONDS_TO_FETCH = 10.0  # From a machine whose worker does not answer.


class _RemoteBlocks:
  """The blocks of one round on the workers; see `stages.Blocks`."""

  def __init__(
    self,
    workers: pool.Pool,
    computation: tuple[bytes, ray.ObjectRef],
    cut: stages.Stages,
    blocks: Sequence[list[np.ndarray | None]],
  ):
    self._workers = workers
    self._computation = computation
    self._cut = cut
    self._blocks = blocks
    self._kept: list[worker.Arrays] = [{} for _ in blocks]
    # The worker that has computed a block has read the files of its clients.
    self._owners = [i % len(workers) for i in range(len(blocks))]

  def total(self, index: int, received: stages.Named) -> Sequence[tf.Tensor]:
    """See `stages.Blocks`."""
    common = ray.put(worker.as_arrays(received))
    calls = [
      pool.Call(
        "compute",
        (*self._computation, index, arrays, common, kept),
        f"block {i + 1} of {len(self._blocks)} (stage {index + 1})",
        owner,
      )
      for i, (arrays, kept, owner) in enumerate(zip(self._blocks, self._kept, self._owners))
    ]
    partials = []
    for i, (own, kept) in enumerate(self._workers.run(calls)):
      partials.append(own)
      self._kept[i].update(kept)
      self._owners[i] = calls[i].worker

    def sum_of(group: Sequence[int]) -> list[np.ndarray]:
      parts = (self._fetch(partials[i], calls[i]) for i in group)  # One at a time is in memory.
      return worker.merged(self._cut, index, parts)

    groups = stages.groups(len(partials))
    if len(groups) == 1:
      return list(map(tf.convert_to_tensor, sum_of(groups[0])))
    of_groups = [
      pool.Call(
        "add_up",
        (*self._computation, index, [partials[i] for i in group], self._workers.timeout / 2),
        f"the sum of {len(group)} blocks (stage {index + 1})",
        self._owners[group[0]],
      )
      for group in groups
    ]
    found = [total for (total,) in self._workers.run(of_groups)]
    sums = (sum_of(group) if total is None else total for group, total in zip(groups, found))
    return list(map(tf.convert_to_tensor, worker.merged(self._cut, index, sums)))

  def _fetch(self, partial: ray.ObjectRef, call: pool.Call) -> list[np.ndarray]:
    """Returns the partial aggregates of a block; computes them again if their machine is gone."""
    silent = self._workers.is_silent(call.worker)
    try:
      return ray.get(partial, timeout=_SECONDS_TO_FETCH if silent else self._workers.timeout)
    except ray.exceptions.RayError:
      ((again, _),) = self._workers.run([call])
      return ray.get(again, timeout=self._workers.timeout)


class RayContext(cohort_context.CohortContext):
  """Computes the clients' part of a computation on Ray's workers, and the server's in this process.

  A cohort is cut into `num_blocks` blocks. Any worker gives the same bits for a block, and what
  blocks give is added up in an order that the number of blocks decides. So the results depend on
  the number of blocks and on the threads of a worker, and not on the number of workers, on which of
  them computes what, and on which of them die.
  """

  def __init__(
    self,
    address: str = "local",
    num_blocks: int | None = None,
    threads_per_worker: int = 1,
    timeout: float = 600.0,
    max_bytes: int = 2**30,
    parallel: int = 2,
  ):
    """Connects to Ray and starts the workers, as `engine.context.Cluster` says.

    Each machine gets as many workers as fit. A worker keeps `max_bytes` of the files that it has
    read; `parallel` clients compute at once in this process, for what is not distributed. If there
    is no cluster, or a worker does not start, or has other versions, that is a `ClusterError`.
    """
    super().__init__(None, parallel, max_bytes)
    connection.connect(address)
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    num_workers = sum(number // threads_per_worker for number in cores)
    if num_workers < 1:
      raise errors.ClusterError(
        f"Found machines of {cores} cores; expected one with {threads_per_worker}, which a worker"
        " takes: ask for fewer by --threads_per_worker."
      )
    arguments = (threads_per_worker, max_bytes)
    self._workers = pool.Pool(worker.Worker, arguments, num_workers, threads_per_worker, timeout)
    self.num_blocks = num_blocks or num_workers
    # The keys are ids, as for programs.
    self._serialized: dict[int, tuple[bytes, ray.ObjectRef]] = {}
    self.check_files([])

  def check_files(self, paths: Sequence[str]) -> None:
    """Refuses workers, by their hosts, with other versions or other files than this process."""
    expected = worker.Description("", 0, worker.versions(), {p: worker.digest(p) for p in paths})
    for found in self._workers.all("describe", list(paths)):
      for name, version in expected.versions.items():
        if found.versions.get(name) != version:
          raise errors.ClusterError(
            f"Found {name} {found.versions.get(name)} on {found.host}; expected {version} as here:"
            " install the same versions on all machines."
          )
      for path, own in expected.digests.items():
        if found.digests[path] != own:
          what = "another content of" if found.digests[path] else "no"
          raise errors.ClusterError(
            f"Found {what} {path} on {found.host}; expected the file of this machine: put"
            " --cache_dir where all machines see it, or copy it to the same place on each."
          )

  def hosts(self) -> list[str]:
    """Returns the name of each worker's machine."""
    return [found.host for found in self._workers.all("describe", [])]

  def _compute(
    self,
    comp: tff.framework.ConcreteComputation,
    program: programs.Program,
    arrays: Sequence[np.ndarray],
  ) -> Any:
    num_clients = program.num_clients(arrays)
    if num_clients == 0:
      return program.to_python(program.whole(arrays))
    if any(leaf.stacked and leaf.is_data_set for leaf in program.parameters):
      raise engine_errors.UnsupportedError(
        "Found clients that hold data sets, which are in this process alone; give them client files"
        " (docs/how_to/fast_rounds.md), or compute by engine = in_process."
      )
    if isinstance(program.stages, str):
      raise engine_errors.UnsupportedError(
        f"Found a computation over {num_clients} clients that cannot be distributed:"
        f" {program.stages}; compute it by engine = in_process."
      )
    self._workers.check_connection()
    blocks = stages.split(arrays, program.parameters, min(self.num_blocks, num_clients))
    remote = _RemoteBlocks(self._workers, self._computation(comp), program.stages, blocks)
    return program.to_python(program.stages(arrays, remote))

  def _computation(self, comp: tff.framework.ConcreteComputation) -> tuple[bytes, ray.ObjectRef]:
    """Returns the digest of a computation, and the computation for the workers."""
    key = id(comp)
    if key not in self._serialized:
      text = tff.framework.serialize_computation(comp).SerializeToString(deterministic=True)
      self._serialized[key] = hashlib.sha256(text).digest(), ray.put(text)
      weakref.finalize(comp, self._serialized.pop, key, None)
    return self._serialized[key]
