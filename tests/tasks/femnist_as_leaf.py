"""Writes the writers of an .npz file as LEAF's FEMNIST JSON, in its split by sample.

    python tests/tasks/femnist_as_leaf.py femnist_105_writers.npz FOLDER

The file has `users` [writers], `n` [writers], and `x` uint8 [images, 784] with `y` [images] in the
order of the writers. A task puts both parts of each writer together and divides the writers itself.
"""

import json
import pathlib
import sys

import numpy as np


def convert(path: str | pathlib.Path, folder: str | pathlib.Path) -> None:
  """Writes FOLDER/train/*.json and FOLDER/test/*.json, nine tenths and the rest of each writer."""
  data = np.load(path)
  ends = np.cumsum(data["n"])
  pixels = np.round(np.arange(256) / 255, 6).tolist()
  for split in ("train", "test"):
    users, user_data = data["users"].tolist(), {}
    for user, end, n in zip(users, ends.tolist(), data["n"].tolist()):
      cut = end - max(1, n // 10)
      rows = slice(end - n, cut) if split == "train" else slice(cut, end)
      x = [[pixels[level] for level in image] for image in data["x"][rows].tolist()]
      user_data[user] = {"x": x, "y": data["y"][rows].tolist()}
    num_samples = [len(user_data[user]["y"]) for user in users]
    target = pathlib.Path(folder, split, f"all_data_0_niid_0_keep_0_{split}_9.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    content = {"users": users, "num_samples": num_samples, "user_data": user_data}
    target.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
  convert(*sys.argv[1:])
