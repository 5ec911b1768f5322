"""Clients of different sizes are computed at once, each as eager TensorFlow computes it alone."""

from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import cohort_context

pytestmark = pytest.mark.usefixtures("restored_context")
_SIZES = (3, 1, 4, 2, 5, 3)

# Of a client's matrix x [n, 3] and labels y [n], its seed k and the server's w [3, 2] and b [2].
# What each gives has a shape that no client's number of examples changes.
_AT_ONCE = """
tf.shape(x) | tf.size(x) | tf.shape(y)[0] * 2 | tf.cast(tf.shape(x)[0], tf.float32) * b
tf.reduce_sum(x, 0) | tf.reduce_sum(x) | tf.reduce_mean(x, 0) | tf.reduce_mean(x, [0, 1], True)
tf.reduce_prod(x, -2) | tf.reduce_mean(x) | tf.reduce_sum(tf.reduce_mean(x, 1)) | tf.nn.l2_loss(x)
tf.reduce_all(x > -9.0) | tf.reduce_any(y > 1, 0) | tf.reduce_all(x < 1.0, 0)
tf.matmul(x, x, transpose_a=True) | tf.reduce_sum(tf.nn.softmax(x @ w + b), 0)
tf.reduce_sum(1.0 / x, 0) | tf.reduce_sum(tf.math.log(x * x), 0) | tf.reduce_mean(tf.exp(-x), 0)
tf.reduce_sum(tf.squeeze(x[:, :1], 1)) | tf.reduce_sum(x[:, 1]) | tf.reduce_sum(x[..., 2] * 2.0)
tf.reduce_sum(tf.reshape(x, [-1])) | tf.reduce_sum(tf.reshape(x, [-1, 3, 1]) * b, 0)
tf.reduce_sum(x[1:], 0) | tf.reduce_sum(x[:-1], 0) | tf.reduce_sum(x[-2:], 0) | tf.shape(x[2:9])
tf.reduce_sum(x[tf.shape(x)[0] - 2 :], 0) | tf.reduce_sum(x[k % 2 : k + 2], 0) | tf.shape(x[k:])
tf.reduce_sum(tf.cast(tf.equal(tf.argmax(x @ w, 1, "int32"), y), tf.float32))
tf.reduce_sum(tf.gather(w, y), 0) | tf.reduce_sum(tf.gather(b, y % 2) * x[:, 0])
tf.reduce_mean(entropy(y % 2, x @ w + b)) | tf.reduce_sum(tf.expand_dims(y, 1) * [[1, 2]], 0)
tf.gradients(tf.reduce_mean(entropy(y % 2, x @ w + b)), [w])[0]
tf.gradients(tf.reduce_mean(entropy(y % 2, tf.nn.bias_add(x @ w, b))), [b])[0]
tf.gradients(tf.reduce_mean(tf.square(tf.squeeze(x @ (w @ [[1.0], [2.0]]), 1) - 0.5)), w)[0]
tf.gradients(tf.reduce_mean(logistic(tf.squeeze(x @ (w @ [[1.0], [2.0]]) + 0.5, 1), y)), w)[0]
tf.gradients(tf.reduce_sum(tf.nn.relu(x @ w + b) * tf.tanh(x @ w)), w)[0]
tf.reduce_sum(tf.where(x > 0.0, x, tf.zeros_like(x)), 0) | tf.reduce_sum(tf.math.log1p(x * x))
tf.reduce_sum(order(x, k) * tf.range(1.0, 4.0), 0) | tf.reduce_sum(order(x, k)[:1], 0)
steps(x, 1, lambda part: tf.reduce_mean(part, 0)) | steps(x, 2, lambda part: tf.reduce_sum(part, 0))
steps(order(x, k), 2, lambda part: tf.reduce_mean(part, 0) * tf.cast(tf.shape(part)[0], tf.float32))
tf.cond(k > 1, lambda: tf.reduce_mean(x, 0), lambda: tf.reduce_sum(x[:1], 0))
tf.cond(k > 0, lambda: steps(x, 2, lambda part: tf.reduce_mean(part, 0)), lambda: w[:, 0])
tf.reduce_sum(tf.broadcast_to(b, tf.shape(x[:, :2])) * x[:, :2], 0)
"""
# Client by client: what a padding could change, or of which nothing was shown.
_OTHERS = """
x[0] | tf.reduce_max(x, 0) | tf.cumsum(x, 0)[-1] | tf.reduce_sum(tf.sort(x, 0)[:1], 0)
tf.reduce_sum(x[::-1] * tf.range(1.0, 4.0), 0) | tf.nn.softmax(x, 0)[0] | x[-1]
tf.reduce_sum(tf.concat([x, x], 0), 0)
tf.nn.batch_normalization(x, *moments(x), b[0], b[0], 1e-3)[0]
tf.reduce_sum(tf.transpose(x), 1) | tf.reduce_sum(x * x[:1], 0) | tf.gather(x, 0)
tf.gradients(tf.reduce_mean(tf.reduce_sum(tf.sigmoid(x @ w + b), 1)), b)[0]
tf.gradients(tf.reduce_sum(tf.reduce_mean(tf.square(x @ w - b), 0)), b)[0]
order(x, k)[0, 0] + b | tf.reduce_sum(order(tf.range(tf.shape(y)[0]), k) * y)
tf.argmax(x, 0) | tf.reduce_sum(tf.nn.moments(x, 0)[1] + tf.reduce_max(x, 0))
"""


def _expressions(table):
  return [part.strip() for line in table.splitlines() if line for part in line.split(" | ")]


def _steps(x, size, of_part):
  """A total over batches, of which the last may be smaller: loops of other lengths."""

  def step(at, total):
    end = tf.minimum(at + size, tf.shape(x)[0])
    return end, total + of_part(x[at:end]) * (1.0 + tf.cast(at, tf.float32))

  return tf.while_loop(lambda at, _: at < tf.shape(x)[0], step, (0, tf.zeros([3])))[1]


_NAMES = dict(
  tf=tf,
  steps=_steps,
  moments=lambda x: tf.nn.moments(x, 0),
  order=lambda x, k: tf.random.experimental.stateless_shuffle(x, tf.stack([k, 7])),
  entropy=lambda y, z: tf.nn.sparse_softmax_cross_entropy_with_logits(y, z),
  logistic=lambda z, y: tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, tf.float32), z),
)


def _function(expressions):
  codes = [compile(expression, expression, "eval") for expression in expressions]

  def compute(x, y, k, w, b):
    # Of the server's, as what depends on a client's data alone is computed when they are read.
    unit = tf.stop_gradient(b[0] * 2.0)
    x, y = x * unit, y * tf.cast(unit, tf.int32)
    own = dict(_NAMES, x=x, y=y, k=k, w=w, b=b)
    return [tf.convert_to_tensor(eval(code, own)) for code in codes]

  return tf.autograph.experimental.do_not_convert(compute)


def _clients(sizes):
  rng = np.random.default_rng(3)
  return [
    (rng.normal(size=(n, 3)).astype(np.float32), rng.integers(3, size=n, dtype=np.int32))
    for n in sizes
  ]


def _compare(expressions, sizes, rtol=1e-5):
  """Compares each client with eager TensorFlow; returns whether the cohort was computed at once."""
  compute, clients = _function(expressions), _clients(sizes)
  w, b = np.float32([[1, -2], [0.5, 1], [-1, 0.25]]), np.float32([0.5, -1])
  seeds = [np.int32(i % 3) for i in range(len(sizes))]
  eager = tf.function(compute, autograph=False)
  expected = [eager(*map(tf.constant, (x, y, k, w, b))) for (x, y), k in zip(clients, seeds)]
  element = tff.types.to_type(
    (tff.TensorType(np.float32, [None, 3]), tff.TensorType(np.int32, [None]))
  )
  of_server = (tff.TensorType(np.float32, [3, 2]), tff.TensorType(np.float32, [2]))

  @tff.tensorflow.computation(tff.SequenceType(element), np.int32, *of_server)
  def component(data_set, k, w, b):
    values = compute(*data_set.get_single_element(), k, w, b)
    return [tf.ensure_shape(v, like.shape) for v, like in zip(values, expected[0])]

  @tff.federated_computation(
    tff.FederatedType(tff.SequenceType(element), tff.CLIENTS),
    tff.FederatedType(np.int32, tff.CLIENTS),
    *(tff.FederatedType(kind, tff.SERVER) for kind in of_server),
  )
  def program(data_sets, k, w, b):
    argument = (data_sets, k, tff.federated_broadcast(w), tff.federated_broadcast(b))
    return tff.federated_map(component, argument)

  held = [tf.data.Dataset.from_tensors(pair) for pair in clients]
  context = cohort_context.CohortContext()
  found = invoke(context, program, held, seeds, w, b)
  for own, of_eager in zip(found, expected, strict=True):
    for expression, ours, theirs in zip(expressions, own, of_eager, strict=True):
      theirs = theirs.numpy()
      assert np.asarray(ours).dtype == theirs.dtype and np.shape(ours) == theirs.shape, expression
      if theirs.dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6, err_msg=expression)
      else:
        np.testing.assert_array_equal(ours, theirs, err_msg=expression)
  functions = context._programs[id(program)].whole._functions.values()
  return [is_at_once for _, is_at_once in functions]


@pytest.mark.parametrize("sizes", [_SIZES, (1, 2), (7, 7, 6)])
def test_clients_of_other_sizes_get_what_eager_tensorflow_gives(sizes):
  assert _compare(_expressions(_AT_ONCE), sizes) == [True]


def test_a_client_without_examples_gets_its_own_nothing():
  without = [e for e in _expressions(_AT_ONCE) if "[0, 0]" not in e]
  assert _compare(without, (2, 0, 3)) == [True]


@pytest.mark.parametrize("expression", _expressions(_OTHERS))
def test_all_else_is_computed_client_by_client(expression):
  assert _compare([expression], (3, 4, 2)) == [False]


def test_what_would_be_padding_for_the_most_part_is_not_padded():
  assert _compare(_expressions(_AT_ONCE)[:5], (1, 1, 1, 1, 1, 40)) == [False]
