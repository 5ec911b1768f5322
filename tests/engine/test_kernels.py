"""Kernels in which several clients are at once give each client what it gets alone.

python -m pytest tests/engine/test_kernels.py --run_slow    # All; without it, one use of a kernel.
"""

from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import runtime
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort.graphs import kernels
from tff_superquantile.engine.cohort.graphs import ops

pytestmark = pytest.mark.usefixtures("restored_context")
_SIZES = np.tile(np.int32([20, 3, 17, 9, 20, 1, 12, 20]), 8)

# Of numbers of several shapes, by the client's size n.
_FUNCTIONS = """
tf.nn.max_pool2d(x(n, 8, 8, 3), 2, 2, "VALID") | tf.nn.max_pool2d(x(2, n, n + 4, 3), 3, 1, "SAME")
tf.nn.avg_pool2d(x(n, 8, 8, 3), 2, 2, "VALID") | tf.nn.avg_pool2d(x(2, n, n + 4, 3), 3, 1, "SAME")
tf.nn.max_pool3d(x(n, 8, 8, 4, 3), 2, 2, "VALID") | tf.nn.max_pool3d(x(2, n, 6, 5, 3), 3, 1, "SAME")
tf.nn.avg_pool3d(x(n, 8, 8, 4, 3), 2, 2, "VALID") | tf.nn.avg_pool3d(x(2, n, 6, 5, 3), 3, 1, "SAME")
tf.nn.conv1d(x(n, 20, 3), x(3, 3, 5), 1, "SAME") | tf.concat([x(n, 9), x(n, 9)], 1)
tf.nn.conv2d(x(2, 8, 8, n), x(3, 3, n, n), 1, "SAME") | tf.nn.softmax(x(9, n)) | tf.nn.gelu(x(n, 9))
tf.nn.conv2d(x(n, 8, 8, 3), x(3, 3, 3, 5), 1, "VALID") | tf.nn.softmax(x(n, 7)) | tf.tanh(x(n, 9))
tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x(n, 8, 8, 3), x(3, 3, 3, 5), 1, "VALID"), x(5)))
tf.nn.relu6(tf.nn.depthwise_conv2d(x(n, 8, 8, 4), x(3, 3, 4, 1), [1] * 4, "SAME") + x(4))
tf.nn.conv2d_transpose(x(n, 8, 8, 3), x(3, 3, 5, 3), [n, 16, 16, 5], 2) | tf.nn.swish(x(n, 9))
tf.nn.conv3d(x(n, 4, 5, 6, 3), x(3, 3, 3, 3, 5), [1] * 5, "SAME") | tf.matmul(x(n, 4, 9), x(9, n))
tf.nn.conv3d_transpose(x(n, 4, 4, 4, 5), x(3, 3, 3, 3, 5), [n, 8, 8, 8, 3], 2) | x(9, n) @ x(n, 7)
tf.nn.depthwise_conv2d(x(2, n + 3, 9, 4), x(3, 3, 4, 2), [1] * 4, "SAME")
tf.nn.elu(x(n, 9) @ x(9, 7) + x(7)) | tf.nn.leaky_relu(x(n, 9) @ x(9, 7)) | tf.nn.relu(x(n, 9))
tf.einsum("bij,bjk->bik", x(4, n, 9), x(4, 9, n)) | tf.transpose(x(n, 9, 3), [2, 0, 1])
"""
_EACH = [each.strip() for line in _FUNCTIONS.strip().splitlines() for each in line.split(" | ")]


def _computed(expression):
  """A function of the size: a number of the value, and one of each gradient."""

  def of_size(n):
    used = []

    def x(*shape):
      used.append(tf.random.stateless_normal(shape, [len(used), 2]))
      tape.watch(used[-1])
      return used[-1]

    with tf.GradientTape() as tape:
      value = tf.reduce_mean(eval(expression, dict(tf=tf, n=n, x=x)) ** 3)
    return tf.stack([value, *(tf.reduce_sum(tf.abs(g)) for g in tape.gradient(value, used))])

  return of_size


def _loop(expression, parallel):
  function = _computed(expression)
  spec = tf.TensorSpec([None], tf.float32)
  return tf.function(
    lambda sizes: tf.map_fn(
      function, sizes, parallel_iterations=parallel, fn_output_signature=spec
    ),
    input_signature=[tf.TensorSpec([None], tf.int32)],
  )


@pytest.mark.parametrize(
  "expression",
  [pytest.param(e, marks=[pytest.mark.slow] if i else []) for i, e in enumerate(_EACH)],
)
def test_what_is_computed_at_once_is_what_is_computed_alone(expression):
  expected, at_once = _loop(expression, 1)(_SIZES), _loop(expression, 8)
  for _ in range(10):
    np.testing.assert_allclose(at_once(_SIZES), expected, rtol=1e-4)


def test_each_op_whose_kernel_is_shared_is_computed_so():
  graphs = [_loop(e, 1).get_concrete_function().graph.as_graph_def() for e in _EACH]
  assert {node.op for graph in graphs for node in ops.nodes_of(graph)} >= kernels._SHARED
  assert all(kernels.may_be_shared(ops.nodes_of(graph)) for graph in graphs)


@pytest.mark.parametrize("layer", ["LayerNormalization", "BatchNormalization", "Flatten"])
def test_clients_take_turns_in_kernels_that_keep_something_of_a_call(native, monkeypatch, layer):
  spec = tf.TensorSpec([None, 10]), tf.TensorSpec([None], tf.int32)

  def model_fn():
    of, initializer = tf.keras.layers, tf.keras.initializers.GlorotUniform(1)
    normalization = of.Reshape([4, 1, 2]), getattr(of, layer)(), of.Flatten()
    layers = [of.Dense(8, kernel_initializer=initializer, input_shape=[10]), *normalization]
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential([*layers, of.Dense(3, kernel_initializer=initializer)]),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=spec,
      metrics=[],
    )

  computed, map_fn = [], mapping._map_fn

  def map_in_turns(*arguments, parallel_iterations, **options):
    computed.append((parallel_iterations == 1) == (layer != "Flatten"))
    assert computed[-1]
    return map_fn(*arguments, parallel_iterations=parallel_iterations, **options)

  monkeypatch.setattr(mapping, "_map_fn", map_in_turns)
  process = tff.learning.algorithms.build_weighted_fed_avg(
    model_fn, tff.learning.optimizers.build_sgdm(0.1)
  )
  rng = np.random.default_rng(0)
  examples = [(rng.normal(size=[n, 10]), rng.integers(0, 3, n)) for n in rng.integers(5, 60, 20)]
  held = [
    tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32))).batch(20)
    for x, y in examples
  ]
  state = invoke(native, process.initialize)
  expected, *found = (
    process.get_model_weights(invoke(one, process.next, state, held).state)
    for one in (native, cohort_context.CohortContext(), runtime.create_sync_context(2))
  )
  assert computed
  for one in found:
    for ours, theirs in zip(tf.nest.flatten(one), tf.nest.flatten(expected)):
      np.testing.assert_allclose(ours, theirs, atol=1e-4)
