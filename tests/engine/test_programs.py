"""Programs of a client that go over its data set in every way, here and in TFF's runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import data_sets

pytestmark = pytest.mark.usefixtures("restored_context")
_NUMBERS = tff.SequenceType(np.float32)
_PROGRAMS = {}


def _program(function):
  """Adds a program: a loop body in autograph's language, from a data set to one number or more."""

  def component(data_set):
    return tf.function(function)(data_set, tf.Variable(0.0), tf.Variable(0))

  # Traced where a test asks for it, not in each process that collects the tests.
  _PROGRAMS[function.__name__] = lambda: tff.tensorflow.computation(component, _NUMBERS)
  return function


@_program
def skips(data_set, total, count):
  for value in data_set:
    if value > 8:
      continue
    total.assign(total * 1.5 + value)
  return total.read_value()


@_program
def numbers_what_it_takes(data_set, total, count):
  for i, value in data_set.enumerate():
    total.assign(total * 1.1 + value * tf.cast(i, tf.float32))
  return total.read_value()


@_program
def reads_in_branches(data_set, total, count):
  if data_set.take(1).reduce(0.0, lambda a, b: a + b) > 5:
    for value in data_set:
      total.assign(total * 1.1 + value)
  else:
    for value in data_set.skip(2):
      total.assign(total * 1.2 - value)
  return total.read_value()


@_program
def takes_two_and_then_the_rest(data_set, total, count):
  iterator = iter(data_set)
  first, second = next(iterator), next(iterator)
  for value in iterator:
    total.assign(total * 1.1 + value * first - second)
  return total.read_value()


@_program
def takes_what_there_is(data_set, total, count):
  iterator = iter(data_set)
  found = iterator.get_next_as_optional()
  while found.has_value():
    total.assign(total * 1.3 + found.get_value())
    found = iterator.get_next_as_optional()
  return total.read_value()


@_program
def loops_over_batches(data_set, total, count):
  for batch in data_set.batch(6):
    for value in tf.data.Dataset.from_tensor_slices(batch):
      total.assign(total * 1.1 + value)
  return total.read_value()


@_program
def takes_more_each_time(data_set, total, count):
  while count < 4:
    count.assign_add(1)
    for value in data_set.take(tf.cast(count, tf.int64)):
      total.assign(total * 1.1 + value)
  return total.read_value(), count.read_value()


@_program
def takes_in_turn(data_set, total, count):
  iterator = iter(data_set)
  first, second, third = next(iterator), next(iterator), next(iterator)
  total.assign(third + 10 * first)
  return second, total.read_value() - 100 * first, third


@_program
def each_branch_has_its_own(data_set, total, count):
  for value in data_set:
    if value > 5:
      total.assign(total * 1.1 + value + tf.cast(count, tf.float32))
    else:
      count.assign(2 * count - tf.cast(total, tf.int32) % 7)
  return total.read_value(), count.read_value()


@_program
def hands_values_round(data_set, total, count):
  last, next_to_last = data_set.reduce(1.0, lambda a, b: a + b), 0.5
  for i in tf.range(4):
    last, next_to_last = last * 0.9 + tf.cast(i, tf.float32), last
  return last, next_to_last


@_program
def takes_three_in_a_loop(data_set, total, count):
  iterator, i = iter(data_set), tf.constant(0)
  while i < 3:
    total.assign(total * 1.1 + next(iterator))
    i += 1
  return total.read_value()


@_program
def draws_with_a_seed(data_set, total, count):
  return data_set.reduce(0.0, lambda a, b: a * 1.1 + b * tf.random.stateless_uniform([], [1, 2]))


@pytest.mark.parametrize("name", _PROGRAMS)
def test_programs_give_what_tffs_runtime_gives(native, name):
  component = _PROGRAMS[name]()

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def everywhere(held):
    return tff.federated_map(component, held)

  rng = np.random.default_rng(0)
  plain = [
    tf.data.Dataset.from_tensor_slices(rng.normal(6, 5, size=n).astype(np.float32))
    for n in (20, 9, 3, 11)
  ]
  shuffled = [
    plain[0].shuffle(20, seed=4).repeat(2),
    plain[1].shuffle(5, seed=1),
    plain[2],
    plain[3].shuffle(9, seed=2).cache(),
  ]
  tff.framework.set_default_context(native)
  expected = [everywhere(held) for held in (plain, shuffled)]
  tff.framework.set_default_context(cohort_context.CohortContext())
  for _ in range(2):
    found = [everywhere(held) for held in (plain, shuffled)]
    for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
      np.testing.assert_allclose(ours, theirs, rtol=1e-5)


_ELEMENTS = tff.SequenceType(
  collections.OrderedDict(b=tff.TensorType(np.float32, [None]), a=np.float32)
)


@tff.tensorflow.computation(_ELEMENTS, np.float32)
def _with_rate(data_set, rate):
  return data_set.map(lambda element: (rate, element))


def _trained(initial, own, rate):
  """What `_train` gives, by numpy."""
  for element in own:
    initial = initial - rate * (np.sum(element["b"]) * initial - element["a"])
  return initial


def _train(form):
  """Local training of one weight, as users write it: by TFF's language or by TensorFlow's loops."""
  pair = collections.OrderedDict(x=np.float32, y=np.float32)

  @tff.tensorflow.computation(np.float32, _ELEMENTS.element)
  def read(rate, element):
    return rate, collections.OrderedDict(x=tf.reduce_sum(element["b"]), y=element["a"])

  @tff.tensorflow.computation(np.float32, np.float32, tff.to_type(pair))
  def update(weight, rate, element):
    variable = tf.Variable(weight)
    with tf.GradientTape() as tape:
      loss = element["x"] * variable**2 / 2 - element["y"] * variable
    return variable.assign_sub(rate * tape.gradient(loss, variable))

  @tff.federated_computation(np.float32, _ELEMENTS, np.float32)
  def by_language(weight, own, rate):
    pairs = tff.sequence_map(read, _with_rate(own, rate))

    @tff.federated_computation(np.float32, pairs.type_signature.element)
    def step(total, element):
      return update(total, element[0], element[1])

    return tff.sequence_reduce(pairs, weight, step)

  @tff.tensorflow.computation(np.float32, _ELEMENTS, np.float32)
  @tf.function
  def by_loop(weight, own, rate):
    for element in own.map(lambda e: (tf.reduce_sum(e["b"]), e["a"])):
      with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = element[0] * weight**2 / 2 - element[1] * weight
      weight -= rate * tape.gradient(loss, weight)
    return weight

  @tff.tensorflow.computation(np.float32, _ELEMENTS, np.float32)
  def by_fold(weight, own, rate):
    scaled = own.map(lambda e: rate * tf.stack([tf.reduce_sum(e["b"]), e["a"]])).batch(1)
    return scaled.reduce(weight, lambda w, batch: w - batch[0, 0] * w + batch[0, 1])

  return dict(by_language=by_language, by_loop=by_loop, by_fold=by_fold)[form]


@pytest.mark.parametrize("form", ["by_language", "by_loop", "by_fold"])
def test_training_that_users_write_is_done_at_once_of_what_was_kept(form, monkeypatch):
  train = _train(form)

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(_ELEMENTS, tff.CLIENTS),
    tff.FederatedType(np.float32, tff.SERVER),
  )
  def everywhere(weight, held, rate):
    sent = tff.federated_broadcast(weight), tff.federated_broadcast(rate)
    return tff.federated_map(train, (sent[0], held, sent[1]))

  rng = np.random.default_rng(0)

  def element(size):
    return {"b": rng.normal(size=size).astype(np.float32), "a": np.float32(rng.normal())}

  ragged = [[element(size) for size in sizes] for sizes in ((3, 3, 2), (), (1,), (2, 4, 4, 1))]
  tff.framework.set_default_context(cohort_context.CohortContext())
  serialized = []
  original = data_sets.Source.serialized
  monkeypatch.setattr(
    data_sets.Source,
    "serialized",
    lambda self, *args: serialized.append(self) or original(self, *args),
  )
  for held in (ragged, [[element(2), element(2)] for _ in range(5)]):
    for weight, rate in ((1.0, 0.25), (-0.5, 0.125)):
      found = everywhere(weight, held, rate)
      np.testing.assert_allclose(found, [_trained(weight, own, rate) for own in held], rtol=1e-5)
      held = [[dict(one) for one in own] for own in held]  # Equal lists are the same data sets.
    assert form == "by_fold" or len(serialized) <= len(held)
    serialized.clear()
    held[-1][0]["b"][0] += 1  # A list that has changed is another one.
    found = everywhere(1.0, held, 0.25)
    np.testing.assert_allclose(found, [_trained(1.0, own, 0.25) for own in held], rtol=1e-5)
    assert form == "by_fold" or len(serialized) == 1
    serialized.clear()


def test_what_fails_in_a_step_of_a_sequence_fails():
  @tff.tensorflow.computation(np.float32, np.float32)
  def step(total, value):
    with tf.control_dependencies([tf.debugging.assert_less(value, 3.0, "too large")]):
      return total + value

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def sums(held):
    return tff.federated_map(
      tff.federated_computation(lambda own: tff.sequence_reduce(own, 0.0, step), _NUMBERS), held
    )

  tff.framework.set_default_context(cohort_context.CohortContext())
  assert sums([[1.0, 2.0], []]) == [3.0, 0.0]
  with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
    sums([[1.0], [2.0, 4.0]])
  with pytest.raises(TypeError, match="Found True of type bool; expected"):
    sums([[1.0], [True]])
