"""TFF's runtime in this process: what the cohort at once cannot be, and TFF's worker can."""

import asyncio
import collections
import re
import threading

from helpers import calls
from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2

from tff_superquantile.engine import context
from tff_superquantile.engine import runtime
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import programs
from tff_superquantile.engine.cohort.graphs import elements
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.runtime import components
from tff_superquantile.engine.runtime import evaluation

pytestmark = pytest.mark.usefixtures("restored_context")
_NUMBERS = tff.SequenceType(np.float32)


@pytest.fixture(scope="module")
def ours():
  return runtime.create_sync_context(2)


@tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
def _look_up(words):
  initializer = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2]))
  return tf.lookup.StaticHashTable(initializer, -1).lookup(words)


@tff.tensorflow.computation(np.float32)
def _with_a_variable(number):
  variable = tf.Variable(0.0)

  @tf.function
  def add():
    for _ in range(20):
      variable.assign_add(number)
    return variable.read_value()

  return add()


def test_sequences_are_mapped_and_reduced(ours):
  """TFF's own runtime cannot embed what it maps."""
  double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
  add = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def total(held):
    @tff.federated_computation(_NUMBERS)
    def of_one(data_set):
      return tff.sequence_reduce(tff.sequence_map(double, data_set), np.float32(1), add)

    return tff.federated_map(of_one, held)

  assert invoke(ours, total, [[1.0, 2.0], []]) == [7.0, 1.0]


def test_errors_are_tensorflows_and_the_next_call_is_none(ours):
  @tff.tensorflow.computation(np.int32)
  def positive(number):
    with tf.control_dependencies([tf.debugging.assert_positive(number, "Found none.")]):
      return tf.identity(number)

  computation = at_clients(positive)
  with pytest.raises(tf.errors.InvalidArgumentError, match="Found none"):
    invoke(ours, computation, [1, 0])
  assert invoke(ours, computation, [1, 2]) == [1, 2]


def _fail(_):
  raise ValueError("Found none;\nexpected some.")


@pytest.mark.parametrize(
  "function, sentence",
  [
    (lambda x: 1 // x, "Integer division by zero"),
    (lambda x: tf.map_fn(lambda i: i // x, tf.range(2)), "Integer division by zero"),
    (lambda x: tf.gather([1, 2], x + 5), r"indices = 5 is not in \[0, 2\)"),
    (lambda x: tf.numpy_function(_fail, [x], tf.int32), "ValueError: Found none;\nexpected some."),
    (
      lambda x: tf.data.Dataset.range(1).map(lambda i: 1 // i).reduce(np.int64(0), lambda a, _: a),
      "Error in user-defined function passed to MapDataset.*: Integer division by zero",
    ),
  ],
)
@pytest.mark.parametrize("in_session", [False, True])
def test_what_is_said_of_an_error_is_tensorflows_own_sentence(function, sentence, in_session):
  with pytest.raises(tf.errors.OpError) as found:
    if in_session:
      with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        zero = tf.compat.v1.placeholder(tf.int32, [])
        session.run(function(zero), {zero: 0})
    else:
      tf.function(function)(tf.constant(0))
  assert re.fullmatch(sentence, errors.sentence(found.value))


@pytest.mark.parametrize(
  "limit, sentence",
  [("_MAX_ELEMENTS", errors.TOO_MANY), ("_MAX_BYTES_WITH_ROOM", errors.TOO_LONG)],
)
def test_a_data_set_that_takes_too_much_is_gone_over_element_by_element(
  monkeypatch, request, limit, sentence
):
  request.addfinalizer(elements.build_graphs.cache_clear)
  elements.build_graphs.cache_clear()
  monkeypatch.setattr(elements, limit, 30)
  monkeypatch.setattr(programs, "_traced", collections.OrderedDict())

  @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [None])))
  def total(data_set):
    return data_set.reduce(np.float32(0), lambda total, part: total + tf.reduce_sum(part) * 1.25)

  held = [
    tf.data.Dataset.range(number).map(lambda i: tf.ones([(i + 1) % 3])) for number in (2, 99, 0)
  ]
  computation = at_clients(total)
  with pytest.raises(tf.errors.InvalidArgumentError) as found:
    invoke(cohort_context.CohortContext(), computation, held)
  assert str(found.value) == sentence
  context.set_simulation_context()
  assert computation(held) == [3.75, 123.75, 0.0]


def test_what_cannot_be_is_refused_with_tffs_words(ours, native):
  computation = at_clients(_look_up)
  for clients in ([1], 5, [[["a"]]]):
    with pytest.raises(Exception) as theirs:
      invoke(native, computation, clients)
    with pytest.raises(theirs.type) as found:
      invoke(ours, computation, clients)
    assert str(found.value) == str(theirs.value)


@pytest.mark.parametrize("number", [0, 2])
def test_extremes(ours, native, number):
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def extremes(held):
    return tff.federated_min(held), tff.federated_max(held)

  contexts = ours, cohort_context.CohortContext(), native
  held = [np.float32(np.inf)] * number
  found = [invoke(one, extremes, held) for one in contexts]
  assert found[0] == found[1] == found[2]


def _everybody():
  one = tff.tensorflow.computation(lambda: 1)

  @tff.federated_computation
  def count():
    return tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))

  return count


def test_there_may_be_clients_by_default():
  count = _everybody()
  for number in (0, 3):
    context.set_simulation_context(default_num_clients=number)
    assert count() == number
    assert invoke(calls.tffs_runtime(number), count) == number
  assert invoke(runtime.create_sync_context(2, default_num_clients=4), count) == 4
  with pytest.raises(ValueError, match="Found default_num_clients = -1; expected at least 0"):
    context.set_simulation_context(default_num_clients=-1)


def test_what_is_not_known_is_refused_with_what_sets_tffs_own():
  evaluator = evaluation.Evaluator(1, 1, {})
  with pytest.raises(errors.UnsupportedError, match="Found the intrinsic own.*TFF's own runtime"):
    evaluator.intrinsic(tff.framework.Intrinsic("own", tff.FunctionType(None, np.int32)))
  other = computation_pb2.Computation(
    type=tff.types.serialize_type(tff.FunctionType(None, np.int32)), xla={}
  )
  with pytest.raises(errors.UnsupportedError, match="not TensorFlow.*TFF's own runtime is set by"):
    components.InSessions(tff.framework.CompiledComputation(other))


def test_tffs_programs_run():
  """`NativeFederatedContext` wants coroutines, and may be asked for several at once."""

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  of_context = context.create_async_simulation_context(default_num_clients=2)
  native_context = tff.program.NativeFederatedContext(of_context)
  tff.framework.set_default_context(native_context)
  count = _everybody()

  async def values():
    references = [total([1, 2]), total([3]), count()]
    return await asyncio.gather(*map(tff.program.materialize_value, references))

  assert asyncio.run(values()) == [3, 3, 2]


def test_threads_share_a_context(ours):
  computation = at_clients(_with_a_variable)
  tff.framework.set_default_context(ours)
  found = {}

  def run(name):
    found[name] = ours.invoke(computation, [float(name)] * 8)

  threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == {i: [20.0 * i] * 8 for i in range(4)}


# Data sets that clients make for other components, in the engine.


def _fold(data_set):
  return data_set.reduce(np.float32(0), lambda total, part: total * 1.5 + tf.reduce_sum(part))


_MAKERS = {
  "batch": lambda d: d.batch(3),
  "map": lambda d: d.map(lambda x: x * 2).batch(2),
  "filter": lambda d: d.filter(lambda x: x > 0),
  "concatenate": lambda d: d.concatenate(d),
  "zip": lambda d: tf.data.Dataset.zip((d, d)).map(lambda a, b: a * 2 + b),
  "flat_map": lambda d: d.flat_map(lambda x: d.map(lambda y: x + y)),
  "scan": lambda d: d.scan(np.float32(0), lambda total, x: (total + x, total)),
  "shuffle": lambda d: d.shuffle(10, seed=3),
  "keep an order": lambda d: d.shuffle(10, seed=3, reshuffle_each_iteration=False),
  "keep": lambda d: d.shuffle(10, seed=3).cache(),
  "count and take": lambda d: d.take(d.reduce(np.int64(0), lambda n, _: n + 1) - 1),
}
_AT_ONCE = {"batch", "map", "filter", "concatenate", "zip", "flat_map", "scan"}


@pytest.mark.parametrize("name", _MAKERS)
def test_what_clients_make_is_gone_over_as_in_tffs_runtime(native, name):
  make = tff.tensorflow.computation(_MAKERS[name], _NUMBERS)
  made = make.type_signature.result
  once = tff.tensorflow.computation(_fold, made)
  twice = tff.tensorflow.computation(lambda d: (_fold(d), _fold(d)), made)

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def read(held):
    found = tff.federated_map(make, held)
    return tff.federated_map(once, found), tff.federated_map(twice, found)

  rng = np.random.default_rng(0)
  plain = [
    tf.data.Dataset.from_tensor_slices(rng.normal(6, 5, size=n).astype(np.float32))
    for n in (7, 3, 9)
  ]
  context.set_simulation_context()
  in_process = tff.framework.get_context_stack().current
  expected = invoke(native, read, plain)
  strict = cohort_context.CohortContext()
  contexts = [in_process, in_process, *([strict, strict] if name in _AT_ONCE else [])]
  for of_context in contexts:
    found = invoke(of_context, read, plain)
    np.testing.assert_allclose(tf.nest.flatten(found), tf.nest.flatten(expected), rtol=1e-5)


def test_what_clients_make_of_shuffled_ones_is_read_in_tffs_order(native):
  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def read(held):
    both = tff.tensorflow.computation(_MAKERS["zip"], _NUMBERS)
    found = tff.federated_map(both, held)
    return tff.federated_map(tff.tensorflow.computation(_fold, both.type_signature.result), found)

  numbers = np.arange(12, dtype=np.float32)
  held = [tf.data.Dataset.from_tensor_slices(numbers).shuffle(12, seed=5)]
  expected = invoke(native, read, held)
  context.set_simulation_context()
  np.testing.assert_allclose(read(held), expected, rtol=1e-5)


@pytest.mark.parametrize("where", ["made", "held"])
def test_what_is_shuffled_without_a_seed_is_drawn_anew(where):
  shuffle = lambda d: d.shuffle(50)  # noqa: E731
  make = tff.tensorflow.computation(
    (lambda d: shuffle(d).batch(3)) if where == "made" else (lambda d: d.batch(3)), _NUMBERS
  )
  made = make.type_signature.result
  both = tff.tensorflow.computation(
    lambda d: (_fold(d), d.reduce(np.float32(0), lambda a, b: a + tf.reduce_sum(b))), made
  )

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def read(held):
    return tff.federated_map(both, tff.federated_map(make, held))

  numbers = tf.data.Dataset.from_tensor_slices(np.arange(50, dtype=np.float32))
  held = [numbers if where == "made" else shuffle(numbers)]
  context.set_simulation_context()
  orders, sums = zip(*(read(held)[0] for _ in range(3)))
  assert sums == (1225.0,) * 3 and len(set(orders)) == 3


def test_keras_recurrent_layers_train_at_once(native):
  """Their gradients go through loops whose variables grow."""

  def model_fn():
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
      [
        layers.InputLayer(input_shape=(6,), dtype=tf.int32),
        layers.Embedding(5, 3),
        layers.LSTM(4, return_sequences=True),
        layers.Dense(5),
      ]
    )
    spec = tf.TensorSpec([None, 6], tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return tff.learning.models.from_keras_model(model, loss=loss, input_spec=(spec, spec))

  optimizer = tff.learning.optimizers.build_sgdm(0.5)
  process = tff.learning.algorithms.build_weighted_fed_avg(model_fn, optimizer)
  rng = np.random.default_rng(0)
  held = []
  for _ in range(3):
    x = rng.integers(0, 5, size=(7, 6)).astype(np.int32)
    held.append(tf.data.Dataset.from_tensor_slices((x, np.roll(x, -1, 1))).batch(3))
  state = invoke(native, process.initialize)
  ours, theirs = (
    invoke(one, process.next, state, held).state for one in (cohort_context.CohortContext(), native)
  )
  for our_part, their_part in zip(
    process.get_model_weights(ours).trainable, process.get_model_weights(theirs).trainable
  ):
    np.testing.assert_allclose(our_part, their_part, atol=1e-6)
