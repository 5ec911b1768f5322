"""The variables of a component, as values that its ops hand on.

TFF gives each client variables of its own, which begin anew each time. So a component computes
nothing but functions of its arguments, and a client's variables need no place in memory beside the
values that they would hold: to assign a variable is to give its name to another value.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import elements
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import expressions
from tff_superquantile.engine.cohort.graphs import ops

Ref = expressions.Ref

_MAPS = frozenset(("MapDataset", "ParallelMapDatasetV2", "ScanDataset"))
_INCREMENTS = ("AssignAddVariableOp", "AssignSubVariableOp")
OPS = frozenset(
  (
    "AssignVariableOp",
    "ReadVariableOp",
    "ResourceGather",
    "VarHandleOp",
    "VarIsInitializedOp",
    "VariableShape",
    *_INCREMENTS,
  )
)


class Scan(NamedTuple):
  """A data set that hands a state on from element to element, and may use variables.

  `function` is a FunctionDef from (state, element, captured values) to (state, element), which may
  call those of `library`.
  """

  function: Any
  source: Ref
  initial: Sequence[Ref]
  captured: Sequence[Ref]
  library: ops.Functions

  def element_specs(self) -> Sequence[tf.TensorSpec]:
    """Returns the types of the elements of `source`."""
    specs = elements.argument_specs(self.function)
    return specs[len(self.initial) : len(specs) - len(self.captured)]


def as_scan(node: tf.compat.v1.NodeDef, inputs: Sequence[Ref], library: ops.Functions) -> Scan:
  """Describes one of `_MAPS`, or a ReduceDataset: a scan whose elements nobody needs."""
  first, end = 1, 1
  if "Tstate" in node.attr:
    first = end = 1 + len(node.attr["Tstate"].list.type)
  end += len(node.attr["Targuments"].list.type)
  function = library[node.attr["f"].func.name]
  return Scan(function, inputs[0], inputs[1:first], inputs[first:end], library)


def scan_of_others(data_set: Ref) -> Scan | None:
  """Returns what makes a data set of another one, to be kept, and of values of others; or None."""
  made = data_set.expression
  draws = any(ops.is_stateful(inner.op) for f in made.functions for inner in f.node_def)
  if made.op not in _MAPS or draws:
    return None
  scan = as_scan(made.node, made.inputs, {f.signature.name: f for f in made.functions})
  others = (*scan.initial, *scan.captured)
  if all(ref.expression.roots <= scan.source.expression.roots for ref in others):
    return None
  return scan


class State:
  """What the variables hold at one point of a computation.

  Attributes:
    scans: From what stands for a data set that a ScanDataset makes to that op and its inputs.
    held: What each variable holds, by its handle.
    num_loops: In how many loops that point is.
    looks: How often the computation so far goes over a data set, twice for a loop that does.
  """

  def __init__(self) -> None:
    self.scans: dict[Ref, Scan] = {}
    self.held: dict[Ref, Ref] = {}
    self.num_loops = 0
    self.looks = 0
    # From the handle of a variable to its op.
    self._handles: dict[Ref, tf.compat.v1.NodeDef] = {}

  def is_handle(self, ref: Ref) -> bool:
    """Tells whether a value stands for a variable."""
    return ref in self._handles

  def apply(
    self, node: tf.compat.v1.NodeDef, inputs: Sequence[Ref], pool: expressions.Pool
  ) -> tuple[Ref, ...]:
    """Returns the results of one of `OPS`, whose first input is the variable."""

    def make(made: tf.compat.v1.NodeDef, *operands: Ref) -> Ref:
      return Ref(pool.apply(made, operands), 0)

    if node.op == "VarHandleOp":
      name = (node.attr["shared_name"].s or node.name.encode()).decode()
      handle = Ref(pool.root(f"variable {name}"), 0)
      self._handles[handle] = node
      return (handle,)
    handle, *operands = inputs
    if handle not in self._handles:
      raise errors.UnsupportedError("a variable from outside of the component")
    declared = self._handles[handle].attr
    dtype = declared["dtype"]
    if node.op == "AssignVariableOp":
      value = operands[0]
      if node.attr["validate_shape"].b:  # Where the variable's shape is known.
        value = make(ops.make_node("EnsureShape", T=dtype, shape=declared["shape"]), value)
      self.held[handle] = value
      return ()
    if node.op == "VarIsInitializedOp":
      return (make(ops.constant(handle in self.held, tf.bool)),)
    if handle not in self.held:
      raise errors.UnsupportedError("a variable without an initial value")
    held = self.held[handle]
    if node.op in _INCREMENTS:
      # Unlike other additions, AddN takes values of one shape alone.
      add = ops.make_node("AddN", T=dtype, N=tf.compat.v1.AttrValue(i=2))
      if node.op == "AssignAddVariableOp":
        self.held[handle] = make(add, held, operands[0])
      elif tf.as_dtype(dtype.type).is_integer:  # Neg has no unsigned ones.
        checked = make(add, make(ops.make_node("ZerosLike", T=dtype), held), operands[0])
        self.held[handle] = make(ops.make_node("Sub", T=dtype), held, checked)
      else:
        self.held[handle] = make(add, held, make(ops.make_node("Neg", T=dtype), operands[0]))
      return ()
    if node.op == "VariableShape":
      return (make(ops.make_node("Shape", T=dtype, out_type=node.attr["out_type"]), held),)
    if node.op == "ResourceGather":
      axis = make(ops.constant(node.attr["batch_dims"].i, tf.int32))
      gather = ops.make_node(
        "GatherV2",
        Tparams=dtype,
        Tindices=node.attr["Tindices"],
        Taxis=ops.type_attr(tf.int32),
        batch_dims=node.attr["batch_dims"],
      )
      return (make(gather, held, *operands, axis),)
    return (held,)
