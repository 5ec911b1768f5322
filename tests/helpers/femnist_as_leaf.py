"""Writes the writers of .npz files as LEAF's FEMNIST JSON, in its split by sample.

    python tests/helpers/femnist_as_leaf.py [--whole] FILE.npz [FILE.npz ...] FOLDER

A file has `users` [writers], `n` [writers], and `x` uint8 [images, 784] with `y` [images] in the
order of the writers. A task puts both parts of each writer together and divides the writers itself.
"""

import argparse
from collections.abc import Iterable
import json
import pathlib

import numpy as np

# LEAF's sampler cuts the last writer of each shard. These are the cut ones of the 105 in
# femnist_105_writers.npz, which --whole leaves out.
CUT_WRITERS = frozenset(
  "f1599_48 f1605_44 f1688_24 f1702_13 f1780_04 f1864_10 f2210_96 f2235_81 f2316_50 f2502_59"
  " f2527_72 f3122_40 f3152_47 f3443_42 f3520_45 f3579_30 f3847_24 f3860_20 f3868_35"
  " f3938_46".split()
)


def convert(
  path: str | pathlib.Path, folder: str | pathlib.Path, without: Iterable[str] = ()
) -> None:
  """Writes FOLDER/train/STEM.json and FOLDER/test/STEM.json, nine tenths and the rest of each."""
  data = np.load(path)
  ends = np.cumsum(data["n"])
  pixels = np.round(np.arange(256) / 255, 6).tolist()
  for split in ("train", "test"):
    user_data = {}
    for user, end, n in zip(data["users"].tolist(), ends.tolist(), data["n"].tolist()):
      if user in without:
        continue
      cut = end - max(1, n // 10)
      rows = slice(end - n, cut) if split == "train" else slice(cut, end)
      x = [[pixels[level] for level in image] for image in data["x"][rows].tolist()]
      user_data[user] = {"x": x, "y": data["y"][rows].tolist()}
    num_samples = [len(of_user["y"]) for of_user in user_data.values()]
    target = pathlib.Path(folder, split, f"{pathlib.Path(path).stem}_{split}.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    content = {"users": [*user_data], "num_samples": num_samples, "user_data": user_data}
    target.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--whole", action="store_true", help="leave out the writers that were cut")
  parser.add_argument("files", nargs="+", metavar="FILE.npz")
  parser.add_argument("folder", metavar="FOLDER")
  args = parser.parse_args()
  for file in args.files:
    convert(file, args.folder, CUT_WRITERS if args.whole else ())
