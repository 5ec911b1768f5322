"""Cohorts in blocks: a computation that is cut at its aggregations gives what it gave whole.

That all algorithms do is in `test_cohort_engine`, where their whole cohorts are computed.
"""

import functools

from helpers import calls
from helpers import problems
from helpers import rounds
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort import stages
from tff_superquantile.simulation import client_files

_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_PAIR = (np.float32, np.float32)
_VALUES = [3.0, -1.0, 4.0, 1.5, -9.0, 2.5, 6.0]
pytestmark = pytest.mark.usefixtures("restored_context")


def in_blocks(size):
  return cohort_context.CohortContext(block_size=size)


def computed(computation, block_size, *args):
  """The result in blocks, and the number of stages."""
  context = in_blocks(block_size)
  tff.framework.set_default_context(context)
  result = computation(*args)
  (program,) = context._programs.values()
  assert isinstance(program.stages, stages.Stages), program.stages
  return result, len(program.stages)


def test_the_same_blocks_give_the_same_bits_and_others_need_not(unequal_files):
  process = rounds.build("exact", unequal_files, 4)
  cohorts = [rounds.cohort(unequal_files, range(20), r) for r in range(3)]

  def weights(size):
    return rounds.run(in_blocks(size), process, cohorts)[-1].state.global_model_weights.trainable

  first = weights(7)
  # 9 makes as many blocks, of the same sizes.
  for size in (7, 9):
    assert all(map(np.array_equal, first, weights(size)))
  # One after the other, until there is one that differs.
  assert not all(all(map(np.array_equal, first, weights(size))) for size in (1, 4, 10, 20))


@pytest.mark.parametrize("size", [1, 2, 3, 6, None])
def test_each_aggregation_in_blocks(size):
  product = tff.tensorflow.computation(lambda a, b: a * b, _PAIR)
  negative = tff.tensorflow.computation(lambda a: -a, np.float32)
  integer = tff.tensorflow.computation(lambda a: tf.cast(a, tf.int32), np.float32)

  @tff.federated_computation(_FLOATS, tff.FederatedType(np.float32, tff.SERVER))
  def everything(values, factor):
    scaled = tff.federated_map(product, (values, tff.federated_broadcast(factor)))
    integers = tff.federated_map(integer, values)
    return dict(
      sum=tff.federated_sum(scaled),
      mean=tff.federated_mean(scaled),
      weighted=tff.federated_mean(scaled, tff.federated_map(product, (values, values))),
      smallest=tff.federated_min(scaled),
      largest=tff.federated_max(scaled),
      product=tff.federated_aggregate(scaled, np.float32(1.0), product, product, negative),
      # The newest comes first: it is no append, so that the engine folds client after client.
      rows=calls.stacked(
        scaled,
        lambda rows, row: tf.concat([[row], rows], axis=0),
        lambda first, second: tf.concat([second, first], axis=0),
      ),
      modular=tff.backends.mapreduce.federated_secure_modular_sum(integers, 5),
      secure=tff.federated_secure_sum(integers, 100),
      bits=tff.federated_secure_sum_bitwidth(integers, 10),
    )

  values = np.array(_VALUES, np.float32)
  found, num_stages = computed(everything, size, list(values), 2.0)
  assert num_stages == 1
  integers = values.astype(int)
  expected = dict(
    sum=2 * values.sum(),
    mean=2 * values.mean(),
    weighted=2 * np.average(values, weights=values**2),
    smallest=-18.0,
    largest=12.0,
    product=-np.prod(2 * values),
    rows=2 * values[::-1],
    modular=integers.sum() % 5,
    secure=integers.sum(),
    bits=integers.sum(),
  )
  assert set(found) == set(expected)
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize("sum_of", [tff.federated_secure_sum, tff.federated_secure_sum_bitwidth])
def test_what_is_too_large_for_a_secure_sum_is_found_in_the_last_block(sum_of, size):
  most, bound = (9, 9) if sum_of is tff.federated_secure_sum else (7, 3)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return sum_of(values, bound)

  assert computed(total, size, [1, most, 3, 4, 5])[0] == 13 + most
  with pytest.raises(tf.errors.InvalidArgumentError, match="larger than maximum"):
    computed(total, size, [1, 2, 3, 4, most + 1])


def test_clients_draw_once_what_two_stages_use():
  """Three aggregations, one after the other: a mean, a variance and what lies within."""

  draw = tff.tensorflow.computation(lambda value: value + tf.random.uniform([]), np.float32)
  squared_distance = tff.tensorflow.computation(lambda value, center: (value - center) ** 2, _PAIR)
  is_within = tff.tensorflow.computation(
    lambda square, bound: (tf.cast(square <= bound, tf.float32), square), _PAIR
  )

  @tff.federated_computation(_FLOATS)
  def describe(values):
    drawn = tff.federated_map(draw, values)
    mean = tff.federated_mean(drawn)
    squares = tff.federated_map(squared_distance, (drawn, tff.federated_broadcast(mean)))
    variance = tff.federated_mean(squares)
    within = tff.federated_map(is_within, (squares, tff.federated_broadcast(variance)))
    again = tff.federated_map(squared_distance, (drawn, tff.federated_broadcast(mean)))
    share, total = tff.federated_mean(within), tff.federated_sum(again)
    return mean, variance, share, total

  (mean, variance, share, total), num_stages = computed(describe, 2, _VALUES)
  assert num_stages == 3
  assert np.mean(_VALUES) < mean < np.mean(_VALUES) + 1
  # New draws in the second or third stage would not fit the first stage's mean.
  assert share[1] == pytest.approx(variance, rel=1e-5)
  assert total == pytest.approx(7 * variance, rel=1e-5)
  assert share[0] == pytest.approx(5 / 7, abs=0.15)


def test_what_the_server_draws_is_drawn_once():
  draw = tff.tensorflow.computation(lambda: tf.random.uniform([]))
  add = tff.tensorflow.computation(lambda a, b: a + b, _PAIR)

  @tff.federated_computation(_FLOATS)
  def drawn_and_sum(values):
    drawn = tff.federated_eval(draw, tff.SERVER)
    first = tff.federated_sum(tff.federated_map(add, (values, tff.federated_broadcast(drawn))))
    second = tff.federated_sum(tff.federated_map(add, (values, tff.federated_broadcast(first))))
    return drawn, first, second

  (drawn, first, second), _ = computed(drawn_and_sum, 2, _VALUES)
  assert first == pytest.approx(7.0 + 7 * drawn, rel=1e-5)
  assert second == pytest.approx(7.0 + 7 * first, rel=1e-5)


def test_files_are_read_by_names_that_go_from_stage_to_stage(unequal_files):
  read = client_files.build_examples_fn(unequal_files, shuffle=False)

  @tff.tensorflow.computation(client_files.HANDLE_TYPE)
  def shifted(handle):
    return dict(handle, x=tf.reduce_sum(read(handle)[0]))

  @tff.tensorflow.computation(shifted.type_signature.result, np.float32)
  def again(carried, center):
    handle = {name: value for name, value in carried.items() if name != "x"}
    return carried["x"] - tf.reduce_sum(read(handle)[0]) + center

  of_sum = tff.tensorflow.computation(lambda carried: carried["x"], shifted.type_signature.result)

  @tff.federated_computation(tff.FederatedType(client_files.HANDLE_TYPE, tff.CLIENTS))
  def difference(clients):
    carried = tff.federated_map(shifted, clients)
    center = tff.federated_mean(tff.federated_map(of_sum, carried))
    return center, tff.federated_sum(
      tff.federated_map(again, (carried, tff.federated_broadcast(center)))
    )

  cohort = rounds.cohort(unequal_files, range(10))
  (center, total), num_stages = computed(difference, 3, cohort)
  assert num_stages == 2
  assert total == pytest.approx(10 * center, rel=1e-4)


def test_what_cannot_be_cut_is_computed_whole():
  minus = tff.tensorflow.computation(lambda a, b: a - b, _PAIR)

  @tff.federated_computation(_FLOATS)
  def centred(values):
    mean = tff.federated_broadcast(tff.federated_mean(values))
    return tff.federated_map(minus, (values, mean))

  context = in_blocks(2)
  tff.framework.set_default_context(context)
  assert centred([1.0, 2.0, 6.0]) == [-2.0, -1.0, 3.0]
  (program,) = context._programs.values()
  assert "at the clients" in program.stages


def test_an_empty_cohort_and_one_below_a_block_are_whole(unequal_files):
  process = rounds.build("exact", unequal_files, 4)
  cohorts = [[], rounds.cohort(unequal_files, range(7))]
  context = in_blocks(7)
  found = rounds.run(context, process, cohorts)
  rounds.assert_same(found, rounds.run(cohort_context.CohortContext(), process, cohorts), rtol=0)
  assert not any("stages" in vars(program) for program in context._programs.values())


def test_blocks_are_consecutive_of_nearly_one_size_and_added_up_in_groups():
  follow = tff.tensorflow.computation(
    lambda first, second: tf.strings.join(["(", first, second, ")"]), (np.str_, np.str_)
  )
  report = tff.tensorflow.computation(lambda text: text, np.str_)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def joined(names):
    return tff.federated_aggregate(names, "", follow, follow, report)

  def expected(names, num_blocks):
    def of_block(block):
      return functools.reduce("({}{})".format, block, "")

    parts = [of_block(block) for block in np.array_split(names, num_blocks)]
    size = 4 if num_blocks > 8 else num_blocks  # Of 10 to 16 blocks.
    sums = [
      functools.reduce("({}{})".format, parts[i : i + size]) for i in range(0, len(parts), size)
    ]
    return functools.reduce("({}{})".format, sums)

  names = list("abcdefghijklm")
  for size, num_blocks in ((5, 3), (2, 7), (1, 13)):
    assert computed(joined, size, names)[0].decode() == expected(names, num_blocks)


def test_clients_who_hold_nothing_are_computed_once():
  @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER))
  def total(value):
    return tff.federated_sum(tff.federated_broadcast(value))

  tff.framework.set_default_context(
    cohort_context.CohortContext(block_size=2, default_num_clients=5)
  )
  assert total(3.0) == 15.0


def test_data_sets_in_blocks():
  process = algorithms.build_superquantile_fed_avg(
    problems.linear_model(), 0.5, tff.learning.optimizers.build_sgdm(0.3)
  )
  datasets = problems.datasets(problems.client_arrays())
  whole = rounds.run(cohort_context.CohortContext(), process, [datasets] * 2)
  blocks = rounds.run(in_blocks(2), process, [datasets] * 2)
  assert len(datasets) > 2
  rounds.assert_same(blocks, whole)
