"""How a client tunes a model of its own: its batches, and whether it beats the shared one.

It is numpy alone, so that a client needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NUM_PARTS = 5  # Of the examples by which a client chooses.


def batches(
  rng: np.random.Generator, num_examples: int, batch_size: int, epochs: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the batches of a client's n examples, with a new order in every epoch.

  It is (order int64 [epochs n], rows of the client's examples; batch_sizes int32 [epochs n], the
  size of the batch that each belongs to); a `batch_size` of 0 takes all examples. A round shuffles
  once, as it makes one pass in the paper's experiments. Over ten passes the same batches in the
  same order would be an artefact.
  """
  batch_size = batch_size or num_examples
  order = [rng.permutation(num_examples) for _ in range(epochs)]
  starts = np.arange(num_examples) // max(batch_size, 1) * batch_size
  sizes = np.minimum(batch_size, num_examples - starts).astype(np.int32)
  return np.concatenate([np.empty(0, np.int64), *order]), np.tile(sizes, epochs)


def is_better(
  rng: np.random.Generator,
  num_examples: int,
  losses: Callable[[np.ndarray, np.ndarray], tuple[float, float]],
) -> bool:
  """Returns whether tuning lowers a client's mean loss on examples that it was not tuned on.

  The examples are cut at random into at most five parts. Each is measured by the shared model, and
  by one that was tuned on the others (cross-fitting), so that the choice looks at no example twice
  and needs none besides. Equal losses, such as those of a single example, and a loss that is no
  number leave the client with the shared model.

  Args:
    rng: Cuts the examples.
    num_examples: The number of the client's examples.
    losses: Takes the rows to tune on and the rows to measure; returns the sums of the losses of
      these with the shared model and with the tuned one.
  """
  if num_examples < 2:
    return False
  parts = np.array_split(rng.permutation(num_examples), min(num_examples, NUM_PARTS))
  shared, own = np.sum(
    [losses(np.concatenate([*parts[:i], *parts[i + 1 :]]), part) for i, part in enumerate(parts)],
    axis=0,
  )
  return bool(own < shared)
