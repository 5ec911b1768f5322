"""Small files in EMNIST's three formats, and what its tests assert of errors."""

import contextlib
import functools
import io
import json
import re
import sqlite3

import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

from helpers import pools


def make_writers(counts, seed=0, prefix="f"):
  """{writer: (levels uint8 [n, 784], labels int [n])}."""
  rng = np.random.default_rng(seed)
  return {
    f"{prefix}{i:04d}": (
      rng.integers(0, 256, (n, 784)).astype(np.uint8),
      rng.integers(0, 62, n).astype(np.int64),
    )
    for i, n in enumerate(counts)
  }


def leaf_data(writers):
  return {
    "users": list(writers),
    "num_samples": [len(y) for _, y in writers.values()],
    "user_data": {
      writer: {"x": np.round(levels / 255.0, 4).tolist(), "y": y.tolist()}
      for writer, (levels, y) in writers.items()
    },
  }


def write_leaf(directory, train, test):
  for split, writers in (("train", train), ("test", test)):
    (directory / split).mkdir(parents=True, exist_ok=True)
    (directory / split / f"all_data_{split}.json").write_text(json.dumps(leaf_data(writers)))
  return directory


def serialized_example(levels, number, **changes):
  pixels = np.asarray(levels, np.float32) / np.float32(255.0)
  features = {
    "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
    **changes,
  }
  features = {name: feature for name, feature in features.items() if feature is not None}
  example = tf.train.Example(features=tf.train.Features(feature=features))
  return example.SerializeToString()


def write_sqlite(path, writers, index=True, splits=("all_train", "all_test")):
  """TFF's database: nine tenths of each writer's examples in the first split."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(
      "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,"
      " serialized_example_proto BLOB NOT NULL)"
    )
    if index:
      connection.execute("CREATE INDEX i ON examples (split_name, client_id)")
    rows = []
    for writer, (levels, labels) in writers.items():
      cut = int(0.9 * len(labels))
      for i, (x, y) in enumerate(zip(levels, labels)):
        rows.append((splits[i >= cut], writer, serialized_example(x, int(y))))
    # TFF's file need not hold a writer's examples together.
    rows.sort(key=lambda row: row[0])
    connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.execute(
      "INSERT INTO examples VALUES ('digits_only_train', 'nobody', ?)", (b"never read",)
    )
    connection.commit()
  return path


def _as_rows(writers):
  """(writers, levels, labels) of all images, in an order in which a writer's lie apart."""
  names = [writer for writer, (_, labels) in writers.items() for _ in labels]
  levels, labels = (np.concatenate([pair[i] for pair in writers.values()]) for i in (0, 1))
  order = np.argsort(
    np.concatenate([np.arange(len(y)) for _, y in writers.values()]), kind="stable"
  )
  return np.array(names)[order], levels[order], labels[order]


def png(levels):
  buffer = io.BytesIO()
  Image.fromarray(levels.reshape(28, 28)).save(buffer, "PNG")
  return buffer.getvalue()


def write_parquet(path, writers, ink=255):
  """Hugging Face's file, with ink of this level."""
  import pyarrow as pa
  from pyarrow import parquet

  names, levels, labels = _as_rows(writers)
  levels = 255 - levels if ink else levels
  rows = [
    dict(image=dict(bytes=png(x), path="x.png"), writer_id=str(name), hsf_id=4, character=int(y))
    for name, x, y in zip(names, levels, labels)
  ]
  parquet.write_table(pa.Table.from_pylist(rows), path)
  return path


load = functools.partial(pools.load, "emnist_linear")


@contextlib.contextmanager
def refused(*parts):
  """Asserts a `ValueError` of one sentence that has these parts."""
  with pytest.raises(ValueError) as error:
    yield
  message = str(error.value)
  assert message.endswith(".") and "\n" not in message
  assert not re.search(r"\.\s+[A-Z]", message), message
  for part in parts:
    assert part in message, message
