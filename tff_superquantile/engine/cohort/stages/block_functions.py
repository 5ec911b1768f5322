"""A stage of a block of clients as a function of numbers alone, for any process to carry out.

    map_blocks(function, blocks) -> what it gives for each block, in the blocks' order

What travels is what the clients of a real federation would get: their own part of the argument,
what the server broadcasts, and graphs that they compute. The rest of the argument, such as the
state of the server's noise, is left out, as are the graphs of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import functools
import os
import threading
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.stages import functions
from tff_superquantile.engine.cohort.stages import plans

_MAX_BYTES = 2**30  # Of what the clients of a computation from elsewhere have read.
# Threads that map share traces, and what clients have read; TensorFlow has threads of its own.
_lock = threading.Lock()
_OF_SERVER = "engine_graph_of_the_server"


class Block(NamedTuple):
  """The clients of a block.

  Attributes:
    arrays: The leaves of the argument that the stage uses; those at clients have a row a client.
    inputs: What the server, and earlier stages of the same block, have computed for the stage.
    num_clients: The number of clients.
  """

  arrays: tuple[np.ndarray, ...]
  inputs: tuple[np.ndarray, ...]
  num_clients: int


class Results(NamedTuple):
  """What a stage gives for a block: its partial aggregates, and what later stages use of it."""

  partials: tuple[np.ndarray, ...]
  kept: tuple[np.ndarray, ...]


class BlockFunction:
  """Computes a stage of a block. A copy by `pickle` makes its graphs anew where it arrives.

  Attributes:
    content: What the copy is made of: the clients' part of the computation.
    stage: The number of the stage, from 0.
    used: The leaves of the argument that a block has to have.
  """

  def __init__(
    self, content: bytes, stage: int, function: functions.StageFunction, used: Sequence[int]
  ):
    self.content, self.stage, self.used = content, stage, tuple(used)
    self._function = function

  def __reduce__(self) -> tuple[Any, ...]:
    return of_content, (self.content, self.stage)

  def __call__(self, block: Block) -> Results:
    given = dict(zip(self.used, block.arrays))
    arrays = [
      given[i] if i in given else _nothing(leaf, block.num_clients)
      for i, leaf in enumerate(self._function.parameters)
    ]
    with _lock:
      partials, kept = self._function(arrays, block.inputs)
    return Results(as_arrays(partials), as_arrays(kept))


# As the builtin `map`, it gives the results in the order of the blocks.
MapBlocks = Callable[[BlockFunction, Iterable[Block]], Iterable[Results]]


def as_arrays(tensors: Iterable[tf.Tensor | np.ndarray]) -> tuple[np.ndarray, ...]:
  """Returns tensors, or arrays, as arrays."""
  return tuple(np.asarray(t.numpy() if isinstance(t, tf.Tensor) else t) for t in tensors)


def _nothing(leaf: values.LeafType, num_clients: int) -> np.ndarray:
  """Returns what stands for a leaf that a stage does not use."""
  shape = [size or 0 for size in leaf.shape or ()]
  if leaf.stacked:
    shape = [num_clients, *shape]
  dtype = leaf.argument_dtype
  return np.full(shape, b"" if dtype == tf.string else 0, dtype.as_numpy_dtype)


def _clients_part(block: tff.framework.Lambda, plan: plans.Plan) -> bytes:
  """Returns a computation without the graphs of the server, of which only the types are left."""

  def forget(part: Any) -> tuple[Any, bool]:
    if not isinstance(part, tff.framework.CompiledComputation):
      return part, False
    return tff.framework.Reference(_OF_SERVER, part.type_signature), True

  locals_ = [
    (name, call if plan.is_of_clients(name) else tff.framework.transform_postorder(call, forget)[0])
    for name, call in plan.calls.items()
  ]
  last = tff.framework.Reference(locals_[-1][0], locals_[-1][1].type_signature)
  body = tff.framework.Block(locals_, last)
  part = tff.framework.Lambda(block.parameter_name, block.parameter_type, body)
  return part.proto.SerializeToString(deterministic=True)


def of_stages(
  outline: computation.Outline, plan: plans.Plan
) -> tuple[list[functions.StageFunction], list[BlockFunction]]:
  """Builds the functions of all stages, and those of their blocks."""
  own = functions.of_plan(outline, plan)
  content = _clients_part(outline.block, plan)
  return own, _of_functions(content, outline, plan, own)


def _of_functions(
  content: bytes,
  outline: computation.Outline,
  plan: plans.Plan,
  own: Sequence[functions.StageFunction],
) -> list[BlockFunction]:
  return [
    BlockFunction(content, i, function, _used(outline, plan, stage))
    for i, (function, stage) in enumerate(zip(own, plan.stages))
  ]


@functools.lru_cache(maxsize=8)
def _all_of_content(content: bytes) -> list[BlockFunction]:
  """Makes the functions of all stages anew."""
  message = type(tff.framework.Reference(_OF_SERVER, tff.TensorType(np.int32)).proto)
  block = tff.framework.ComputationBuildingBlock.from_proto(message.FromString(content))
  parallel = len(os.sched_getaffinity(0))
  outline = computation.Outline(block, reading.Store(_MAX_BYTES), parallel, 0)
  plan = plans.Plan(block)
  return _of_functions(content, outline, plan, functions.of_plan(outline, plan))


def of_content(content: bytes, stage: int) -> BlockFunction:
  """Returns the function of a stage, as its `content` and `stage` say."""
  return _all_of_content(content)[stage]


def _used(outline: computation.Outline, plan: plans.Plan, stage: plans.Stage) -> list[int]:
  """Returns the leaves of the parameter that a stage uses; no other reaches it."""
  block = outline.block
  leaves: Any = values.pack(block.parameter_type, iter(range(len(outline.parameters))))
  used: set[int] = set()

  def selected(part: tff.framework.ComputationBuildingBlock) -> Any:
    """Returns the leaves that a selection of the parameter is; None for anything else."""
    if isinstance(part, tff.framework.Reference) and part.name == block.parameter_name:
      return leaves
    if isinstance(part, tff.framework.Selection):
      source = selected(part.source)
      return None if source is None else source[part.as_index()]
    return None

  def visit(part: tff.framework.ComputationBuildingBlock) -> None:
    found = selected(part)
    if found is None:
      for child in part.children():
        visit(child)
    else:
      used.update(cast(Iterable[int], values.flatten(found)))

  for name in (*stage.calls, *stage.aggregations):
    visit(plan.calls[name])
  return sorted(used)
