"""Reads tweets by user from the files that Sent140's users have, and names their faults.

Three formats hold the same tweets: LEAF's Sent140 JSON (`iterate_leaf`), the CSV of Stanford's
Sentiment140, from which LEAF makes its own, and Hugging Face's Parquet of that (`iterate_table`).
All give `Users`, which yield (user, texts, y int32 [n], 1 for positive), one user at a time,
without users that have too few tweets. Stanford's file has some tweets twice, once with either
label: of a user's tweets with the same id, the first one counts. Parquet has no ids: there it is
the same text at the same time.
"""

import collections
from collections.abc import Callable, Hashable, Iterable, Iterator
import csv
import dataclasses
import itertools
import logging
from typing import Any, NamedTuple

import numpy as np

from tasks import data_set
from tasks import downloads
from tasks import user_files
from tasks.sent140 import glove

_LOG = logging.getLogger("tff_superquantile.tasks")

CSV_NAME = "training.1600000.processed.noemoticon.csv"
PARQUET_NAME = "0000.parquet"
_COMMAND = "preprocess.sh -s niid --sf 1.0 -k 50 -t user --tf 0.5"  # LEAF's.

# LEAF writes 1 and Stanford 4 for positive; 2 is Stanford's neutral, which its test file has.
_LABELS = {0: 0, 1: 1, 4: 1, "0": 0, "1": 1, "4": 1}
_LABELS_WANTED = "0 for negative and 1 or 4 for positive"
_COLUMNS = ("label", "id", "date", "query", "user", "text")
_PARQUET, _PARQUET_COLUMNS = ".parquet", ("sentiment", "date", "user", "text")
_OTHER_PARQUET = (
  "expected Hugging Face's stanfordnlp/sentiment140: download it again, or name another"
)
_LEAF_ID, _LEAF_TEXT = 0, 4
_END = "\N{SYMBOL FOR END OF TEXT}"  # Not in Latin-1, so not in a file either.

DOWNLOAD = downloads.Download(
  what="Sent140",
  urls=("https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",),
  sha256="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
  size=81_363_704,
  members=(CSV_NAME,),
  room=240_000_000,
)

DATA_SET = data_set.DataSet(
  name="Sent140",
  file_names=(CSV_NAME, PARQUET_NAME),
  command=_COMMAND,
  client="user",
  examples="tweets",
  min_examples=50,
  downloads=(DOWNLOAD, glove.DOWNLOAD),
)


class _Tweet(NamedTuple):
  tweet_id: Hashable | None  # None if unknown.
  text: str
  label: int


_Tweeters = Iterable[tuple[str, list[_Tweet]]]


def _without_repeated(tweets: Iterable[_Tweet]) -> list[_Tweet]:
  """Returns the tweets without those that have the id of an earlier one."""
  seen, kept = set(), []
  for tweet in tweets:
    if tweet.tweet_id is None or tweet.tweet_id not in seen:
      seen.add(tweet.tweet_id)
      kept.append(tweet)
  return kept


@dataclasses.dataclass
class Users:
  """The users with enough tweets, of all that `read` returns, read while they are iterated over."""

  read: Callable[[], _Tweeters]
  min_examples: int
  source: str
  num_dropped: int | None = None

  def __iter__(self) -> Iterator[tuple[str, list[str], np.ndarray]]:
    """Yields (user, texts, y int32 [n]); raises a `ValueError` if nobody has enough tweets."""
    num_users = num_kept = num_repeated = 0
    for user, tweets in self.read():
      kept = _without_repeated(tweets)
      num_repeated += len(tweets) - len(kept)
      num_users += 1
      if len(kept) >= self.min_examples:
        num_kept += 1
        labels = np.array([tweet.label for tweet in kept], np.int32)
        yield user, [tweet.text for tweet in kept], labels
    if not num_kept:
      raise ValueError(
        f"{self.source} has no user with {self.min_examples} tweets among {num_users}; lower"
        " --min_examples_per_client, or get more of Sent140."
      )
    if num_repeated:
      _LOG.info("Dropped %d tweets with the id of an earlier tweet of the user.", num_repeated)
    _LOG.info(
      "Kept the %d of %d users who have at least %d tweets.",
      *(num_kept, num_users, self.min_examples),
    )
    self.num_dropped = num_users - num_kept


def _label(value: Any) -> int | None:
  """Returns 0 or 1, or None if the value is no label; True and 1.0 are none, though equal to 1."""
  return _LABELS.get(value) if type(value) in (int, str) else None


def _leaf_tweet(path: str, user: str, x: Any, y: Any) -> _Tweet:
  """Checks and returns one entry of a LEAF file."""
  tweet_id, text = None, x
  if isinstance(x, list) and len(x) > _LEAF_TEXT:
    tweet_id, text = str(x[_LEAF_ID]), x[_LEAF_TEXT]
  if not isinstance(text, str):
    raise ValueError(
      f"{path}: user {user!r} has a tweet that is neither a text nor a list with the text as its"
      f" fifth; expected [id, date, query, user, text, ...] as LEAF's {_COMMAND} leaves it."
    )
  label = _label(y)
  if label is None:
    raise ValueError(f"{path}: user {user!r} has the label {y!r}; expected {_LABELS_WANTED}.")
  return _Tweet(tweet_id, text, label)


def iterate_leaf(paths: list[str], min_examples: int) -> Users:
  """Reads the users of a split's LEAF JSON files with enough tweets."""

  def read() -> Iterator[tuple[str, list[_Tweet]]]:
    for path, user, data in user_files.iterate_leaf(paths, DATA_SET):
      yield user, [_leaf_tweet(path, user, x, y) for x, y in zip(data["x"], data["y"])]

  return Users(read, min_examples, ", ".join(paths))


def _iterate_rows(path: str) -> Iterator[tuple[str, _Tweet]]:
  """Yields (user, tweet) of each row of Stanford's CSV, with or without a line of names first."""
  # Latin-1 as Stanford's file: whatever the bytes, every one of them is a character.
  with open(path, encoding="latin-1", newline="") as f:
    # One line more, which is a row of its own unless a quotation mark is open.
    rows = csv.reader(itertools.chain(f, [_END]))
    try:
      for row in rows:
        where = f"{path}: line {rows.line_num}"
        if row == [_END]:
          return
        if not row:
          continue
        if row[-1].endswith(_END):
          raise csv.Error("a quotation mark is never closed")
        if len(row) != len(_COLUMNS):
          raise ValueError(
            f"{where} has {len(row)} columns; expected Stanford's {len(_COLUMNS)}:"
            f" {', '.join(_COLUMNS)}."
          )
        value, tweet_id, _, _, user, text = row
        if rows.line_num == 1 and value.isalpha():
          continue  # Names of the columns.
        label = _label(value)
        if label is None:
          raise ValueError(f"{where} has the label {value!r}; expected {_LABELS_WANTED}.")
        if not user:
          raise ValueError(f"{where} has no user; expected {', '.join(_COLUMNS)}.")
        yield user, _Tweet(tweet_id, text, label)
    except csv.Error as e:  # Also a null byte, or a field that does not end for long.
      raise ValueError(
        f"{path}: line {rows.line_num} is not CSV ({e}); unpack or download {CSV_NAME} again."
      ) from e


def _iterate_parquet(path: str) -> Iterator[tuple[str, _Tweet]]:
  """Yields (user, tweet) of each row of Hugging Face's Parquet file."""
  row = 0
  with user_files.open_parquet(path, _PARQUET_COLUMNS, _OTHER_PARQUET) as file:
    for batch in file.iter_batches(columns=list(_PARQUET_COLUMNS)):
      columns = (batch.column(name).to_pylist() for name in _PARQUET_COLUMNS)
      for value, date, user, text in zip(*columns):
        row += 1
        label = _label(value)
        if label is None or not user or not isinstance(text, str):
          raise ValueError(
            f"{path}: row {row} has the label {value!r}, the user {user!r} and the text {text!r};"
            f" expected {_LABELS_WANTED}, and two texts."
          )
        yield user, _Tweet((date, text), text, label)


def iterate_table(path: str, min_examples: int) -> Users:
  """Reads the users of Stanford's CSV or of Hugging Face's Parquet, sorted, with enough tweets.

  The file is read twice, so that the texts of most users, who tweet little, are never held in
  memory.
  """
  iterate = _iterate_parquet if path.endswith(_PARQUET) else _iterate_rows

  def read() -> _Tweeters:
    _LOG.info("Reading %s.", path)
    counts = collections.Counter(user for user, _ in iterate(path))
    # Users with too few tweets come along without their texts, to be counted.
    tweets: dict[str, list[_Tweet]] = {user: [] for user in sorted(counts)}
    for user, tweet in iterate(path):
      if counts[user] >= min_examples:
        tweets[user].append(tweet)
    return tweets.items()

  return Users(read, min_examples, path)
