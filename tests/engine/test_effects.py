"""Effects of what clients compute happen as in TFF's runtime, in the program's order."""

from helpers import calls
from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import context
from tff_superquantile.engine.cohort import cohort_context

pytestmark = pytest.mark.usefixtures("restored_context")
_NUMBERS = tff.SequenceType(np.float32)


def beside_the_result(x):
  calls.check(x)
  return 2 * x


def in_a_called_function(x):
  tf.function(calls.check)(x)
  return 2 * x


def in_one_branch(x):
  if x > 2:
    calls.check(x)
  return 2 * x


def in_a_known_branch(x):
  return tf.cond(tf.constant(3) > 2, lambda: [calls.check(x), x][1], lambda: -x)


def in_a_loop(x):
  for _ in tf.range(3):
    calls.check(x)
  return x


def in_a_loop_of_one_step(x):
  for _ in tf.range(1):
    calls.check(x)
    x += 1
  return x


def in_what_follows_a_loop(x):
  for _ in tf.range(2):
    x += 1
  calls.check(x - 2)
  return 0 * x


def in_a_loops_condition(x):
  return tf.while_loop(lambda i, v: [calls.check(v), i < 2][1], lambda i, v: (i + 1, v), (0, x))


EFFECTS = [
  beside_the_result,
  in_a_called_function,
  in_one_branch,
  in_a_known_branch,
  in_a_loop,
  in_a_loop_of_one_step,
  in_what_follows_a_loop,
  in_a_loops_condition,
]


@pytest.mark.parametrize("has_variable", [False, True])
@pytest.mark.parametrize("function", EFFECTS, ids=lambda f: f.__name__)
def test_effects_happen_as_in_tffs_runtime(native, function, has_variable):
  component = calls.component_of(function, has_variable)
  for clients in ([1.0, 3.0], [1.0, 9.0]):
    expected = calls.result_or_failure(native, at_clients(component), clients)
    assert (expected is calls.FAILS) == (max(clients) > 4)
    ours = cohort_context.CohortContext()
    if function is in_a_loops_condition:  # Which may be left to TFF's runtime in this process.
      context.set_simulation_context()
      ours = tff.framework.get_context_stack().current
    calls.assert_same(calls.result_or_failure(ours, at_clients(component), clients), expected)


def test_effects_of_an_initializer_happen_as_in_tffs_runtime(native):
  @tff.tensorflow.computation(np.float32)
  def component(x):
    def initial():
      with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), ["never"])]):
        return tf.identity(3.0)

    return x + tf.Variable(initial)

  for of_context in (native, cohort_context.CohortContext()):
    assert calls.result_or_failure(of_context, at_clients(component), [1.0]) is calls.FAILS


def in_a_fold(data_set):
  def add(total, x):
    calls.check(x)
    return total + 1

  return data_set.reduce(np.float32(0), add)


def in_a_loop_over_it(data_set):
  total = 0.0
  for x in data_set:
    calls.check(x)
    total += x
  return total


def of_one_batch(data_set):
  batch = data_set.batch(2).take(1).get_single_element()
  calls.check(tf.reduce_max(batch))
  return tf.reduce_sum(batch)


@pytest.mark.parametrize(
  "function", [in_a_fold, in_a_loop_over_it, of_one_batch], ids=lambda f: f.__name__
)
def test_effects_of_what_is_read_happen_for_each_client(native, function):
  component = tff.tensorflow.computation(lambda d: tf.function(function)(d), _NUMBERS)
  for last in (2.0, 9.0):
    elements = [[1.0, 2.0]] * 16 + [[1.0, last]]
    held = [tf.data.Dataset.from_tensor_slices(np.float32(own)) for own in elements]
    expected = calls.result_or_failure(native, at_clients(component), held)
    assert (expected is calls.FAILS) == (last > 4)
    calls.assert_same(
      calls.result_or_failure(cohort_context.CohortContext(), at_clients(component), held), expected
    )


def test_prints_come_in_the_programs_order(native, tmp_path):
  """Each of them once, also in a loop whose steps are known."""
  path = tmp_path / "printed"

  def prints(x):
    tf.print(x, output_stream=f"file://{path}")
    i = tf.constant(0)
    while i < 3:
      tf.print(i, output_stream=f"file://{path}")
      i += 1
    if x > 0:
      tf.print(2 * x, output_stream=f"file://{path}")
    return x

  printed = []
  for of_context in (native, cohort_context.CohortContext()):
    invoke(of_context, at_clients(calls.component_of(prints, True)), [4.0])
    printed.append(path.read_text().split())
    path.unlink()
  assert printed == [["4", "0", "1", "2", "8"]] * 2


def test_a_fold_that_stacks_rows_keeps_its_effects(native):
  @tf.function
  def append(rows, row):
    calls.check(row)
    return tf.concat([rows, [row]], axis=0)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def stack(values):
    return calls.stacked(values, lambda rows, row: append(rows, row))

  for clients in ([3.0, 1.0], [3.0, 9.0]):
    expected = calls.result_or_failure(native, stack, clients)
    calls.assert_same(
      calls.result_or_failure(cohort_context.CohortContext(), stack, clients), expected
    )
