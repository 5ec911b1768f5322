"""Blocks of a cohort that others compute: the bits depend on the number of blocks alone."""

import collections
from concurrent import futures

from helpers import elsewhere as elsewhere_lib
from helpers import rounds
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

import tff_superquantile as tsq
from tff_superquantile import noise_source
from tff_superquantile.engine.cohort import cohort_context

pytestmark = pytest.mark.usefixtures("restored_context")
_FEW = ("exact", "private geometric")
_ALL = [
  pytest.param(name, marks=() if name in _FEW else pytest.mark.slow) for name in rounds.BUILDERS
]


def _outputs(process, cohorts, num_blocks, map_blocks=map):
  context = cohort_context.CohortContext(num_blocks=num_blocks, map_blocks=map_blocks)
  return rounds.run(context, process, cohorts)


def _same_bits(found, expected):
  pairs = zip(tree.flatten(found), tree.flatten(expected), strict=True)
  return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize("name", _ALL)
def test_who_computes_the_blocks_changes_no_bit(name, unequal_files):
  process = rounds.build(name, unequal_files, 4)
  cohorts = [rounds.cohort(unequal_files, range(r, 17 + r), r) for r in range(2)]
  here = _outputs(process, cohorts, 5)
  elsewhere = elsewhere_lib.Elsewhere()
  assert _same_bits(_outputs(process, cohorts, 5, elsewhere), here)
  # A loss pass, if there is one, and training: two rounds of five blocks, and a function each.
  assert len(elsewhere.messages) in (2 * 11, 4 * 11)
  with futures.ThreadPoolExecutor(3) as pool:
    assert _same_bits(_outputs(process, cohorts, 5, pool.map), here)
  if name == "exact":  # Private sums are exact, whatever the blocks are.
    others = (_outputs(process, cohorts, number) for number in (2, 3, 4, 17))
    assert not all(_same_bits(outputs, here) for outputs in others)
  rounds.assert_same(here, _outputs(process, cohorts, 1))


def _state_of_noise(key):
  for purpose in ("updates", "sum of updates", "geometric threshold"):
    source = noise_source.NoiseSource(key, purpose)
    seed, state = source.draw(source.initial_state())
    yield from (source.initial_state().numpy(), seed.numpy(), state.numpy())


def test_no_key_is_in_a_message(unequal_files):
  """Nor are the states of the noise that follow from it, of which the driver's argument is full."""
  process = rounds.build("private geometric", unequal_files, 4)
  cohorts = [rounds.cohort(unequal_files, range(17), r) for r in range(2)]
  elsewhere = elsewhere_lib.Elsewhere()
  outputs = _outputs(process, cohorts, 5, elsewhere)
  secrets = {
    rounds.KEY,
    *(part.tobytes() for state in _state_of_noise(rounds.KEY) for part in state),
  }
  states = [process.initialize(), *(output.state for output in outputs)]
  of_states = [leaf.tobytes() for state in states for leaf in tree.flatten(state) if leaf.size]
  assert any(secret in leaf for secret in secrets for leaf in of_states)
  everything = b"".join(elsewhere.messages)
  assert not [secret for secret in secrets if secret in everything]
  weights = outputs[0].state.global_model_weights.trainable
  assert all(part.tobytes() in everything for part in weights)


def test_graphs_of_the_server_and_what_it_keeps_are_left_out():
  add = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))
  own = tff.tensorflow.computation(
    lambda state: (state["a"], tf.strings.length("kept by the server")),
    collections.OrderedDict(a=np.float32, b=np.float32),
  )

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS),
    tff.FederatedType(collections.OrderedDict(a=np.float32, b=np.float32), tff.SERVER),
  )
  def total(values, state):
    a, length = tff.federated_map(own, state)
    return tff.federated_sum(tff.federated_map(add, (values, tff.federated_broadcast(a)))), length

  elsewhere = elsewhere_lib.Elsewhere()
  tff.framework.set_default_context(
    cohort_context.CohortContext(num_blocks=2, map_blocks=elsewhere)
  )
  a, b = np.float32(1234.5), np.float32(6543.25)
  assert total([1.0, 2.0, 3.0], dict(a=a, b=b)) == (6.0 + 3 * a, 18)
  everything = b"".join(elsewhere.messages)
  assert a.tobytes() in everything and b"AddV2" in everything
  assert b.tobytes() not in everything and b"kept by the server" not in everything


def test_a_cohort_has_no_empty_block():
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  sizes = []

  def count(function, blocks):
    blocks = list(blocks)
    sizes.append([block.num_clients for block in blocks])
    return map(function, blocks)

  tsq.set_simulation_context(num_blocks=4, map_blocks=count)
  for n in (0, 1, 3, 10):
    assert total([1.0] * n) == n
  assert sizes == [[1, 1, 1], [3, 3, 2, 2]]


def test_what_contradicts_itself_is_refused():
  with pytest.raises(ValueError, match="Found num_blocks = 0; expected at least 1"):
    tsq.set_simulation_context(num_blocks=0)
  with pytest.raises(ValueError, match="Found num_blocks = 2 beside block_size = 3"):
    tsq.set_simulation_context(num_blocks=2, block_size=3)
  with pytest.raises(ValueError, match="Found map_blocks without num_blocks"):
    tsq.set_simulation_context(map_blocks=lambda function, blocks: map(function, blocks))
