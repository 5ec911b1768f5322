"""What is read of data sets before a call: once and kept, or by each use, which says why."""

import gc

from helpers import calls
from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import traces

pytestmark = pytest.mark.usefixtures("restored_context")


@tff.tensorflow.computation(tff.SequenceType(np.float32))
def _first_and_sum(data_set):
  first, total = np.float32(-1.0), np.float32(0.0)

  def step(before, x):
    return tf.where(before[0] < 0, x, before[0]), before[1] + x * x

  return data_set.reduce((first, total), step)


def _read_once(monkeypatch):
  reads = []
  read_once = reading.Store.read_once
  monkeypatch.setattr(
    reading.Store, "read_once", lambda *a: reads.append(a) or read_once(*a), raising=True
  )
  return reads


def test_orders_drawn_in_each_call_have_tensorflows_law(monkeypatch):
  """A buffer of 2 of 3: the first is each of two with 1/2, as of `tf.data` itself."""
  reads = _read_once(monkeypatch)
  (base,) = calls.numbers(np.arange(3))
  held = [base.shuffle(2)] * 200  # One object, of which each client draws its own order.
  of_context = cohort_context.CohortContext()
  firsts = []
  for _ in range(3):
    results = invoke(of_context, at_clients(_first_and_sum), held)
    firsts += [float(first) for first, _ in results]
    assert {float(total) for _, total in results} == {5.0}
  assert len(reads) == 3
  assert set(firsts) == {0.0, 1.0}
  assert abs(np.mean(firsts) - 0.5) < 5 * 0.5 / len(firsts) ** 0.5
  fixed = calls.numbers(np.arange(10))[0].repeat(2).shuffle(20, reshuffle_each_iteration=False)
  counts = {tuple(invoke(of_context, at_clients(calls.order), [fixed])[0]) for _ in range(8)}
  assert len(counts) > 1 and {tuple(sorted(c)) for c in counts} == {tuple(sorted([*range(10)] * 2))}


@pytest.mark.parametrize("form", ["twice in one", "by two", "from Python"])
def test_what_is_not_read_before_is_read_by_each_use_and_says_why(form, monkeypatch):
  reads, said = _read_once(monkeypatch), []
  monkeypatch.setattr(
    traces.errors, "warn_once", lambda logger, text, *args: said.append(text % args)
  )
  (base,) = calls.numbers(np.arange(20))
  drawn = base.shuffle(20)
  computation = at_clients(calls.orders if form == "twice in one" else calls.order)
  if form == "from Python":
    drawn = base.map(lambda x: tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), []))
  if form == "by two":

    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def negative(data_set):
      elements = data_set.batch(20).get_single_element()
      return tf.ensure_shape(tf.concat([elements[:1], -elements], 0), [21])

    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def positive(data_set):
      return tf.ensure_shape(data_set.batch(20).get_single_element(), [20])

    @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS))
    def both(held):
      return tff.federated_map(negative, held), tff.federated_map(positive, held)

    computation = both
  result = invoke(cohort_context.CohortContext(), computation, [drawn])
  if form == "by two":
    (first,), (second,) = result
    assert list(-first[1:]) != list(second) and sorted(-first[1:]) == sorted(second)
  assert not reads
  assert len(said) == 1 and "`seed=`" in said[0]
  assert ("calls Python" if form == "from Python" else "several times") in said[0]


def test_what_a_client_does_not_reach_is_not_read_before(monkeypatch):
  reads = _read_once(monkeypatch)

  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  @tf.function
  def first(data_set):
    total = tf.constant(0.0)
    for x in data_set:
      total += x
      if total > 0:
        break
    return total

  (base,) = calls.numbers([1.0, 1.0, 2.0])
  broken = base.shuffle(1).map(  # The third is a division by zero.
    lambda x: tf.cast(2 // (2 - tf.cast(x, tf.int32)), tf.float32)
  )
  of_context = cohort_context.CohortContext()
  for _ in range(2):
    assert invoke(of_context, at_clients(first), [broken]) == [2.0]
  assert len(reads) == 2


def test_a_data_set_is_read_once_and_kept_while_it_lives(monkeypatch):
  read = []
  call = reading.Reader.__call__
  monkeypatch.setattr(
    reading.Reader,
    "__call__",
    lambda self, clients: read.append(len(clients)) or call(self, clients),
  )
  of_context, computation = cohort_context.CohortContext(), at_clients(calls.order)
  first, second, third = calls.numbers(*np.arange(60).reshape(3, 20))

  def results(*held):
    return [own[0] for own in invoke(of_context, computation, list(held))]

  assert results(first, second) == [0, 20]
  assert results(second, third, first, third) == [20, 40, 0, 40]
  assert read == [2, 1]
  assert of_context._store._bytes == 3 * 80
  del second
  gc.collect()
  assert results(first) == [0]
  assert read == [2, 1, 0]
  assert of_context._store._bytes == 2 * 80
  small = cohort_context.CohortContext(max_bytes=100)
  for _ in range(2):
    assert [own[0] for own in invoke(small, computation, [first, third])] == [0, 40]
    assert small._store._bytes == 80
