"""EMNIST tasks: which writers a seed takes, from either format, and what is kept on disk."""

import json
import lzma
import os
import subprocess
import sys

import emnist_fixtures
import femnist_as_leaf
import numpy as np
import pytest

import tasks
from tasks.emnist import readers


def by_writer(splits):
  """{writer: (x as the model sees it, y)} over all splits."""
  result = {}
  for files in splits.values():
    x, y, offsets = files.load()
    x = files.decode(x).numpy()
    for i, writer in enumerate(files.client_ids):
      rows = slice(offsets[i], offsets[i + 1])
      result[writer] = (x[rows], y[rows])
  return result


@pytest.fixture(scope="module")
def writers():
  return emnist_fixtures.make_writers([101, 100, 103, 99, 100, 102, 100])  # f0003 has one too few.


@pytest.fixture(scope="module")
def leaf_dir(writers, tmp_path_factory):
  half = [dict(list(writers.items())[:4]), dict(list(writers.items())[4:])]
  return emnist_fixtures.write_leaf(tmp_path_factory.mktemp("leaf"), *half)


@pytest.fixture(scope="module")
def sqlite_dir(writers, tmp_path_factory):
  directory = tmp_path_factory.mktemp("sqlite")
  emnist_fixtures.write_sqlite(directory / "emnist_all.sqlite", writers)
  return directory


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


def test_leaf_keeps_its_own_split(leaf_dir, cache_dir):
  splits = emnist_fixtures.load(leaf_dir, cache_dir)
  assert set(splits) == {"train", "test"}
  assert set(splits["train"].client_ids) == {"f0000", "f0001", "f0002"}
  assert set(splits["test"].client_ids) == {"f0004", "f0005", "f0006"}
  assert splits["train"].num_examples.sum() == 304


@pytest.mark.parametrize("client_split", [None, "shuffled"])
def test_a_database_is_divided_by_seed(client_split, sqlite_dir, cache_dir, writers):
  train_sets = set()
  for seed in range(5):
    asked = dict(seed=seed, client_split=client_split)
    splits = emnist_fixtures.load(sqlite_dir, cache_dir, **asked)
    train, test = (set(splits[split].client_ids) for split in ("train", "test"))
    assert train | test == set(writers) - {"f0003"} and not train & test and train and test
    assert client_split is None or len(train) == 3
    train_sets.add(frozenset(train))
  assert len(train_sets) > 1


def test_formats_give_identical_floats(leaf_dir, sqlite_dir, cache_dir, writers):
  leaf, database = (by_writer(emnist_fixtures.load(d, cache_dir)) for d in (leaf_dir, sqlite_dir))
  assert set(leaf) == set(database) == set(writers) - {"f0003"}
  for writer, (x, y) in leaf.items():
    np.testing.assert_array_equal(x, database[writer][0])
    np.testing.assert_array_equal(y, database[writer][1])
    levels, labels = writers[writer]
    np.testing.assert_array_equal(np.rint(255 * x).reshape(-1, 784), levels)
    np.testing.assert_array_equal(y, labels)


def test_clients_fit_the_models(leaf_dir, cache_dir):
  files = emnist_fixtures.load(leaf_dir, cache_dir)["train"]
  assert files.x_dtype == "uint8" and files.x_scale == 1 / 255
  for name in ("emnist_linear", "emnist_convnet"):
    assert tasks.get_task(name).build_model(0).input_spec == files.input_spec


def test_pixels_of_more_than_eight_bits_are_kept(tmp_path):
  rng = np.random.default_rng(0)
  pixels = rng.random((100, 784))
  both = {"train": "a", "test": "b"}
  for split, writer in both.items():
    (tmp_path / split).mkdir()
    data = {
      "users": [writer],
      "num_samples": [100],
      "user_data": {writer: {"x": pixels.tolist(), "y": [0] * 100}},
    }
    (tmp_path / split / "d.json").write_text(json.dumps(data))
  splits = emnist_fixtures.load(tmp_path, tmp_path / "cache")
  assert splits["train"].x_dtype == "float32" and splits["train"].x_scale == 1.0
  x = by_writer(splits)["a"][0]
  np.testing.assert_array_equal(x.reshape(-1, 784), pixels.astype(np.float32))


@pytest.mark.parametrize("is_cached", [False, True])
def test_in_private_runs_no_writers_pixels_change_those_of_others(tmp_path, writers, is_cached):
  """One writer's pixels are no multiples of 1/255, for which a public run keeps floats of all."""
  half = [dict(list(writers.items())[:4]), dict(list(writers.items())[4:])]
  found = []
  for name in ("whole", "other"):
    data_dir = emnist_fixtures.write_leaf(tmp_path / name, *half)
    if name == "other":
      path = data_dir / "train" / "all_data_train.json"
      content = json.loads(path.read_text())
      content["user_data"]["f0000"]["x"][0][0] = 0.7123
      path.write_text(json.dumps(content))
      if is_cached:
        public = emnist_fixtures.load(data_dir, tmp_path / "cache")
        assert public["train"].x_dtype == "float32"
    splits = emnist_fixtures.load(data_dir, tmp_path / "cache", is_private=True)
    # Who has too few is a member without examples.
    train = splits["train"]
    assert set(train.client_ids) == set(half[0])
    indices = {i: train.handle(i, (0, 0))["index"] for i in train.client_ids}
    assert {i for i, index in indices.items() if index < 0} == {"f0003"}
    found.append(by_writer(splits))
  whole, other = found
  assert not np.array_equal(whole.pop("f0000")[0], other.pop("f0000")[0])
  for writer in whole:
    assert whole[writer][0].tobytes() == other[writer][0].tobytes()


def test_seed_and_numbers_choose_the_writers(leaf_dir, cache_dir):
  first = emnist_fixtures.load(leaf_dir, cache_dir, num_train_clients=2, num_test_clients=1)
  assert [len(first[split].client_ids) for split in ("train", "test")] == [2, 1]
  again = emnist_fixtures.load(leaf_dir, cache_dir, num_train_clients=2, num_test_clients=1)
  assert first["train"].client_ids == again["train"].client_ids
  everyone = emnist_fixtures.load(leaf_dir, cache_dir)
  assert everyone["train"].client_ids[:2] == first["train"].client_ids
  others = {
    emnist_fixtures.load(leaf_dir, cache_dir, seed=seed, num_train_clients=2)["train"].client_ids
    for seed in range(10)
  }
  assert len(others) > 1


def test_order_of_files_does_not_matter(writers, leaf_dir, cache_dir, tmp_path):
  half = [dict(list(writers.items())[:4]), dict(list(writers.items())[4:])]
  reverse = [dict(reversed(part.items())) for part in half]
  moved = emnist_fixtures.load(
    emnist_fixtures.write_leaf(tmp_path / "leaf", *reverse), tmp_path / "cache"
  )
  assert moved["train"].client_ids == emnist_fixtures.load(leaf_dir, cache_dir)["train"].client_ids


def test_the_least_number_of_images_can_be_chosen(sqlite_dir, cache_dir, writers):
  for least, kept in ((0, 6), (1, 7), (101, 3)):
    splits = emnist_fixtures.load(sqlite_dir, cache_dir, min_examples_per_client=least)
    taken = [user for files in splits.values() for user in files.client_ids]
    assert len(taken) == kept
    assert all(len(writers[user][1]) >= (least or 100) for user in taken)


def test_validation_writers_are_held_out_of_training(leaf_dir, cache_dir):
  whole = emnist_fixtures.load(leaf_dir, cache_dir)
  parts = emnist_fixtures.load(leaf_dir, cache_dir, validation_fraction=0.3)
  train, held_out = (parts[split].client_ids for split in ("train", "validation"))
  assert [i for i in whole["train"].client_ids if i not in held_out] == list(train)
  assert sorted(whole["train"].client_ids) == sorted(train + held_out) and held_out
  assert parts["test"].client_ids == whole["test"].client_ids


def test_files_are_converted_once_and_again_when_they_change(writers, tmp_path, monkeypatch):
  directory = emnist_fixtures.write_leaf(
    tmp_path / "leaf", {"a": writers["f0000"]}, {"b": writers["f0001"], "c": writers["f0002"]}
  )
  read = []
  iterate = readers.iterate_leaf
  monkeypatch.setattr(
    readers, "iterate_leaf", lambda paths: read.append(paths[0]) or iterate(paths)
  )
  for _ in range(2):
    emnist_fixtures.load(directory, tmp_path / "cache")
  assert len(read) == 2 and len(os.listdir(tmp_path / "cache")) == 2
  os.utime(directory / "test" / "all_data_test.json", (1, 1))
  emnist_fixtures.load(directory, tmp_path / "cache")
  assert len(read) == 3 and read[-1].endswith("all_data_test.json")


def test_a_compressed_database_is_used_and_not_left_unpacked(sqlite_dir, cache_dir, tmp_path):
  contents = (sqlite_dir / "emnist_all.sqlite").read_bytes()
  compressed = tmp_path / "data" / "emnist_all.sqlite.lzma"
  compressed.parent.mkdir()
  compressed.write_bytes(lzma.compress(contents, format=lzma.FORMAT_ALONE, preset=0))
  expected = by_writer(emnist_fixtures.load(sqlite_dir, cache_dir))
  for data_dir in (compressed.parent, compressed):
    found = by_writer(emnist_fixtures.load(data_dir, tmp_path / "cache"))
    assert set(found) == set(expected)
    for writer in expected:
      np.testing.assert_array_equal(found[writer][0], expected[writer][0])
  assert [name.rsplit("_", 1)[0] for name in os.listdir(tmp_path / "cache")] == ["emnist_all"]


def test_a_database_may_be_named_itself(sqlite_dir, cache_dir):
  splits = emnist_fixtures.load(sqlite_dir / "emnist_all.sqlite", cache_dir)
  assert (
    splits["train"].client_ids == emnist_fixtures.load(sqlite_dir, cache_dir)["train"].client_ids
  )


def test_a_missing_directory(tmp_path):
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(tmp_path / "nowhere", tmp_path / "cache")
  emnist_fixtures.assert_one_sentence(
    error, str(tmp_path / "nowhere"), "emnist_all.sqlite", "train/*.json"
  )


def test_an_empty_directory_says_what_was_looked_for(tmp_path):
  (tmp_path / "data").mkdir()
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(tmp_path / "data", tmp_path / "cache")
  emnist_fixtures.assert_one_sentence(
    error, "no train/*.json and no test/*.json", "emnist_all.sqlite.lzma", "preprocess.sh"
  )


def test_half_of_leafs_directories(tmp_path, leaf_dir):
  (tmp_path / "test").mkdir()
  (tmp_path / "train").symlink_to(leaf_dir / "train")
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  emnist_fixtures.assert_one_sentence(error, "has no test/*.json")


def test_a_single_json_file(leaf_dir, tmp_path):
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(leaf_dir / "train" / "all_data_train.json", tmp_path)
  emnist_fixtures.assert_one_sentence(error, "single JSON file")


def test_both_formats_in_one_directory(leaf_dir, sqlite_dir, tmp_path):
  for path in (leaf_dir / "train", leaf_dir / "test", sqlite_dir / "emnist_all.sqlite"):
    (tmp_path / path.name).symlink_to(path)
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  emnist_fixtures.assert_one_sentence(error, "holds both emnist_all.sqlite and LEAF's JSON")


def test_a_split_by_sample_is_put_together(writers, tmp_path):
  more = emnist_fixtures.make_writers([120, 2], seed=1, prefix="g")
  everybody = {**writers, **more}
  for split, rows in (("train", slice(0, None, 2)), ("test", slice(1, None, 2))):
    (tmp_path / split).mkdir()
    for name, part in (("a", writers), ("b", more)):
      half = {writer: (levels[rows], y[rows]) for writer, (levels, y) in part.items()}
      if split == "test":  # The order of the writers is no matter.
        half = dict(reversed(half.items()))
      data = json.dumps(emnist_fixtures.leaf_data(half))
      (tmp_path / split / f"{name}_{split}_9.json").write_text(data)
  found = by_writer(emnist_fixtures.load(tmp_path, tmp_path / "cache", min_examples_per_client=1))
  assert set(found) == set(everybody)
  for writer, (levels, labels) in everybody.items():
    x, y = found[writer]
    np.testing.assert_array_equal(y, np.concatenate([labels[::2], labels[1::2]]))
    expected = np.concatenate([levels[::2], levels[1::2]]).reshape(-1, 28, 28)
    np.testing.assert_array_equal(np.rint(255 * x), expected)
  assert readers.DATA_SET.describe(str(tmp_path)).startswith("9 writers, of whom 7 have 100 images")


def test_clients_of_both_splits_are_refused(writers, tmp_path):
  emnist_fixtures.write_leaf(
    tmp_path, {"a": writers["f0000"], "b": writers["f0001"]}, {"b": writers["f0002"]}
  )
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  emnist_fixtures.assert_one_sentence(error, "1 writers", "'b'", "-t user")


def test_too_few_writers(tmp_path):
  few = emnist_fixtures.make_writers([100, 99])
  emnist_fixtures.write_leaf(tmp_path / "leaf", {"f0000": few["f0000"]}, {"f0001": few["f0001"]})
  (tmp_path / "sqlite").mkdir()
  emnist_fixtures.write_sqlite(tmp_path / "sqlite" / "emnist_all.sqlite", few)
  for name in ("leaf", "sqlite"):
    with pytest.raises(ValueError) as error:
      emnist_fixtures.load(tmp_path / name, tmp_path / "cache")
    emnist_fixtures.assert_one_sentence(
      error, "1 clients to train on and 0 to test on", "fewer than 100 examples"
    )


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(seed=-1), "seed = -1"),
    (dict(min_examples_per_client=-1), "min_examples_per_client = -1"),
    (dict(num_train_clients=4), "3 training clients, without the 1 of 4 clients"),
    (dict(num_test_clients=4), "3 test clients but 4"),
    (dict(num_test_clients=-1), "num_test_clients = -1"),
    (dict(validation_fraction=1.5), "validation_fraction = 1.5"),
    (dict(num_train_clients=1, validation_fraction=0.5), "of the 1 training clients"),
  ],
)
def test_wrong_arguments_are_named(leaf_dir, cache_dir, changes, message):
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(leaf_dir, cache_dir, **changes)
  emnist_fixtures.assert_one_sentence(error, message)


def test_wrong_arguments_are_found_before_any_work(tmp_path):
  with pytest.raises(ValueError, match="validation_fraction"):
    emnist_fixtures.load(tmp_path / "nowhere", tmp_path, validation_fraction=2.0)


def test_a_cache_that_cannot_be_made(leaf_dir, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError) as error:
    emnist_fixtures.load(leaf_dir, tmp_path / "file")
  emnist_fixtures.assert_one_sentence(error, "Cannot make a cache", str(tmp_path / "file"))


@pytest.mark.parametrize("kind", ["leaf", "tff"])
def test_real_handwriting_in_both_formats(kind, shared_dir, tmp_path):
  tool = shared_dir / "tools" / "make_handwriting_fixtures.py"
  subprocess.run(
    [sys.executable, tool, "--format", kind, "--out", tmp_path / kind, "--writers", "20"],
    check=True,
    stdout=subprocess.DEVNULL,
  )
  splits = emnist_fixtures.load(tmp_path / kind, tmp_path / "cache", validation_fraction=0.2)
  sizes = {name: len(files.client_ids) for name, files in splits.items()}
  assert set(sizes) == {"train", "validation", "test"} and sum(sizes.values()) == 20
  assert 5 <= sizes["test"] <= 15 and 1 <= sizes["validation"] <= 6
  source = np.load(shared_dir / "data" / "handwriting_by_writer.npz")
  rows_of = {
    f"f{writer:04d}": slice(start, end)
    for writer, start, end in zip(
      source["writer_ids"], source["offsets"][:-1], source["offsets"][1:]
    )
  }
  images, labels = source["images"], source["labels"]
  for writer, (x, y) in by_writer(splits).items():
    expected = (255 - images[rows_of[writer]]).astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, labels[rows_of[writer]])


def test_real_emnist_of_105_writers(shared_dir, tmp_path):
  source = np.load(shared_dir / "data" / "femnist_105_writers.npz")
  femnist_as_leaf.convert(shared_dir / "data" / "femnist_105_writers.npz", tmp_path / "leaf")
  splits = emnist_fixtures.load(
    tmp_path / "leaf", tmp_path / "cache", min_examples_per_client=101, folds=5, seed=2
  )
  assert [len(splits[name].client_ids) for name in ("train", "test")] == [79, 20]
  found = by_writer(splits)
  assert set(found) == set(source["users"][source["n"] > 100])
  ends = dict(zip(source["users"], np.cumsum(source["n"])))
  for writer, (x, y) in found.items():
    rows = slice(ends[writer] - len(y), ends[writer])
    np.testing.assert_array_equal(y, source["y"][rows])
    np.testing.assert_array_equal(np.rint(255 * x).reshape(len(y), -1), source["x"][rows])
