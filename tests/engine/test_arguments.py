"""What a computation may be given, in this process as in TFF's runtime."""

from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import errors

pytestmark = pytest.mark.usefixtures("restored_context")


def identity(type_spec):
  """The computation that returns a value at the server."""
  component = tff.tensorflow.computation(lambda value: tf.identity(value), type_spec)

  @tff.federated_computation(tff.FederatedType(type_spec, tff.SERVER))
  def returned(value):
    return tff.federated_map(component, value)

  return returned


TYPES = [
  *(tff.TensorType(t) for t in (np.int32, np.int64, np.uint8, np.float16, np.float32, np.float64)),
  *(tff.TensorType(t) for t in (np.bool_, np.str_, np.complex64)),
  *(tff.TensorType(t, [2]) for t in (np.int8, np.float32, np.str_)),
  tff.TensorType(np.int32, [None]),
]
VALUES = [
  *(2, -1, 300, 2**31, 2**40, 2**64, -(2**70), 1.7, -0.0, 1e39, 1e300, float("nan"), float("inf")),
  *(True, "a", b"a", None, 1 + 2j, [1, 2], (1, 2), [300, 300], [1.5, 2.5], [1.5, 2], [True, False]),
  *([], [[1, 2]], ["a", "b"], [np.float32(1.5), np.float32(2)], [np.float64(1.5), 2.0]),
  *(np.float16(2), np.float32(1.7), np.float64(1.0), np.int32(5), np.int64(5), np.uint8(3)),
  *(np.bool_(True), np.str_("a"), np.complex64(1), np.array(3.0), np.array([1.5, 2])),
  *(np.array([1, 2], np.int8), np.array([1, 2]), np.array(["a", "b"]), np.array([1, 2], np.uint8)),
  *(tf.constant(1), tf.constant(1.5), tf.constant(2**40, tf.int64), tf.constant([1, 2])),
]


@pytest.mark.parametrize("type_spec", TYPES, ids=str)
def test_a_value_is_taken_or_refused_as_by_tffs_runtime(native, type_spec):
  """No number is cut down to a type that does not hold it."""
  computation, in_process = identity(type_spec), cohort_context.CohortContext()
  for value in VALUES:
    try:
      expected = np.asarray(invoke(native, computation, value))
    except Exception:  # Errors of several libraries.
      with pytest.raises((TypeError, ValueError)):
        invoke(in_process, computation, value)
    else:
      found = np.asarray(invoke(in_process, computation, value))
      assert found.dtype == expected.dtype, value
      np.testing.assert_array_equal(found, expected, err_msg=repr(value))


@pytest.mark.parametrize("value", [1.7, 2**40, np.int64(3), True], ids=repr)
def test_values_of_clients_are_held_to_the_same(value):
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(numbers):
    return tff.federated_sum(numbers)

  assert invoke(cohort_context.CohortContext(), total, [1, np.int32(2)]) == 3
  for cohort in ([value], [1, value], [value, 1, 1]):
    with pytest.raises(TypeError, match="expected what int32 can hold"):
      invoke(cohort_context.CohortContext(), total, cohort)


@tff.federated_computation(
  tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(np.float32, tff.CLIENTS)
)
def _two_sums(first, second):
  return tff.federated_sum(first), tff.federated_sum(second)


@pytest.mark.parametrize("sizes", [(2, 3), (0, 1), (3, 0)])
@pytest.mark.parametrize("block_size", [None, 1])
def test_arguments_of_different_cohorts_are_refused(native, sizes, block_size):
  cohorts = [1] * sizes[0], [1.0] * sizes[1]
  text = f"Found arguments of {min(sizes)} and {max(sizes)} clients"
  with pytest.raises(ValueError, match=text):
    invoke(cohort_context.CohortContext(block_size=block_size), _two_sums, *cohorts)
  with pytest.raises(ValueError, match="Conflicting cardinalities"):
    invoke(cohort_context.CohortContext(lambda: native, block_size=block_size), _two_sums, *cohorts)
  assert tuple(invoke(cohort_context.CohortContext(), _two_sums, [1, 2], [1.0, 2.5])) == (3, 3.5)


class _Counting:
  """Hands computations on to another context, and counts them."""

  def __init__(self, other):
    self.count = 0
    self._other = other

  def invoke(self, computation, argument):
    self.count += 1
    return self._other.invoke(computation, argument)


@pytest.mark.parametrize("error", [TypeError, ValueError, errors.UnsupportedError])
def test_what_went_to_tffs_runtime_stays_there(native, monkeypatch, error):
  """Whatever kept it from being computed here, it is not tried again."""
  tried = []

  def fail(*arguments):
    tried.append(arguments)
    raise error("of the computation")

  counting = _Counting(native)
  both = cohort_context.CohortContext(lambda: counting)
  monkeypatch.setattr(cohort_context.CohortContext, "_compute", fail)
  for _ in range(3):
    assert tuple(invoke(both, _two_sums, [1, 2], [1.0, 2.5])) == (3, 3.5)
  assert (len(tried), counting.count) == (1, 3)


def test_an_argument_that_only_tffs_runtime_takes_does_not_send_the_next_one_there(native):
  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  def total(data_set):
    return data_set.reduce(np.float32(0), lambda total, value: total + value)

  computation = at_clients(total)
  counting = _Counting(native)
  both = cohort_context.CohortContext(lambda: counting)
  for _ in range(2):
    assert invoke(both, computation, [[1, 2]]) == [3.0]  # A list of other numbers.
  data_set = tf.data.Dataset.from_tensor_slices(np.float32([1, 2]))
  assert invoke(both, computation, [data_set]) == [3.0]
  assert counting.count == 2


def test_lists_without_elements_are_of_their_own_types():
  for size in (None, 2, 3):

    @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [size])))
    def total(data_set):
      return data_set.reduce(np.float32(0), lambda total, value: total + tf.reduce_sum(value))

    held = [[], [np.ones(size or 1, np.float32)]]
    found = invoke(cohort_context.CohortContext(), at_clients(total), held)
    assert found == [0.0, size or 1.0]
