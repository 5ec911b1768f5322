"""Changes graphs so that TensorFlow computes in this process what it computes in TFF's worker."""

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import ops

_SUFFIX = "_without_xla"


def drop_xla(graph_def: tf.compat.v1.GraphDef) -> None:
  """Has TensorFlow's kernels compute what authors want XLA to compile, as in TFF's worker.

  Compiled, reads out of range and divisions by zero give numbers instead of errors. Functions get
  other names, since TensorFlow knows those with the old names as they were.
  """
  holders = (*ops.nodes_of(graph_def), *graph_def.library.function)
  marks = [(each.attr, name) for each in holders for name in each.attr if name.startswith("_Xla")]
  for attributes, name in marks:
    del attributes[name]
  if not marks:
    return
  names = ops.functions_by_name(graph_def)
  for node in ops.nodes_of(graph_def):
    node.op += _SUFFIX if node.op in names else ""
    for attr in node.attr.values():
      for function in [attr.func] if attr.HasField("func") else attr.list.func:
        function.name += _SUFFIX if function.name in names else ""
  for gradient in graph_def.library.gradient:
    gradient.function_name += _SUFFIX
    gradient.gradient_func += _SUFFIX
  for function in graph_def.library.function:
    function.signature.name += _SUFFIX
