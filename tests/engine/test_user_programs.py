"""Programs as users write them give here what TFF's runtime gives.

python -m pytest tests/engine/test_user_programs.py --run_slow    # All; some without it.
"""

import collections

from helpers import calls
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import context
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort import programs

pytestmark = pytest.mark.usefixtures("restored_context")
_CLIENTS = 17
_OF = 14  # One program of so many is in the suite.
_VECTOR = tff.TensorType(np.float32, [3])

# Of a client's data set d of vectors.
_PIPELINES = """
d | d.batch(2) | d.batch(2, drop_remainder=True) | d.batch(4).unbatch() | d.batch(2).prefetch(1)
d.cache() | d.cache().repeat(2) | d.concatenate(d) | d.concatenate(d.take(1)).batch(3) | d.repeat(2)
d.filter(lambda x: x[0] > 0) | d.filter(lambda x: x[0] > 99) | d.map(tf.abs) | d.prefetch(2)
d.map(lambda x: x * 2, num_parallel_calls=2) | d.map(tf.nn.softmax).batch(3) | d.padded_batch(2)
d.map(lambda x: tf.roll(x, 1, -1)) | d.map(lambda x: tf.pad(x[1:], [[0, 1]], constant_values=7.0))
d.repeat(0) | d.repeat(2).batch(4) | d.batch(2).repeat(2) | d.repeat().take(7) | d.shard(2, 0)
d.shard(2, 1).batch(2) | d.skip(2) | d.skip(9) | d.take(3) | d.take(0) | d.take(-1) | d.rebatch(3)
d.take_while(lambda x: x[0] < 1) | d.shuffle(5, seed=1) | d.shuffle(5, seed=1).batch(2)
d.shuffle(5, seed=2).repeat(2) | d.shuffle(2, seed=3, reshuffle_each_iteration=False).repeat(2)
d.batch(2).shuffle(3, seed=4) | d.batch(2).rebatch(4)
d.map(lambda x: x[1]).batch(2) | d.scan(tf.zeros(3), lambda s, x: (s + x, s + x))
d.scan(0.0, lambda s, x: (s + 1, x * s))
d.enumerate().map(lambda i, x: x * tf.cast(i, tf.float32)) | d.map(tf.sort).skip(1).batch(2)
d.flat_map(lambda x: tf.data.Dataset.from_tensors(-x)) | d.batch(3).map(lambda b: b[::-1])
d.interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2), 2) | d.map(tf.exp).repeat(3)
d.window(2, drop_remainder=True).flat_map(lambda w: w.batch(2)) | d.batch(1).map(tf.math.tanh)
tf.data.Dataset.zip((d, d.skip(1))).map(lambda a, b: a * b)
d.apply(lambda e: e.batch(5)).unbatch()
tf.data.Dataset.zip({"a": d, "b": d}).map(lambda e: e["a"] + e["b"]) | d.map(lambda x: x / 0.0)
tf.data.Dataset.range(4).map(lambda i: tf.cast([i, 1, i], tf.float32)) | d.map(tf.math.log).batch(2)
d.map(lambda x: tf.random.stateless_uniform([3], [1, tf.size(x)])) | d.map(lambda x: x[:2][0] * x)
d.map(lambda x: tf.where(x > 0, x, tf.zeros(3))).batch(2) | d.batch(2).map(lambda b: b @ tf.eye(3))
d.group_by_window(lambda x: tf.cast(x[0] > 0, tf.int64), lambda k, g: g.batch(2), 2) | d.batch(99)
tf.data.Dataset.from_tensors(tf.zeros(3)).concatenate(d) | d.map(lambda x: tf.gather(x, [2, 1, 0]))
"""
# Values of a client's number or vector x, for every type of numbers.
_OF_NUMBERS = (
  "x + x | x * x | -x | x - 1 | tf.abs(x) | tf.maximum(x, 2) | tf.minimum(x, 2) | tf.sign(x)"
  " | tf.reduce_max(x) | tf.reduce_min(x) | tf.clip_by_value(x, 1, 3) | tf.reverse(x, [0])"
  " | tf.where(x > 1, x, 2 * x) | tf.cast(x > 1, tf.int32) | tf.roll(x, 1, -1) | x[1:] | x[::-1]"
  " | tf.concat([x, x], 0) | tf.stack([x, x], -1) | tf.gather(x, [2, 0]) | tf.cast(x, tf.float64)"
  " | tf.pad(x, [[1, 2]], constant_values=tf.cast(3, x.dtype)) | tf.square(x)"
)
_OF_INTEGERS = "x // 3 | x % 3 | tf.bitwise.bitwise_and(x, 3) | tf.one_hot(tf.cast(x, 'int32'), 3)"
_OF_FLOATS = (
  "x / 3 | tf.sqrt(tf.abs(x)) | tf.exp(x) | tf.tanh(x) | tf.round(x) | tf.floor(x) | tf.nn.relu(x)"
  " | tf.nn.softmax(x) | tf.math.is_nan(x) | tf.math.log(x) | tf.sigmoid(x) | tf.math.erf(x)"
)
_WITHOUT_ABS = (np.uint8, np.uint16, np.uint32, np.uint64)
_FLOATS = (np.float16, np.float32, np.float64)
_DTYPES = (*_FLOATS, np.int8, np.int16, np.int32, np.int64, *_WITHOUT_ABS)
_AGGREGATORS = {
  "sum": lambda a: a.SumFactory(),
  "unweighted mean": lambda a: a.UnweightedMeanFactory(),
  "mean": lambda a: a.MeanFactory(no_nan_division=True),
  "clipped": lambda a: a.clipping_factory(1.0, a.SumFactory()),
  "clipped mean": lambda a: a.clipping_factory(1.0, a.MeanFactory()),
  "adaptively clipped": lambda a: a.clipping_factory(
    a.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.2), a.SumFactory()
  ),
  "zeroed": lambda a: a.zeroing_factory(2.0, a.UnweightedMeanFactory()),
  "zeroed and clipped": lambda a: a.zeroing_factory(
    2.0, a.clipping_factory(1.0, a.UnweightedMeanFactory())
  ),
  "secure sum": lambda a: a.SecureSumFactory(4.0, -4.0),
  "secure mean": lambda a: a.MeanFactory(a.SecureSumFactory(9.0), a.SecureSumFactory(9.0)),
  "adaptive secure sum": lambda a: a.SecureSumFactory(
    a.PrivateQuantileEstimationProcess.no_noise(1.0, 0.95, 1.0)
  ),
  "measured": lambda a: a.add_measurements(
    a.SumFactory(),
    client_measurement_fn=lambda v: collections.OrderedDict(most=tff.federated_max(v)),
  ),
  "concatenated": lambda a: a.concat_factory(a.SumFactory()),
  "concatenated and clipped": lambda a: a.concat_factory(a.clipping_factory(1.0, a.SumFactory())),
  "robust": lambda a: tff.learning.robust_aggregator(),
  "robust without zeroing": lambda a: tff.learning.robust_aggregator(zeroing=False),
  "secure": lambda a: tff.learning.secure_aggregator(),
}
_METRICS = (
  "AUC BinaryAccuracy BinaryCrossentropy CosineSimilarity FalseNegatives FalsePositives Hinge"
  " KLDivergence LogCoshError MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError"
  " Poisson Precision MeanSquaredLogarithmicError Recall RootMeanSquaredError SquaredHinge"
  " TrueNegatives TruePositives"
).split()


def _parts(table):
  return [part.strip() for line in table.strip().splitlines() for part in line.split(" | ")]


def _evaluated(expression, **names):
  return eval(expression, dict(tf=tf, tff=tff, np=np, collections=collections, **names))


def _numbers(rng, dtype, shape):
  return np.asarray(
    rng.normal(size=shape) if dtype in _FLOATS else rng.integers(0, 5, shape), dtype
  )


def _pipeline(expression, loops):
  def fold(elements):
    return elements.reduce(tf.zeros(2), lambda total, x: 1.1 * total + [1.0, tf.reduce_sum(x)])

  def loop(elements):
    total = tf.Variable(tf.zeros(2))

    @tf.function
    def run():
      for x in elements:
        total.assign(1.1 * total + [1.0, tf.reduce_sum(x)])
      return total.read_value()

    return run()

  @tff.tensorflow.computation(tff.SequenceType(_VECTOR))
  def component(d):
    return (loop if loops else fold)(_evaluated(expression, d=d))

  rng = np.random.default_rng(0)
  held = [tf.data.Dataset.from_tensor_slices(_numbers(rng, np.float32, [n, 3])) for n in (5, 5, 4)]
  return calls.at_clients(component), [held]


def _mapped(dtype, reduction):
  table = [_OF_NUMBERS, _OF_FLOATS if dtype in _FLOATS else _OF_INTEGERS]
  expressions = [e.strip() for line in table for e in line.split(" | ")]
  if dtype in _WITHOUT_ABS:  # TensorFlow has none of these.
    expressions = [e for e in expressions if e not in ("tf.abs(x)", "-x", "tf.sign(x)")]
  kind = tff.TensorType(dtype, [3])
  component = tff.tensorflow.computation(
    lambda x: [tf.convert_to_tensor(_evaluated(e, x=x)) for e in expressions], kind
  )
  add = tff.tensorflow.computation(lambda a, b: a + b, (kind, kind))
  zero = tff.tensorflow.computation(lambda: tf.zeros([3], dtype))
  same = tff.tensorflow.computation(lambda a: a, kind)

  @tff.federated_computation(tff.FederatedType(kind, tff.CLIENTS))
  def program(values):
    if reduction == "map":
      return tff.federated_map(component, values)
    if reduction == "fold":
      return tff.federated_aggregate(values, zero(), add, add, same)
    return getattr(tff, f"federated_{reduction}")(values)

  rng = np.random.default_rng(1)
  return program, [[_numbers(rng, dtype, [3]) for _ in range(_CLIENTS)]]


def _aggregated(build):
  factory, rng = build(tff.aggregators), np.random.default_rng(2)
  is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
  if is_weighted:
    process = factory.create(_VECTOR, tff.TensorType(np.float32))
  else:
    process = factory.create(_VECTOR)
  values = [[_numbers(rng, np.float32, [3]) for _ in range(_CLIENTS)]]
  weights = [[np.float32(i % 3) for i in range(_CLIENTS)]] if is_weighted else []

  def program(values, *weights):
    state = process.initialize()
    results = []
    for _ in range(2):
      output = process.next(state, values, *weights)
      state = output.state
      results.append((output.result, output.measurements))
    return results

  return program, [*values, *weights]


def _metric(name):
  rng = np.random.default_rng(3)
  held = [
    tf.data.Dataset.from_tensor_slices(
      (_numbers(rng, np.float32, [4, 3]), rng.integers(0, 2, [4, 1]).astype(np.float32))
    ).batch(2)
    for _ in range(3)
  ]

  def model_fn():
    layers = [tf.keras.layers.InputLayer(3), tf.keras.layers.Dense(1, "sigmoid", False, "ones")]
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(layers),
      loss=tf.keras.losses.BinaryCrossentropy(),
      input_spec=held[0].element_spec,
      metrics=[getattr(tf.keras.metrics, name)()],
    )

  process = tff.learning.algorithms.build_fed_eval(model_fn)
  return lambda held: process.next(process.initialize(), held).metrics, [held]


_KINDS = {
  **{f"pipeline {e}": (_pipeline, e, bool(i % 2)) for i, e in enumerate(_parts(_PIPELINES))},
  **{f"both ways {e}": (_pipeline, e, not i % 2) for i, e in enumerate(_parts(_PIPELINES)[:30])},
  **{
    f"{np.dtype(dtype)} {reduction}": (_mapped, dtype, reduction)
    for dtype in _DTYPES
    for reduction in ("map", "sum", "min", "max", "fold")
  },
  **{name: (_aggregated, build) for name, build in _AGGREGATORS.items()},
  **{f"metric {name}": (_metric, name) for name in _METRICS},
}
# TFF cannot read 2**64 - 1, with which the minimum begins.
_BY_DESIGN = ("uint64 min",)


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=[pytest.mark.slow] if i % _OF else [])
    for i, name in enumerate(_KINDS)
    if name not in _BY_DESIGN
  ],
)
def test_programs_of_users_give_what_tffs_runtime_gives(native, name):
  build, *arguments = _KINDS[name]
  program, values = build(*arguments)
  expected, expected_error = calls.outcome(native, program, *values)
  context.set_simulation_context()
  found, error = calls.outcome(tff.framework.get_context_stack().current, program, *values)
  assert (error is None) == (expected_error is None), (error, expected_error)
  if error is None:
    calls.assert_equal(found, expected)


# The batches of each client: of one shape each, of shapes that are padded to one, and of others.
@pytest.mark.parametrize(
  "sizes", [((2, 2, 1),) * 3, ((2, 1), (1, 2), (2, 1)), ((2,), (1, 2), (2, 2, 1))]
)
def test_keras_layers_are_trained_at_once_on_batches_of_one_shape(native, monkeypatch, sizes):
  spec = collections.OrderedDict(x=tf.TensorSpec([None, 3]), y=tf.TensorSpec([None], tf.int32))

  def model_fn():
    dense, initializers = tf.keras.layers.Dense, tf.keras.initializers
    layers = [
      dense(4, activation, kernel_initializer=initializers.GlorotUniform(seed), input_shape=[3])
      for seed, activation in enumerate(["relu", "tanh", "sigmoid", None])
    ]
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(layers),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=spec,
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )

  process = tff.learning.algorithms.build_weighted_fed_avg(
    model_fn, tff.learning.optimizers.build_sgdm(0.5), tff.learning.optimizers.build_sgdm(1.0)
  )
  rng = np.random.default_rng(5)
  held = [
    [dict(x=_numbers(rng, np.float32, [n, 3]), y=_numbers(rng, np.int32, [n]) % 4) for n in own]
    for own in sizes
  ]

  of_each, map_fn = [], mapping._map_fn
  monkeypatch.setattr(mapping, "_map_fn", lambda *a, **k: of_each.append(a) or map_fn(*a, **k))
  monkeypatch.setattr(programs, "_traced", collections.OrderedDict())
  expected, found = (
    calls.plain(calls.invoke(each, process.next, process.initialize(), held))
    for each in (native, cohort_context.CohortContext())
  )
  calls.assert_equal(found, expected)
  assert bool(of_each) == (len(set(sizes)) > 1)
