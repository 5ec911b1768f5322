"""Splits of pools of clients: who is dropped, in which order the others come, who is taken."""

from helpers import pools
import pytest

import tasks
from tasks import places
from tasks import splits
from tasks import task


def test_small_clients_are_dropped_with_a_remark():
  pool = pools.pool({"b": 5, "a": 4, "d": 3, "c": 6})
  assert splits.drop_small_clients(pool, 3) is pool
  found = splits.drop_small_clients(pool, 5)
  assert (found.client_ids, found.num_examples.tolist()) == (("b", "c"), [5, 6])
  assert found.subset(["b"]).remark == (
    ", without the 2 of 4 clients that have fewer than 5 examples (--min_examples_per_client)"
  )
  assert found.num_dropped == 2
  # Those that were dropped before count, too, and a remark that is there is kept.
  before = splits.drop_small_clients(pools.pool({"a": 5, "b": 5}, num_dropped=7), 5)
  assert "the 7 of 9 clients" in before.remark
  kept = pools.pool({"a": 5}, remark=", without some")
  assert splits.drop_small_clients(kept, 5).remark == ", without some"


def test_shuffling_depends_on_the_seed_and_not_on_the_order():
  [pool] = splits.shuffle([pools.pool("badc")], 0)
  assert sorted(pool.client_ids) == ["a", "b", "c", "d"]
  assert [again.client_ids for again in splits.shuffle([pools.pool("dcab")], 0)] == [
    pool.client_ids
  ]
  orders = {splits.shuffle([pools.pool("badc")], seed)[0].client_ids for seed in range(20)}
  assert len(orders) > 5 and {len(order) for order in orders} == {4}
  # One generator for all pools: the second is not shuffled as the first.
  pairs = [splits.shuffle([pools.pool("abcd")] * 2, seed) for seed in range(5)]
  assert any(first.client_ids != second.client_ids for first, second in pairs)


def _split(one, pools, **asked):
  return ["".join(pool.client_ids) for pool in one.apply(pools, task.Request("c", **asked))]


# What a permutation makes of the clients a to k, and of abcd and efghi.
_SHUFFLED = {
  "emnist_linear": (["eghcad", "fkjib"], ["jhacbe", "gkfdi"]),
  "own": (["eghcadfkj", "ib"], ["jhacbegkf", "di"]),
  "sent140_linear": (["ekhac", "idfbgj"], ["kecha", "gjbfdi"]),
}


@pytest.mark.parametrize("name", _SHUFFLED)
def test_a_permutation_stays_as_it_was(name):
  split = tasks.get_task(name).split
  for seed, expected in zip((0, 3), _SHUFFLED[name]):
    for private in (False, True):
      asked = dict(seed=seed, client_split="shuffled", is_private=private)
      assert _split(split, [pools.pool("kbcdaefghij")], **asked) == expected
      two = [pools.pool("dcba"), pools.pool("efghi")]
      assert _split(split, two, **asked) == [["cabd", "gihfe"], ["dcba", "hegfi"]][seed == 3]
  request = task.Request("c", validation_fraction=0.3, client_split="shuffled")
  held_out = [pool.client_ids for pool in splits.hold_out(pools.pool("abcdefghijk"), request)]
  assert held_out == [tuple("abcdefgh"), tuple("ijk")]


def test_clients_are_split_by_their_places():
  pool = pools.pool("abcdefghij")
  of_test = {i: places.place(i, 5, "test") for i in pool.client_ids}
  ordered = sorted(of_test, key=of_test.get)
  num_test = sum(value < 0.3 for value in of_test.values())
  expected = ["".join(ordered[num_test:]), "".join(ordered[:num_test])]
  assert _split(splits.Split(0.3), [pool], seed=5) == expected and 0 < num_test < 10
  # A seed of the task's own divides; the request's orders.
  fixed = splits.Split(0.3, seed=5)
  for seed in (0, 1):
    found = _split(fixed, [pool], seed=seed)
    assert list(map(sorted, found)) == list(map(sorted, expected))
  assert found != expected
  # Two pools stay.
  two = _split(splits.Split(0.3), [pools.pool("abcde"), pools.pool("fghij")], seed=5)
  assert two == ["".join(i for i in ordered if i in part) for part in ("abcde", "fghij")]


def test_without_privacy_no_side_is_empty():
  pool = pools.pool("abcdefghij")
  for fraction, sizes in ((1e-9, [9, 1]), (1 - 1e-9, [1, 9])):
    found = _split(splits.Split(fraction), [pool])
    assert [len(part) for part in found] == sizes
    # It is the nearest.
    nearest = (min if fraction < 0.5 else max)(
      "abcdefghij", key=lambda i: places.place(i, 0, "test")
    )
    assert nearest in found
    private = _split(splits.Split(fraction), [pool], is_private=True)
    assert sorted(len(part) for part in private) == [0, 10]


def test_hold_out():
  pool = pools.pool("abcdefghij")

  def held_out(fraction, **asked):
    request = task.Request("c", validation_fraction=fraction, **asked)
    return ["".join(part.client_ids) for part in splits.hold_out(pool, request)]

  assert held_out(0.3, client_split="shuffled") == ["abcdefg", "hij"]
  assert held_out(1e-6, client_split="shuffled") == ["abcdefghi", "j"]
  with pytest.raises(ValueError, match="holds out all of the 10"):
    held_out(0.99, client_split="shuffled")
  stay = [i for i in "abcdefghij" if places.place(i, 4, "validation") >= 0.3]
  assert held_out(0.3, seed=4)[0] == "".join(stay) and 0 < len(stay) < 10
  assert [len(part) for part in held_out(1e-9)] == [9, 1]
  with pytest.raises(ValueError, match="holds out none of the 10 training clients; .* --split_s"):
    held_out(1e-9, is_private=True)
