"""Generates handwriting with the shapes of EMNIST: writers, classes and pixels, all invented."""

from collections.abc import Iterator
import functools
import logging

import numpy as np

_LOG = logging.getLogger("tff_superquantile.tasks")

VERSION = "v1"  # A change of the drawing changes this too.
NUM_WRITERS = 400

_SIDE = 28
_SEED = 62
_SMALLEST, _LARGEST = 100, 400  # Images of a writer.
_STROKES = 2
_POINTS_PER_STROKE = 48
_NUM_DIGITS, _NUM_LETTERS = 10, 26
_CASE_DIFFERENCE = 0.13  # A lower case letter's control points differ so, in images.
_LEVELS = 255


def _draw_classes(rng: np.random.Generator) -> np.ndarray:
  """Draws control points of cubic Bezier curves in [0, 1]^2, [62, strokes, 4, 2]."""
  shape = (_STROKES, 4, 2)
  distinct = rng.uniform(0.05, 0.95, (_NUM_DIGITS + _NUM_LETTERS, *shape))
  lower = distinct[_NUM_DIGITS:] + _CASE_DIFFERENCE * rng.standard_normal((_NUM_LETTERS, *shape))
  return np.concatenate([distinct, lower])


@functools.lru_cache(maxsize=1)
def _bernstein() -> np.ndarray:
  """Returns the map from a cubic Bezier curve's control points to its points, [points, 4]."""
  t = np.linspace(0.0, 1.0, _POINTS_PER_STROKE)
  return np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)


def _render(points: np.ndarray, thickness: float) -> np.ndarray:
  """Draws n images, uint8 [n, 28, 28], paper = 255, through points (row, column) [n, points, 2]."""
  n = len(points)
  corner = np.floor(points).astype(np.int64)
  ink = np.zeros(n * _SIDE * _SIDE)
  for row in (0, 1):  # Every point is shared out to the four pixels around it.
    for column in (0, 1):
      at = corner + (row, column)
      share = np.prod(1.0 - np.abs(points - at), axis=2)
      inside = np.all((at >= 0) & (at < _SIDE), axis=2)
      pixel = (np.arange(n)[:, np.newaxis] * _SIDE + at[..., 0]) * _SIDE + at[..., 1]
      ink += np.bincount(pixel[inside], share[inside], minlength=len(ink))
  distance = np.subtract.outer(np.arange(_SIDE), np.arange(_SIDE))
  blur = np.exp(-0.5 * (distance / thickness) ** 2)
  ink = blur @ ink.reshape(n, _SIDE, _SIDE) @ blur
  # A pen can't make paper blacker than black.
  return np.rint(_LEVELS * np.exp(-1.5 * ink)).astype(np.uint8)


def _write(
  rng: np.random.Generator, classes: np.ndarray, y: np.ndarray, irregularity: float
) -> np.ndarray:
  """Returns the images uint8 [n, 28, 28] that a more or less irregular writer makes of labels."""
  hand = classes + irregularity * rng.standard_normal(classes.shape)
  control = hand[y] + 0.5 * irregularity * rng.standard_normal((len(y), *classes.shape[1:]))
  points = (_bernstein() @ control).reshape(len(y), -1, 2) - 0.5
  slant, turn = rng.normal(0.0, 0.2), rng.normal(0.0, 0.12)
  size = rng.uniform(18.0, 24.0)
  rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
  points = size * points @ np.array([[1.0, slant], [0.0, 1.0]]) @ rotation
  shift = rng.normal(0.0, 0.7, (len(y), 1, 2))
  return _render(points + shift + (_SIDE - 1) / 2, rng.uniform(0.7, 1.2))


def make_writers() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields the writers, always the same ones, with n from 100 to 400 examples.

  A writer is (id, x uint8 [n, 28, 28] with paper = 255 and ink = 0, y int32 [n] in 0..61).
  """
  _LOG.info("Making %d writers of invented handwriting, once.", NUM_WRITERS)
  classes = _draw_classes(np.random.default_rng(_SEED))
  for i in range(NUM_WRITERS):
    rng = np.random.default_rng([_SEED, i])
    # Most writers have written about the fewest images that a task takes.
    count = int(_SMALLEST + (_LARGEST - _SMALLEST) * rng.beta(1.0, 2.5))
    frequencies = rng.dirichlet(np.full(len(classes), 1.0))
    y = rng.choice(len(classes), count, p=frequencies).astype(np.int32)
    irregularity = 0.045 + 0.12 * rng.beta(1.2, 3.0)
    yield f"standin_{i:04d}", _write(rng, classes, y, irregularity), y
