"""Computations at clients, and calls of them in one context or another, TFF's own among them."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort.graphs import errors
from tff_superquantile.engine.processes import limits

_FLOATS = tff.SequenceType(np.float32)
# The result of a call that raises.
FAILS = "fails"


def tffs_runtime(default_num_clients=0):
  """TFF's own runtime, in a process of its own, with simulated secure sums."""
  return tff.backends.test.create_sync_test_cpp_execution_context(
    default_num_clients=default_num_clients, max_concurrent_computation_calls=limits.num_cores()
  )


def at_clients(component):
  """The computation that maps a component over its clients."""

  @tff.federated_computation(
    tff.FederatedType(component.type_signature.parameter, tff.CLIENTS, all_equal=False)
  )
  def everywhere(held):
    return tff.federated_map(component, held)

  return everywhere


def invoke(of_context, computation, *arguments):
  """What a computation gives in a context, which becomes the default one."""
  tff.framework.set_default_context(of_context)
  return computation(*arguments)


def stacked(value, add, merge=lambda first, second: tf.concat([first, second], axis=0)):
  """A fold of clients' numbers to rows, none at first; `add` puts a number to the rows."""
  row_type = value.type_signature.member
  rows_type = tff.TensorType(row_type.dtype, [None])

  @tff.tensorflow.computation
  def zero():
    # None at first, and nobody knows.
    none = tf.zeros([0], row_type.dtype.type)
    return tf.compat.v1.placeholder_with_default(none, [None])

  return tff.federated_aggregate(
    value,
    zero(),
    tff.tensorflow.computation(add, (rows_type, row_type)),
    tff.tensorflow.computation(merge, (rows_type, rows_type)),
    tff.tensorflow.computation(lambda rows: rows, rows_type),
  )


def plain(value):
  """Returns a result as lists of the names, types and values of its parts."""
  if isinstance(value, tf.data.Dataset):
    return ["sequence", *(plain(element) for element in value)]
  if isinstance(value, tf.Tensor):
    return plain(value.numpy())
  if isinstance(value, (dict, tff.structure.Struct)):
    struct = tff.structure.from_container(value)
    parts = [(name, plain(part)) for name, part in tff.structure.to_elements(struct)]
    return [type(value).__name__, *parts]
  if isinstance(value, (list, tuple)):
    return [type(value).__name__, *map(plain, value)]
  return [type(value).__name__, np.asarray(value)]


def assert_equal(ours, theirs):
  """Compares results as of `plain`: but for the order of sums, they are equal."""
  if isinstance(theirs, np.ndarray):
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if theirs.dtype.kind == "f":
      tolerance = 1e-4 if theirs.dtype == np.float32 else 1e-9
      np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    else:
      np.testing.assert_array_equal(ours, theirs)
  elif isinstance(theirs, (list, tuple)):
    assert len(ours) == len(theirs)
    for our_part, their_part in zip(ours, theirs):
      assert_equal(our_part, their_part)
  else:
    assert ours == theirs


def outcome(of_context, program, *arguments):
  """The result as of `plain`, and the error."""
  tff.framework.set_default_context(of_context)
  try:
    return plain(program(*arguments)), None
  except Exception as error:  # Whatever kind: TFF's are those of another process.
    return None, error


def result_or_failure(of_context, computation, *arguments):
  """The result, or that there is none; that the engine does not know a program is neither."""
  try:
    return invoke(of_context, computation, *arguments)
  except errors.UnsupportedError:
    raise
  except Exception:  # Errors of several libraries.
    return FAILS


def assert_same(found, expected):
  assert (found is FAILS) == (expected is FAILS)
  for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
    if ours is not FAILS:
      np.testing.assert_array_equal(ours, theirs)


def numbers(*held, **kwargs):
  """One data set a client."""
  return [tf.data.Dataset.from_tensor_slices(np.float32(own), **kwargs) for own in held]


def check(x):
  """An effect: it fails for numbers from four on."""
  tf.debugging.Assert(x < 4, [x])


def component_of(function, has_variable):
  """One without variables may be mapped as it is; one with variables is taken apart."""

  def component(x):
    return tf.function(function)(x + tf.Variable(0.0) if has_variable else x)

  return tff.tensorflow.computation(component, np.float32)


@tff.tensorflow.computation(_FLOATS)
def order(data_set):
  return tf.ensure_shape(data_set.take(20).batch(20).get_single_element(), [20])


@tff.tensorflow.computation(_FLOATS)
def orders(data_set):
  looks = [data_set.take(20 - k).batch(20).get_single_element() for k in range(2)]
  return tf.ensure_shape(tf.concat(looks, 0), [39])
