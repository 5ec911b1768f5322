"""A computation cut at its aggregations, for cohorts in blocks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import functools
import itertools
import math
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.stages import block_functions
from tff_superquantile.engine.cohort.stages import functions
from tff_superquantile.engine.cohort.stages import plans

_T = TypeVar("_T")
# Up to so many blocks are added up one after the other, more of them in groups.
_MAX_BLOCKS_IN_A_ROW = 8


def add_up(merge: Callable[[_T, _T], _T], num_blocks: int, partials: Iterator[_T]) -> _T:
  """Merges the partial aggregates of all blocks, which come in the blocks' order."""
  size = num_blocks if num_blocks <= _MAX_BLOCKS_IN_A_ROW else math.ceil(math.sqrt(num_blocks))
  groups = (itertools.islice(partials, size) for _ in range(0, num_blocks, size))
  return functools.reduce(merge, (functools.reduce(merge, group) for group in groups))


class Stages:
  """A computation in stages, of which each computes the blocks of a cohort.

  One block after the other, few updates are in memory at once. What is added up, and in which
  order, depends on the number of blocks alone, whoever computes them.
  """

  def __init__(self, program: computation.Computation):
    """Cuts a computation; one that cannot be cut is an `UnsupportedError`."""
    if not any(leaf.stacked for leaf in program.parameters):
      raise errors.UnsupportedError("clients who hold nothing")
    plan = plans.Plan(program.block)
    self._parameters = program.parameters
    self._stages, self._of_blocks = block_functions.of_stages(program, plan)
    totals: list[Mapping[str, functions.Template]] = [
      {},
      *(stage.partials for stage in self._stages),
    ]
    self._steps = [
      functions.StepFunction(program, plan, step, of_step, returns=step is plan.steps[-1])
      for step, of_step in zip(plan.steps, totals)
    ]

  def __len__(self) -> int:
    return len(self._stages)

  def __call__(
    self,
    arrays: Sequence[np.ndarray],
    num_blocks: int,
    map_blocks: block_functions.MapBlocks = map,
  ) -> list[tf.Tensor]:
    """Computes a round in blocks of consecutive clients, whose sizes differ by one at most."""
    split = [
      np.array_split(array, num_blocks) if leaf.stacked else [array] * num_blocks
      for array, leaf in zip(arrays, self._parameters)
    ]
    sizes = [len(part) for part in next(s for s, f in zip(split, self._parameters) if f.stacked)]
    of_blocks: list[functions.Named] = [{} for _ in sizes]  # What later stages use.
    at_server, result = self._steps[0](arrays, {}, [])
    for stage, function, step in zip(self._stages, self._of_blocks, self._steps[1:]):
      # All blocks have the same arrays of what the server sends, which may be large.
      sent = {n: block_functions.as_arrays(at_server[n]) for n in stage.inputs if n in at_server}
      blocks = [
        block_functions.Block(
          tuple(split[leaf][i] for leaf in function.used),
          tuple(array for n in stage.inputs for array in {**sent, **own}[n]),
          size,
        )
        for i, (size, own) in enumerate(zip(sizes, of_blocks))
      ]

      def partials(
        stage: functions.StageFunction = stage,
        results: Iterable[block_functions.Results] = map_blocks(function, blocks),
      ) -> Iterator[list[tf.Tensor]]:
        for own, of_block in zip(of_blocks, results):
          own.update(stage.named(of_block.kept))
          yield list(map(tf.convert_to_tensor, of_block.partials))

      total = add_up(stage.merge, num_blocks, partials())
      kept, result = step(arrays, at_server, total)
      at_server.update(kept)
    return result
