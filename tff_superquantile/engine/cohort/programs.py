"""Programs: computations for whole cohorts or for blocks, one program for equal computations."""

import collections
import copy
import functools
import hashlib
from typing import Any

import tensorflow_federated as tff

from tff_superquantile.engine.cohort import components
from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import stages as stages_lib
from tff_superquantile.engine.cohort.graphs import errors


class Program(computation.Computation):
  """A computation, for whole cohorts or in `stages` for blocks."""

  def with_store(self, store: reading.Store) -> "Program":
    """Returns the program, with its traces, for clients whose values another store keeps."""
    shared = copy.copy(self)
    vars(shared).pop("stages", None)
    shared._store = store
    shared.whole = copy.copy(self.whole)
    shared.whole.store = store
    return shared

  @functools.cached_property
  def stages(self) -> stages_lib.Stages | str:
    """Returns the computation, cut at its aggregations; or a sentence on why it cannot be cut."""
    try:
      return stages_lib.Stages(self)
    except Exception as error:  # Whatever TensorFlow finds wrong in tracing.
      return str(error)


# Programs that have read nothing, by what they compute; what was used last is last.
_traced: collections.OrderedDict[Any, Program] = collections.OrderedDict()
_MOST_TRACED = 8  # Of some 10 MB each.


def of(
  comp: tff.framework.ConcreteComputation,
  store: reading.Store,
  parallel: int,
  default_num_clients: int,
) -> Program:
  """Returns a computation's program, with the traces of an equal one; a state needs its own."""
  block, type_signature = comp.to_building_block(), comp.type_signature
  try:
    digest = _digest(block)
  except errors.UnsupportedError:
    return Program(block, type_signature, store, parallel, default_num_clients)
  key = digest, type_signature, parallel, default_num_clients
  if key not in _traced:
    empty = reading.Store(0)
    _traced[key] = Program(block, type_signature, empty, parallel, default_num_clients)
  _traced.move_to_end(key)
  while len(_traced) > _MOST_TRACED:
    _traced.popitem(last=False)
  return _traced[key].with_store(store)


def _digest(block: tff.framework.ComputationBuildingBlock) -> bytes:
  """Returns what is equal for blocks of equal graphs; a state is an `UnsupportedError`."""
  if isinstance(block, tff.framework.CompiledComputation):
    return components.digest(block)
  parts = [_digest(child) for child in block.children()]
  names = [getattr(block, name, None) for name in ("name", "index", "parameter_name")]
  names += [name for name, _ in getattr(block, "locals", ())]
  parts.append(f"{type(block).__name__} {block.type_signature} {names}".encode())
  if len(parts) == 1:
    parts.append(block.proto.SerializeToString(deterministic=True))  # It may be a literal.
  return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
