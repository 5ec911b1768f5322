"""EMNIST's files: what is wrong in one is said in one sentence that names it."""

import contextlib
import json
import lzma
import os
import sqlite3

from helpers import emnist_fixtures
import numpy as np
import pytest
import tensorflow as tf

from tasks.emnist import conversion
from tasks.emnist import readers


def read_all(iterator):
  return {writer: (x, y) for writer, x, y in iterator}


def test_writers_named_as_the_keys_of_a_user(tmp_path):
  writers = dict(zip("xy", emnist_fixtures.make_writers([2, 3]).values()))
  emnist_fixtures.write_leaf(tmp_path, writers, {})
  read = read_all(readers.iterate_leaf([str(tmp_path / "train" / "all_data_train.json")]))
  assert [len(y) for _, y in read.values()] == [2, 3]


@pytest.fixture
def leaf_dir(tmp_path):
  train, test = (emnist_fixtures.make_writers([2], prefix=prefix) for prefix in "ft")
  return emnist_fixtures.write_leaf(tmp_path, train, test)


# What breaks a LEAF file, and what the error says of it.
def _set(*keys_and_value):
  *keys, last, value = keys_and_value

  def change(data):
    for key in keys:
      data = data[key]
    data[last] = value

  return change


def _delete(*keys):
  def change(data):
    for key in keys[:-1]:
      data = data[key]
    del data[keys[-1]]

  return change


_USER = ("user_data", "f0001")
_BROKEN_LEAF = [
  (_delete("users"), "lacks the keys users"),
  (_delete("user_data"), "lacks the keys user_data"),
  (_delete("num_samples", 0), "1 num_samples"),
  (_delete(*_USER), "1 writers in user_data"),
  (_set("users", 0, "other"), "the same writers in all three"),
  (_delete(*_USER, "x"), "lacks x or y"),
  (_set(*_USER, "x", 3), "no list of images"),
  (_set("num_samples", 1, 4), "num_samples says 4"),
  (_delete(*_USER, "x", 0), "2 images and 3 labels"),
  (_set(*_USER, {"x": [], "y": []}), "has no examples"),
  (_delete(*_USER, "x", 0, 0), "784 numbers"),
  (_set(*_USER, "x", 0, 5, "ink"), "784 numbers"),
  (_set(*_USER, "x", 0, 5, float("nan")), "NaN or outside [0, 1]"),
  (_set(*_USER, "x", 0, 5, 1.01), "NaN or outside [0, 1]"),
  (_set(*_USER, "x", 0, 5, -0.01), "NaN or outside [0, 1]"),
  (_set(*_USER, "y", 0, 62), "integers in 0..61"),
  (_set(*_USER, "y", 0, -1), "integers in 0..61"),
  (_set(*_USER, "y", 0, 3.5), "integers in 0..61"),
  (_set(*_USER, "y", 0, "a"), "integers in 0..61"),
  (_set(*_USER, "y", 0, True), "integers in 0..61"),
]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("change,message", _BROKEN_LEAF)
def test_broken_leaf_files(leaf_dir, change, message):
  data = emnist_fixtures.leaf_data(emnist_fixtures.make_writers([2, 3]))
  change(data)
  path = leaf_dir / "train" / "all_data.json"
  os.remove(leaf_dir / "train" / "all_data_train.json")
  path.write_text(json.dumps(data))
  with emnist_fixtures.refused(str(path), message):
    emnist_fixtures.load(leaf_dir, leaf_dir / "cache")
  assert not os.listdir(leaf_dir / "cache")


@pytest.mark.parametrize(
  "text,message",
  [
    (None, "not complete JSON"),  # Cut in half.
    ("", "not complete JSON"),
    ("[]", "lacks the keys users, num_samples, user_data"),
    ("3", "lacks the keys"),
    ("\x00\x01", "not complete JSON"),
    ("[" * 50_000 + "]" * 50_000, "not complete JSON"),
  ],
)
def test_files_that_are_not_leafs(leaf_dir, text, message):
  path = leaf_dir / "test" / "all_data_test.json"
  text = path.read_text()[: path.stat().st_size // 2] if text is None else text
  path.write_text(text)
  with emnist_fixtures.refused(str(path), message):
    emnist_fixtures.load(leaf_dir, leaf_dir / "cache")


def test_a_binary_file_is_not_leafs(leaf_dir):
  (leaf_dir / "train" / "b.json").write_bytes(b"\xff\xfe\x80")
  with emnist_fixtures.refused("b.json", "not complete JSON"):
    emnist_fixtures.load(leaf_dir, leaf_dir / "cache")


@pytest.mark.parametrize(
  "make",
  [
    lambda path: path.mkdir(),
    lambda path: os.mkfifo(path),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("nowhere"),
  ],
)
def test_what_is_no_file_is_not_leafs(leaf_dir, make):
  make(leaf_dir / "train" / "x.json")
  with emnist_fixtures.refused("x.json", "move it away"):
    emnist_fixtures.load(leaf_dir, leaf_dir / "cache")


def test_a_writer_in_two_files_of_a_split(tmp_path):
  emnist_fixtures.write_leaf(
    tmp_path, emnist_fixtures.make_writers([2, 3]), emnist_fixtures.make_writers([2], prefix="t")
  )
  again = json.dumps(
    emnist_fixtures.leaf_data({"f0001": emnist_fixtures.make_writers([2, 3])["f0001"]})
  )
  (tmp_path / "train" / "more.json").write_text(again)
  with emnist_fixtures.refused("more.json", "all_data_train.json", "'f0001' is there twice"):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")


def test_a_writer_twice_in_a_file(tmp_path):
  data = emnist_fixtures.leaf_data(emnist_fixtures.make_writers([2, 3]))
  data["users"].append("f0001")
  data["num_samples"].append(3)
  (tmp_path / "a.json").write_text(json.dumps(data))
  with pytest.raises(ValueError, match="'f0001' is there twice"):
    list(readers.iterate_leaf([str(tmp_path / "a.json")]))


# What breaks a database, by SQL.
_ADD = "INSERT INTO examples VALUES ('all_train', 'f0001', ?)"
_FLOATS = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5] * 784))
_BROKEN_SQLITE = [
  ("DROP TABLE examples", (), "no table examples"),
  ("ALTER TABLE examples RENAME COLUMN client_id TO writer", (), "['client_id']"),
  ("DELETE FROM examples WHERE split_name = 'all_test'", (), "split all_test"),
  ("UPDATE examples SET split_name = 'train' WHERE split_name = 'all_train'", (), "all_train"),
  (_ADD, (b"no proto",), "not a tf.train.Example"),
  (_ADD, ("text",), "not a tf.train.Example"),
  (_ADD, (3,), "not a tf.train.Example"),
  (_ADD, (emnist_fixtures.serialized_example([0] * 783, 1),), "784 float pixels"),
  (_ADD, (emnist_fixtures.serialized_example([0] * 784, 1, pixels=None),), "784 float pixels"),
  (_ADD, (emnist_fixtures.serialized_example([0] * 784, 1, label=None),), "integer label"),
  (_ADD, (emnist_fixtures.serialized_example([0] * 784, 1, label=_FLOATS),), "integer label"),
  (_ADD, (emnist_fixtures.serialized_example([0] * 784, 62),), "integers in 0..61"),
  (_ADD, (emnist_fixtures.serialized_example([0] * 784, -1),), "integers in 0..61"),
  (_ADD, (emnist_fixtures.serialized_example([300] * 784, 1),), "outside [0, 1]"),
  (_ADD, (emnist_fixtures.serialized_example([np.nan] * 784, 1),), "NaN"),
]


@pytest.mark.parametrize("statement,parameters,message", _BROKEN_SQLITE)
def test_broken_databases(tmp_path, statement, parameters, message):
  path = emnist_fixtures.write_sqlite(
    tmp_path / "emnist_all.sqlite", emnist_fixtures.make_writers([20, 20])
  )
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(statement, parameters)
    connection.commit()
  with emnist_fixtures.refused(str(path), message):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  assert not os.path.exists(tmp_path / "cache") or not os.listdir(tmp_path / "cache")


@pytest.mark.parametrize("contents", [b"", b"SQLite format 3\x00" + b"\x00" * 200, b"<html>" * 99])
def test_a_file_that_is_no_database(tmp_path, contents):
  path = tmp_path / "emnist_all.sqlite"
  path.write_bytes(contents)
  with emnist_fixtures.refused(str(path), "--data_dir"):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  assert path.read_bytes() == contents


def test_a_database_cut_short(tmp_path):
  path = emnist_fixtures.write_sqlite(
    tmp_path / "emnist_all.sqlite", emnist_fixtures.make_writers([50, 50])
  )
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  with emnist_fixtures.refused(str(path), "not a readable SQLite database"):
    emnist_fixtures.load(path, tmp_path / "cache")


@pytest.mark.parametrize("container", [lzma.FORMAT_ALONE, lzma.FORMAT_XZ])
def test_decompress(tmp_path, container):
  contents = np.random.default_rng(0).bytes((1 << 20) + 1)
  (tmp_path / "a.lzma").write_bytes(lzma.compress(contents, format=container))
  conversion.decompress(str(tmp_path / "a.lzma"), str(tmp_path / "new" / "a"))
  assert (tmp_path / "new" / "a").read_bytes() == contents
  assert os.listdir(tmp_path / "new") == ["a"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"PK" + b, lambda b: b""])
def test_a_compressed_file_that_is_damaged(tmp_path, damage):
  path = tmp_path / "emnist_all.sqlite.lzma"
  contents = np.random.default_rng(0).bytes(1000)
  path.write_bytes(damage(lzma.compress(contents, format=lzma.FORMAT_ALONE)))
  with emnist_fixtures.refused(str(path), "truncated or not an lzma file"):
    emnist_fixtures.load(tmp_path, tmp_path / "cache")
  assert not os.listdir(tmp_path / "cache")
