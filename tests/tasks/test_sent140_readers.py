"""Sent140's files: the same tweets from all formats; what is wrong is said in one sentence."""

import json
import logging

from helpers import emnist_fixtures
from helpers import sent140_fixtures
import numpy as np
import pytest

from tasks.sent140 import readers

_ROW = ["4", "1", "Mon", "NO_QUERY", "ann", "hello"]


def read_all(iterator):
  """{user: {(text, label), ...}}, as lists that are sorted, since the formats' order differs."""
  return {
    user: sorted(zip(texts, labels.tolist()))
    for user, texts, labels in iterator
    if labels.dtype == np.int32
  }


def write_rows(path, rows):
  path.write_text("".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows))
  return str(path)


def write_one_user(path, x, y):
  path.write_text(
    json.dumps({"users": ["ann"], "num_samples": [len(y)], "user_data": {"ann": {"x": x, "y": y}}})
  )
  return str(path)


def test_all_formats_hold_the_same_tweets(tmp_path):
  users = sent140_fixtures.make_users([30, 4, 9])
  sent140_fixtures.write_leaf(tmp_path, users, {})
  leaf = read_all(
    readers.iterate_leaf([str(tmp_path / "train" / "all_data_train.json")], min_examples=1)
  )
  path = sent140_fixtures.write_csv(tmp_path / "tweets.csv", users)
  stanford = read_all(readers.iterate_table(str(path), min_examples=1))
  path = sent140_fixtures.write_parquet(tmp_path / readers.PARQUET_NAME, users)
  parquet = read_all(readers.iterate_table(str(path), min_examples=1))
  expected = {
    user: sorted((text, label) for _, text, label in tweets) for user, tweets in users.items()
  }
  assert leaf == expected and stanford == expected and parquet == expected
  assert list(stanford) == list(parquet) == sorted(users)


@pytest.mark.parametrize("header", [None, ["target", "ids", "date", "flag", "user", "text"]])
@pytest.mark.parametrize("positive", ["1", "4"])
def test_csv_with_names_of_columns_and_either_label(tmp_path, header, positive):
  users = sent140_fixtures.make_users([20])
  path = sent140_fixtures.write_csv(tmp_path / "a.csv", users, header=header, positive=positive)
  [(user, texts, labels)] = readers.iterate_table(str(path), min_examples=1)
  assert user == "user00" and len(texts) == 20
  assert labels.sum() == sum(label for *_, label in users["user00"])
  assert 0 < labels.sum() < 20


@pytest.mark.parametrize("y", [[0, 1, 1], ["0", "4", "4"], [0, 4, 4], ["0", "1", "1"]])
@pytest.mark.parametrize("shape", ["text", "five", "six"])
def test_leaf_in_the_forms_that_other_tools_write(tmp_path, y, shape):
  texts = ["a", "b", "c"]
  fields = {"text": None, "five": ["1", "d", "q", "ann"], "six": ["1", "d", "q", "ann"]}[shape]
  tail = ["training"] if shape == "six" else []
  x = [t if fields is None else [str(i), *fields[1:], t, *tail] for i, t in enumerate(texts)]
  path = write_one_user(tmp_path / "a.json", x, y)
  [(user, found, labels)] = readers.iterate_leaf([path], min_examples=1)
  assert user == "ann" and found == texts
  np.testing.assert_array_equal(labels, [0, 1, 1])


def test_the_first_of_a_users_tweets_of_one_id_counts(tmp_path, caplog):
  rows = [
    ["0", "1", "d", "q", "ann", "first"],
    ["0", "2", "d", "q", "ann", "other"],
    ["0", "1", "d", "q", "bob", "his own"],
    ["0", "3", "d", "q", "bob", "his second"],
    ["4", "1", "d", "q", "ann", "again"],
    ["4", "5", "d", "q", "eve", "one"],
    ["4", "5", "d", "q", "eve", "one again"],
  ]
  path = write_rows(tmp_path / "a.csv", rows)
  with caplog.at_level(logging.INFO, logger="tff_superquantile"):
    found = read_all(readers.iterate_table(path, min_examples=2))
  # Eve has two rows but a single tweet.
  assert found == {
    "ann": [("first", 0), ("other", 0)],
    "bob": [("his own", 0), ("his second", 0)],
  }
  assert "Dropped 2 tweets with the id" in caplog.text and "2 of 3 users who have" in caplog.text

  x = [[row[1], *row[2:], "training"] for row in rows if row[4] == "ann"]
  leaf = write_one_user(tmp_path / "a.json", x, [0, 0, 1])
  assert read_all(readers.iterate_leaf([leaf], 2)) == {"ann": found["ann"]}


def test_texts_without_ids_are_never_the_same_tweet(tmp_path):
  path = write_one_user(tmp_path / "a.json", ["hello", "hello"], [0, 1])
  assert read_all(readers.iterate_leaf([path], 2)) == {"ann": [("hello", 0), ("hello", 1)]}


def test_users_with_too_few_tweets_are_dropped(tmp_path):
  users = sent140_fixtures.make_users([3, 5, 4])
  path = str(sent140_fixtures.write_csv(tmp_path / "a.csv", users))
  kept = readers.iterate_table(path, 4)
  assert kept.num_dropped is None
  assert list(read_all(kept)) == ["user01", "user02"] and kept.num_dropped == 1
  with emnist_fixtures.refused("no user with 6 tweets among 3", "--min_examples_per_client"):
    list(readers.iterate_table(path, 6))


_SIX = ["1", "d", "q", "ann", "hello", "training"]


@pytest.mark.parametrize(
  "x,y,message",
  [
    ([_SIX[:4]], [0], "neither a text nor a list"),
    ([{"text": "hello"}], [0], "neither a text nor a list"),
    ([_SIX], [2], "label 2"),
    ([_SIX], ["positive"], "label 'positive'"),
    ([_SIX], [True], "label True"),
    ([_SIX], [1.0], "label 1.0"),
    ([_SIX], [[1]], "label [1]"),
  ],
)
def test_broken_leaf_files(tmp_path, x, y, message):
  path = write_one_user(tmp_path / "a.json", x, y)
  with emnist_fixtures.refused(path, "user 'ann'", message):
    list(readers.iterate_leaf([path], 1))


@pytest.mark.parametrize(
  "row,message",
  [
    (_ROW[:5], "has 5 columns"),
    ([*_ROW, "training"], "has 7 columns"),
    (["2", *_ROW[1:]], "label '2'"),
    (["", *_ROW[1:]], "label ''"),
    ([*_ROW[:4], "", "hello"], "has no user"),
  ],
)
def test_broken_rows(tmp_path, row, message):
  path = write_rows(tmp_path / "a.csv", [_ROW, row])
  with emnist_fixtures.refused(path, "line 2", message):
    list(readers.iterate_table(path, 1))


@pytest.mark.parametrize("rest", ["", "\n", "\n" + "x" * 200_000])
def test_a_quotation_mark_that_is_never_closed(tmp_path, rest):
  path = tmp_path / "a.csv"
  path.write_text('"4","1","d","q","ann","hello' + rest)
  with emnist_fixtures.refused(str(path), "is not CSV", readers.CSV_NAME):
    list(readers.iterate_table(str(path), 1))


@pytest.mark.parametrize("contents", [b"", b"\n\n", b"PK\x03\x04\x00\xff\xfe" * 50])
def test_files_that_are_not_stanfords(tmp_path, contents):
  path = tmp_path / "a.csv"
  path.write_bytes(contents)
  with emnist_fixtures.refused(str(path)):
    list(readers.iterate_table(str(path), 1))


def test_parquet_that_is_another_or_has_a_tweet_twice(tmp_path):
  users = {"ann": [("1", "hello", 1), ("2", "hello", 0), ("1", "hello", 0)]}
  path = sent140_fixtures.write_parquet(tmp_path / "a.parquet", users)
  [(_, texts, labels)] = readers.iterate_table(str(path), 1)
  assert texts == ["hello", "hello"] and len(labels) == 2
  for change, message in (
    ({"ann": [("1", "hello", 0.5)]}, "label 2.0"),
    ({"": [("1", "hello", 0)]}, "the user ''"),
    ({"ann": [("1", None, 0)]}, "the text None"),
  ):
    sent140_fixtures.write_parquet(path, change)
    with emnist_fixtures.refused(str(path), "row 1", message):
      list(readers.iterate_table(str(path), 1))
  path.write_bytes(b"PAR1")
  with emnist_fixtures.refused(str(path), "not readable as Parquet"):
    list(readers.iterate_table(str(path), 1))
