"""Invented tweets in Sent140's three formats, with the oddities of the real files, and vectors."""

import csv
import json

import numpy as np

from tasks.sent140 import glove

DIMENSION = 3
# What is not here has no vector.
WORDS = ("i", "good", "bad", "day", "!", ",", "bob", "http", "com", "café", "'s", ";")
# With what the real files have: mentions, URLs, HTML entities, quotes, commas and Latin-1.
_TEXTS = (
  "@bob I had a GOOD day!",
  'bad, "so bad" day http://t.co/x',
  "good &amp; bad &quot;day&quot;",
  "caf\xe9 is good \xbd",
  "",
  "\t#???",
)


def make_users(counts, seed=0, prefix="user"):
  """{user: [(id, text, label 0 or 1)]}, as many tweets a user as `counts` says."""
  rng = np.random.default_rng(seed)
  users, next_id = {}, 1_467_810_369
  for i, n in enumerate(counts):
    users[f"{prefix}{i:02d}"] = []
    for _ in range(n):
      text = _TEXTS[rng.integers(len(_TEXTS))]
      users[f"{prefix}{i:02d}"].append((str(next_id), text, int(rng.integers(2))))
      next_id += 1
  return users


def leaf_data(users):
  date = "Mon Apr 06 22:19:45 PDT 2009"
  return {
    "users": list(users),
    "num_samples": [len(tweets) for tweets in users.values()],
    "user_data": {
      user: {
        "x": [[i, date, "NO_QUERY", user, text, "training"] for i, text, _ in tweets],
        "y": [label for *_, label in tweets],
      }
      for user, tweets in users.items()
    },
  }


def write_leaf(directory, train, test):
  for split, users in (("train", train), ("test", test)):
    (directory / split).mkdir(parents=True, exist_ok=True)
    (directory / split / f"all_data_{split}.json").write_text(json.dumps(leaf_data(users)))
  return directory


def write_csv(path, users, header=None, positive="4"):
  """Stanford's CSV: every field in quotes, rows by label, so that a user's lie apart."""
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = [
    [positive if label else "0", i, "Mon Apr 06 2009", "NO_QUERY", user, text]
    for user, tweets in users.items()
    for i, text, label in tweets
  ]
  with open(path, "w", encoding="latin-1", newline="") as f:
    writer = csv.writer(f, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([header] if header else [])
    writer.writerows(sorted(rows, key=lambda row: row[0]))
  return path


def write_parquet(path, users):
  """Hugging Face's file, without ids; each tweet has a time of its own."""
  import pyarrow as pa
  from pyarrow import parquet

  rows = [
    dict(text=text, date=f"Apr {i}", user=user, sentiment=4 * label, query="NO_QUERY")
    for user, tweets in users.items()
    for i, text, label in tweets
  ]
  rows.sort(key=lambda row: row["sentiment"])
  parquet.write_table(pa.Table.from_pylist(rows), path)
  return path


def vector(word):
  """The word's vector in the file of `write_glove`."""
  if word not in WORDS:
    return np.zeros(DIMENSION, np.float32)
  return np.float32([WORDS.index(word) + 1, -0.5, 1 / 8])


def write_glove(path, dimension=DIMENSION):
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = []
  for word in WORDS:
    numbers = np.resize(vector(word), dimension)
    lines.append(" ".join([word, *(repr(float(number)) for number in numbers)]))
  path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
  return path


def with_glove(directory):
  """The directory, after writing vectors to it under the name that is looked for."""
  write_glove(directory / glove.FILE_NAME)
  return directory
