"""Splits of pools of clients: who is dropped, in which order the others come, who is taken."""

import numpy as np
import pytest

from tasks import splits
from tff_superquantile.simulation import client_files


def _pool(counts, **changes):
  ids = tuple(counts)
  sizes = np.array([counts[client_id] for client_id in ids])
  return client_files.ClientFiles("/nowhere", ids, sizes, (7,), "float32", 1.0, 2, **changes)


def _pool_of(ids, **changes):
  return _pool(dict.fromkeys(ids, 1), **changes)


def test_small_clients_are_dropped_with_a_remark():
  pool = _pool({"b": 5, "a": 4, "d": 3, "c": 6})
  assert splits.drop_small_clients(pool, 3) is pool
  found = splits.drop_small_clients(pool, 5)
  assert (found.client_ids, found.num_examples.tolist()) == (("b", "c"), [5, 6])
  assert found.subset(["b"]).remark == (
    ", without the 2 of 4 clients that have fewer than 5 examples (--min_examples_per_client)"
  )
  assert found.num_dropped == 2


@pytest.mark.parametrize("num_dropped, remark", [(7, "the 7 of 9 clients"), (0, ""), (None, "")])
def test_clients_that_were_dropped_before_count_too(num_dropped, remark):
  pool = splits.drop_small_clients(_pool({"a": 5, "b": 5}, num_dropped=num_dropped), 5)
  assert pool.client_ids == ("a", "b")
  assert remark in pool.remark and bool(remark) == bool(pool.remark)


def test_a_remark_that_is_there_is_kept():
  pool = _pool({"a": 5}, remark=", without some")
  assert splits.drop_small_clients(pool, 5).remark == ", without some"


def test_shuffling_depends_on_the_seed_and_not_on_the_order():
  [pool] = splits.shuffle([_pool_of("badc")], 0)
  assert sorted(pool.client_ids) == ["a", "b", "c", "d"]
  assert [again.client_ids for again in splits.shuffle([_pool_of("dcab")], 0)] == [pool.client_ids]
  orders = {splits.shuffle([_pool_of("badc")], seed)[0].client_ids for seed in range(20)}
  assert len(orders) > 5 and {len(order) for order in orders} == {4}
  # One generator for all pools: the second is not shuffled as the first.
  pairs = [splits.shuffle([_pool_of("abcd")] * 2, seed) for seed in range(5)]
  assert any(first.client_ids != second.client_ids for first, second in pairs)


@pytest.mark.parametrize("num_clients, num_train", [(1, 1), (2, 1), (5, 3)])
def test_a_single_pool_is_halved(num_clients, num_train):
  pool = _pool_of("abcde"[:num_clients])
  train, test = splits.shuffle_and_halve([pool], 3)
  assert len(train.client_ids) == num_train
  assert sorted(train.client_ids + test.client_ids) == sorted(pool.client_ids)
  two = splits.shuffle_and_halve([pool, pool], 3)
  assert [sorted(pool.client_ids) for pool in two] == [sorted(pool.client_ids)] * 2


def test_take():
  pool = _pool_of("abc", remark=", without some,")
  assert splits.take(pool, 0, 2, "test").client_ids == ("a", "b")
  assert splits.take(pool, 0, 5, "test").client_ids == ("a", "b", "c")
  assert splits.take(pool, 0, 0, "test").client_ids == ("a", "b", "c")
  assert splits.take(pool, 3, 2, "test").client_ids == ("a", "b", "c")
  with pytest.raises(ValueError, match="Found 3 test clients, without some, but 4"):
    splits.take(pool, 4, 2, "test")


def test_hold_out():
  pool = _pool_of("abcdefghij")

  def held_out(fraction):
    return ["".join(part.client_ids) for part in splits.hold_out(pool, fraction)]

  assert held_out(0.3) == ["abcdefg", "hij"]
  assert held_out(1e-6) == ["abcdefghi", "j"]
  with pytest.raises(ValueError, match="holds out all 10"):
    held_out(0.99)
