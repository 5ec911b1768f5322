"""Random TFF programs give here what TFF's runtime gives: values, types, and whether they fail."""

import collections

import calls
import pytest
import random_programs
import tensorflow_federated as tff

from tff_superquantile.engine import context

pytestmark = pytest.mark.usefixtures("restored_context")
_PROGRAMS_A_TEST = 12
# TFF's runtime cannot use what `tff.sequence_map` gives; here it can be used.
_TFFS_LIMIT = "Cant embed a Seqeuence which is not proto-backed"
# Nor can its Python side take data sets of tuples of one tensor.
_TFFS_OTHER_LIMIT = "_to_representative_value"


def assert_as_tff(seed, native, ours):
  """Draws a program and compares the contexts; returns whether it failed."""
  program, argument = random_programs.draw(seed)
  expected, expected_error = calls.outcome(native, program, argument)
  found, error = calls.outcome(ours, program, argument)
  if _TFFS_LIMIT in str(expected_error):
    assert error is None or _TFFS_OTHER_LIMIT in str(error)
    return False
  where = f"seed {seed}, {program.type_signature.compact_representation()}"
  assert (error is None) == (expected_error is None), (
    f"{where}: here {error!r}, by TFF {expected_error!r}"
  )
  try:
    calls.assert_equal(found, expected)
  except AssertionError as difference:
    raise AssertionError(f"{where}:\nhere {found}\nTFF {expected}\n{difference}") from None
  return error is not None


@pytest.mark.parametrize(
  "part", [*range(3), *(pytest.param(part, marks=pytest.mark.slow) for part in range(3, 84))]
)
def test_a_thousand_programs_give_what_tffs_runtime_gives(native, part):
  context.set_simulation_context()
  ours = tff.framework.get_context_stack().current
  first = part * _PROGRAMS_A_TEST
  failed = collections.Counter(
    assert_as_tff(seed, native, ours) for seed in range(first, first + _PROGRAMS_A_TEST)
  )
  assert failed[False] > 2
