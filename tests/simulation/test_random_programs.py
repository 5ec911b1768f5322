"""Random TFF programs give here what TFF's runtime gives: values, types, and whether they fail."""

import collections

import numpy as np
import pytest
import random_programs
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation import context

pytestmark = pytest.mark.usefixtures("restored_context")
_PROGRAMS_A_TEST = 20
# TFF's runtime cannot use what `tff.sequence_map` gives; here it can be used.
_TFFS_LIMIT = "Cant embed a Seqeuence which is not proto-backed"


def _plain(value):
  """Returns a result as lists of the names, types and values of its parts."""
  if isinstance(value, tf.data.Dataset):
    return ["sequence", *(_plain(element) for element in value)]
  if isinstance(value, tf.Tensor):
    return _plain(value.numpy())
  if isinstance(value, (dict, tff.structure.Struct)):
    struct = tff.structure.from_container(value)
    parts = [(name, _plain(part)) for name, part in tff.structure.to_elements(struct)]
    return [type(value).__name__, *parts]
  if isinstance(value, (list, tuple)):
    return [type(value).__name__, *map(_plain, value)]
  return [type(value).__name__, np.asarray(value)]


def _assert_equal(ours, theirs):
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
      _assert_equal(our_part, their_part)
  else:
    assert ours == theirs


def _outcome(of_context, program, argument):
  tff.framework.set_default_context(of_context)
  try:
    return _plain(program(argument)), None
  except Exception as error:  # Whatever kind: TFF's are those of another process.
    return None, error


def assert_as_tff(seed, native, ours):
  """Draws a program and compares the contexts; returns whether it failed."""
  program, argument = random_programs.draw(seed)
  expected, expected_error = _outcome(native, program, argument)
  found, error = _outcome(ours, program, argument)
  if _TFFS_LIMIT in str(expected_error):
    assert error is None
    return False
  where = f"seed {seed}, {program.type_signature.compact_representation()}"
  assert (error is None) == (expected_error is None), (
    f"{where}: here {error!r}, by TFF {expected_error!r}"
  )
  try:
    _assert_equal(found, expected)
  except AssertionError as difference:
    raise AssertionError(f"{where}:\nhere {found}\nTFF {expected}\n{difference}") from None
  return error is not None


@pytest.mark.parametrize("part", range(3))
def test_programs_give_what_tffs_runtime_gives(native, part):
  context.set_simulation_context(engine="in_process")
  ours = tff.framework.get_context_stack().current
  first = part * _PROGRAMS_A_TEST
  failed = collections.Counter(
    assert_as_tff(seed, native, ours) for seed in range(first, first + _PROGRAMS_A_TEST)
  )
  assert failed[False] > _PROGRAMS_A_TEST / 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_a_thousand_programs(native, part):
  context.set_simulation_context(engine="in_process")
  ours = tff.framework.get_context_stack().current
  for seed in range(1000 + part * _PROGRAMS_A_TEST, 1000 + (part + 1) * _PROGRAMS_A_TEST):
    assert_as_tff(seed, native, ours)
