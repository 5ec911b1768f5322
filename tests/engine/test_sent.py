"""What a block of clients is sent: nothing by which it could subtract the server's noise."""

import pickle

import numpy as np
import pytest
import rounds
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_superquantile import noise_source
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.stages import functions
from tff_superquantile.secure_sums import gaussian_sum

_PRIVATE = [name for name in rounds.BUILDERS if "private" in name]
_ADAPTIVE = "adaptive clip norm, primal-dual threshold"
pytestmark = pytest.mark.usefixtures("restored_context")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  return rounds.write_files(tmp_path_factory.mktemp("files"), [11] * rounds.NUM_CLIENTS)


@pytest.fixture
def sent(monkeypatch):
  """The arguments of all blocks, as arrays."""
  found = []
  call = functions.Stage.__call__

  def record(self, arrays, received, carried):
    found.append(tf.nest.map_structure(_as_array, [arrays, received, carried]))
    return call(self, arrays, received, carried)

  monkeypatch.setattr(functions.Stage, "__call__", record)
  return found


def _as_array(value):
  return None if value is None else np.asarray(value)


def _build(name, files):
  if name == _ADAPTIVE:
    return rounds.adaptive(rounds.local_work(files, 4))
  return rounds.build(name, files, 4)


def _states(state):
  """The states of the server's noise, int64 [2] each."""
  leaves = list(map(np.asarray, tree.flatten(state)))
  return [leaf for leaf in leaves if leaf.dtype == np.int64 and leaf.shape == (2,)]


def _run(process, files):
  """The states before and after a round in three blocks."""
  tff.framework.set_default_context(cohort_context.CohortContext(block_size=7))
  state = process.initialize()
  return state, process.next(state, rounds.cohort(files, range(20))).state


def _secrets(states):
  """The states of the server's noise, and what is drawn from them; bytes."""
  source = noise_source.NoiseSource(rounds.KEY, "any")
  found = {rounds.KEY, rounds.KEY.hex().encode()}
  for state in states:
    for noise in _states(state):
      seed, _ = source.draw(tf.constant(noise))
      found |= {noise.tobytes(), seed.numpy().tobytes()}
      found |= {own.numpy().tobytes() for own in noise_source.split(seed, 2)}
  return found


@pytest.mark.parametrize("name", [*_PRIVATE, _ADAPTIVE])
def test_no_block_is_sent_the_state_of_the_server_s_noise(name, files, sent):
  states = _run(_build(name, files), files)
  secrets = _secrets(states)
  # The key, and of each state four more.
  assert len(secrets) >= 2 + 2 * 4 and len(sent) >= 3
  for arguments in sent:
    content = pickle.dumps(arguments)
    assert not [secret for secret in secrets if secret in content]


def _moved(states):
  """How far a round has moved the weights."""
  before, after = (state.global_model_weights.trainable for state in states)
  return [np.asarray(new) - np.asarray(old) for old, new in zip(before, after)]


def _stripped(moved, noise):
  """The same without the noise that follows from a state, if it is that of the sum."""
  seed, _ = noise_source.NoiseSource(rounds.KEY, "any").draw(tf.constant(noise))
  seeds = noise_source.split(seed, len(moved))
  # The standard deviation 0.5 of the sum, of ten clients in the tail; the step goes against it.
  return [
    one + 0.5 / 10 * gaussian_sum.standard_normal(tf.constant(one.shape), own).numpy()
    for one, own in zip(moved, seeds)
  ]


def test_nobody_who_computes_a_block_can_strip_the_noise_off_the_sum(files, sent):
  """The attack: draw the round's noise from what a block was sent, and subtract it."""
  local = rounds.local_work(files, 4)
  # As good as without noise on the sum, and with the same thresholds.
  quiet = rounds.private(local, rounds.geometric_threshold(), noise_multiplier=1e-8)
  exact = _moved(_run(quiet, files))
  sent.clear()
  states = _run(rounds.build("private geometric", files, 4), files)
  noisy = _moved(states)

  def succeeds(noise):
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(_stripped(noisy, noise), exact))

  # It is right: the server itself could.
  assert [succeeds(noise) for noise in _states(states[0])].count(True) == 1
  candidates = {
    pair.tobytes()
    for leaf in tf.nest.flatten(sent)
    if leaf is not None and leaf.dtype == np.int64 and leaf.shape[-1:] == (2,)
    for pair in leaf.reshape(-1, 2)
  }
  assert len(candidates) >= 20  # The seeds of the clients.
  assert not [c for c in candidates if succeeds(np.frombuffer(c, np.int64))]


def test_a_stage_is_sent_what_it_reads_of_a_structure(sent):
  state_type = tff.StructType([("model", np.float32), ("secret", (np.int64, [2]))])

  @tff.tensorflow.computation(state_type)
  def stepped(state):
    return {"model": state["model"] + 1.0, "secret": state["secret"] + 1}

  @tff.tensorflow.computation(np.float32, np.float32)
  def product(value, factor):
    return value * factor

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS),
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(np.float32, tff.SERVER),
  )
  def compute(numbers, state, factor):
    state = tff.federated_map(stepped, state)
    scaled = tff.federated_map(product, (numbers, tff.federated_broadcast(state.model)))
    scaled = tff.federated_map(product, (scaled, tff.federated_broadcast(factor)))
    return tff.federated_sum(scaled), state

  secret = np.array([2**60 + 1, 2**61 + 3])
  tff.framework.set_default_context(cohort_context.CohortContext(block_size=2))
  total, state = compute([1.0, 2.0, 3.0], dict(model=4.0, secret=secret), 3.0)
  assert total == 6 * 5 * 3 and np.array_equal(state["secret"], secret + 1)
  assert len(sent) == 2
  for arrays, received, _ in sent:
    assert [array is None for array in arrays] == [False, True, True, True]
    assert sorted(float(one) for of_name in received.values() for one in of_name) == [3.0, 5.0]
