"""A pool of Ray's actors: who computes what next, and what happens when one does not answer."""

import collections
from collections.abc import Sequence
import dataclasses
import textwrap
import time
from typing import Any

import ray

from tff_superquantile.engine.cluster import errors

# How often Ray repeats a call whose worker died, each time in a new process. When a machine goes,
# Ray repeats calls at once, before it knows, and fails; so another worker gets the call then.
_MAX_RETRIES = 1
_MAX_WORKERS = 3
# An import of TensorFlow may take minutes from a shared disk.
_LEAST_SECONDS_TO_START = 300.0
_MOST_CHARACTERS = 300  # Of what Ray says, which may be pages.


@dataclasses.dataclass
class Call:
  """A call of a worker's method, which gives the same result on any worker.

  `args` may be references, `title` says to people what it is, and `worker` is the number of the
  worker to prefer, and then of the one that has computed it.
  """

  method: str
  args: tuple
  title: str
  worker: int


@dataclasses.dataclass
class _Running:
  call: int
  worker: int
  refs: list[ray.ObjectRef]
  deadline: float


class Pool:
  """Workers that compute calls, one call at a time each."""

  def __init__(
    self,
    worker: type,
    arguments: tuple,
    num_workers: int,
    threads: int,
    timeout: float,
  ):
    """Starts workers; a call that is not done in `timeout` seconds goes to another worker."""
    actor = ray.remote(max_restarts=-1, max_task_retries=_MAX_RETRIES, num_cpus=threads)(worker)
    self._workers = [actor.remote(*arguments) for _ in range(num_workers)]
    self.timeout = timeout
    # From a call without an answer to its worker, which is late or being started.
    self._silent: dict[ray.ObjectRef, int] = {}

  def __len__(self) -> int:
    return len(self._workers)

  def check_connection(self) -> None:
    """Raises a `ClusterError` if Ray has ended here; a call of Ray's would start another one."""
    if not ray.is_initialized():
      raise errors.ClusterError("Found that Ray has ended on this machine; see its logs.")

  def is_silent(self, worker: int) -> bool:
    """Returns whether a worker has not answered, and is not used before it does."""
    return worker in self._silent.values()

  def all(self, method: str, *args: Any) -> list[Any]:
    """Calls a method of all workers at the same time; `ClusterError` if one does not answer."""
    timeout = max(self.timeout, _LEAST_SECONDS_TO_START)
    refs = [getattr(worker, method).remote(*args) for worker in self._workers]
    try:
      return ray.get(refs, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
      ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
      raise errors.ClusterError(
        f"Found {len(ready)} of {len(refs)} workers after {timeout:g} s; expected all: see"
        " `ray status`, or wait longer by --worker_timeout."
      ) from None
    except ray.exceptions.RayError as error:
      raise errors.ClusterError(f"Found a worker that does not start: {_words(error)}.") from None

  def run(self, calls: Sequence[Call]) -> list[list[Any]]:
    """Computes calls on the workers; sets the `worker` of each to the one that computed it.

    The results of each call, in the calls' order: the last one as a value, references to others. A
    computation that fails, or a call that ends worker after worker, is a `ClusterError`.
    """
    results: dict[int, list[Any]] = {}
    todo = list(range(len(calls)))
    running: dict[ray.ObjectRef, _Running] = {}
    failed: collections.Counter[int] = collections.Counter()
    patience = time.monotonic() + self.timeout  # With those that were silent before.
    while len(results) < len(calls):
      self.check_connection()
      self._submit(calls, todo, running)
      first = min((one.deadline for one in running.values()), default=patience)
      if not running and patience < time.monotonic():
        raise errors.ClusterError(
          f"Found that none of {len(self)} workers has answered in {self.timeout:g} s; see whether"
          " the machines are there (`ray status`), or wait longer by --worker_timeout."
        )
      refs = [*self._silent, *running]  # Of those that are ready it returns the first.
      ready, _ = ray.wait(refs, num_returns=1, timeout=max(0.0, first - time.monotonic()))
      for ref in ready:
        if ref in self._silent:
          del self._silent[ref]  # It is back. What it has computed another has, too.
          continue
        one = running.pop(ref)
        try:
          results[one.call] = [*one.refs[:-1], ray.get(ref)]
          calls[one.call].worker = one.worker
        except ray.exceptions.RayError as error:
          failed[one.call] += 1
          _check_failure(calls[one.call], error, failed[one.call])
          todo.insert(0, one.call)
          ready_again = self._workers[one.worker].__ray_ready__.options(max_task_retries=-1)
          self._silent[ready_again.remote()] = one.worker
          patience = time.monotonic() + self.timeout
      for ref, one in list(running.items()):
        if one.deadline < time.monotonic():
          del running[ref]
          self._silent[ref] = one.worker
          todo.insert(0, one.call)
    return [results[i] for i in range(len(calls))]

  def _submit(
    self, calls: Sequence[Call], todo: list[int], running: dict[ray.ObjectRef, _Running]
  ) -> None:
    """Gives a call to each idle worker, one of its own calls if there is one."""
    busy = {one.worker for one in running.values()} | set(self._silent.values())
    for worker, actor in enumerate(self._workers):
      if worker in busy or not todo:
        continue
      index = next((i for i in todo if calls[i].worker == worker), todo[0])
      todo.remove(index)
      call = calls[index]
      refs = getattr(actor, call.method).remote(*call.args)
      refs = refs if isinstance(refs, list) else [refs]
      running[refs[-1]] = _Running(index, worker, refs, time.monotonic() + self.timeout)


def _check_failure(call: Call, error: Exception, num_workers: int) -> None:
  """Raises a `ClusterError` for a call that nobody need try again."""
  if isinstance(error, ray.exceptions.RayTaskError):
    raise errors.ClusterError(
      f"Found that {call.title} cannot be computed on {_shortened(str(error.cause))}."
    ) from None
  if num_workers == _MAX_WORKERS:
    raise errors.ClusterError(
      f"Found that {call.title} ended its worker {_MAX_WORKERS * (1 + _MAX_RETRIES)} times;"
      " expected it to fit into the memory: ask for more blocks by --num_blocks, or for more"
      f" memory. Ray says: {_words(error)}."
    ) from None


def _words(error: Exception) -> str:
  """Returns the last line of an error of Ray's, which says what happened."""
  lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
  return _shortened(lines[-1])


def _shortened(text: str) -> str:
  return textwrap.shorten(text, _MOST_CHARACTERS, placeholder=" ...").rstrip(".")
