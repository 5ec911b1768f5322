"""Clients that hold data sets, and models that have variables, are computed in this process."""

import collections
import functools
import gc

from helpers import calls
from helpers import problems
from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.cohort.graphs import shuffles

_NUMBERS = tff.SequenceType(np.float32)
pytestmark = pytest.mark.usefixtures("restored_context")


def sgd():
  return tff.learning.optimizers.build_sgdm(0.3, momentum=0.5)


@functools.cache  # Two tests use it.
def keras_process():
  return algorithms.build_superquantile_fed_avg(problems.keras_model_fn, 0.5, sgd(), local_epochs=2)


def _weighted(model, loop):
  return tff.learning.algorithms.build_weighted_fed_avg(
    model, client_optimizer_fn=sgd(), loop_implementation=loop
  )


PROCESSES = {
  "superquantile, Keras": keras_process,
  "superquantile, a functional model": lambda: algorithms.build_superquantile_fed_avg(
    problems.linear_model(), 0.5, sgd()
  ),
  **{
    f"TFF's weighted, {kind}, {loop.name}": functools.partial(_weighted, model, loop)
    for kind, model in (("Keras", problems.keras_model_fn), ("functional", problems.linear_model()))
    for loop in tff.learning.LoopImplementation
  },
  "TFF's unweighted, Keras": lambda: tff.learning.algorithms.build_unweighted_fed_avg(
    problems.keras_model_fn, client_optimizer_fn=sgd()
  ),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_weights_are_those_of_tffs_runtime(native, name):
  process = PROCESSES[name]()
  # The last batch is smaller, and one client has one that is not full.
  cohort = problems.datasets(problems.client_arrays())
  first = invoke(native, process.initialize)
  results = []
  for of_context in (native, cohort_context.CohortContext()):
    tff.framework.set_default_context(of_context)
    state = first
    for _ in range(2):
      state, metrics = process.next(state, cohort)
    weights = process.get_model_weights(state)
    results.append((weights.trainable, weights.non_trainable, metrics["client_work"]))
  for theirs, ours in zip(*map(tf.nest.flatten, results)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
  moved = [np.abs(w - w0).max() for w, w0 in zip(results[1][0], trainable(process, first))]
  assert min(moved) > 1e-3


def test_training_on_data_sets_that_are_drawn_anew():
  """Batches of all examples do not depend on their order, which no seed fixes."""
  of_context = cohort_context.CohortContext()
  tff.framework.set_default_context(of_context)
  process = keras_process.__wrapped__()  # Of its own, so that no other call knows its functions.
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.range(3), tf.constant([2, 0, 1])), -1
  )
  arrays = problems.client_arrays()
  plain = problems.datasets([(x, np.int32([2, 0, 1])[y]) for x, y in arrays], batch_size=64)
  drawn = [
    own.unbatch().shuffle(64).map(lambda x, y: (x, table.lookup(y))).batch(64)
    for own in problems.datasets(arrays)
  ]
  first = invoke(of_context, process.initialize)
  results = []
  for cohort in (plain, drawn):
    gc.collect()  # TensorFlow forgets the functions of the component, as their tracer is gone.
    state = process.next(first, cohort).state
    results.append(trainable(process, state))
  for one, other in zip(*results):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def trainable(process, state):
  return process.get_model_weights(state).trainable


def test_weights_that_keras_draws_at_the_server():
  initialize = keras_process().initialize
  state = invoke(cohort_context.CohortContext(), initialize)
  own = problems.keras_model_fn()
  for ours, kernel in zip(state.global_model_weights.trainable[::4], own.trainable_variables[::4]):
    np.testing.assert_array_equal(ours, kernel.numpy())  # Drawn with seeds.


@tff.tensorflow.computation(_NUMBERS)
def _running(data_set):
  total, steps = tf.Variable(0.0), tf.Variable(1)

  @tf.function
  def run():
    for value in data_set:
      if value > 0:
        total.assign(2 * total + value)
      else:
        steps.assign_sub(1)
      steps.assign_add(2)
    return total.read_value(), steps.read_value()

  return run()


_STRUCTURE = collections.OrderedDict(
  y=tff.TensorType(np.str_, [None]), x=tff.TensorType(np.float32, [None, None])
)


@tff.tensorflow.computation(tff.SequenceType(_STRUCTURE))
def _fold(data_set):
  return data_set.reduce(
    (0.0, "", 0),
    lambda state, element: (
      3 * state[0] + tf.reduce_sum(element["x"]),
      state[1] + tf.strings.reduce_join(element["y"]),
      state[2] + tf.size(element["x"]),
    ),
  )


def test_a_fold_over_elements_of_several_shapes():
  shapes = [[(2, 3), (1, 1), (4, 2)], [(0, 3)], []]
  rng = np.random.default_rng(1)
  held, expected = [], []
  for own in shapes:
    elements = [
      dict(y=[f"{i}{k}" for k in range(i)], x=rng.normal(size=s).astype(np.float32))
      for i, s in enumerate(own)
    ]
    spec = dict(y=tf.TensorSpec([None], tf.string), x=tf.TensorSpec([None, None], tf.float32))
    generated = tf.data.Dataset.from_generator(
      lambda elements=elements: (collections.OrderedDict(e) for e in elements),
      output_signature=collections.OrderedDict(spec),
    )
    held.append(generated)
    total, joined = 0.0, b""
    for element in elements:
      total = 3 * total + element["x"].sum()
      joined += "".join(element["y"]).encode()
    expected.append((total, joined, sum(element["x"].size for element in elements)))
  found = invoke(cohort_context.CohortContext(), at_clients(_fold), held)
  for (total, joined, size), wanted in zip(found, expected, strict=True):
    assert (joined, size) == wanted[1:]
    assert total == pytest.approx(wanted[0], rel=1e-5)


@tff.tensorflow.computation(_NUMBERS)
def _first_five(data_set):
  return tf.ensure_shape(data_set.map(lambda x: x + 1).take(5).batch(5).get_single_element(), [5])


@tff.tensorflow.computation(_NUMBERS)
def _by_iterator(data_set):
  @tf.function(autograph=False)
  def run():
    iterator = iter(data_set)
    return tf.while_loop(
      lambda i, total: i < 3,
      lambda i, total: (i + 1, 2 * total + iterator.get_next()),
      (0, 0.0),
    )[1]

  return run()


def test_endless_data_sets_and_iterators():
  held = [
    tf.data.Dataset.range(n, 100).repeat().map(lambda x: tf.cast(x, tf.float32)) for n in (3, 7)
  ]
  of_context = cohort_context.CohortContext()
  np.testing.assert_array_equal(
    invoke(of_context, at_clients(_first_five), held), [np.arange(4, 9), np.arange(8, 13)]
  )
  for _ in range(2):
    assert invoke(of_context, at_clients(_by_iterator), held) == [
      3 * 4 + 4 * 2 + 5,
      7 * 4 + 8 * 2 + 9,
    ]


def test_a_shuffled_data_set_with_a_seed_begins_anew(native):
  held = [data_set.shuffle(20, seed=4) for data_set in calls.numbers(np.arange(20), -np.arange(20))]
  of_context = cohort_context.CohortContext()
  expected = invoke(native, at_clients(calls.order), held)
  assert list(expected[0]) != list(np.arange(20))
  for _ in range(3):
    np.testing.assert_array_equal(invoke(of_context, at_clients(calls.order), held), expected)
  assert of_context._store._bytes == 2 * 20 * 4


def _weigh(total, value):
  return 1.1 * total + value


@tff.tensorflow.computation(_NUMBERS)
def _reductions(data_set):
  """One after the other, as TFF leaves open which of two comes first that need no other."""
  first = data_set.reduce(np.float32(0), _weigh)
  return first, data_set.reduce(0 * first, _weigh)


@tff.tensorflow.computation(_NUMBERS)
def _by_two_ways(data_set):
  """A reduction, and a loop over what a variable follows."""
  last = tf.Variable(0.0)

  @tf.function
  def run():
    first = data_set.take(3).reduce(np.float32(0), lambda total, value: 10 * total + value)
    last.assign(first)
    for value in data_set:
      last.assign(1.1 * last + value)
    return first, last.read_value()

  return run()


@tff.tensorflow.computation(_NUMBERS)
def _by_an_iterator(data_set):
  """A loop over an iterator, beside a variable."""
  total = tf.Variable(0.0)

  @tf.function
  def run():
    for value in iter(data_set):
      total.assign(1.1 * total + value)
    return total.read_value()

  return run()


@tff.tensorflow.computation(_NUMBERS)
def _by_epochs(data_set):
  """Looks in a loop."""
  total = tf.Variable(0.0)

  @tf.function
  def run():
    for _ in tf.range(3):
      for value in data_set:
        total.assign(1.1 * total + value)
    return total.read_value()

  return run()


@tff.tensorflow.computation(_NUMBERS)
def _first_twenty(data_set):
  """The elements of `calls.order` by other ops."""
  looked = data_set.map(lambda value: value + 1).batch(20).take(1).get_single_element()
  return tf.ensure_shape(looked, [20])


@tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
def _by_several_components(held):
  parts = [calls.order, _first_twenty, _reductions, calls.order]
  return tuple(tff.federated_map(part, held) for part in parts)


@tff.tensorflow.computation(_NUMBERS)
def _repeated(data_set):
  """Epochs that the component makes, in two looks."""
  first = data_set.repeat(3).reduce(np.float32(0), _weigh)
  return first, data_set.repeat(2).reduce(0 * first, _weigh)


READERS = {
  "epochs of the component": at_clients(_repeated),
  "reductions": at_clients(_reductions),
  "a reduction and a loop": at_clients(_by_two_ways),
  "an iterator": at_clients(_by_an_iterator),
  "several epochs": at_clients(_by_epochs),
  "several components": _by_several_components,
}
_UNFUSED, _NOT_REWRITTEN = tf.data.Options(), tf.data.Options()
_UNFUSED.experimental_optimization.shuffle_and_repeat_fusion = False
_NOT_REWRITTEN.experimental_optimization.apply_default_optimizations = False
SHUFFLED = {
  "shuffled epochs, not fused": lambda one: (
    one.shuffle(20, seed=4).repeat(2).with_options(_UNFUSED)
  ),
  "shuffled epochs, not rewritten": lambda one: (
    one.shuffle(20, seed=4).with_options(_NOT_REWRITTEN).repeat(2)
  ),
  "as it is": lambda one: one,
  "shuffled": lambda one: one.shuffle(20, seed=4),
  "in one order": lambda one: one.shuffle(20, seed=4, reshuffle_each_iteration=False),
  "shuffled, twice": lambda one: one.shuffle(9, seed=4).shuffle(5, seed=2),
  "shuffled, kept": lambda one: one.shuffle(20, seed=4).cache(),
  "shuffled epochs": lambda one: one.shuffle(20, seed=4).repeat(2),
  "one shuffled epoch": lambda one: one.shuffle(20, seed=4).repeat(1),
  "one shuffled epoch of batches": lambda one: (
    one.shuffle(20, seed=4).repeat(1).batch(2).repeat(2).unbatch()
  ),
  "epochs in one order": lambda one: one.shuffle(20, seed=4, reshuffle_each_iteration=False).repeat(
    2
  ),
  "epochs of shuffled epochs": lambda one: one.shuffle(20, seed=4).repeat(2).repeat(2),
  "shuffled epochs, shuffled": lambda one: one.shuffle(9, seed=4).repeat(2).shuffle(9, seed=5),
  "shuffled, beside its epochs": lambda one: (
    lambda shuffled: tf.data.Dataset.zip((shuffled.repeat(2), shuffled)).map(lambda a, b: a - 3 * b)
  )(one.shuffle(20, seed=4)),
  "shuffled epochs, all taken": lambda one: one.shuffle(20, seed=4).take(-1).repeat(2),
  "shuffled epochs, mapped": lambda one: one.shuffle(20, seed=4).map(lambda x: x).repeat(2),
  "epochs, shuffled": lambda one: one.repeat(2).shuffle(20, seed=4),
  "epochs of batches": lambda one: one.shuffle(20, seed=4).batch(1).repeat(2).unbatch(),
  "shuffled epochs of each": lambda one: tf.data.Dataset.range(2).flat_map(
    lambda _: one.shuffle(9, seed=4).repeat(2)
  ),
}
# One of each kind always; the others, in the long run.
_ALWAYS = (
  *("as it is", "shuffled", "shuffled, kept"),
  *("epochs of shuffled epochs", "shuffled, beside its epochs", "shuffled epochs, not fused"),
)


@pytest.mark.parametrize(
  "shuffle",
  [
    pytest.param(shuffle, marks=[] if shuffle in _ALWAYS else [pytest.mark.slow])
    for shuffle in SHUFFLED
  ],
)
def test_each_read_gets_what_tffs_runtime_gives(native, shuffle):
  """Whatever has read a data set before, and however often."""
  held = [SHUFFLED[shuffle](one) for one in calls.numbers(np.arange(20), -np.arange(20) * 0.5)]
  expected = {name: invoke(native, reader, held) for name, reader in READERS.items()}
  list(held[0])  # The user looks, too.
  of_context = cohort_context.CohortContext()
  for order in (list(READERS), list(READERS)[::-1]):
    for name in order:
      found = invoke(of_context, READERS[name], held)
      for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected[name])):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=name)


def test_what_is_kept_of_a_draw_is_drawn_anew_in_each_round(native):
  (data_set,) = calls.numbers(np.arange(20))
  kept = data_set.shuffle(20).cache()
  for of_context in (native, cohort_context.CohortContext()):
    found = [tuple(invoke(of_context, at_clients(calls.order), [kept])[0]) for _ in range(3)]
    assert len(set(found)) == 3


def test_mime_lite_trains_in_the_second_order(native):
  """Its clients go over their data sets for the gradient first."""
  process = tff.learning.algorithms.build_unweighted_mime_lite(problems.linear_model(), sgd())
  first = invoke(native, process.initialize)
  cohort = [
    one.unbatch().shuffle(100, seed=1).batch(4)
    for one in problems.datasets(problems.client_arrays())
  ]
  fed_avg = algorithms.build_fed_avg(problems.linear_model(), sgd())
  of_context = cohort_context.CohortContext()
  invoke(of_context, lambda: fed_avg.next(fed_avg.initialize(), cohort))  # Reads them before.
  results = [
    trainable(process, invoke(each, process.next, first, cohort).state)
    for each in (native, of_context)
  ]
  for theirs, ours in zip(*results):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  "draw, is_shuffled",
  [
    (lambda data_set: data_set.shuffle(20), True),
    (lambda data_set: data_set.map(lambda x: x + tf.random.uniform([])), False),
    (
      lambda data_set: data_set.map(
        lambda x: tf.numpy_function(np.random.normal, [x], tf.double)
      ).map(lambda x: tf.cast(tf.ensure_shape(x, []), tf.float32)),
      False,
    ),
  ],
  ids=["shuffled", "mapped", "from Python"],
)
def test_what_is_drawn_without_a_seed_is_drawn_each_time(draw, is_shuffled):
  (data_set,) = calls.numbers(np.arange(20))
  of_context = cohort_context.CohortContext()
  computation = at_clients(calls.order)
  # Beside one that is kept.
  kept = invoke(of_context, computation, [data_set])[0]
  found = [invoke(of_context, computation, [draw(data_set), data_set]) for _ in range(2)]
  again = draw(data_set)
  found += [invoke(of_context, computation, [again, data_set]) for _ in range(2)]
  assert len({tuple(one) for one, _ in found}) == 4
  for _, constant in found:
    np.testing.assert_array_equal(constant, kept)
  # Each look is a draw of its own, also within one component.
  twice = invoke(of_context, at_clients(calls.orders), [again])[0]
  assert list(twice[:19]) != list(twice[20:])
  if is_shuffled:
    assert all(set(one) == set(range(20)) for one in [*(own for own, _ in found), twice[:20]])


@pytest.mark.parametrize("most", [{}, dict(_MAX_ELEMENTS=19), dict(_MAX_BYTES=100)])
def test_what_lies_below_a_shuffle_is_kept(monkeypatch, most):
  read, read_below = [], shuffles._read
  monkeypatch.setattr(shuffles, "_read", lambda *a: read.append(a) or read_below(*a))
  monkeypatch.setattr(shuffles, "_kept", collections.OrderedDict())
  for name, number in most.items():
    monkeypatch.setattr(shuffles, name, number)
  of_context, orders = cohort_context.CohortContext(), set()
  for factor in (2, 2, 3, 3, 2, 2):  # Data sets made anew.
    scale = tf.constant(factor, tf.float32)
    drawn, seeded = [
      one.map(lambda x, scale=scale: x * scale).shuffle(20, seed).repeat(1).map(lambda x: x + 1)
      for one, seed in zip(calls.numbers(np.arange(20), np.arange(20) + 50), (None, 4))
    ]
    order, order_of_seed = invoke(of_context, at_clients(calls.order), [drawn, seeded])
    orders.add(tuple(order))
    assert sorted(order) == list(factor * np.arange(20) + 1)
    np.testing.assert_array_equal(order_of_seed, list(seeded.as_numpy_iterator()))
  assert len(orders) == 6
  assert len(read) == (6 if "_MAX_BYTES" in most else 4)  # When they are there for the second time.


def test_no_clients_and_one():
  of_context = cohort_context.CohortContext()

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def total(held):
    return tff.federated_sum(tff.federated_map(_running, held))

  assert invoke(of_context, total, calls.numbers([1, 2])) == (4.0, 5)
  assert invoke(of_context, total, []) == (0.0, 0)
  assert invoke(of_context, total, calls.numbers([])) == (0.0, 1)


def test_other_values_than_data_sets_of_the_type(native):
  computation = at_clients(_running)
  with pytest.raises(TypeError, match="Found a data set of type .*int32.*; expected float32"):
    invoke(
      cohort_context.CohortContext(), computation, [tf.data.Dataset.from_tensor_slices([1, 2])]
    )
  both = cohort_context.CohortContext(lambda: native)
  with pytest.raises(TypeError, match="Cannot serialize dataset with elements of type"):
    invoke(both, computation, [tf.data.Dataset.from_tensor_slices([1, 2])])
  # TFF takes lists of elements, too.
  assert invoke(both, computation, [[1.0, 2.0]]) == [(4.0, 5)]


@tff.tensorflow.computation(tff.SequenceType(np.int64))
def _look_up(keys):
  initializer = tf.lookup.KeyValueTensorInitializer(
    tf.constant([1], tf.int64), tf.constant([5], tf.int64)
  )
  table = tf.lookup.StaticHashTable(initializer, -1)
  return keys.reduce(np.int64(0), lambda total, key: total + table.lookup(key))


def test_what_cannot_be_at_once_says_why_in_one_warning(native, monkeypatch):
  said = []
  monkeypatch.setattr(
    cohort_context._LOG, "log", lambda level, text, *args: said.append((level, text % args))
  )
  both = cohort_context.CohortContext(lambda: native)
  computation = at_clients(_look_up)
  for _ in range(2):
    assert invoke(both, computation, [[1, 2, 1], [2]]) == [9, -1]

  assert invoke(both, at_clients(_look_up), [[2]]) == [-1]
  said = [(level, text) for level, text in said if "cannot be:" in text]
  levels = [level for level, _ in said]
  assert levels == [cohort_context.logging.WARNING, cohort_context.logging.INFO]
  assert "cannot be: a component with HashTableV2" in said[0][1]
  with pytest.raises(errors.UnsupportedError, match="a component with HashTableV2"):
    invoke(cohort_context.CohortContext(), at_clients(_look_up), [[1]])
