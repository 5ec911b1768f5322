"""A computation cut at its aggregations, for cohorts in blocks.

Blocks are computed without state, so that anybody can compute any block of any stage again. What
is added up, and in which order, depends on the number of blocks alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import itertools
import math
from typing import Protocol, TypeVar

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.stages import functions
from tff_superquantile.engine.cohort.stages import plans

_T = TypeVar("_T")
# Up to so many blocks are added up one after the other, more of them in groups.
_MAX_BLOCKS_IN_A_ROW = 8


def groups(num_blocks: int) -> list[range]:
  """Returns the blocks that are added up with each other, before their sums are."""
  size = num_blocks
  if num_blocks > _MAX_BLOCKS_IN_A_ROW:
    size = math.ceil(math.sqrt(num_blocks))
  return [range(first, min(first + size, num_blocks)) for first in range(0, num_blocks, size)]


def split(
  arrays: Sequence[np.ndarray], parameters: Sequence[values.LeafType], num_blocks: int
) -> list[list[np.ndarray | None]]:
  """Cuts an argument into blocks of consecutive clients, whose sizes differ by one at most.

  The tensors of the server are None in each block: the stages that read them receive them. Without
  clients there is one block.
  """
  columns: list[Sequence[np.ndarray | None]] = []
  for array, leaf in zip(arrays, parameters):
    if leaf.stacked:
      columns.append(np.array_split(array, num_blocks))
    else:
      columns.append([array if leaf.is_data_set else None] * num_blocks)
  return [list(block) for block in zip(*columns)]


def add_up(merge: Callable[[_T, _T], _T], num_blocks: int, partials: Iterator[_T]) -> _T:
  """Merges the partial aggregates of all blocks, which come in the blocks' order."""
  sums = (
    functools.reduce(merge, itertools.islice(partials, len(group))) for group in groups(num_blocks)
  )
  return functools.reduce(merge, sums)


class Blocks(Protocol):
  """Computes stages of all blocks of one cohort."""

  def total(self, index: int, received: functions.Named) -> Sequence[tf.Tensor]:
    """Returns the aggregates of all blocks in a stage, merged by `add_up`.

    Stages come in their order; `received` is what the stage needs of the server's values, no more.
    """


class Stages:
  """A computation in stages."""

  def __init__(self, program: computation.Computation):
    """Cuts a computation; one that cannot be cut is an `UnsupportedError`."""
    plan = plans.Plan(program.block)
    self._parameter = plan.parameter
    self._stages: list[functions.Stage] = []
    kept: dict[str, functions.Template] = {}
    for stage in plan.stages:
      self._stages.append(functions.Stage(program, plan, stage, kept))
      kept.update(self._stages[-1].kept)
    totals: list[Mapping[str, functions.Template]] = [
      {},
      *(stage.partials for stage in self._stages),
    ]
    self._steps = [
      functions.Step(program, plan, step, of_step, returns=step is plan.steps[-1])
      for step, of_step in zip(plan.steps, totals)
    ]

  def __len__(self) -> int:
    return len(self._stages)

  def __getitem__(self, index: int) -> functions.Stage:
    return self._stages[index]

  def __call__(self, arrays: Sequence[np.ndarray], blocks: Blocks) -> list[tf.Tensor]:
    """Computes a round, one tensor a leaf; what `arrays` has of the clients is not used."""
    known, result = self._steps[0](arrays, {}, [])
    for index, stage in enumerate(self._stages):
      at_server = {**known, self._parameter: arrays}
      received = {
        name: [at_server[name][i] for i in indices] for name, indices in stage.received.items()
      }
      total = blocks.total(index, received)
      kept, result = self._steps[index + 1](arrays, known, total)
      known.update(kept)
    return result


class LocalBlocks:
  """Computes blocks one after the other in this process, so that few are in memory at once."""

  def __init__(self, stages: Stages, blocks: Sequence[list[np.ndarray | None]]):
    """Initializes the blocks of a round, whose arguments are those of `split`."""
    self._stages = stages
    self._blocks = blocks
    self._kept: list[functions.Named] = [{} for _ in blocks]

  def total(self, index: int, received: functions.Named) -> Sequence[tf.Tensor]:
    """See `Blocks`."""

    def partials() -> Iterator[list[tf.Tensor]]:
      for arrays, kept in zip(self._blocks, self._kept):
        own, new = self._stages[index](arrays, received, kept)
        kept.update(new)
        yield own

    return add_up(self._stages[index].merge, len(self._blocks), partials())
