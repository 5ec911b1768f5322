"""Blocks of a cohort: how it is cut, and in which order what blocks give is added up."""

from collections.abc import Callable, Iterator, Sequence
import functools
import itertools
import math
from typing import TypeVar

import numpy as np

from tff_superquantile.simulation.engine import values

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

  Args:
    arrays: The argument, one array a leaf of the parameter.
    parameters: The leaves.
    num_blocks: The number of blocks; without clients there is one.

  Returns:
    The arguments of the blocks, with None for the tensors of the server: the stages that read them
    receive them.
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
