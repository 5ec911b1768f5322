"""Places of clients: the hash, its distribution, and that one client's place is its own affair."""

from helpers import pools
import numpy as np
import pytest
from scipy import stats

import tasks
from tasks import own_flags
from tasks import places
from tasks import task
from tff_superquantile.simulation import client_files


# Those of RFC 7693, by an implementation of its own: of runs that go on, no client may move.
@pytest.mark.parametrize(
  "client_id, seed, purpose, expected",
  [
    ("", 0, places.TEST, "0x1.fb44ad405b6f8p-1"),
    ("f0000_14", 7, places.TEST, "0x1.5d8b6bd55703bp-1"),
    ("Köln, 07", 10**30, places.TEST, "0x1.cc8366ae8ded8p-1"),
    ("x" * 128, 0, places.VALIDATION, "0x1.06529452fe2bbp-1"),
    ("Köln, 07", 7, places.VALIDATION, "0x1.8520f14b70080p-6"),
    ("\ud800", 10**30, places.VALIDATION, "0x1.5f1153e7e8044p-2"),
  ],
)
def test_a_place_follows_from_id_seed_and_purpose(client_id, seed, purpose, expected):
  assert places.place(client_id, seed, purpose).hex() == expected


def test_places_are_uniform_and_independent_between_seeds_and_purposes():
  ids = [f"f{i:04d}_{i % 97:02d}" for i in range(4096)]
  columns = [
    [places.place(i, seed, purpose) for i in ids]
    for seed in (0, 1)
    for purpose in (places.TEST, places.VALIDATION)
  ]
  for column in columns:
    counts = np.histogram(column, 64, (0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
  for i, first in enumerate(columns):
    for second in columns[:i]:
      counts = np.histogram2d(first, second, 8, [(0, 1), (0, 1)])[0]
      assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def _tasks_with_files():
  found = [tasks.get_task(name) for name in tasks.task_names()]
  return [one for one in found if issubclass(one.flags, own_flags.FileFlags)]


@pytest.mark.parametrize("one", _tasks_with_files(), ids=lambda one: one.name)
@pytest.mark.parametrize("is_private", [True, False])
def test_a_client_that_goes_moves_nobody_else(one, is_private):
  rng = np.random.default_rng(0)
  for seed in range(8):
    ids = [f"{rng.integers(10**9)}" for _ in range(60)]
    sizes = rng.integers(1, 200, len(ids))
    asked = dict(seed=seed, is_private=is_private, validation_fraction=0.3)
    request = task.Request("c", min_examples_per_client=60, **asked)

    def split(left_out, size=None, request=request, ids=ids, sizes=sizes):
      """{split: {id: examples that it has}}, each in its order."""
      keep = [i for i in range(len(ids)) if i != left_out or size is not None]
      counts = [size if i == left_out else sizes[i] for i in keep]
      found = one.split_clients([pools.pool(dict(zip((ids[i] for i in keep), counts)))], request)
      return {
        name: [
          (i, n if files.handle(i, (0, 0))["index"] >= 0 else 0)
          for i, n in zip(files.client_ids, files.num_examples)
        ]
        for name, files in found.items()
      }

    whole = split(None)
    assert set(whole) == {"train", "validation", "test"}
    assert any(n == 0 for _, n in whole["train"]) == is_private
    for left_out in range(0, len(ids), 7):
      gone = ids[left_out]
      others = {name: [x for x in found if x[0] != gone] for name, found in whole.items()}
      assert split(left_out) == others
      # So does one that falls below the least number of examples; in a private run it is a member.
      fallen = split(left_out, 3)
      rest = {name: [x for x in found if x[0] != gone] for name, found in fallen.items()}
      assert rest == others
      if is_private and gone in dict(whole["train"]):
        assert dict(fallen["train"])[gone] == 0
        assert [i for i, _ in fallen["train"]] == [i for i, _ in whole["train"]]


@pytest.mark.parametrize("one", _tasks_with_files(), ids=lambda one: one.name)
def test_private_runs_take_all_training_clients_and_say_why(one):
  pool = pools.pool(dict.fromkeys(map(str, range(3000)), 500))
  request = task.Request("c", min_examples_per_client=1, is_private=True)
  sizes = {s: len(f.client_ids) for s, f in one.split_clients([pool], request).items()}
  fraction = 0.8 if one.name == "own" else 0.5
  assert abs(sizes["train"] - 3000 * fraction) < 120  # And not 865.
  with pytest.raises(ValueError, match="--num_train_clients=30 in a private run"):
    asked = task.Request("c", min_examples_per_client=1, is_private=True, num_train_clients=30)
    one.split_clients([pool], asked)
  few = [i for i in pool.client_ids if places.place(i, 0, places.TEST) > 0.9][:3]
  if one.name.startswith("sent140"):  # Whose halves are the same for all seeds.
    few = [i for i in pool.client_ids if places.place(i, 140, places.TEST) > 0.9][:3]
  with pytest.raises(ValueError, match="3 clients to train on and 0 to test .* another --split"):
    one.split_clients([pool.subset(few)], request)
  # In a public run the nearest client is tested on.
  found = one.split_clients([pool.subset(few)], task.Request("c", min_examples_per_client=1))
  assert [len(found[split].client_ids) for split in ("train", "test")] == [2, 1]


def test_errors_of_private_runs_do_not_count_small_training_clients():
  one = tasks.get_task("sent140_linear")
  # The reader has dropped seven, of training and of test users.
  pool = client_files.ClientFiles(
    *("/n", tuple(map(str, range(40))), np.full(40, 60), (7,), "float32", 1.0, 2, 7, ", without 7")
  )
  request = task.Request("c", min_examples_per_client=50, is_private=True, num_test_clients=99)
  with pytest.raises(ValueError) as error:
    one.split_clients([pool], request)
  assert "test clients but 99 were asked for" in str(error.value)
  assert "without" not in str(error.value)
