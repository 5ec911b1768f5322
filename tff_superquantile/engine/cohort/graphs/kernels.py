"""Which of TensorFlow's kernels may compute for several clients at once.

A graph has one kernel of each of its ops, for all threads that run the graph and all iterations of
a loop. TensorFlow's own kernels keep nothing of a call. Those of oneDNN, which take the place of
some, may: that of FusedBatchNorm keeps the number of channels, and writes past the end of its
arrays if another call has more (Keras' LayerNormalization has one channel an example). So several
clients are in a kernel of oneDNN at once only if that is known to be right.
"""

from collections.abc import Iterable
import contextlib
import threading

import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import ops

# Each gave, in 8 iterations of a loop at once, on inputs of different shapes, what it gives in one.
_SHARED = frozenset(
  """
  AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchMatMulV2 ConcatV2 Conv2D
  Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2
  DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
  Einsum Elu EluGrad LeakyRelu LeakyReluGrad MatMul MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad
  Relu Relu6 Relu6Grad ReluGrad Softmax Tanh TanhGrad Transpose
  """.split()
)


def may_be_shared(nodes: Iterable[tf.compat.v1.NodeDef]) -> bool:
  """Tells whether several clients may be computed by one graph of these nodes at once."""
  return all(op in _SHARED or not ops.is_onednns(op) for op in {node.op for node in nodes})


def turns(nodes: Iterable[tf.compat.v1.NodeDef]) -> contextlib.AbstractContextManager:
  """Returns the context in which a thread runs a graph of these nodes: alone, if it has to be."""
  return contextlib.nullcontext() if may_be_shared(nodes) else threading.Lock()
