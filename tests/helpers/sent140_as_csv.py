"""Writes the features of an .npz file as Stanford's CSV and GloVe's text file.

    python tests/helpers/sent140_as_csv.py sent140_users.npz FOLDER

The file has `n` [users], and `features` float [tweets, d] with `label` [tweets], 1 for positive, in
the order of the users. Each tweet becomes a word of its own, whose vector is the tweet's: the mean
of its words, which the linear task takes, is then the feature to the bit.
"""

import csv
import pathlib
import sys

import numpy as np

from tasks.sent140 import glove
from tasks.sent140 import readers


def convert(path: str | pathlib.Path, folder: str | pathlib.Path) -> None:
  """Writes FOLDER/training.1600000.processed.noemoticon.csv and FOLDER/glove.6B.50d.txt."""
  data = np.load(path)
  users = np.repeat(np.arange(len(data["n"])), data["n"])
  target = pathlib.Path(folder)
  target.mkdir(parents=True, exist_ok=True)
  with open(target / readers.CSV_NAME, "w", encoding="latin-1", newline="") as tweets:
    with open(target / glove.FILE_NAME, "w", encoding="ascii") as words:
      writer = csv.writer(tweets, quoting=csv.QUOTE_ALL)
      rows = zip(users.tolist(), data["label"].tolist(), data["features"].astype(float).tolist())
      for i, (user, label, vector) in enumerate(rows):
        writer.writerow([4 * label, i, "", "NO_QUERY", f"user{user:03}", f"tweet{i}"])
        words.write(f"tweet{i} {' '.join(map(repr, vector))}\n")


if __name__ == "__main__":
  convert(*sys.argv[1:])
