"""Random TFF programs give here what TFF's runtime gives: values, types, and whether they fail."""

import collections
import re

from helpers import calls
from helpers import random_data_sets
from helpers import random_programs
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_superquantile.engine import context

pytestmark = pytest.mark.usefixtures("restored_context")
_PROGRAMS_A_TEST = 20
# TFF's runtime cannot use what `tff.sequence_map` gives, and cannot reduce a data set that
# TensorFlow or `tff.federated_select` made; here all can be used.
_TFFS_LIMITS = (
  "Cant embed a Seqeuence which is not proto-backed",
  "for function sequence_reduce to have value type",
  "Only nested structures of tensors are supported",
)
# Nor can its Python side take data sets of tuples of one tensor.
_TFFS_OTHER_LIMIT = "_to_representative_value"
# A modulus of another type than the sum's, also of a sum that nobody uses.
_TFFS_MODULUS = "'FloorMod' Op has type"
# It hands the fields of elements over in the order of their names to what folds over them.
_TFFS_SWAP = re.compile(r"Expects arg\[\d+\] to be \w+ but \w+ is provided")


def _rounds(of_context, program, argument, folder, numbers):
  """The outcomes of some rounds; the files are those of a number in each."""
  outcomes = []
  for number in numbers:
    random_data_sets.write(folder, number)
    outcomes.append(calls.outcome(of_context, program, argument))
  return outcomes


def _leaves(value):
  parts = value if isinstance(value, (list, tuple)) else []
  return [value] if isinstance(value, np.ndarray) else [a for part in parts for a in _leaves(part)]


def _assert_changes_alike(ours, theirs):
  """Asserts that what draws change in each of three rounds in one runtime changes in the other."""
  for of_leaf in zip(*map(_leaves, (*ours, *theirs)), strict=True):
    assert len({array.dtype for array in of_leaf}) == 1
    here, by_tff = (len({a.tobytes() for a in own}) for own in (of_leaf[:3], of_leaf[3:]))
    assert {here, by_tff} != {1, 3}, of_leaf


def _intrinsics(block, uri):
  found = []

  def visit(block):
    if isinstance(block, tff.framework.Intrinsic) and block.uri == uri:
      found.append(block)
    return block, False

  tff.framework.transform_postorder(block, visit)
  return found


def _folds_over_unsorted_names(program):
  for block in _intrinsics(program.to_building_block(), "sequence_reduce"):
    element = block.type_signature.parameter[0].element
    names = [name for name, _ in tff.structure.to_elements(element) if name is not None]
    if names != sorted(names):
      return True
  return False


def _uses_no_modulus(program):
  used = tff.framework.to_call_dominant(program.to_building_block())
  return not _intrinsics(used, "federated_secure_modular_sum")


def assert_as_tff(seed, native, ours, folder):
  """Draws a program and compares the contexts; returns what came of it."""
  outcomes = []
  for of_context in (native, ours):
    # Drawn for each, as data sets that are handed back go on from one reading to the next.
    program, argument, draws = random_programs.draw(seed, folder)
    numbers = (1, 1, 1) if draws else (1, 8)
    outcomes.append(_rounds(of_context, program, argument, folder, numbers))
  expected, found = outcomes
  where = f"seed {seed}, {program.type_signature.compact_representation()}"
  for (_, error), (_, of_tff) in zip(found, expected):
    if any(limit in str(of_tff) for limit in _TFFS_LIMITS):
      assert error is None or _TFFS_OTHER_LIMIT in str(error)
      return "refused by TFF's worker"
    if _TFFS_SWAP.search(str(of_tff)) and _folds_over_unsorted_names(program):
      assert error is None
      return "refused by TFF's worker"
    if _TFFS_MODULUS in str(of_tff) and _uses_no_modulus(program):
      assert error is None  # What nobody uses is not computed here.
      return "refused by TFF's worker"
    assert (error is None) == (of_tff is None), f"{where}: here {error!r}, by TFF {of_tff!r}"
  if any(error is not None for _, error in found):
    return "refused in both"
  values = [[value for value, _ in outcomes] for outcomes in (found, expected)]
  try:
    if draws:
      _assert_changes_alike(*values)
    else:
      calls.assert_equal(*values)
  except AssertionError as difference:
    raise AssertionError(f"{where}:\n{difference}\nhere {values[0]}\nTFF {values[1]}") from None
  return "drawn" if draws else "right"


@pytest.mark.parametrize(
  "part", [1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(50) if part != 1)]
)
def test_random_programs_give_what_tffs_runtime_gives(native, part, tmp_path):
  context.set_simulation_context()
  ours = tff.framework.get_context_stack().current
  first = part * _PROGRAMS_A_TEST
  found = collections.Counter(
    assert_as_tff(seed, native, ours, tmp_path) for seed in range(first, first + _PROGRAMS_A_TEST)
  )
  assert found["right"] > 2
