"""The engine computes what TFF's runtime does, and leaves the rest to it."""

import collections
import functools
import gc
import weakref

from helpers import calls
from helpers import rounds
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import noise_source
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import mapping
from tff_superquantile.engine.cohort import programs
from tff_superquantile.engine.cohort import reading
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.simulation import client_files

pytestmark = pytest.mark.usefixtures("restored_context")


@pytest.fixture(scope="module")
def in_process():
  """The engine for all tests that do not look at what it has traced, so that it traces once."""
  return cohort_context.CohortContext()  # No fallback: it would hide what cannot be done.


# These are made of parts that others here have: both, in the long run.
_OF_OTHERS_PARTS = (
  *("private geometric", "private weighted distributed", "private gifair"),
  *("tree", "prop_fair", "tilted_erm"),
)
# One of each way to add up, in blocks; the others, in the long run.
_IN_BLOCKS = ("exact", "private tree", "private distributed", "agnostic_fed_avg")


@pytest.fixture(scope="module")
def whole_cohorts(in_process, equal_files):
  """Outputs of rounds with whole cohorts."""
  clients = [range(20), [*range(4, 18), 3, 1], range(20)]
  cohorts = [rounds.cohort(equal_files, c, r) for r, c in enumerate(clients)]

  @functools.cache
  def of(name):
    process = rounds.build(name, equal_files, 0)
    return process, cohorts, rounds.run(in_process, process, cohorts)

  return of


def _later(name, is_later):
  return pytest.param(name, marks=[pytest.mark.slow] if is_later else [])


@pytest.mark.parametrize(
  "name", [_later(name, name in _OF_OTHERS_PARTS) for name in rounds.BUILDERS]
)
def test_rounds_are_those_of_tffs_runtime(name, native, whole_cohorts):
  process, cohorts, whole = whole_cohorts(name)
  rounds.assert_same(whole, rounds.run(native, process, cohorts))


@pytest.mark.parametrize("name", [_later(name, name not in _IN_BLOCKS) for name in rounds.BUILDERS])
def test_blocks_are_whole_cohorts(name, whole_cohorts):
  """Client by client."""
  process, cohorts, whole = whole_cohorts(name)
  blocks = rounds.run(cohort_context.CohortContext(block_size=7), process, cohorts)
  # Noise that is distributed is integers, whose sums do not depend on their order.
  rounds.assert_same(blocks, whole, rtol=0 if name == "private distributed" else 1e-5)


# FedProx moves away from FedAvg in a client's second step; of the rest, one without and one with
# noise of the clients, as they share their local training.
@pytest.mark.parametrize("name", ["exact", "fed_prox", "private distributed"])
def test_rounds_of_several_steps_are_those_of_tffs_runtime(name, in_process, native, unequal_files):
  process = rounds.build(name, unequal_files, 4)
  clients = [range(16), range(2, 20), [4, 5, 6, 7, 8, 9, 1, 3]]
  cohorts = [rounds.cohort(unequal_files, c, r) for r, c in enumerate(clients)]
  rounds.assert_same(rounds.run(in_process, process, cohorts), rounds.run(native, process, cohorts))


@pytest.mark.parametrize("name", ["exact", "private distributed"])
def test_an_empty_cohort_is_that_of_tffs_runtime(name, in_process, native, equal_files):
  process = rounds.build(name, equal_files, 0)
  rounds.assert_same(rounds.run(in_process, process, [[]]), rounds.run(native, process, [[]]))


def test_clients_without_examples_are_those_of_tffs_runtime(in_process, native, equal_files):
  """Who sends noise alone has a file, like others, and reads nothing of it."""
  process = rounds.build("private distributed", equal_files, 0, may_lack_examples=True)

  def clients(helpers, round_num):
    names, seeds = [f"client {i}" for i in range(17)], [(i, round_num) for i in range(17)]
    return equal_files.handles(names, seeds, [i not in helpers for i in range(17)])

  cohorts = [clients(*args) for args in (((), 0), ((3, 9, 16), 1), (range(17), 2), ((0,), 3))]
  found = rounds.run(in_process, process, cohorts)
  rounds.assert_same(found, rounds.run(native, process, cohorts))
  # As if they had no file at all, and not as if they trained.
  everybody = rounds.run(
    in_process, rounds.build("private distributed", equal_files, 0), cohorts[:2]
  )
  rounds.assert_same(found[0], everybody[0])
  sizes = [
    float(output.metrics["client_work"]["threshold"]["estimated_cohort_size"])
    for output in (found[1], everybody[1])
  ]
  # One report's noise is the same in both; the counts differ by those who did not count.
  assert sizes[1] - sizes[0] == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("batch_size", [0, 4])
def test_one_function_is_traced_for_cohorts_of_all_sizes(
  batch_size, equal_files, unequal_files, monkeypatch
):
  monkeypatch.setattr(programs, "_traced", collections.OrderedDict())
  process = rounds.build("exact", unequal_files if batch_size else equal_files, batch_size)
  context = cohort_context.CohortContext()
  rounds.run(context, process, [rounds.cohort(equal_files, range(n)) for n in (2, 16, 20)])
  assert len(context._programs[id(process.next)].whole._functions) == 1


@pytest.mark.parametrize("name", ["exact", "tree", "private distributed"])
def test_what_a_context_has_computed_before_does_not_matter(name, in_process, equal_files):
  """Bit for bit, also by other numbers of clients."""
  process = rounds.build(name, equal_files, 0)
  cohorts = [rounds.cohort(equal_files, range(17), r) for r in range(2)]
  rounds.run(in_process, process, [rounds.cohort(equal_files, range(20)), *cohorts[::-1]])
  used = rounds.run(in_process, process, cohorts)
  rounds.assert_same(used, rounds.run(cohort_context.CohortContext(), process, cohorts), rtol=0)


@pytest.mark.parametrize("reads_files", [False, True])
def test_unseeded_noise_is_each_clients_own_and_new_in_each_round(reads_files, equal_files):
  """Shared between clients, or drawn when the graph was traced, it would hide nobody."""
  read = client_files.build_examples_fn(equal_files, shuffle=False)

  @tff.tensorflow.computation(client_files.HANDLE_TYPE)
  def draw(handle):
    noise = discrete_gaussian.sample([1000], 5.0, noise_source.fresh_seed())
    # Twice the same draw in one graph: two draws.
    noise += 1000 * discrete_gaussian.sample([1000], 5.0, noise_source.fresh_seed())
    if reads_files:  # Which has these graphs taken apart.
      noise += tf.cast(0.0 * tf.reduce_sum(read(handle)[0]), tf.int64)
    return noise

  @tff.federated_computation(tff.FederatedType(client_files.HANDLE_TYPE, tff.CLIENTS))
  def total(clients):
    return tff.federated_sum(tff.federated_map(draw, clients))

  tff.framework.set_default_context(cohort_context.CohortContext())
  clients = rounds.cohort(equal_files, range(rounds.NUM_CLIENTS))
  first, second = total(clients), total(clients)
  assert np.mean(first == second) < 0.01
  for sums in (first, second):
    high = np.rint(sums / 1000)
    low = sums - 1000 * high
    for part in (high, low):
      # The sum of independent draws of n clients has n times the variance of one, not n^2.
      assert np.std(part) == pytest.approx(5.0 * np.sqrt(rounds.NUM_CLIENTS), rel=0.2)
    assert abs(np.corrcoef(high, low)[0, 1]) < 0.2  # Six standard deviations.


@pytest.mark.parametrize("name", ["equal_files", "unequal_files"])
@pytest.mark.parametrize("stddev", [2.2, 300.0])
def test_seeded_noise_is_the_same_wherever_it_is_drawn(name, stddev, native, request):
  """Here, in TFF's runtime, and outside of TFF."""
  files = request.getfixturevalue(name)
  read = client_files.build_examples_fn(files, shuffle=False)

  @tff.tensorflow.computation(client_files.HANDLE_TYPE)
  def draw(handle):
    noise = discrete_gaussian.sample([999], stddev, handle["seed"])
    return noise + tf.cast(0.0 * tf.reduce_sum(read(handle)[0]), tf.int64)

  @tff.federated_computation(tff.FederatedType(client_files.HANDLE_TYPE, tff.CLIENTS))
  def draw_all(clients):
    return tff.federated_map(draw, clients)

  clients = rounds.cohort(files, range(rounds.NUM_CLIENTS))
  for one in (cohort_context.CohortContext(), native):
    tff.framework.set_default_context(one)
    for client, noise in zip(clients, draw_all(clients)):
      expected = discrete_gaussian.sample([999], stddev, client["seed"])
      np.testing.assert_array_equal(noise, expected)


@pytest.mark.parametrize(
  "rows_of,expected",
  [
    (lambda rows, row: [rows, [row]], [3, 1, 2]),
    (lambda rows, row: [[row], rows], [2, 1, 3]),
    (lambda rows, row: [rows, [2 * row]], [6, 2, 4]),
    (lambda rows, row: [rows, [row], [row]], [3, 3, 1, 1, 2, 2]),
    (lambda rows, row: [2 * rows, [row]], [12, 2, 2]),
  ],
  ids=["below", "above", "doubled", "twice", "doubling"],
)
def test_folds_that_stack_rows(rows_of, expected):
  """Only where each step puts the client's row below the others is there nothing to compute."""

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def stack(values):
    return calls.stacked(values, lambda rows, row: tf.concat(rows_of(rows, row), axis=0))

  tff.framework.set_default_context(cohort_context.CohortContext())
  np.testing.assert_array_equal(stack([3, 1, 2]), expected)


def _num_bytes(store):
  return sum(value.nbytes for kept in store._clients.values() for value in kept.values())


def test_what_is_kept_of_the_files_is_bounded(monkeypatch, in_process, unequal_files):
  monkeypatch.setattr(reading, "_CLIENTS_A_CALL", 3)
  cohorts = [
    rounds.cohort(unequal_files, clients) for clients in (range(20), [5, 5, 1], range(10, 20))
  ]
  process = rounds.build("exact", unequal_files, 4)
  small = cohort_context.CohortContext(max_bytes=2000)  # A few clients of 24 bytes an example.
  rounds.assert_same(
    rounds.run(small, process, cohorts), rounds.run(in_process, process, cohorts), rtol=0
  )
  assert 0 < _num_bytes(small._store) == small._store._bytes <= 2000


def test_what_was_not_used_for_longest_is_forgotten():
  read = []

  class Reader:
    positions = [0]

    def __init__(self, **sizes):
      self.keys = self.refs = list(sizes)
      self.specs = [tf.TensorSpec([None], tf.uint8)] * len(sizes)
      self._sizes = sizes.values()

    def __call__(self, clients):
      read.extend(name for (name,) in clients)
      return [[np.zeros(size, np.uint8) for size in self._sizes] for _ in clients]

  store = reading.Store(max_bytes=24)  # Just enough for three clients.
  for names, expected in (
    ("abc", "abc"),
    ("a", ""),
    ("d", "d"),
    ("ac", ""),
    ("b", "b"),
    ("ac", ""),
  ):
    read.clear()
    (of_cohort,) = store.read(Reader(x=8), [np.array(list(names), object)])
    assert [len(array) for array in of_cohort.arrays] == [8] * len(names)
    assert "".join(read) == expected

  # What it has already is read once more, and not counted twice.
  store.read(Reader(x=8, y=4), [np.array(["a"], object)])
  assert _num_bytes(store) == store._bytes <= 24


@pytest.mark.parametrize(
  "clients",
  [
    [dict(number=i, name=f"{i}", vector=np.float32([i, 1])) for i in range(3)],
    [dict(number=np.int32(i), name=str(i).encode(), vector=np.float32([i, 1])) for i in range(3)],
    [dict(number=7, name=np.str_("1"), vector=[1.0, 1.5])] * 3,
    [(i, "a", np.float32([i, 1])) for i in range(3)],
    [dict(number=1, name="a", vector=np.float32([0, 1])), (2, b"b", [1.0, 2.0])],
  ],
  ids=["plain", "arrays", "other types", "tuples", "mixed"],
)
def test_clients_values_in_all_forms_that_tff_takes(clients, native):
  member = collections.OrderedDict(
    number=np.int32, name=np.str_, vector=tff.TensorType(np.float32, [2])
  )

  @tff.tensorflow.computation(member)
  def describe(client):
    length = tf.strings.length(client["name"])
    return client["number"] + 10 * length, client["vector"]

  @tff.federated_computation(tff.FederatedType(member, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(describe, values))

  results = []
  for of_context in (cohort_context.CohortContext(), native):
    tff.framework.set_default_context(of_context)
    results.append(total(clients))
  rounds.assert_same(*results)


def test_what_is_wrong_is_said():
  member = collections.OrderedDict(a=np.int32, b=tff.TensorType(np.float32, [2]))

  @tff.federated_computation(tff.FederatedType(member, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  tff.framework.set_default_context(cohort_context.CohortContext())
  client = dict(a=1, b=np.float32([1, 2]))
  assert total([client] * 2)["a"] == 2
  with pytest.raises(TypeError, match=r"Found a value of shape \(3,\)"):
    total([dict(client, b=np.float32([1, 2, 3]))] * 2)
  with pytest.raises(TypeError, match="Found the names"):
    total([dict(client, c=1)] * 2)


def test_a_loop_that_cannot_be_traced_leaves_no_mark_on_the_process():
  def fail(x):
    raise ValueError(str(x.shape))

  @tf.function
  def loop():
    return mapping._map_fn(fail, tf.range(3))

  with pytest.raises(ValueError):
    loop()
  assert tf.compat.v1.get_variable_scope().caching_device is None


def _total_of_files(factor):
  @tf.function
  def scaled(number):
    return tf.while_loop(lambda i, _: i < 2, lambda i, value: (i + 1, factor * value), (0, number))[
      1
    ]

  @tff.tensorflow.computation(np.str_)
  def read(path):
    return scaled(tf.strings.to_number(tf.io.read_file(path)))

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def total(paths):
    return tff.federated_sum(tff.federated_map(read, paths))

  return total


def test_equal_programs_share_traces_and_nothing_else(tmp_path, monkeypatch):
  monkeypatch.setattr(programs, "_traced", collections.OrderedDict())
  monkeypatch.setattr(programs, "_MOST_TRACED", 2)
  path, stores = tmp_path / "client", []

  def compute(computation, number):
    path.write_text(str(number))  # Another context reads it anew.
    context = cohort_context.CohortContext()
    stores.append(weakref.ref(context._store))
    return context.invoke(computation, [str(path)])

  assert [compute(_total_of_files(2.0), number) for number in (1, 3)] == [4.0, 12.0]
  assert len(programs._traced) == 1
  assert compute(_total_of_files(3.0), 3) == 27.0
  assert len(programs._traced) == 2
  assert compute(_total_of_files(5.0), 3) == 75.0
  assert len(programs._traced) == 2  # The one that was not used for longest is gone.
  gc.collect()
  assert [store() for store in stores] == [None] * 4


def test_draws_have_traces_of_their_own(monkeypatch):
  monkeypatch.setattr(programs, "_traced", collections.OrderedDict())
  draw = tff.tensorflow.computation(lambda: tf.random.uniform([]))
  context = cohort_context.CohortContext()
  assert context.invoke(draw, None) != context.invoke(draw, None)
  assert not programs._traced
