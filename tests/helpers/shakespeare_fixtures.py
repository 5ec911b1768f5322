"""Small plays in the two formats of the Shakespeare data set."""

import json

import h5py
import numpy as np
import tensorflow as tf

from tasks import shakespeare
from tasks.shakespeare import characters


def shorten(monkeypatch, num_steps=5):
  """Lets the task take fewer steps: its network of 80 takes ten times as long to trace."""
  monkeypatch.setattr(characters, "SEQUENCE_LENGTH", num_steps)
  monkeypatch.setattr(shakespeare, "_X_SPEC", tf.TensorSpec([None, num_steps], tf.float32))


def make_texts(lengths, seed=0, prefix="ROLE"):
  """{role: text}, with as many characters as `lengths` says and no repeated spaces."""
  rng = np.random.default_rng(seed)
  letters = list("abcdefghijklmnopqrstuvwxyz,.;ABC")
  texts = {}
  for i, n in enumerate(lengths):
    text = rng.choice(letters, n)
    text[3::5] = " "
    texts[f"{prefix}_{i}"] = "".join(text)
  return texts


def write_hdf5(path, snippets):
  """TFF's file of {role: [text]}."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with h5py.File(path, "w") as file:
    for role, texts in snippets.items():
      encoded = np.array([text.encode() for text in texts])
      file.create_dataset(f"examples/{role}/snippets", data=encoded)
  return path


def leaf_data(texts, stride=10):
  """LEAF's data of {role: text}, with a sequence at every `stride` characters."""
  x = {
    role: [text[i : i + 80] for i in range(0, len(text) - 80, stride)]
    for role, text in texts.items()
  }
  y = {role: [text[i] for i in range(80, len(text), stride)] for role, text in texts.items()}
  return {
    "users": list(x),
    "num_samples": [len(y[role]) for role in x],
    "user_data": {role: {"x": x[role], "y": y[role]} for role in x},
  }


def write_leaf(directory, train, test):
  for split, texts in (("train", train), ("test", test)):
    (directory / split).mkdir(parents=True, exist_ok=True)
    (directory / split / f"all_data_{split}.json").write_text(json.dumps(leaf_data(texts)))
  return directory
