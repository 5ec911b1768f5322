"""Ops give each client what eager TensorFlow gives it, whatever their attributes and inputs."""

import functools

from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import rows
from tff_superquantile.engine.cohort.graphs import ops

pytestmark = pytest.mark.usefixtures("restored_context")
_MATRIX = tff.TensorType(np.float32, [4, 3])
_TYPES = (_MATRIX, tff.TensorType(np.int32), _MATRIX, tff.TensorType(np.int32))

# Of a client's matrix x and number k, and the server's s and n: computed for all clients at once.
_AT_ONCE = """
tf.repeat(x, 2, -1) | tf.cast(x, tf.float16) + 1 | tf.cast(x, tf.bfloat16)
tf.abs(x) | x + s | s + x | tf.exp(x) | tf.floor(x) | x > s | s >= x
tf.math.is_finite(x) | tf.math.is_inf(x) | tf.math.is_nan(x) | tf.nn.l2_loss(x) | x < s | s <= x
tf.math.log(x) | tf.logical_and(x > 0, s > 0) | tf.logical_not(x > 0) | tf.logical_or(s > x, x > 1)
tf.reduce_max(x) | tf.reduce_max(x, 0) | tf.reduce_max(x, -1) | tf.reduce_max(x, [0, -1], True)
tf.maximum(x, s) | tf.maximum(0.0, x) | tf.reduce_mean(x, -2) | tf.reduce_mean(x, 1, keepdims=True)
tf.reduce_min(x) | tf.reduce_min(x, -2) | tf.minimum(s, x) | tf.minimum(x, 1.0) | x * s | s * 2 * x
-x | -k | tf.stack([x, s]) | tf.stack([s, x], -1) | tf.stack([x, x], 1) | tf.stack([k, n, 3], -1)
x / s | s / x | 1.0 / x | tf.round(x) | tf.math.rsqrt(x) | tf.where(x > 0, s, x) | tf.sign(x)
tf.where(tf.reduce_max(x) > 1, x, s) | tf.where(x > 0, 1.0, x) | tf.where(k > 0, k, n) | tf.sqrt(x)
tf.square(x) | x - s | s - x | k - n | k * n + 1 | tf.reduce_sum(x) | tf.reduce_sum(x, 0)
tf.reduce_sum(x, [-1, -2], keepdims=True) | tf.reduce_sum(x, []) | tf.tanh(x) | tf.tanh(s + x)
tf.cast(x, tf.float64) | tf.cast(x > 0, tf.int32) | tf.cast(k, tf.float32) * x
tf.cast(k, "uint8") | tf.cast(x, "bool") | tf.cast(k, tf.int64) | tf.add(x, s) * n_
tf.expand_dims(x, -1) | tf.expand_dims(x, 0) | tf.expand_dims(x, -2)
tf.norm(x, axis=-1) | tf.squeeze(tf.reduce_sum(x, 1, True), [-1])
tf.squeeze(tf.reduce_max(x, 0, True), 0) | tf.squeeze(tf.reduce_max(x, [0, 1], True), [0, -1])
tf.squeeze(tf.reduce_max(x, [0, 1], True), -2) | tf.squeeze(tf.expand_dims(x, 1), -2)
tf.clip_by_value(x, -1.0, 1.0) | tf.where(tf.math.is_finite(x), x, 0.0)
x * tf.minimum(1.0, 2.0 / tf.sqrt(tf.reduce_sum(x * x)))
tf.norm(x) | tf.reduce_prod(x, [0, -1])
tf.add_n([x, s, x]) | tf.add_n([s, s, x]) | tf.linalg.global_norm([x, s, n_ * x])
tf.matmul(x, s, transpose_b=True) | tf.matmul(s, x, transpose_a=True) | tf.matmul(x, x, True)
tf.matmul(x, tf.transpose(s)) | tf.matmul(tf.reshape(x, [2, 6]), tf.reshape(x, [6, -1]), True, True)
tf.reshape(x, [3, -1]) | tf.reshape(x, [-1]) | tf.reshape(k, [1, 1]) | tf.reshape(x, [-1, 2, 2])
tf.reshape(x, tf.stack([n + 1, -1])) | tf.reshape(x[:0], [0, 5, 3]) | tf.reshape(x[:0], [-1, 3])
tf.reshape(x, tf.constant([2, 6], tf.int64)) | tf.reshape(x, [tf.shape(x)[1], -1])
tf.shape(x) | tf.shape(x * k_, tf.int64) | tf.shape(k) | x * tf.cast(tf.shape(x)[0], tf.float32)
x[..., -1] | x[3:0:-2] | x[None, ..., None, 0] | x[n:] | x[:n, 1:] | x[-1] | x[:, ::-1] | x[1, 2]
x[tf.shape(x)[1], :n] | x[:, None, -2:] | x[5:] | x[n - 3] | x[:0] | x[..., 0:9] | x[..., None]
tf.tile(x, [2, 1]) | tf.tile(x, [n, 0]) | tf.tile(x[0], [3]) | tf.tile(x, tf.stack([n, n + 1]))
tf.expand_dims(x, n) | tf.expand_dims(x, -n - 2) | tf.reduce_sum(x, n) | tf.reduce_mean(x, [-n])
tf.reduce_max(x, tf.range(n)) | tf.reduce_sum(s, 0) * k_ | k_ + s[0] | s + x[0] | x[:, 0] + s[1, 1]
tf.nn.bias_add(x, s[0]) | tf.nn.bias_add(x, x[0]) | tf.nn.bias_add(s, x[0])
tf.gradients(tf.square(tf.nn.bias_add(x, tf.reduce_sum(s, 0))), s)[0] | tf.nn.relu(x)
tf.nn.softmax(x) | tf.nn.softmax(x[0]) | tf.sigmoid(x) | tf.math.reciprocal(x)
tf.gradients(tf.nn.relu(x - s), x)[0] | tf.gradients(tf.square(tf.tanh(x)), x)[0]
tf.gradients(tf.square(tf.sigmoid(s * k_)), s)[0]
tf.math.divide_no_nan(x, s) | tf.math.divide_no_nan(s, x) | tf.math.divide_no_nan(k_, n_ - 1.0)
tf.equal(x, s) | tf.equal(tf.argmax(x, 1), [0, 1, 2, 0]) | tf.not_equal(x[0], s) | tf.equal(k, n)
tf.argmax(x) | tf.argmax(x, -1, "int32") | tf.argmax(s * k_, n) | tf.zeros_like(x) | tf.size(x)
tf.reduce_all(x > s) | tf.reduce_any(x > s, -1) | tf.reduce_all(x > -9, [0], True) | tf.size(k)
tf.size(x, tf.int64) | x * tf.cast(tf.size(x[:n]), tf.float32) | tf.slice(x, [1, 0], [2, -1])
tf.slice(x, [n, 1], [-1, n]) | tf.slice(x, [0, 3], [4, 0]) | tf.slice(s * k_, [3, 0], [1, 3])
entropy([0, 1, 2, 0], x) | entropy(tf.stack([k, n, 2, 0]), x) | entropy(tf.stack([k, n, 2, 0]), s)
entropy(tf.stack([k, 1])[:0], x[:0]) | tf.ensure_shape(x[:2], [None, 3])
tf.gradients(entropy(tf.stack([k, 1, 2, 0]), x @ s[:3]), x)[0]
tf.gradients(tf.reduce_mean(tf.square(tf.matmul(x, s, True)) * k_), s)[0]
cond(k > 1, lambda: x, lambda: -x) | cond(k > 9, lambda: x + s, lambda: x - s)
cond(k < 9, lambda: s[0], lambda: x[0]) | cond(n > 0, lambda: s, lambda: x)
cond(k > 9, lambda: x @ s[:3], lambda: x) | cond(k > 0, lambda: n, lambda: 3 * n)
cond(k > 0, lambda: cond(x[0, 0] > 0, lambda: x, lambda: s), lambda: x * k_)
cond(k > 0, lambda: s, lambda: x * cond(k < 0, lambda: 2.0, lambda: n_))
cond(k > 0, lambda: tf.reshape(x, [-1, 2]), lambda: tf.reshape(s, [-1, 2]))
cond(k > 9, lambda: entropy([k, 9], x[:2]), lambda: x[:2, 0])
loop(n + 2, lambda y: [y * 0.5 + s], x) | loop(3, lambda a, b: [b, a + 1.0], k_, n_)
cond(k > 0, lambda: loop(3, lambda y: [y[::-1] + s], x), lambda: x)
loop(3, lambda y: [cond(y[0, 0] > k_, lambda: y + s, lambda: y * x)], x)
tf.gather(s, k) | tf.gather(s, [[k, n], [k, 3]]) | tf.bitcast(x, "int32") | tf.bitcast(x, "uint8")
tf.bitwise.right_shift(k - 9, n) | tf.bitwise.bitwise_and(k, n) | tf.bitwise.bitwise_xor(k, 6)
tf.concat([s, x], -1) | tf.concat([x, s, x], 0) | tf.math.floormod(7, k + 1) | k % -5 | x % 0.7
tf.cast(x, tf.int32) | tf.cast(-1.5 * tf.abs(x), tf.uint8) | tf.cast(x[0], tf.int64)
tf.searchsorted([-1.0, 0.0, 0.5], x[:, 0], "right") | words([3, n + 1], [k, n]) | words([], [7, k])
"""
_OF_KNOWN_SHAPE = """
tf.squeeze(tf.reduce_sum(x, -1, True)) | tf.squeeze(x) | loop(3, lambda y: [y * 0.5 + x], s)
loop(3, lambda a, b, c: [b, c, x], s, s, s) | loop(n - 1, lambda y: [x], s)
"""
_OTHERS = """
tf.roll(x, 1, -1) | tf.roll(x, 1, 0) | tf.roll(x, [1, 2], [-1, -2]) | tf.roll(x, k, 1)
tf.signal.fftshift(x, -1) | tf.pad(x, [[1, 0], [0, 1]], constant_values=5.0)
tf.pad(s, [[1, 0], [0, 1]], constant_values=x[0, 0]) | tf.pad(x, [[1, 0], [0, 1]], "SYMMETRIC")
tf.pad(tf.strings.as_string(k)[None], [[0, 2]], constant_values="-") | tf.strings.format("{}", k)
tf.strings.format("{} {}", (k, n))
tf.gather(s, k, axis=1) | tf.gather(x, k)
tf.gather(x, n, axis=-1) | tf.gather(x, [[0], [1], [2], [0]], batch_dims=1)
x[k] | tf.ensure_shape(s[k : k + 1], [1, 3])
tf.unstack(x, axis=-2)[1] | tf.split(x, [1, 3], -2)[1]
loop(k, lambda y: [y * 2.0], x)
tf.one_hot([k, 1], 3, axis=0) | tf.reverse(x, [0, -1]) | tf.transpose(x) | tf.cumsum(x, -2)
tf.argmin(x, -2) | tf.sort(x, -2) | tf.argsort(x, 0) | tf.math.top_k(x, 2)[0]
tf.math.cumprod(x, -1)
tf.nn.softmax(x, -2) | tf.nn.relu6(x) | tf.nn.elu(x)
tf.math.unsorted_segment_sum(s, [k, 0, 1, k], 3) | tf.tensor_scatter_nd_update(s, [[k]], x[:1])
tf.scatter_nd([[k], [3]], s[:2], [4, 3]) | 7 // (k + 1) | 7 // (k - 9)
tf.random.stateless_uniform([3], [k, n]) | tf.random.stateless_truncated_normal([4], [k, 1])
tf.random.stateless_categorical(x, 4, [k, 1]) | tf.random.experimental.stateless_shuffle(x, [k, 1])
tf.nn.max_pool2d(x[None, :, :, None], 2, 1, "SAME")
tf.ensure_shape(tf.image.rot90(x[:3, :, None], k), [3, 3, 1])
tf.nn.conv2d(s[None, :, :, None], x[:2, :2, None, None], 1, "SAME")
tf.linalg.inv(x[:3] + 9 * tf.eye(3)) | tf.linalg.svd(x, compute_uv=False)
tf.gradients(tf.reduce_sum(tf.roll(x, 1, -1) * x), x)[0]
tf.gradients(tf.math.top_k(x, 2)[0], x)[0]
tf.searchsorted(s, x[:, :2], "right") | words([k], [1, n])[:0]
tf.map_fn(lambda row: row * tf.cast(k, "float32"), x)
"""
# TensorFlow refuses these for a client whose vector of integers is i, beside the server's s.
_REFUSED = """
tf.gather(s, i) | tf.nn.embedding_lookup(s, i) | s[i[0]] | tf.slice(s, i, [1]) | 7 // (i - 9)
tf.gather_nd(s, i[:, None]) | tf.nn.sparse_softmax_cross_entropy_with_logits(i, s[None])
tf.tensor_scatter_nd_add(s, i[:, None], [1.0]) | tf.math.unsorted_segment_sum([1.0], i, 5)
tf.math.floormod(7, i - 9) | tf.pow(2, 8 - i) | tf.ensure_shape(s[: i[0] - 8], [2])
tf.linalg.inv(tf.cast(i[0] - 9, "float32") * tf.eye(2))
"""


# Of a client's matrix x and vector v, which turn out to be of 3 rows and 1 column, and 2 numbers.
# TensorFlow refuses nearly all of them.
_OF_UNKNOWN_SHAPE = """
tf.nn.bias_add(x, v) | tf.matmul(x, x) | tf.add_n([x, x[:2]]) | tf.stack([x, x[:1]])
tf.concat([x, v[None]], 0) | tf.reshape(x[:0], sizes(-1, -1)) | tf.reshape(x[:0], sizes(-2, 1))
tf.reshape(x, sizes(-1, 2)) | tf.ensure_shape(x, [None, 2]) | tf.argmax(x[:0])
tf.raw_ops.ReluGrad(gradients=x, features=x[:1]) | entropy([0, 0], x)
entropy(tf.zeros([0], tf.int32), x[:0, :0])
tf.raw_ops.UpperBound(sorted_inputs=[[0.0, 2.0]], values=x) | tf.slice(x, [1, 0], [3, 1]) | x[3]
tf.expand_dims(x, n + 2) | tf.reduce_max(x, -n - 2) | tf.squeeze(x, 0) | tf.reshape(x, sizes(-1, 3))
"""
_MORE_OF_UNKNOWN_SHAPE = """
tf.nn.bias_add(x, x[0]) | v + tf.zeros(3) | tf.add_n([v, v[:1]]) | tf.reshape(x, [2, 2])
tf.reshape(x[:0], sizes(-1, 0)) | tf.reshape(x, sizes(-3, 1)) | tf.reshape(x, sizes(-1, -1))
tf.reshape(x[:0], sizes(-1, 5)) | tf.argmax(x[:, :0], 1) | tf.raw_ops.TanhGrad(y=x, dy=x[:1])
tf.raw_ops.SigmoidGrad(y=v, dy=v[:1]) | entropy([0, 0, 0], x[:, :0])
tf.slice(x, sizes(-1, 0), [1, 1]) | v[n + 1] | tf.expand_dims(x, -n - 3) | tf.reduce_sum(x, n + 1)
tf.reduce_sum(x, sizes(0, -2)) | tf.reduce_sum(x, sizes(0, -1)) | x + tf.zeros([2, 2]) | x * v
tf.where(x > 0, tf.zeros([2, 4]), x) | tf.equal(x, tf.zeros([2, 4])) | tf.maximum(v, tf.zeros(3))
tf.gather(v, n + 4)
"""


def _expressions(table):
  return [part.strip() for line in table.splitlines() if line for part in line.split(" | ")]


def _entropy(labels, logits):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def _words(shape, seed):
  return tf.raw_ops.StatelessRandomUniformFullInt(shape=shape, seed=seed, dtype=tf.int64)


def _loop(times, step, *first):
  """The first of the values that a number of steps gives."""
  values = (tf.constant(0), *first)
  return tf.while_loop(lambda i, *_: i < times, lambda i, *own: (i + 1, *step(*own)), values)[1]


def _function(expressions):
  """The values of the expressions."""
  codes = [compile(expression, expression, "eval") for expression in expressions]

  def compute(x, k, s, n):
    numbers = dict(k_=tf.cast(k, tf.float32), n_=tf.cast(n, tf.float32))
    functions = dict(cond=tf.cond, entropy=_entropy, loop=_loop, words=_words)
    names = dict(tf=tf, x=x, k=k, s=s, n=n, **functions, **numbers)
    return [tf.convert_to_tensor(eval(code, names)) for code in codes]

  return tf.autograph.experimental.do_not_convert(compute)


def _clients(num_clients):
  """Of each kind: plain, with what is no number, and huge ones."""
  rng = np.random.default_rng(5)
  matrices = rng.normal(size=(num_clients, 4, 3)).astype(np.float32)
  matrices[1:2, :2] = [[np.nan, 1, -np.inf], [np.inf, 0.0, -0.0]]
  matrices[2:3] *= 1e30
  return list(matrices), [np.int32(i % 3) for i in range(num_clients)]


def _component(compute, results, is_read):
  """The computation, of the results' shapes; of a data set, it knows nothing of the matrix's."""

  def as_results(values):
    return [tf.ensure_shape(value, result.shape) for value, result in zip(values, results)]

  if not is_read:
    return tff.tensorflow.computation(lambda x, k, s, n: as_results(compute(x, k, s, n)), _TYPES)
  element = tff.types.to_type((tff.TensorType(np.float32, [None, 3]), np.int32))

  @tff.tensorflow.computation(tff.SequenceType(element), *_TYPES[2:])
  def of_data_set(data_set, s, n):
    return as_results(compute(*data_set.get_single_element(), s, n))

  return of_data_set


def _invoke(components, held, s, n):
  """What each client gets of each component, and of each trace whether it has any at once."""
  kinds = components[0].type_signature.parameter
  at_clients = [tff.FederatedType(kind, tff.CLIENTS) for kind in list(kinds)[: len(held)]]
  at_server = [tff.FederatedType(kind, tff.SERVER) for kind in list(kinds)[len(held) :]]

  @tff.federated_computation(tff.StructType([*at_clients, *at_server]))
  def program(values):
    own, sent = list(values)[: len(held)], list(values)[len(held) :]
    argument = (*own, *map(tff.federated_broadcast, sent))
    return [tff.federated_map(component, argument) for component in components]

  context = cohort_context.CohortContext()
  found = invoke(context, program, [*held, s, n])
  functions = context._programs[id(program)].whole._functions.values()
  return [[value for part in own for value in part] for own in zip(*found)], sorted(
    is_at_once for *_, is_at_once in functions
  )


@pytest.mark.parametrize("num_clients", [1, 3, 16])
@pytest.mark.parametrize("table", ["at once", "read", "others"])
def test_ops_give_each_client_what_eager_tensorflow_gives(table, num_clients):
  tables = {"at once": _AT_ONCE + _OF_KNOWN_SHAPE, "read": _AT_ONCE, "others": _OTHERS}
  expressions = _expressions(tables[table])
  matrices, numbers = _clients(num_clients)
  held, number = (
    np.float32([[0, 1, -2], [np.nan, -1, 3], [np.inf, 0, 2], [5, -5, 0.5]]),
    np.int32(1),
  )
  if table == "others":  # Decompositions and casts of what is no number differ from run to run.
    matrices = [np.clip(np.nan_to_num(x), -3, 3) for x in matrices]
    held = np.nan_to_num(held, posinf=2)
  compute = _function(expressions)
  eager = tf.function(compute, autograph=False)
  expected = [eager(*map(tf.constant, (x, k, held, number))) for x, k in zip(matrices, numbers)]
  of_clients = [matrices, numbers]
  if table == "read":
    of_clients = [[tf.data.Dataset.from_tensors(pair) for pair in zip(*of_clients)]]
  components = [_component(compute, expected[0], table == "read")]
  if table == "others":  # Each could be computed at once.
    components = [
      _component(_function([expression]), [result], False)
      for expression, result in zip(expressions, expected[0])
    ]
  found, are_at_once = _invoke(components, of_clients, held, number)
  assert are_at_once == [table != "others"]
  for own, of_eager in zip(found, expected, strict=True):
    for expression, ours, theirs in zip(expressions, own, of_eager, strict=True):
      theirs = theirs.numpy()
      assert np.asarray(ours).shape == np.shape(theirs), expression
      if np.asarray(theirs).dtype.kind in "fV":
        ours, theirs = (np.asarray(value).astype(np.float64) for value in (ours, theirs))
        if "matmul" in expression or "@" in expression:
          # Whether sums of products that overflow are infinite or no number depends on their
          # order, and so on the CPU: TensorFlow's MatMul and BatchMatMul differ by it.
          ours, theirs = (np.where(np.isfinite(value), value, np.nan) for value in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=expression)
      else:
        np.testing.assert_array_equal(ours, theirs, err_msg=expression)


def test_one_truth_value_chooses_and_several_are_broadcast():
  """Of clients that are computed one by one, as `tf.roll` is."""
  kinds = tff.SequenceType(tff.TensorType(np.float32, [3, 3])), tff.TensorType(np.float32)

  @tff.tensorflow.computation(*kinds)
  def component(data_set, factor):
    x = tf.roll(factor * data_set.get_single_element(), 1, 0)
    return tf.where(x[0] > 0, x, -9.0 + 0.0 * x), tf.where(x[0, 0] > 0, x, -9.0 + 0.0 * x)

  @tff.federated_computation(
    tff.FederatedType(kinds[0], tff.CLIENTS), tff.FederatedType(kinds[1], tff.SERVER)
  )
  def program(data_sets, factor):
    return tff.federated_map(component, (data_sets, tff.federated_broadcast(factor)))

  values = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
  data_sets = [tf.data.Dataset.from_tensors(x) for x in values]
  found = invoke(cohort_context.CohortContext(), program, data_sets, np.float32(2.0))
  for x, own in zip(np.roll(2.0 * values, 1, axis=1), found, strict=True):
    np.testing.assert_array_equal(own[0], np.where(x[0] > 0, x, -9.0))
    np.testing.assert_array_equal(own[1], x if x[0, 0] > 0 else np.full([3, 3], -9.0))


def test_the_table_has_each_op_that_is_computed_at_once():
  specs = [tf.TensorSpec(kind.shape, tf.as_dtype(kind.dtype.type)) for kind in _TYPES]
  specs[0] = tf.TensorSpec([None, 3])
  function = tf.function(_function(_expressions(_AT_ONCE)), specs, autograph=False)
  graph = function.get_concrete_function()
  assert {node.op for node in ops.nodes_of(graph.graph.as_graph_def())} >= rows.OPS


@pytest.mark.parametrize("num_clients", [3, 16])
@pytest.mark.parametrize("expression", _expressions(_REFUSED))
def test_what_tensorflow_refuses_is_refused(expression, num_clients):
  """Of one client of a cohort whose data sets are equal but for their values."""
  code = compile(expression, expression, "eval")
  held = tff.SequenceType(tff.TensorType(np.int32, [1]))

  @tff.tensorflow.computation(held, tff.TensorType(np.float32, [5]))
  def component(data_set, s):
    result = eval(code, dict(tf=tf, i=data_set.get_single_element(), s=s))
    return s + tf.reduce_sum(tf.cast(result, tf.float32))

  @tff.federated_computation(
    tff.FederatedType(held, tff.CLIENTS),
    tff.FederatedType(tff.TensorType(np.float32, [5]), tff.SERVER),
  )
  def program(data_sets, s):
    return tff.federated_map(component, (data_sets, tff.federated_broadcast(s)))

  good = tf.data.Dataset.from_tensors(np.int32([2]))
  bad = tf.data.Dataset.from_tensors(np.int32([9]))
  of_context, s = cohort_context.CohortContext(), np.arange(5, dtype=np.float32)
  with pytest.raises(tf.errors.InvalidArgumentError) as error:
    invoke(of_context, program, [good] * (num_clients - 1) + [bad], s)
  assert "File" not in str(error.value) and "{{node" not in str(error.value)
  assert str(error.value)


@pytest.mark.parametrize(
  "needed_by_none", ["x + s[n + 9, 0]", "tf.cast(7 // (n - 1), tf.float32) * s"]
)
def test_what_no_client_needs_is_not_refused(needed_by_none):
  """Of values that all clients have, and that TensorFlow refuses."""
  matrices, numbers = _clients(3)
  held, number = np.ones([4, 3], np.float32), np.int32(1)
  compute = _function([f"cond(k > 9, lambda: {needed_by_none}, lambda: x)"])
  component = _component(compute, [matrices[0]], is_read=False)
  found, are_at_once = _invoke([component], [matrices, numbers], held, number)
  np.testing.assert_array_equal([own for (own,) in found], matrices)
  assert are_at_once == [False, True]


def _sum_of(expression, x, v, n):
  """The sum and the size of the value of one of `_OF_UNKNOWN_SHAPE`."""
  one = tf.cast(n, x.dtype)  # What depends on data sets alone is read, and not computed at once.
  x, v = x * one, v * one
  names = dict(tf=tf, x=x, v=v, n=n, sizes=lambda *sizes: tf.stack(sizes) * n, entropy=_entropy)
  value = tf.convert_to_tensor(eval(expression, names))
  return tf.reduce_sum(tf.cast(value, tf.float32)) + tf.cast(tf.size(value), tf.float32)


def _of_data_sets(compute, held):
  """The computation of each client's pair, and of a number of the server."""
  component = tff.tensorflow.computation(
    lambda data_set, n: compute(*data_set.get_single_element(), n), (held, np.int32)
  )

  @tff.federated_computation(
    tff.FederatedType(held, tff.CLIENTS), tff.FederatedType(np.int32, tff.SERVER)
  )
  def program(data_sets, n):
    return tff.federated_map(component, (data_sets, tff.federated_broadcast(n)))

  return program


@pytest.mark.parametrize(
  "table", [_OF_UNKNOWN_SHAPE, pytest.param(_MORE_OF_UNKNOWN_SHAPE, marks=pytest.mark.slow)]
)
def test_checks_of_shapes_are_those_of_tensorflow(table):
  """Each by itself, as what is refused once is computed client by client."""
  kinds = [tff.TensorType(np.float32, [None, None]), tff.TensorType(np.float32, [None])]
  held = tff.types.to_type(tff.SequenceType(tff.types.to_type(tuple(kinds))))
  x, v = np.float32([[1], [-2], [3]]), np.float32([1, 0.5])
  data_sets = [tf.data.Dataset.from_tensors((x, v))] * 3
  specs = [tf.TensorSpec([None, None]), tf.TensorSpec([None]), tf.TensorSpec([], tf.int32)]
  refused = tf.errors.InvalidArgumentError, ValueError  # When it runs, or is built.
  for expression in _expressions(table):
    compute = functools.partial(_sum_of, expression)
    try:
      expected = float(tf.function(compute, specs, autograph=False)(x, v, 1))
    except refused:
      expected = None
    try:
      found = invoke(cohort_context.CohortContext(), _of_data_sets(compute, held), data_sets, 1)
    except refused:
      found = [None] * 3
    assert found == [expected] * 3, expression
