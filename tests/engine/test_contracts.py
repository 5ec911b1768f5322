"""What inlining, emission and mapping promise: effects, shapes and what clients share.

Each program gives here what it gives in TFF's runtime, or fails here as there.
"""

import collections

from helpers import calls
from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import context
from tff_superquantile.engine import runtime
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import ops

pytestmark = pytest.mark.usefixtures("restored_context")
_NUMBERS = tff.SequenceType(np.float32)


def counts_in_a_queue(number):
  queue = tf.queue.FIFOQueue(9, [tf.int32], [[]])
  with tf.control_dependencies([queue.enqueue(number)]):
    return queue.size()


def closes_a_queue(number):
  queue = tf.queue.FIFOQueue(9, [tf.int32], [[]])
  with tf.control_dependencies([queue.enqueue(number)]):
    taken = queue.dequeue()
  with tf.control_dependencies([taken]):
    close = queue.close()
  with tf.control_dependencies([close]):
    return tf.identity(taken)


def empties_a_queue_in_a_function(number):
  queue = tf.queue.RandomShuffleQueue(9, 0, [tf.string], [[]])

  @tf.function
  def through():
    before = queue.size()
    queue.enqueue(tf.strings.as_string(number))
    return before + tf.strings.to_number(queue.dequeue(), tf.int32)

  return through()


def adds_to_a_variable_by_a_queue(number):
  variable = tf.Variable(number)
  queue = tf.queue.FIFOQueue(9, [tf.int32], [[]])
  with tf.control_dependencies([queue.enqueue(variable.assign_add(1))]):
    return queue.dequeue() + variable


def looks_up(number):
  keys = tf.lookup.KeyValueTensorInitializer([1, 2, 7], [5, 6, number])
  return tf.lookup.StaticHashTable(keys, -1).lookup(tf.constant(7))


def counts_in_a_dense_table(number):
  table = tf.lookup.experimental.DenseHashTable(tf.int32, tf.int32, 0, -1, -2)
  with tf.control_dependencies([table.insert(number, table.lookup(number) + 1)]):
    return table.lookup(number)


def counts_in_a_variable(number):
  variable = tf.Variable(0)
  with tf.control_dependencies([variable.assign_add(1)]):
    return number + variable.read_value()


@pytest.mark.parametrize(
  "function",
  [
    adds_to_a_variable_by_a_queue,
    closes_a_queue,
    counts_in_a_dense_table,
    counts_in_a_queue,
    counts_in_a_variable,
    empties_a_queue_in_a_function,
    looks_up,
  ],
  ids=lambda f: f.__name__,
)
def test_clients_and_calls_share_no_state(native, function):
  """Also where nothing of a client's goes in."""
  component = tff.tensorflow.computation(function, np.int32)
  alone = tff.tensorflow.computation(lambda: function(tf.constant(7)))

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def twice(numbers):
    counts = [tff.federated_map(component, numbers) for _ in range(2)]
    return *counts, tff.federated_eval(alone, tff.CLIENTS), tff.federated_eval(alone, tff.SERVER)

  expected = invoke(native, twice, [7, 2, 7])
  for of_context in (cohort_context.CohortContext(), runtime.create_sync_context(2)):
    for _ in range(3):
      calls.assert_same(invoke(of_context, twice, [7, 2, 7]), expected)


def test_many_clients_have_queues_at_once():
  """More of them than TensorFlow has threads."""
  component = tff.tensorflow.computation(counts_in_a_queue, np.int32)
  here = cohort_context.CohortContext(parallel=64)
  assert invoke(here, at_clients(component), [3] * 100) == [1] * 100


def test_heavy_hitters_are_found_in_this_process(native):
  build = tff.analytics.heavy_hitters.iblt.build_iblt_computation
  compute = build(capacity=10, string_max_bytes=4)
  here = cohort_context.CohortContext()
  for words in (["a", "b", "a"], ["b", "cd"], ["a"] * 5):
    held = [tf.constant(one, tf.string) for one in (words, words[:1], [])]
    clients = [tf.data.Dataset.from_tensor_slices(texts).batch(2) for texts in held]
    # TFF's runtime takes long for each, so it is asked once; a plain count is compared with always.
    for of_context in (here, native) if "cd" in words else (here,):
      found = invoke(of_context, compute, clients)
      counts = dict(zip(found.heavy_hitters, found.heavy_hitters_counts))
      assert counts == collections.Counter(text.encode() for text in words + words[:1])
      assert found.clients == 3 and not found.num_not_decoded


def test_clients_that_read_elements_in_turn_share_no_iterator():
  """TFF's runtime fails at this one."""

  @tff.tensorflow.computation(np.int32)
  def component(number):
    data_set = tf.data.Dataset.from_tensor_slices(np.int32([5, 6, 7]))
    return number + tf.compat.v1.data.make_one_shot_iterator(data_set).get_next()

  context.set_simulation_context()
  for _ in range(2):
    assert at_clients(component)([0, 10, 20]) == [5, 15, 25]


def test_each_client_and_each_component_draws_its_own_number():
  draw = tff.tensorflow.computation(lambda: tf.random.uniform([]))
  add = tff.tensorflow.computation(lambda x: x + tf.random.uniform([]), np.float32)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def draws(zeros):
    alone = [tff.federated_eval(draw, tff.CLIENTS) for _ in range(2)]
    return *alone, tff.federated_map(add, zeros), tff.federated_eval(draw, tff.SERVER)

  tff.framework.set_default_context(cohort_context.CohortContext())
  found = [x for _ in range(2) for x in tf.nest.flatten(draws([0.0] * 5))]
  assert len({float(x) for x in found}) == len(found) == 2 * 16


def test_what_is_drawn_before_branches_and_loops_is_drawn_once():
  """Though only they use it."""

  @tff.tensorflow.computation(np.float32)
  def component(x):
    held = tf.Variable(tf.random.uniform([]))

    @tf.function
    def run():
      first, second, third = 0.0, 0.0, 0.0
      if x > 0:
        first = held + x
      if x > -1:
        second = held + x
      for _ in tf.range(4):
        third += held
      return first, second, third

    return run()

  found = invoke(cohort_context.CohortContext(), at_clients(component), [1.0, 1.0, 1.0])
  for first, second, third in found:
    assert first == second and third == pytest.approx(4 * (first - 1), rel=1e-5)
  assert len({first for first, _, _ in found}) == 3


@pytest.mark.parametrize("num_clients", [3, 17])
def test_an_op_with_a_seed_of_its_own_begins_anew_in_each_call(num_clients):
  """As TFF leaves open which client draws what."""

  @tff.tensorflow.computation(_NUMBERS)
  def component(data_set):
    return 0 * data_set.batch(2).take(1).get_single_element()[0] + tf.random.uniform([], seed=7)

  held = [tf.data.Dataset.from_tensor_slices(np.float32([1, 2]))] * num_clients
  tff.framework.set_default_context(cohort_context.CohortContext())
  first, second = (sorted(at_clients(component)(held)) for _ in range(2))
  assert first == second and len(set(first)) == num_clients


def squares_in_a_branch(x):
  """What is computed in one branch is not known in the other."""
  if x > 2:
    return 3 * (x * x)
  return -(x * x)


def grows(axis):
  def loop(x):
    """A loop's variable whose shape along one axis is known at first alone."""
    start = tf.reshape(tf.stack([x, x + 1]), [2, 1] if axis else [1, 2])
    found = start
    for i in tf.range(tf.cast(x, tf.int32)):
      tf.autograph.experimental.set_loop_options(
        shape_invariants=[(found, tf.TensorShape([2, None] if axis else [None, 2]))]
      )
      found = tf.concat([found, start * tf.cast(i, tf.float32)], axis)
    return tf.reduce_sum(found), tf.size(found)

  return loop


def of_steps(steps):
  def loop(x):
    """Its steps are known when it is traced."""
    total, i = tf.constant(1.0), tf.constant(0)
    while i < steps:
      total = 3 * total + x
      i += 1
    return total, i

  return loop


@pytest.mark.parametrize(
  "function", [squares_in_a_branch, grows(0), grows(1), *map(of_steps, range(4))]
)
def test_branches_and_loops_give_what_tffs_runtime_gives(native, function):
  component = calls.component_of(function, True)
  expected = invoke(native, at_clients(component), [0.0, 1.0, 4.0])
  calls.assert_same(
    invoke(cohort_context.CohortContext(), at_clients(component), [0.0, 1.0, 4.0]), expected
  )


@tff.tensorflow.computation(_NUMBERS)
def _count(data_set):
  return data_set.reduce(np.int32(0), lambda n, _: n + 1)


def test_what_clients_make_of_a_draw_is_made_once():
  """Whoever goes over it sees the same."""

  @tff.tensorflow.computation(_NUMBERS)
  def make(data_set):
    return data_set.take(tf.random.uniform([], 0, 1000, tf.int64))

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def count_twice(held):
    made = tff.federated_map(make, held)
    return tff.federated_map(_count, made), tff.federated_map(_count, made)

  context.set_simulation_context()
  first, second = count_twice(
    [tf.data.Dataset.range(1000).map(lambda x: tf.cast(x, tf.float32))] * 3
  )
  assert first == second


def test_what_clients_make_beside_an_effect_has_it(native):
  @tff.tensorflow.computation(_NUMBERS, np.float32)
  def make(data_set, x):
    @tf.function
    def checked(x):
      calls.check(x)
      return x

    with tf.control_dependencies([checked(x)]):
      return data_set.take(tf.cast(checked(x), tf.int64))

  @tff.federated_computation(
    tff.FederatedType(_NUMBERS, tff.CLIENTS), tff.FederatedType(np.float32, tff.CLIENTS)
  )
  def count(held, numbers):
    return tff.federated_map(_count, tff.federated_map(make, (held, numbers)))

  held = [tf.data.Dataset.from_tensor_slices(np.zeros(20, np.float32))] * 2
  for numbers in ([1.0, 3.0], [1.0, 9.0]):
    expected = calls.result_or_failure(native, count, held, numbers)
    calls.assert_same(
      calls.result_or_failure(cohort_context.CohortContext(), count, held, numbers), expected
    )


def _lines(name):
  return tf.data.TextLineDataset(name).map(lambda line: tf.strings.to_number(line)).shuffle(9)


def _with_seeded_draws(name):
  return _lines(name).map(lambda x: x + 0 * tf.random.uniform([], seed=1))


@pytest.mark.parametrize("make", [_lines, _with_seeded_draws])
def test_data_sets_that_clients_make_of_names_are_read_before(make, tmp_path):
  """For one call, as files may change; those that may change something are in the graph."""
  makes = tff.tensorflow.computation(make, np.str_)

  @tff.tensorflow.computation(makes.type_signature.result, np.float32)
  def add_up(data_set, start):
    return data_set.reduce(start, lambda total, x: total + x)

  @tff.federated_computation(
    tff.FederatedType(np.str_, tff.CLIENTS), tff.FederatedType(np.float32, tff.SERVER)
  )
  def program(names, start):
    made = tff.federated_map(makes, names)
    return tff.federated_map(add_up, (made, tff.federated_broadcast(start)))

  paths, ours = [tmp_path / name for name in "ab"], cohort_context.CohortContext()
  for numbers in ([[1, 2], [3]], [[4], []]):
    for path, own in zip(paths, numbers):
      path.write_text("".join(f"{number}\n" for number in own))
    found = invoke(ours, program, list(map(str, paths)), 10.0)
    assert found == [10 + sum(own) for own in numbers]
  ((traced, *_),) = ours._programs[id(program)].whole._functions.values()
  made = [node.op for node in ops.nodes_of(traced.graph.as_graph_def()) if "Line" in node.op]
  assert bool(made) == (make is _with_seeded_draws)


def _counted(held):
  return [int(n) for n in at_clients(_count)(held)]


def test_a_call_within_a_graph_is_computed_and_leaves_no_mark(lab):
  """In a process of its own, whose first call it is."""
  program = (
    "import numpy as np, tensorflow as tf, tensorflow_federated as tff, tff_superquantile as tsq\n"
    "tsq.set_simulation_context()\n"
    "kind = tff.SequenceType(np.float32)\n"
    "count = tff.tensorflow.computation(lambda d: d.map(abs).reduce(0, lambda n, _: n + 1), kind)\n"
    "at = tff.FederatedType(kind, tff.CLIENTS)\n"
    "counts = tff.federated_computation(lambda d: tff.federated_map(count, d), at)\n"
    "held = [tf.data.Dataset.from_tensor_slices(np.ones(3, np.float32)).map(tf.abs)]\n"
    "with tf.Graph().as_default():\n"
    "  print(counts(held)[0])\n"
    "print(counts(held)[0], tf.function(lambda: counts(held)[0])().numpy())\n"
  )
  done = lab.fork("-c", program).wait()
  assert done.out.split() == ["3"] * 3, done.err


def test_a_data_set_without_an_end_is_refused_unless_it_is_cut():
  endless = tf.data.Dataset.from_tensors(1.0).repeat()
  cut = tff.tensorflow.computation(
    lambda d: d.take(5).reduce(np.int32(0), lambda n, _: n + 1), _NUMBERS
  )
  context.set_simulation_context()
  assert _counted([endless.take(3)]) == [3]
  assert list(at_clients(cut)([endless])) == [5]
  with pytest.raises(tf.errors.InvalidArgumentError, match="^Found a data set without an end"):
    _counted([endless])


_BATCHES = tff.SequenceType(tff.TensorType(np.float32, [None]))


def _assigned(method, declared):
  """The computation that assigns batches, doubled, to a variable of three numbers."""

  def component(batches):
    held = tf.Variable(tf.zeros(3), shape=declared)

    @tf.function
    def run():
      for batch in batches:
        getattr(held, method)(2 * batch)
      # TFF's worker takes the size of a variable of any shape from its first value.
      return tf.reduce_sum(held.read_value()), tf.reduce_mean(held.read_value())

    return run()

  return at_clients(tff.tensorflow.computation(component, _BATCHES))


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_variables_keep_their_shape_as_in_tffs_runtime(native, method):
  one = tf.data.Dataset.range(1, 8).map(lambda i: tf.cast(i, tf.float32))
  full, short = one.take(6).batch(3), one.batch(3)  # The last batch has one number.
  for declared in ([3], [None]):
    program = _assigned(method, declared)
    for held in ([full, full], [full, short]):
      expected = calls.result_or_failure(native, program, held)
      for of_context in (cohort_context.CohortContext(), runtime.create_sync_context(2)):
        calls.assert_same(calls.result_or_failure(of_context, program, held), expected)
      is_refused = held[1] is short and (declared == [3] or method != "assign")
      assert (expected is calls.FAILS) == is_refused


def test_variables_of_each_type_change_as_in_tffs_runtime(native):
  @tff.tensorflow.computation(np.int32)
  def component(x):
    results = []
    for dtype in "uint8 uint16 uint32 uint64 int8 int16 int32 int64 half float double".split():
      number = tf.cast(x, dtype)
      held = tf.Variable(number, shape=[])
      with tf.control_dependencies([held.assign_add(number + 1)]):
        with tf.control_dependencies([held.assign_sub(number - 3)]):
          results.append(held.read_value())
    return results

  expected = invoke(native, at_clients(component), [5, 2])
  calls.assert_same(invoke(cohort_context.CohortContext(), at_clients(component), [5, 2]), expected)


def _compiled(function):
  return tf.function(function, jit_compile=True)


XLAS = {
  "a row beyond the end": _compiled(lambda i: tf.gather([10.0, 20.0], i)),
  "a division by zero": _compiled(lambda i: tf.cast(8 // (i - 5), tf.float32)),
  "draws by a seed": _compiled(lambda i: tf.random.stateless_truncated_normal([], [i, 1])),
  "within a function": tf.function(_compiled(lambda i: tf.gather([10.0, 20.0], i))),
  "within a branch": tf.function(
    lambda i: tf.cond(i > 2, lambda: _compiled(lambda: tf.gather([1.0, 2.0], i))(), lambda: 3.0)
  ),
}


@pytest.mark.parametrize("name", XLAS)
def test_xla_computes_nothing_that_raises_in_tffs_worker(native, name):
  """In components with a variable and without, and in what data sets map."""
  function, numbers = XLAS[name], tff.SequenceType(np.int32)
  components = [
    tff.tensorflow.computation(function, np.int32),
    tff.tensorflow.computation(lambda i: function(i) + tf.Variable(0.0), np.int32),
    tff.tensorflow.computation(lambda d: d.reduce(0.0, lambda a, i: a + function(i)), numbers),
    tff.tensorflow.computation(
      lambda d: d.map(function).reduce(0.0, lambda total, x: total + x), numbers
    ),
  ]
  one = tf.data.Dataset.from_tensor_slices
  for value in (1, 5):
    for component, held in zip(components, ([value], [value], [one([value])], [one([value])])):
      expected = calls.result_or_failure(native, at_clients(component), held)
      found = calls.result_or_failure(cohort_context.CohortContext(), at_clients(component), held)
      calls.assert_same(found, expected)
    sums = tff.tensorflow.computation(lambda d: d.reduce(0.0, lambda total, x: total + x), _NUMBERS)
    held = [one([value]).map(function)]
    expected = calls.result_or_failure(native, at_clients(sums), held)
    for of_context in (cohort_context.CohortContext(), runtime.create_sync_context(2)):
      calls.assert_same(calls.result_or_failure(of_context, at_clients(sums), held), expected)
