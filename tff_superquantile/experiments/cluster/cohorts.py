"""Has the workers of a scheduler compute the blocks of one run's cohorts.

A worker gets what the clients of its block would: the weights, their handles, and the graphs that
they compute. The driver adds up the blocks' sums in their order, and then the noise. So the bits
depend on --num_blocks and on no machine, and no key leaves the driver.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
import contextlib
import hashlib
import os
import pathlib
import pickle
import secrets
import sys
import typing
from typing import Any

from privacy import parts
from tff_superquantile.experiments.cluster import blocks as blocks_lib
from tff_superquantile.experiments.cluster import door as door_lib
from tff_superquantile.experiments.cluster import driver
from tff_superquantile.experiments.cluster import facts
from tff_superquantile.experiments.cluster import hands
from tff_superquantile.experiments.config import run_config

if typing.TYPE_CHECKING:  # It imports TensorFlow.
  from tff_superquantile.engine.cohort import stages

_MOST_DEATHS = 3  # Of the processes that compute a block.
# What tests have shown to give the same bits in any process (tests/experiments/test_cohorts.py).
_METHODS = (
  *("fed_avg", "fed_avg_sub", "fed_prox", "q_fed_avg", "tilted_erm", "agnostic_fed_avg"),
  *("prop_fair", "semi_vred", "gifair", "eagle", "aaggff", "superquantile"),
)
_TASKS = ("synthetic", "own", "emnist_linear", "emnist_convnet")
_THRESHOLDS = ("exact", "reweighting", "geometric", "primal_dual", "tree")
_BY_SERVER = ("geometric", "primal_dual")  # Private thresholds of which the server makes the noise.


class BlockError(RuntimeError):
  """No worker could compute a block."""


def why_not(config: run_config.RunConfig) -> str:
  """Returns why workers cannot compute the cohorts of a run; "" for one whose they can."""
  threshold = config.method.threshold
  kind = None if threshold is None else parts.THRESHOLDS.name_of(type(threshold))
  if config.num_blocks is None:
    return (
      "Found --scheduler without --num_blocks; expected both, as the run's last bits depend on the"
      " number of blocks, such as --num_blocks=8."
    )
  shown = {"algorithm": (config.algorithm, _METHODS), "task": (config.task.name, _TASKS)}
  if kind is not None:
    shown["threshold"] = (kind, _THRESHOLDS)
  for name, (found, known) in shown.items():
    if found not in known:
      return f"Found --scheduler with --{name}={found}; expected one of {', '.join(known)}."
  if config.privacy is None:
    return ""
  if config.privacy.noise_by_clients or kind not in (None, *_BY_SERVER):
    return (
      "Found --scheduler in a private run whose clients make noise, from seeds of the noise key,"
      " which must not leave this machine; expected noise of the server alone: leave out --secure"
      f" and --update_sum=distributed, and take --threshold={' or '.join(_BY_SERVER)}."
    )
  return ""


class Workers:
  """The workers of a scheduler, for one run."""

  def __init__(self, client: Any, witness: pathlib.Path):
    self._client, self._witness = client, str(witness)
    self._run = secrets.token_hex(8)
    self._number = 0
    self._learnt: set[str] = set()
    self._needs: facts.Needs | None = None
    self._threads = 1

  def check(self, config: run_config.RunConfig) -> None:
    """Refuses a run that cannot be shared out."""
    if why := why_not(config):
      raise ValueError(why)

  def begin(self, directory: str, threads: int) -> stages.MapBlocks:
    """Returns what maps blocks, once all workers are known to have what the run needs.

    `directory` has the files of the training clients, which workers read by the same path, and
    `threads` is the run's number of threads.
    """
    needs = facts.Needs(os.getcwd(), self._witness, (directory,), is_of_cohort=True)
    needs = needs._replace(expected=facts.of_here(needs))
    self._needs = needs
    self._threads = threads
    driver.wait_for_a_worker(self._client)
    for address, found in self._client.run(hands.facts_of, needs).items():
      if why := facts.difference(found, needs, address):
        raise ValueError(why)
    return self._map

  def _map(self, function: stages.BlockFunction, blocks: Iterable[Any]) -> Iterator[Any]:
    """Has a `BlockFunction` computed of each block; yields the results in the blocks' order."""
    content, stage = function.content, function.stage
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if digest not in self._learnt:
      self._client.run(blocks_lib.learn, digest, content, on_error="ignore")
      self._learnt.add(digest)
    assert self._needs is not None
    orders = [
      blocks_lib.BlockOrder(
        self._needs, self._run, self._threads, digest, stage, pickle.dumps(block)
      )
      for block in blocks
    ]
    waiting = {self._submit(order): i for i, order in enumerate(orders)}
    deaths: collections.Counter[int] = collections.Counter()
    done: dict[int, bytes] = {}
    for next_one in range(len(orders)):
      while next_one not in done:
        for future in driver.wait_for_any(self._client, list(waiting)):
          i, answer = waiting.pop(future), _answer(future)
          if answer.kind == blocks_lib.DONE:
            done[i] = answer.results
            continue
          deaths[i] += answer.kind == blocks_lib.DIED
          self._mend(answer, digest, content, deaths[i])
          waiting[self._submit(orders[i])] = i
      yield pickle.loads(done.pop(next_one))

  def _submit(self, order: blocks_lib.BlockOrder) -> Any:
    self._number += 1
    key = f"compute-{self._run}-{self._number}"
    return self._client.submit(blocks_lib.compute, order, key=key, pure=False, retries=0)

  def _mend(self, answer: blocks_lib.BlockAnswer, digest: str, content: bytes, deaths: int) -> None:
    """Does what lets another try give a result; a `BlockError` where nothing does."""
    if answer.kind == blocks_lib.LACKS:  # It has come later.
      workers = [answer.worker]
      self._client.run(blocks_lib.learn, digest, content, workers=workers, on_error="ignore")
    elif answer.kind == blocks_lib.UNFIT:
      print(f"Warning: {answer.why}", file=sys.stderr, flush=True)
      self._client.retire_workers([answer.worker])
    elif answer.kind != blocks_lib.DIED or deaths > _MOST_DEATHS:
      why = answer.why or f"{deaths} processes that computed it were killed"
      raise BlockError(f"Found a block that cannot be computed on {answer.worker}: {why}")


def _answer(future: Any) -> blocks_lib.BlockAnswer:
  """Returns how a block ended, also one of which no worker can tell."""
  if future.status == "finished":
    return blocks_lib.BlockAnswer(*future.result())
  if future.status != "error":
    raise driver.LostError
  error = future.exception()
  killed = isinstance(error, door_lib.distributed().KilledWorker)
  why = "each of four workers ended with it" if killed else f"{type(error).__name__}: {error}"
  return blocks_lib.BlockAnswer(blocks_lib.FAILED, why=why, worker="its workers")


@contextlib.contextmanager
def machines(config: run_config.RunConfig, scheduler: str) -> Iterator[Workers]:
  """Connects a run to a scheduler; a run that cannot be shared out is refused before."""
  if why := why_not(config):
    raise ValueError(why)
  with driver.connected(scheduler, config.output_dir) as (client, witness):
    yield Workers(client, witness)
