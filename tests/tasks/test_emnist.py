"""EMNIST tasks: which writers a seed takes, from either format, and what is kept on disk."""

import json
import os
import subprocess
import sys

from helpers import emnist_fixtures
from helpers import femnist_as_leaf
from helpers import pools
import numpy as np
import pytest

from tasks.emnist import readers


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
  x = pools.by_client(splits)["a"][0]
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
    found.append(pools.by_client(splits))
  whole, other = found
  assert not np.array_equal(whole.pop("f0000")[0], other.pop("f0000")[0])
  for writer in whole:
    assert whole[writer][0].tobytes() == other[writer][0].tobytes()


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


def test_directories_without_data_say_what_was_looked_for(tmp_path):
  for name, parts in (
    ("nowhere", (str(tmp_path / "nowhere"), "emnist_all.sqlite", "train/*.json")),
    ("", ("no train/*.json and no test/*.json", "emnist_all.sqlite.lzma", "preprocess.sh")),
  ):
    with emnist_fixtures.refused(*parts):
      emnist_fixtures.load(tmp_path / name, tmp_path / "cache")


def test_half_of_leafs_directories_a_single_file_and_both_formats(leaf_dir, sqlite_dir, tmp_path):
  (tmp_path / "train").symlink_to(leaf_dir / "train")
  with emnist_fixtures.refused("has no test/*.json"):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  with emnist_fixtures.refused("single JSON file"):
    emnist_fixtures.load(leaf_dir / "train" / "all_data_train.json", tmp_path)
  for path in (leaf_dir / "test", sqlite_dir / "emnist_all.sqlite"):
    (tmp_path / path.name).symlink_to(path)
  with emnist_fixtures.refused("holds both emnist_all.sqlite and LEAF's JSON"):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")


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
  splits = emnist_fixtures.load(tmp_path, tmp_path / "cache", min_examples_per_client=1)
  found = pools.by_client(splits)
  assert set(found) == set(everybody)
  for writer, (levels, labels) in everybody.items():
    x, y = found[writer]
    np.testing.assert_array_equal(y, np.concatenate([labels[::2], labels[1::2]]))
    expected = np.concatenate([levels[::2], levels[1::2]]).reshape(-1, 28, 28)
    np.testing.assert_array_equal(np.rint(255 * x), expected)


def test_clients_of_both_splits_are_refused(writers, tmp_path):
  emnist_fixtures.write_leaf(
    tmp_path, {"a": writers["f0000"], "b": writers["f0001"]}, {"b": writers["f0002"]}
  )
  with emnist_fixtures.refused("1 writers", "'b'", "-t user"):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")


def test_a_cache_that_cannot_be_made(leaf_dir, tmp_path):
  (tmp_path / "file").write_text("")
  with emnist_fixtures.refused("no cache can be made in", str(tmp_path / "file"), "--cache_dir"):
    emnist_fixtures.load(leaf_dir, tmp_path / "file")


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
  for writer, (x, y) in pools.by_client(splits).items():
    expected = (255 - images[rows_of[writer]]).astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, labels[rows_of[writer]])


def test_real_emnist_of_85_whole_writers(shared_dir, tmp_path):
  path = shared_dir / "data" / "femnist_105_writers.npz"
  source, cut = np.load(path), femnist_as_leaf.CUT_WRITERS
  femnist_as_leaf.convert(path, tmp_path / "leaf", without=cut)
  splits = emnist_fixtures.load(
    tmp_path / "leaf", tmp_path / "cache", min_examples_per_client=101, folds=5, seed=2
  )
  assert [len(splits[name].client_ids) for name in ("train", "test")] == [68, 17]
  found = pools.by_client(splits)
  assert cut < set(source["users"]) and (source["n"] > 100).sum() == 99
  assert set(found) == set(source["users"]) - cut
  ends = dict(zip(source["users"], np.cumsum(source["n"])))
  for writer, (x, y) in found.items():
    rows = slice(ends[writer] - len(y), ends[writer])
    np.testing.assert_array_equal(y, source["y"][rows])
    np.testing.assert_array_equal(np.rint(255 * x).reshape(len(y), -1), source["x"][rows])
