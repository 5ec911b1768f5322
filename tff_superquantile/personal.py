"""How a client tunes a model of its own: its batches, and for how many epochs, or not at all.

It is numpy alone, so that a client needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

NUM_PARTS = 5  # Of the examples by which a client chooses.
# Epochs among which it chooses. Ten, the paper's, do not turn the sign of a weight at a late rate.
EPOCHS = (3, 10, 30, 100)


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


def choose_epochs(
  rng: np.random.Generator,
  num_examples: int,
  choices: Sequence[int],
  loss: Callable[[int, np.ndarray, np.ndarray], float],
) -> int:
  """Returns for how many epochs a client tunes; 0 where the shared model serves it no worse.

  The examples are cut at random into at most five parts. Each is measured by the shared model, and
  by models that were tuned on the others for each number of epochs (cross-fitting), so that the
  choice looks at no example twice and needs none besides. Numbers are tried from the least on while
  each has a lower loss than the one before: a client that tuning does not help tunes little. Equal
  losses, such as those of a single example, and a loss that is no number leave the client with
  what it had.

  Args:
    rng: Cuts the examples.
    num_examples: The number of the client's examples.
    choices: Positive numbers of epochs.
    loss: Takes a number of epochs, 0 for the shared model, the rows to tune on and the rows to
      measure; returns the sum of the losses of these.
  """
  if num_examples < 2:
    return 0
  parts = np.array_split(rng.permutation(num_examples), min(num_examples, NUM_PARTS))

  def of_all(epochs: int) -> float:
    others = (np.concatenate([*parts[:i], *parts[i + 1 :]]) for i in range(len(parts)))
    return sum(loss(epochs, tuned_on, part) for tuned_on, part in zip(others, parts))

  chosen, least = 0, of_all(0)
  for epochs in sorted(set(choices)):
    if not (own := of_all(epochs)) < least:
      break
    chosen, least = epochs, own
  return chosen
