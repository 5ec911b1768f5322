"""Where noise comes from: seeds of 128 bits on all their ways, and nothing narrower in the sources.

A seed of 32 bits can be found by trying them all, and the noise be subtracted.
"""

import ast
import pathlib

from helpers import calls
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import noise_source
from tff_superquantile.engine.cohort import cohort_context

_KEY, _OTHER_KEY = bytes(range(16)), bytes(range(1, 17))
_SOURCES = pathlib.Path(noise_source.__file__).resolve().parent


def _assert_128_bits(seeds):
  """Seeds are int64 [n, 2] with all bits in use; of n = 400 000 those of 32 bits collide."""
  seeds = np.asarray(seeds)
  assert seeds.dtype == np.int64 and seeds.ndim == 2 and seeds.shape[1] == 2
  n = len(seeds)
  for word in seeds.view(np.uint64).T:
    assert len(np.unique(word)) == n, "a word repeats"
    halves = [word >> np.uint64(32), word & np.uint64(2**32 - 1)]
    for half in halves:
      # Two of 2^32 are the same by chance, n^2 / 2^33 times.
      chance = n * n / 2**33
      assert n - len(np.unique(half)) <= chance + 6 * np.sqrt(chance) + 1, "half a word repeats"
  bits = np.unpackbits(np.ascontiguousarray(seeds).view(np.uint8), axis=1)
  assert bits.shape == (n, 128)
  means = bits.mean(axis=0)
  assert np.abs(means - 0.5).max() < 6 * 0.5 / np.sqrt(n), "a bit is not a fair coin"
  some = bits[:20_000].astype(np.float32)
  correlations = np.corrcoef(some.T) - np.eye(128)
  assert np.abs(correlations).max() < 6.5 / np.sqrt(len(some)), "bits depend on each other"


def _as_array(seeds):
  return np.array([np.asarray(seed) for seed in seeds])


# Splitting.


def test_split_gives_many_seeds_of_128_bits():
  seeds = noise_source.split(tf.constant([5, 7], tf.int64), 3)
  assert len(seeds) == 3 and {(seed.dtype, tuple(seed.shape)) for seed in seeds} == {
    (tf.int64, (2,))
  }
  parts = tf.function(lambda seed: tf.stack(noise_source.split(seed, 1000)))
  _assert_128_bits(np.concatenate([parts(tf.constant([5, i], tf.int64)) for i in range(400)]))


def test_the_first_parts_of_neighbouring_seeds_are_seeds_of_128_bits():
  @tf.function
  def first_parts(first):
    seeds = tf.stack([first + tf.range(20_000, dtype=tf.int64), tf.zeros(20_000, tf.int64)], axis=1)
    return tf.map_fn(lambda seed: noise_source.split(seed, 2)[0], seeds)

  seeds = first_parts(tf.constant(0, tf.int64)).numpy()
  _assert_128_bits(seeds)
  # All of a seed counts, its sign and its second word, too.
  others = [(0, 1), (1, 0), (2**32, 0), (0, 2**32), (2**62, 0), (0, 2**62), (-1, 0), (0, -1)]
  found = _as_array(noise_source.split(tf.constant(other, tf.int64), 2)[0] for other in others)
  assert len(np.unique(found[:, 0])) == len(np.unique(found[:, 1])) == len(others)


def test_split_is_a_function_of_the_seed_in_a_graph_as_outside():
  seed = tf.constant([-3, 2**60], tf.int64)
  outside = _as_array(noise_source.split(seed, 3))
  np.testing.assert_array_equal(outside, tf.function(noise_source.split)(seed, 3))
  np.testing.assert_array_equal(outside, noise_source.split(seed, 3))
  assert noise_source.split(tf.constant([1, 2], tf.int32), 2)[0].dtype == tf.int64


def test_what_is_narrower_is_noticed():
  # What the library had before: one of two int32, the other one the index.
  folded = tf.random.experimental.stateless_fold_in(tf.constant([5, 7], tf.int64), 3)
  assert folded.dtype == tf.int32 and int(folded[1]) == 3
  rng = np.random.default_rng(0)
  few = rng.integers(0, 2**32, 200_000, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
  of_32_bits = np.stack([few, few], axis=1)
  full = rng.integers(-(2**63), 2**63, [200_000, 2])
  _assert_128_bits(full)
  for narrow in (
    of_32_bits.view(np.int64),
    full.astype(np.int32),
    full.astype(np.int32).astype(np.int64),
    full & (2**63 - 1),
    full & np.array([-1, 0]),
    full & np.array([-1, 2**32 - 1]),
    np.repeat(full[:, :1], 2, axis=1),
  ):
    with pytest.raises(AssertionError):
      _assert_128_bits(narrow)


# A server's source.


def _draws(source, num, state=None):
  state, seeds = source.initial_state() if state is None else state, []
  for _ in range(num):
    assert state.dtype == tf.int64 and state.shape == [2]
    seed, state = source.draw(state)
    assert seed.dtype == tf.int64 and seed.shape == [2]
    seeds.append(tuple(seed.numpy()))
  return seeds, state


def test_with_a_key_draws_repeat_and_go_on_from_a_state():
  first, _ = _draws(noise_source.NoiseSource(_KEY, "test"), 6)
  assert len({word for seed in first for word in seed}) == 12
  assert _draws(noise_source.NoiseSource(_KEY, "test"), 6)[0] == first
  _, state = _draws(noise_source.NoiseSource(_KEY, "test"), 2)
  # The state is all that counts, as a checkpoint brings it back.
  assert _draws(noise_source.NoiseSource(_OTHER_KEY, "x"), 4, state)[0] == first[2:]


def test_keys_and_purposes_have_draws_of_their_own():
  drawn = [
    seed
    for key in (_KEY, _OTHER_KEY, bytes(16), bytes([*bytes(15), 1]))
    for purpose in ("sum of updates", "updates", "histogram", "geometric threshold", "")
    for seed in _draws(noise_source.NoiseSource(key, purpose), 3)[0]
  ]
  assert len({word for seed in drawn for word in seed}) == 2 * len(drawn) == 120


def test_keys_for_purposes_are_keys():
  derived = [
    noise_source.derive_key(bytes([*bytes(14), *i.to_bytes(2, "big")]), "test")
    for i in range(30_000)
  ]
  assert {len(key) for key in derived} == {16}
  _assert_128_bits(np.array([np.frombuffer(key, np.int64) for key in derived]))
  assert noise_source.derive_key(_KEY, "test") != _KEY
  # The first state is of 128 bits as well.
  sources = (noise_source.NoiseSource(None, "test") for _ in range(3000))
  _assert_128_bits(_as_array(source.initial_state() for source in sources))


def test_without_a_key_no_draw_repeats():
  sources = [noise_source.NoiseSource(None, "test") for _ in range(2)]
  states = [source.initial_state() for source in sources]
  assert np.all(states[0] != states[1])
  drawn = []
  for source, state in zip(sources, states):
    assert np.all(state == source.initial_state())  # One secret for each that is built.
    drawn += [seed for _ in range(50) for seed in _draws(source, 1, state)[0]]
    traced = tf.function(source.draw)
    drawn += [tuple(traced(state)[0].numpy()) for _ in range(50)]
  assert len({word for seed in drawn for word in seed}) == 2 * len(drawn) == 400


@pytest.mark.usefixtures("simulation_context")
@pytest.mark.parametrize("key", [_KEY, None])
def test_processes_draw_anew_from_one_state_unless_they_have_a_key(key):
  source = noise_source.NoiseSource(key, "test")
  initialize = tff.tensorflow.computation(source.initial_state)
  draw = tff.tensorflow.computation(source.draw, initialize.type_signature.result)
  seeds = [tuple(draw(initialize())[0]) for _ in range(5)]
  assert len(set(seeds)) == (5 if key is None else 1)


@pytest.mark.parametrize("length", [0, 8, 15, 17, 32])
def test_a_key_of_another_length_is_refused(length):
  message = f"Found a noise key of {length} bytes; expected 16"
  with pytest.raises(ValueError, match=message):
    noise_source.NoiseSource(bytes(length), "test")


# A client's own entropy.


@pytest.fixture
def a_seed_for_all():
  """As a model may set it."""
  tf.random.set_seed(0)
  yield
  tf.random.set_seed(None)


@pytest.mark.usefixtures("a_seed_for_all")
def test_fresh_seeds_differ_each_time_in_a_graph_as_outside():
  @tf.function
  def traced():
    tf.random.set_seed(0)
    return noise_source.fresh_seed(), noise_source.fresh_seed()

  seeds = [noise_source.fresh_seed() for _ in range(500)]
  seeds += [seed for _ in range(500) for seed in traced()]
  assert {(seed.dtype, tuple(seed.shape)) for seed in seeds} == {(tf.int64, (2,))}
  _assert_128_bits(_as_array(seeds))


def test_a_fresh_seed_has_128_bits_of_the_operating_systems(monkeypatch):
  # TensorFlow's entropy is of 32 bits; without it, what is left must do.
  monkeypatch.setattr(noise_source, "_entropy", lambda: tf.zeros([2], tf.int64))
  _assert_128_bits(_as_array(noise_source.fresh_seed() for _ in range(3000)))


def _fresh_seeds(num_clients):
  """A computation of clients' numbers, 0 and up, that returns the seed of each: int64 [n, 2]."""

  @tff.tensorflow.computation(np.int32)
  def draw(index):
    tf.random.set_seed(0)
    seed = noise_source.fresh_seed()
    return tf.scatter_nd([[index]], seed[tf.newaxis], [num_clients, 2])

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def all_seeds(indices):
    return tff.federated_sum(tff.federated_map(draw, indices))

  return all_seeds


@pytest.mark.usefixtures("simulation_context")
@pytest.mark.parametrize("runtime", ["tffs", "in_process"])
def test_in_a_round_every_client_has_a_fresh_seed(runtime):
  old = tff.framework.get_context_stack().current
  draw = _fresh_seeds(40)
  indices = [np.int32(i) for i in range(40)]
  try:
    tff.framework.set_default_context(
      cohort_context.CohortContext() if runtime == "in_process" else calls.tffs_runtime()
    )
    seeds = np.concatenate([draw(indices) for _ in range(3)])
  finally:
    tff.framework.set_default_context(old)
  _assert_128_bits(seeds)


# What the library must not use.

_NARROW = {
  "tensorflow.random.experimental.stateless_fold_in",
  "tensorflow.random.fold_in",
  *(f"tensorflow.random.{name}" for name in ("normal", "uniform", "truncated_normal", "gamma")),
  *("tensorflow.random.Generator", "tensorflow.random.get_global_generator"),
}


def _dotted(node, imports):
  """The name of an attribute of a module, with the module's full name; "" of others."""
  parts = []
  while isinstance(node, ast.Attribute):
    parts.append(node.attr)
    node = node.value
  if not isinstance(node, ast.Name) or node.id not in imports:
    return ""
  return ".".join([imports[node.id], *reversed(parts)])


def _narrow_names(code):
  """Names in a module by which noise would come of a narrow seed, or of TensorFlow Privacy."""
  tree = ast.parse(code)
  imports = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      imports.update({a.asname or a.name.split(".")[0]: a.name for a in node.names})
    elif isinstance(node, ast.ImportFrom) and node.module:
      imports.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
  for node in ast.walk(tree):
    if isinstance(node, (ast.Attribute, ast.Name)):
      name = _dotted(node, imports)
      if name in _NARROW:
        yield name
    if isinstance(node, ast.Call):
      # To inherit from a query is fine: who does so makes the noise.
      name = _dotted(node.func, imports)
      if name.startswith("tensorflow_privacy.Gaussian"):
        yield name


def test_the_library_has_no_narrow_source_of_noise():
  paths = sorted(_SOURCES.rglob("*.py"))
  assert len(paths) > 30
  found = {
    str(path.relative_to(_SOURCES)): set(_narrow_names(path.read_text("utf-8"))) for path in paths
  }
  assert {path: names for path, names in found.items() if names} == {}


def test_tensorflows_own_entropy_is_used_beside_that_of_the_operating_system_only():
  found = [
    str(path.relative_to(_SOURCES))
    for path in sorted(_SOURCES.rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.Attribute) and node.attr == "NonDeterministicInts"
  ]
  assert found == ["noise_source.py"]


@pytest.mark.parametrize(
  "code,expected",
  [
    ("import tensorflow as tf\ntf.random.normal([3])", {"tensorflow.random.normal"}),
    ("from tensorflow import random\nrandom.uniform([3])", {"tensorflow.random.uniform"}),
    (
      "import tensorflow_privacy as tfp\ntfp.GaussianSumQuery(1.0, 2.0)",
      {"tensorflow_privacy.GaussianSumQuery"},
    ),
    (
      "import tensorflow_privacy as tfp\nclass A(tfp.GaussianSumQuery):\n  '''tf.random.normal'''",
      set(),
    ),
    ("import tensorflow as tf\ntf.random.stateless_uniform([3], [1, 2])", set()),
  ],
)
def test_narrow_sources_are_found(code, expected):
  assert set(_narrow_names(code)) == expected
