"""Reads handwriting by writer from NIST's own `emnist-byclass.mat`, a file of MATLAB 5.

Its `dataset` has two parts, train and test, each with images uint8 [n, 784], column by column with
ink = 255, labels [n, 1] from 0 to 61, and writers [n, 1], NIST's numbers; and a mapping of
labels to the codes of characters.
"""

from collections.abc import Iterator
import os
from typing import Any

from absl import logging
import numpy as np

from tasks.emnist import writers

FILE_NAME = "emnist-byclass.mat"
SOURCE = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_MAGIC = b"MATLAB 5.0 MAT-file"
_PARTS = ("train", "test")


def _not_byclass(path: str, reason: str) -> ValueError:
  return ValueError(
    f"{path} {reason}; expected NIST's {FILE_NAME} of {SOURCE}: download it again, or name another"
    " with --data_dir."
  )


def describe(path: str) -> str:
  """Says how large the file is; raises a `ValueError` if it is another."""
  with open(path, "rb") as file:
    if file.read(len(_MAGIC)) != _MAGIC:
      raise _not_byclass(path, "is no file of MATLAB 5")
  return f"{os.path.getsize(path) / 1e9:.2f} GB"


def _read(path: str) -> dict[str, Any]:
  """Returns the data set as nested dictionaries of arrays."""
  # Not before it is used: importing it takes long.
  from scipy import io

  describe(path)
  logging.info("Reading %s.", path)
  try:
    return io.loadmat(path, simplify_cells=True, variable_names=["dataset"])["dataset"]
  except Exception as e:  # A damaged file may raise anything.
    raise _not_byclass(path, f"is not readable ({type(e).__name__}: {e})") from e


def iterate(path: str) -> Iterator[writers.Writer]:
  """Yields the writers of the file, sorted, each with all examples of both its parts, train first.

  A writer is one of NIST's numbers, as text.

  Args:
    path: The file.

  Raises:
    ValueError: If the file isn't of that form.
  """
  dataset = _read(path)
  try:
    codes = dataset["mapping"].reshape(-1, 2)
    parts = [dataset[part] for part in _PARTS]
    images = [part["images"].reshape(-1, writers.SIDE, writers.SIDE) for part in parts]
    labels, numbers = (
      np.concatenate([np.atleast_1d(part[name]) for part in parts])
      for name in ("labels", "writers")
    )
  except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
    raise _not_byclass(path, f"has no dataset of that form ({type(e).__name__}: {e})") from e
  characters = {int(label): chr(int(code)) for label, code in codes}
  if characters != dict(enumerate(writers.CLASSES)):
    raise _not_byclass(
      path, f"has {len(characters)} classes that are not the {len(writers.CLASSES)}"
    )
  num_images = sum(map(len, images))
  if not len(labels) == len(numbers) == num_images:
    raise _not_byclass(
      path, f"has {num_images} images, {len(labels)} labels and the writers of {len(numbers)}"
    )
  if any(part.dtype != np.uint8 for part in images) or numbers.dtype.kind not in "iu":
    raise _not_byclass(path, "has images or writers that are not integers")
  num_train = len(images[0])
  for number, rows in writers.rows_of_each(numbers):
    of_parts = images[0][rows[rows < num_train]], images[1][rows[rows >= num_train] - num_train]
    levels = writers.LEVELS - np.concatenate(of_parts).transpose(0, 2, 1)
    yield writers.check(path, str(number), writers.from_levels(levels), labels[rows])
