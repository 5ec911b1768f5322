"""What all readers of EMNIST share: the form of a writer's images, and the checks of it.

A writer is (name, x float32 [n, 28, 28] with paper = 1.0 and ink = 0.0, y int32 [n] in 0..61).
"""

from collections.abc import Iterator
import string
from typing import Any

import numpy as np

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
SIDE = 28
LEVELS = 255  # Pixels are k / 255.

Writer = tuple[str, np.ndarray, np.ndarray]


def check(path: str, writer: str, x: np.ndarray, y: np.ndarray) -> Writer:
  """Returns a writer of a file, x float32 [n, 28, 28], y int32 [n], or says what is wrong."""
  # `not all(within)` and not `any(outside)`: NaN is neither below 0 nor above 1.
  if not np.all((x >= 0.0) & (x <= 1.0)):
    raise ValueError(
      f"{path}: writer {writer!r} has pixels that are NaN or outside [0, 1]; expected paper = 1.0"
      " and ink = 0.0."
    )
  if y.dtype.kind not in "iu" or not np.all((y >= 0) & (y < len(CLASSES))):
    raise ValueError(
      f"{path}: writer {writer!r} has labels that are not integers in 0..{len(CLASSES) - 1};"
      f" expected EMNIST's {len(CLASSES)} classes."
    )
  return writer, x.reshape(-1, SIDE, SIDE), y.astype(np.int32)


def from_levels(levels: np.ndarray) -> np.ndarray:
  """Returns levels from 0 for ink to 255 for paper as float32 in [0, 1]."""
  return levels / np.float32(LEVELS)


def rows_of_each(names: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
  """Yields each name, sorted, with the numbers of its rows in their order, int64 [rows]."""
  unique, owners, counts = np.unique(names, return_inverse=True, return_counts=True)
  rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
  yield from zip(unique, rows)
