"""Places of clients: the hash, its distribution, and that one client's place is its own affair."""

import hashlib
import struct

import numpy as np
import pools
import pytest
from scipy import stats

import tasks
from tasks import places
from tasks import task
from tff_superquantile.simulation import client_files

_MASK = 2**64 - 1
_SIGMA = (
  "0123456789abcdef ea489fd61c02b753 b8c052fdae367194 7931dcbe265a40f8 905724afe1bc683d"
  " 2c6a0b834d75fe19 c51fed4a0763928b db7ec13950f4862a 6fe9b308c2d714a5 a2847615fb9e3cd0"
)
_QUARTERS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
_QUARTERS += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def _root_fraction(prime):
  """64 bits of the fraction of a prime's square root."""
  low, high = 0, prime << 64
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if middle * middle <= prime << 128 else (low, middle)
  return low & _MASK


def _blake2b(message, key, person):
  """RFC 7693, of 8 bytes, with a person of at most 16."""
  start = [_root_fraction(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19)]
  block = struct.pack("<BBBBLLLBB14x16s16s", 8, len(key), 1, 1, 0, 0, 0, 0, 0, b"", person)
  h = [a ^ b for a, b in zip(start, struct.unpack("<8Q", block))]
  data = key.ljust(128, b"\0") + message
  blocks = [data[i : i + 128] for i in range(0, len(data), 128)]
  for number, part in enumerate(blocks):
    is_last = number == len(blocks) - 1
    count = len(data) if is_last else 128 * (number + 1)
    m = struct.unpack("<16Q", part.ljust(128, b"\0"))
    v = [*h, *start]
    v[12] ^= count
    v[14] ^= _MASK * is_last
    for row in (_SIGMA.split() * 2)[:12]:
      order = [int(digit, 16) for digit in row]
      for i, (a, b, c, d) in enumerate(_QUARTERS):
        for word, first, second in ((order[2 * i], 32, 24), (order[2 * i + 1], 16, 63)):
          v[a] = (v[a] + v[b] + m[word]) & _MASK
          v[d] ^= v[a]
          v[d] = (v[d] >> first | v[d] << 64 - first) & _MASK
          v[c] = (v[c] + v[d]) & _MASK
          v[b] ^= v[c]
          v[b] = (v[b] >> second | v[b] << 64 - second) & _MASK
    h = [h[i] ^ v[i] ^ v[i + 8] for i in range(8)]
  return struct.pack("<8Q", *h)[:8]


@pytest.mark.parametrize("seed", [0, 7, 10**30])
@pytest.mark.parametrize("purpose", [places.TEST, places.VALIDATION])
def test_a_place_is_that_of_rfc_7693(seed, purpose):
  for client_id in ("", "f0000_14", "Köln, 07", "x" * 127, "x" * 128, "y" * 300, "\ud800"):
    key = hashlib.sha256(b"%d" % seed).digest()
    text = client_id.encode("utf-8", "surrogatepass")
    number = int.from_bytes(_blake2b(text, key, purpose.encode()), "big")
    found = places.place(client_id, seed, purpose)
    assert found * 2**64 == number - number % 2**11 and 0.0 <= found < 1.0


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
  return [one for one in found if "data_dir" in one.reads]


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
