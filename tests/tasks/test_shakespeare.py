"""The Shakespeare task: the same roles from both formats, and what is wrong in one sentence."""

import functools
import json

import h5py
from helpers import emnist_fixtures
from helpers import pools
from helpers import shakespeare_fixtures
import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.shakespeare import characters
from tasks.shakespeare import readers
from tasks.shakespeare import standin

# LEAF's, in its order.
_LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


load = functools.partial(pools.load, "shakespeare")


def decode(x, y):
  """[(80 characters, the next one)] from their numbers."""
  letters = np.array(["?", *_LETTERS])
  return [("".join(letters[row]), letters[label]) for row, label in zip(x, y)]


def read_all(iterator):
  found = {}
  for role, x, y in iterator:
    assert x.dtype == np.uint8 and x.shape == (len(y), 80) and y.dtype == np.int32
    found[role] = decode(x, y)
  return found


def test_characters_are_leafs():
  assert len(set(_LETTERS)) == 80 and _LETTERS == characters.LETTERS
  np.testing.assert_array_equal(characters.encode(_LETTERS), np.arange(1, 81))
  assert characters.encode("\0~\x7f\x80é\N{GRINNING FACE}\ud800").tolist() == [0] * 7
  names = characters.NAMES
  assert len(set(names)) == 81 and names[:4] == ("unknown", "newline", "space", "!")
  # Each is a line of labels.txt.
  assert all(name and name.split() == [name] for name in names)


def test_a_text_is_cut_as_leaf_does_but_at_every_tenth_character():
  text = shakespeare_fixtures.make_texts([135])["ROLE_0"]
  ragged = text.replace(" ", "\n", 1).replace(" ", "    ", 1)
  expected = [(text[i : i + 80], text[i + 80]) for i in (0, 10, 20, 30, 40, 50)]
  assert decode(*characters.cut(text)) == decode(*characters.cut(ragged)) == expected
  for length, number in ((0, 0), (1, 0), (80, 0), (81, 1), (90, 1), (91, 2)):
    x, y = characters.cut("a" * length)
    assert x.shape == (number, 80) and y.shape == (number,)


def test_both_formats_hold_the_same_roles(tmp_path):
  texts = shakespeare_fixtures.make_texts([300, 90, 1001])
  shakespeare_fixtures.write_leaf(tmp_path, texts, {})
  leaf = read_all(readers.iterate_leaf([str(tmp_path / "train" / "all_data_train.json")]))
  # Either file has a part of what a role says, up to a space; one role is in the second alone.
  spaces = {"ROLE_0": 153, "ROLE_1": -1, "ROLE_2": 398}
  first = {role: [texts[role][:space]] for role, space in spaces.items() if space > 0}
  second = {role: [texts[role][space + 1 :]] for role, space in spaces.items()}
  paths = [
    str(shakespeare_fixtures.write_hdf5(tmp_path / name, snippets))
    for name, snippets in ((readers.TRAIN_NAME, first), (readers.TEST_NAME, second))
  ]
  assert readers.hdf5_paths(paths[0]) == paths and readers.hdf5_paths(paths[1]) == paths[1:]
  found = read_all(readers.iterate_hdf5(paths))
  assert found == leaf and list(found) == sorted(texts)
  assert found["ROLE_2"][-1][1] == texts["ROLE_2"][1000]


def test_roles_with_enough_to_say_are_halved_by_the_seed(tmp_path):
  texts = shakespeare_fixtures.make_texts([281, 280, 80, 500, 600, 700, 0])
  path = shakespeare_fixtures.write_hdf5(
    tmp_path / readers.TRAIN_NAME, {role: [text] for role, text in texts.items() if text}
  )
  halves = set()
  for seed in range(6):
    splits = load(tmp_path, tmp_path / "cache", seed=seed)
    halves.add(splits["train"].client_ids)
    both = splits["train"].client_ids + splits["test"].client_ids
    assert sorted(both) == ["ROLE_0", "ROLE_1", "ROLE_3", "ROLE_4", "ROLE_5"]
    assert splits["train"].num_dropped == 1
  assert len(halves) > 1
  files = splits["train"]
  assert files.x_dtype == "uint8"
  assert files.input_spec == tasks.get_task("shakespeare").build_model(0).input_spec
  assert files.decode(files.load()[0]).dtype == tf.float32
  splits = load(path, tmp_path / "cache", min_examples_per_client=40)
  assert {role for files in splits.values() for role in files.client_ids} == {
    *("ROLE_3", "ROLE_4", "ROLE_5")
  }
  # A test file that comes later makes another cache.
  shakespeare_fixtures.write_hdf5(tmp_path / readers.TEST_NAME, {"ROLE_2": ["b" * 400]})
  splits = load(tmp_path, tmp_path / "cache", min_examples_per_client=40)
  assert sum(len(files.client_ids) for files in splits.values()) == 4


def test_leafs_splits_are_kept(tmp_path):
  train = shakespeare_fixtures.make_texts([300, 400])
  test = shakespeare_fixtures.make_texts([500], prefix="OTHER")
  shakespeare_fixtures.write_leaf(tmp_path, train, test)
  splits = load(tmp_path, tmp_path / "cache")
  assert set(splits["train"].client_ids) == set(train)
  assert splits["test"].client_ids == tuple(test)


@pytest.mark.parametrize(
  "x,y",
  [(["a" * 79], ["b"]), (["a" * 80], ["bc"]), (["a" * 80], [""]), (["a" * 80], [1]), ([3], ["b"])],
)
def test_broken_leaf_files(tmp_path, x, y):
  path = tmp_path / "a.json"
  content = {"users": ["A"], "num_samples": [1], "user_data": {"A": {"x": x, "y": y}}}
  path.write_text(json.dumps(content))
  with emnist_fixtures.refused(str(path), "role 'A'", "80 characters"):
    list(readers.iterate_leaf([str(path)]))


def test_broken_hdf5_files(tmp_path):
  path = tmp_path / readers.TRAIN_NAME

  def assert_wrong(*parts):
    with emnist_fixtures.refused(str(path), readers.SOURCE, *parts):
      list(readers.iterate_hdf5([str(path)]))

  path.write_bytes(b"no HDF5")
  assert_wrong("not a readable HDF5 file")
  with h5py.File(path, "w") as file:
    file.create_group("examples")
  assert_wrong("no roles")
  with h5py.File(path, "w") as file:
    file.create_dataset("examples/A/snippets", data=[1, 2])
  assert_wrong("role 'A'", "no list of texts")
  with h5py.File(path, "w") as file:
    file.create_dataset("examples/A/pixels", data=[1, 2])
  assert_wrong("role 'A'", "no list of texts")
  for place in ("examples/A", "examples/A/snippets"):  # Links that lead nowhere.
    with h5py.File(path, "w") as file:
      file[place] = h5py.ExternalLink("gone.h5", "/texts")
    assert_wrong("role 'A'")


def test_the_real_plays(shared_dir, tmp_path):
  path = shared_dir / "data" / readers.TRAIN_NAME
  splits = load(path, tmp_path)
  assert splits["train"].num_dropped + sum(len(s.client_ids) for s in splits.values()) == 715
  x, y, _ = splits["train"].load()
  assert (x > 0).all() and (y > 0).all()  # LEAF's characters are all that there are.
  assert "".join(decode(x[:1], y[:1])[0]).count(" ") > 5
  assert splits["train"].num_examples.min() >= 20


def test_a_table_of_pairs_learns_the_standin_and_dialects_make_its_tail():
  """The most frequent successor of each character, counted over half of the roles."""
  roles = [(x, y) for _, x, y in standin.make_roles()]
  assert len(roles) == standin.NUM_ROLES and min(len(y) for _, y in roles) >= 32
  counts = np.zeros((81, 81))
  for x, y in roles[::2]:
    np.add.at(counts, (x[:, -1], y), 1)
  successor = counts.argmax(axis=1)
  errors = np.array([np.mean(successor[x[:, -1]] != y) for x, y in roles[1::2]])
  most_frequent = counts.sum(axis=0).argmax()
  assert errors.mean() < np.mean([np.mean(y != most_frequent) for _, y in roles[1::2]]) - 0.1
  assert np.percentile(errors, 90) > errors.mean() + 0.08
