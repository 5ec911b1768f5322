"""Reads handwriting by writer from the Parquet file of Hugging Face's `flwrlabs/femnist`.

A row is an image: a structure of PNG `bytes` and a path; `writer_id`, such as f0000_14; `hsf_id`,
the part of NIST's collection; and `character`, the class from 0 to 61.
"""

from collections.abc import Iterator
from typing import Any

from absl import logging
import numpy as np
from pyarrow import parquet
import tensorflow as tf

from tasks.emnist import writers

FILE_NAME = "train-00000-of-00001.parquet"
_COLUMNS = ("image", "writer_id", "character")


def _not_femnist(path: str, reason: str) -> ValueError:
  return ValueError(
    f"{path} {reason}; expected the Parquet file of Hugging Face's flwrlabs/femnist: download it"
    " again, or name another with --data_dir."
  )


def check(path: str) -> None:
  """Raises a `ValueError` if the file is another."""
  try:
    with parquet.ParquetFile(path) as file:
      missing = set(_COLUMNS) - set(file.schema_arrow.names)
  except (OSError, ValueError) as e:
    raise _not_femnist(path, "is not readable as Parquet") from e
  if missing:
    raise _not_femnist(path, f"has no columns {sorted(missing)}")


def _decode(path: str, writer: str, pngs: list[Any]) -> np.ndarray:
  """Returns a writer's images, uint8 [n, 28, 28], from the bytes of PNG files."""
  side = writers.SIDE
  try:
    images = [tf.io.decode_png(png, channels=1).numpy()[:, :, 0] for png in pngs]
  except (tf.errors.InvalidArgumentError, TypeError, ValueError) as e:
    raise _not_femnist(path, f"has an image of writer {writer!r} that is not PNG") from e
  if any(image.shape != (side, side) for image in images):
    raise _not_femnist(path, f"has an image of writer {writer!r} that is not {side} x {side}")
  return np.stack(images)


def iterate(path: str) -> Iterator[writers.Writer]:
  """Yields the writers of the Parquet file, sorted.

  Paper is the most frequent half of a writer's levels: where that is black, as in EMNIST's own
  files, the writer's images are turned into paper = 1.0 and ink = 0.0. So no writer's images follow
  from another's.
  """
  check(path)
  logging.info("Reading %s.", path)
  try:
    table = parquet.read_table(path, columns=list(_COLUMNS)).combine_chunks()
    names = table["writer_id"].to_numpy()
    labels = table["character"].to_numpy()
    pngs = table.flatten()["image.bytes"]
  except (OSError, ValueError, KeyError) as e:  # Arrow's errors are such ones.
    raise _not_femnist(path, "has columns that cannot be read") from e
  if table["writer_id"].null_count:
    raise _not_femnist(path, "has rows without a writer_id")
  if np.issubdtype(names.dtype, np.integer):  # Numbers are names, too.
    names = names.astype(str).astype(object)
  if any(not isinstance(name, str) for name in names):
    raise _not_femnist(path, "has a writer_id that is neither a text nor a whole number")
  for name, rows in writers.rows_of_each(names):
    levels = _decode(path, name, pngs.take(rows).to_pylist())
    is_paper_black = np.median(levels) < writers.LEVELS / 2
    x = writers.LEVELS - levels if is_paper_black else levels
    yield writers.check(path, name, writers.from_levels(x), labels[rows])
